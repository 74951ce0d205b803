//! Elementary functions as fixed sequences of basic operations: the same bits on every machine.
//! All are branch free (selects only), so a loop over a slice vectorises; NaN in gives NaN out.

/// Adding this to a float of moderate size rounds it to an integer, kept in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 split in two: the first part has few bits, so multiples of it up to 2^15 are exact.
const LN2_HI: f32 = 355.0 / 512.0;
const LN2_LO: f32 = -2.121_944_4e-4;

/// Horner's rule with fused multiply-adds, highest coefficient first.
#[inline(always)]
fn poly<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut acc = c[0];
    let mut i = 1;
    while i < N {
        acc = acc.mul_add(x, c[i]);
        i += 1;
    }
    acc
}

/// `x` limited to `[lo, hi]`; unlike `f32::clamp` it is only selects, and it keeps NaN.
#[inline(always)]
fn limit(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// The power of two with a small integer exponent in the range of normal floats.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// e^x = p·2^n as p and n plus [`ROUND`], for x within ±104.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, f32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HI, x);
    let r = n.mul_add(-LN2_LO, r);
    let p = poly(r, [1.395_052_4e-3, 8.368_908e-3, 4.166_620_6e-2, 1.666_651_8e-1, 0.5]);
    ((r * r).mul_add(p, r) + 1.0, shifted)
}

/// e^x, within 1 ulp; overflows to infinity and underflows through the denormals to zero.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (p, shifted) = exp_parts(limit(x, -104.0, 89.0));
    // Two factors, because the exponent may lie outside the range of one.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    p * pow2(half) * pow2(n.wrapping_sub(half))
}

/// [`exp`] at less cost: the same bits from -87.3 to 88.3, zero below -87.7, infinity above 88.4.
#[inline(always)]
pub fn exp_normal(x: f32) -> f32 {
    let (p, shifted) = exp_parts(limit(x, -88.0, 88.5));
    // The low bits hold n from -127, whose power of two becomes 0, to 128, where it is infinity.
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

/// The natural logarithm, within 2 ulp; -infinity at zero, NaN below.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let denormal = x < f32::MIN_POSITIVE;
    let scaled = if denormal { x * 8_388_608.0 } else { x };
    // Splits at sqrt(1/2): the mantissa lands in [sqrt(1/2), sqrt(2)).
    const SPLIT: i32 = 0x3f35_04f3;
    let bits = scaled.to_bits() as i32;
    let e = bits.wrapping_sub(SPLIT) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let e = e as f32 - if denormal { 23.0 } else { 0.0 };
    let p = poly(
        f,
        [
            6.916_766e-2,
            -1.179_172e-1,
            1.187_336_4e-1,
            -1.238_406_9e-1,
            1.421_857_6e-1,
            -1.666_926_3e-1,
            2.000_223_1e-1,
            -2.499_998_7e-1,
            3.333_331e-1,
        ],
    );
    let ff = f * f;
    let tail = (f * p).mul_add(ff, e * LN2_LO);
    let tail = ff.mul_add(-0.5, tail);
    let y = e.mul_add(LN2_HI, f + tail);
    let y = if x < f32::INFINITY { y } else { x };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 { f32::NAN } else { y }
}

/// ln(1 + x) for x in [0, 1], within 3 ulp even where 1 + x rounds.
#[inline(always)]
fn ln_1p_unit(x: f32) -> f32 {
    let u = 1.0 + x;
    ln(u) + (x - (u - 1.0)) / u
}

/// The hyperbolic tangent, within 2 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p =
        poly(z, [2.147_273_6e-3, -8.182_397e-3, 2.170_286e-2, -5.394_718_4e-2, 1.333_321e-1, -3.333_333e-1]);
    let small = (a * z).mul_add(p, a);
    // Beyond 9.1 the result is 1 to the last bit.
    let large = 1.0 - 2.0 / (exp_normal(2.0 * limit(a, 0.0, 9.1)) + 1.0);
    let y = if a < 0.625 { small } else { large };
    y.copysign(x)
}

/// The error function, within 2 ulp.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = poly(
        z,
        [
            -9.679_729e-6,
            1.127_041_25e-4,
            -8.484_695e-4,
            5.221_074e-3,
            -2.686_544_5e-2,
            1.128_378_3e-1,
            -3.761_264e-1,
            1.283_791_7e-1,
        ],
    );
    let small = a.mul_add(p, a);
    // 1 - e^-q with q = -ln(erfc a); beyond 4.1 the result is 1 to the last bit.
    let t = limit(a, 0.0, 4.1);
    let q = poly(
        t,
        [
            2.168_674_8e-5,
            -4.413_351e-4,
            4.204_555_4e-3,
            -2.520_823_9e-2,
            1.084_185_5e-1,
            6.332_199e-1,
            1.129_578_4,
            -1.880_364_4e-4,
        ],
    );
    let large = 1.0 - exp_normal(-q);
    let y = if a < 1.0 { small } else { large };
    y.copysign(x)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp_normal(-x))
}

/// Derivative of [`sigmoid`] by its argument.
#[inline(always)]
pub fn sigmoid_grad(x: f32) -> f32 {
    // Symmetric, so the argument with the accurate complement serves both sides.
    let e = exp_normal(-x.abs());
    let s = 1.0 / (1.0 + e);
    e * s * s
}

/// [`sigmoid`] and its derivative from one exponential.
#[inline(always)]
fn sigmoid_and_grad(x: f32) -> (f32, f32) {
    let e = exp_normal(-x.abs());
    let s = 1.0 / (1.0 + e);
    (if x < 0.0 { e * s } else { s }, e * s * s)
}

/// Derivative of [`tanh`] by its argument.
#[inline(always)]
pub fn tanh_grad(x: f32) -> f32 {
    let e = exp_normal(-2.0 * x.abs());
    let s = 1.0 / (1.0 + e);
    4.0 * e * s * s
}

/// ln(1 + e^x) without overflow; its derivative is [`sigmoid`].
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + ln_1p_unit(exp_normal(-x.abs()))
}

/// x · sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    // Far to the left the product is zero; limiting keeps -infinity from giving NaN.
    let x = limit(x, -128.0, f32::INFINITY);
    x * sigmoid(x)
}

/// Derivative of [`silu`].
#[inline(always)]
pub fn silu_grad(x: f32) -> f32 {
    let x = limit(x, -128.0, 128.0);
    let (value, slope) = sigmoid_and_grad(x);
    x.mul_add(slope, value)
}

/// x · Φ(x) with the error function.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    let x = limit(x, -16.0, f32::INFINITY);
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Derivative of [`gelu`].
#[inline(always)]
pub fn gelu_grad(x: f32) -> f32 {
    const INV_SQRT_TAU: f32 = 0.398_942_3;
    let x = limit(x, -16.0, 16.0);
    let cdf = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
    let pdf = INV_SQRT_TAU * exp_normal(-0.5 * x * x);
    x.mul_add(pdf, cdf)
}

/// Twice √(2/π), because `(1 + tanh u)/2` is the sigmoid of `2u`.
const GELU_SCALE: f32 = 2.0 * 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

/// The tanh approximation of [`gelu`]: x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³))).
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    let x = limit(x, -16.0, f32::INFINITY);
    x * sigmoid(GELU_SCALE * (GELU_CUBIC * x * x).mul_add(x, x))
}

/// Derivative of [`gelu_tanh`].
#[inline(always)]
pub fn gelu_tanh_grad(x: f32) -> f32 {
    let x = limit(x, -16.0, 16.0);
    let square = GELU_CUBIC * x * x;
    let (value, slope) = sigmoid_and_grad(GELU_SCALE * square.mul_add(x, x));
    (x * slope).mul_add(GELU_SCALE * square.mul_add(3.0, 1.0), value)
}

/// 1 / √x.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::bits;
    use crate::team::isa::{Isa, simd};

    /// Distance in units of the last place of the exact value.
    fn ulps(got: f32, want: f64) -> f64 {
        let nearest = want as f32;
        if got == nearest || (got.is_nan() && want.is_nan()) {
            return 0.0;
        }
        let size = nearest.abs().max(f32::MIN_POSITIVE);
        let ulp = (f32::from_bits(size.to_bits() + 1) - size) as f64;
        (got as f64 - want).abs() / ulp
    }

    /// Every 997th float, both signs, the specials, and a dense stretch around zero.
    fn sweep() -> impl Iterator<Item = f32> {
        let wide = (0..=u32::MAX / 997).map(|i| f32::from_bits(i * 997));
        let dense = (-200_000..200_000).map(|i| i as f32 * 6e-5);
        wide.chain(dense).chain([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE])
    }

    /// Series or continued fraction in f64, right to about 1e-15.
    fn erf64(x: f64) -> f64 {
        let a = x.abs();
        if a.is_nan() || a > 6.0 {
            return if a.is_nan() { x } else { x.signum() };
        }
        if a < 2.0 {
            let (mut term, mut sum, mut n) = (x, x, 0.0);
            while term.abs() > 1e-18 * sum.abs() {
                n += 1.0;
                term *= -x * x / n;
                sum += term / (2.0 * n + 1.0);
            }
            return sum * 2.0 / std::f64::consts::PI.sqrt();
        }
        let mut f = 0.0;
        for n in (1..=200).rev() {
            f = 0.5 * n as f64 / (a + f);
        }
        x.signum() * (1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + f))
    }

    #[test]
    fn accuracy_over_a_dense_sweep() {
        type Row = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f64);
        let rows: [Row; 5] = [
            ("exp", exp, f64::exp, 2.0),
            ("ln", ln, f64::ln, 2.0),
            ("tanh", tanh, f64::tanh, 4.0),
            ("erf", erf, erf64, 4.0),
            ("rsqrt", rsqrt, |x| 1.0 / x.sqrt(), 2.0),
        ];
        for (name, f, exact, allowed) in rows {
            let worst = sweep()
                .map(|x| (ulps(f(x), exact(x as f64)), x))
                .fold((0.0, 0.0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a });
            assert!(worst.0 <= allowed, "{name}({:e}) is off by {} ulp", worst.1, worst.0);
        }
    }

    #[test]
    fn composed_functions_are_close() {
        let phi = |x: f64| 0.5 * (1.0 + erf64(x / 2f64.sqrt()));
        let pdf = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let sig = |x: f64| 1.0 / (1.0 + (-x).exp());
        let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        let slope = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
        type Row<'a> = (&'static str, fn(f32) -> f32, &'a dyn Fn(f64) -> f64);
        let rows: [Row<'_>; 10] = [
            ("sigmoid", sigmoid, &sig),
            ("sigmoid_grad", sigmoid_grad, &|x| sig(x) * sig(-x)),
            ("tanh_grad", tanh_grad, &|x| 1.0 / x.cosh().powi(2)),
            ("softplus", softplus, &|x| if x > 40.0 { x } else { x.exp().ln_1p() }),
            ("silu", silu, &|x| x * sig(x)),
            ("silu_grad", silu_grad, &|x| sig(x) * (1.0 + x * sig(-x))),
            ("gelu", gelu, &|x| x * phi(x)),
            ("gelu_grad", gelu_grad, &|x| phi(x) + x * pdf(x)),
            ("gelu_tanh", gelu_tanh, &|x| 0.5 * x * (1.0 + inner(x).tanh())),
            ("gelu_tanh_grad", gelu_tanh_grad, &|x| {
                0.5 * (1.0 + inner(x).tanh()) + 0.5 * x * slope(x) / inner(x).cosh().powi(2)
            }),
        ];
        for (name, f, exact) in rows {
            for i in -60_000..=60_000 {
                let x = i as f32 * 5e-4;
                let want = exact(x as f64);
                assert!(
                    (f(x) as f64 - want).abs() <= 4e-7 * want.abs().max(1.0),
                    "{name}({x}) {} {want}",
                    f(x)
                );
            }
            assert!(f(f32::NAN).is_nan(), "{name}");
        }
    }

    #[test]
    fn the_cheaper_exponential_is_the_exact_one_for_normal_results() {
        for x in sweep() {
            let (got, want) = (exp_normal(x), exp(x));
            match x {
                -87.3..=88.3 => assert_eq!(got.to_bits(), want.to_bits(), "{x:e}"),
                ..-87.7 => assert_eq!(got, 0.0, "{x:e}"),
                88.4.. => assert_eq!(got, f32::INFINITY, "{x:e}"),
                _ => assert!(want.is_nan() == got.is_nan(), "{x:e}"),
            }
        }
    }

    #[test]
    fn infinities() {
        let inf = f32::INFINITY;
        type Row = (&'static str, fn(f32) -> f32, f32, f32);
        let rows: [Row; 13] = [
            ("exp", exp, 0.0, inf),
            ("tanh", tanh, -1.0, 1.0),
            ("erf", erf, -1.0, 1.0),
            ("sigmoid", sigmoid, 0.0, 1.0),
            ("sigmoid_grad", sigmoid_grad, 0.0, 0.0),
            ("tanh_grad", tanh_grad, 0.0, 0.0),
            ("softplus", softplus, 0.0, inf),
            ("silu", silu, 0.0, inf),
            ("silu_grad", silu_grad, 0.0, 1.0),
            ("gelu", gelu, 0.0, inf),
            ("gelu_grad", gelu_grad, 0.0, 1.0),
            ("gelu_tanh", gelu_tanh, 0.0, inf),
            ("gelu_tanh_grad", gelu_tanh_grad, 0.0, 1.0),
        ];
        for (name, f, low, high) in rows {
            assert_eq!((f(-inf), f(inf)), (low, high), "{name}");
        }
        assert!(ln(-1.0).is_nan() && ln(0.0) == -inf && ln(inf) == inf && rsqrt(inf) == 0.0);
    }

    macro_rules! slices {
        ($($f:ident)+) => {
            $(mod $f {
                #[inline(always)]
                pub fn body(x: &[f32], y: &mut [f32]) {
                    for (y, &x) in y.iter_mut().zip(x) {
                        *y = super::super::$f(x);
                    }
                }
            })+
            simd! { $(fn $f(x: &[f32], y: &mut [f32]) = $f::body;)+ }
        };
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        slices!(exp exp_normal ln tanh erf sigmoid sigmoid_grad tanh_grad softplus silu silu_grad gelu gelu_grad gelu_tanh gelu_tanh_grad rsqrt);
        type Row = (&'static str, fn(Isa, &[f32], &mut [f32]));
        macro_rules! rows {
            ($($f:ident)+) => { [$((stringify!($f), $f as fn(Isa, &[f32], &mut [f32]))),+] };
        }
        let rows: [Row; 16] = rows!(exp exp_normal ln tanh erf sigmoid sigmoid_grad tanh_grad softplus silu silu_grad gelu gelu_grad gelu_tanh gelu_tanh_grad rsqrt);
        let x: Vec<f32> = sweep().step_by(17).filter(|x| !x.is_nan()).collect();
        for (name, f) in rows {
            let results = Isa::all().into_iter().map(|isa| {
                let mut y = vec![0.0; x.len()];
                f(isa, &x, &mut y);
                y.iter_mut().filter(|y| y.is_nan()).for_each(|y| *y = f32::NAN);
                bits(&y)
            });
            let results: Vec<_> = results.collect();
            assert!(results.windows(2).all(|w| w[0] == w[1]), "{name}");
        }
    }
}
