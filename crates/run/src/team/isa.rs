//! Which instructions a kernel may use, found at run time. The choice is a matter of speed only:
//! every path gives the same bits (see the parent module).

use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Portable,
    Avx2,
}

/// Proof that this machine has certain instructions: only detection makes anything but portable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

impl Isa {
    /// The best instructions this machine has.
    pub fn detect() -> Isa {
        static FOUND: OnceLock<Isa> = OnceLock::new();
        *FOUND.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa(Level::Avx2);
            }
            Isa(Level::Portable)
        })
    }

    /// What the compiler assumes for every machine of this architecture; for comparison in tests.
    pub fn portable() -> Isa {
        Isa(Level::Portable)
    }

    /// Whether AVX2 and FMA may be used.
    #[inline(always)]
    pub fn has_avx2(self) -> bool {
        self.0 == Level::Avx2
    }

    /// Every path that can run here, portable first.
    pub fn all() -> Vec<Isa> {
        let mut all = vec![Isa::portable()];
        if Isa::detect() != Isa::portable() {
            all.push(Isa::detect());
        }
        all
    }
}

/// Compiles an `#[inline(always)]` body once per instruction set and dispatches on an [`Isa`]:
/// `simd! { pub fn name(x: &[f32]) -> f32 = body; }` defines `name(isa, x)`. The body is ordinary
/// Rust in a form the compiler vectorises; `f32::mul_add` in it becomes the hardware instruction.
macro_rules! simd {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path;)+) => {$(
        $(#[$meta])*
        #[inline]
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::team::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if isa.has_avx2() {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                // SAFETY: an `Isa` with AVX2 exists only where detection found AVX2 and FMA.
                return unsafe { wide($($arg),*) };
            }
            let _ = isa;
            $body($($arg),*)
        }
    )+};
}
pub(crate) use simd;
