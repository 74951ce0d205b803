//! The micro-kernel: a few rows times a few columns of sixteen over one block of the reduced index,
//! held in registers. The only file of the matrix kernels with instruction-set specific code.

use crate::kernel::isa::Isa;
use std::ops::Range;

/// Most rows of one tile.
pub const MR: usize = 6;
/// Columns of one sliver of the right operand.
pub const NR: usize = 16;

/// The left operand in slivers of [`MR`] rows: element (i, k) at
/// `ptr + (i / MR) * sliver + (i % MR) * row + k * step`.
#[derive(Clone, Copy)]
pub struct Left {
    /// Element (0, 0).
    pub ptr: *const f32,
    /// Distance between slivers.
    pub sliver: usize,
    /// Distance between rows of a sliver.
    pub row: usize,
    /// Distance between reduced indices.
    pub step: usize,
}

/// The right operand in slivers of [`NR`] columns: element (k, j) at
/// `ptr + (j / NR) * sliver + k * step + j % NR`. Whole slivers must be readable; what lies past the
/// last column does not matter.
#[derive(Clone, Copy)]
pub struct Right {
    /// Element (0, 0).
    pub ptr: *const f32,
    /// Distance between slivers.
    pub sliver: usize,
    /// Distance between reduced indices.
    pub step: usize,
}

/// The output: element (i, j) at `ptr + i * row + (j / inner) * outer + j % inner`.
#[derive(Clone, Copy)]
pub struct Target {
    /// Element (0, 0).
    pub ptr: *mut f32,
    /// Distance between rows.
    pub row: usize,
    /// Columns in one contiguous run.
    pub inner: usize,
    /// Distance between runs.
    pub outer: usize,
}

impl Target {
    /// Rows of contiguous columns at distance `row`.
    pub fn rows(ptr: *mut f32, row: usize) -> Target {
        Target { ptr, row, inner: usize::MAX, outer: 0 }
    }

    fn column(&self, j: usize) -> usize {
        j / self.inner * self.outer + j % self.inner
    }
}

/// How a finished block reaches the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// `c = block`.
    Set,
    /// `c = c + block`.
    Add,
}

/// `c (+)= a · b` over `k` reduced indices as one chain (so `k` is at most one block). Operands start
/// at their first row and column; the output block is `rows` x `cols` of `c`.
///
/// # Safety
/// Every element of `a`, of the whole slivers of `b`, and of the block of `c` must be valid, and the
/// block must overlap neither operand.
#[allow(clippy::too_many_arguments)]
pub unsafe fn multiply(
    isa: Isa,
    rows: Range<usize>,
    cols: Range<usize>,
    k: usize,
    a: Left,
    b: Right,
    c: Target,
    store: Store,
) {
    let mut j = 0;
    while j < cols.len() {
        // With few rows, wider tiles keep enough independent chains in flight.
        let slivers = match (rows.len(), (cols.len() - j) / NR) {
            (1, 4..) => 4,
            (1..=3, 2..) => 2,
            _ => 1,
        };
        let n = (cols.len() - j).min(slivers * NR);
        let at = cols.start + j;
        let in_place = n == slivers * NR && at % c.inner + n <= c.inner;
        let b = Right { ptr: b.ptr.wrapping_add(j / NR * b.sliver), ..b };
        for i in (0..rows.len()).step_by(MR) {
            let m = (rows.len() - i).min(MR);
            let a = Left { ptr: a.ptr.wrapping_add(i / MR * a.sliver), ..a };
            let corner = c.ptr.wrapping_add((rows.start + i) * c.row);
            // SAFETY: the tile lies inside the operands and the block the caller vouches for.
            unsafe {
                if in_place {
                    let to = Target { ptr: corner.add(c.column(at)), ..c };
                    tile(isa, m, slivers, k, a, b, to, store);
                } else {
                    let mut whole = [0.0; 2 * MR * NR];
                    let to = Target::rows(whole.as_mut_ptr(), slivers * NR);
                    tile(isa, m, slivers, k, a, b, to, Store::Set);
                    scatter(&whole, slivers * NR, m, at..at + n, Target { ptr: corner, ..c }, store);
                }
            }
        }
        j += slivers * NR;
    }
}

/// Moves the columns `cols` of a finished tile, stored in rows of `width`, to the output run by run.
///
/// # Safety
/// `c` is valid for `m` rows of these columns.
unsafe fn scatter(whole: &[f32], width: usize, m: usize, cols: Range<usize>, c: Target, store: Store) {
    let mut from = 0;
    while from < cols.len() {
        let at = cols.start + from;
        let run = (cols.len() - from).min(c.inner - at % c.inner);
        let to = c.column(at);
        for (i, row) in whole.chunks_exact(width).take(m).enumerate() {
            for (j, &v) in row[from..from + run].iter().enumerate() {
                // SAFETY: inside the caller's bounds.
                unsafe {
                    let p = c.ptr.add(i * c.row + to + j);
                    *p = if store == Store::Add { *p + v } else { v };
                }
            }
        }
        from += run;
    }
}

/// One tile of `m` rows and `slivers` whole slivers.
///
/// # Safety
/// As [`multiply`].
#[allow(clippy::too_many_arguments)]
#[inline]
unsafe fn tile(isa: Isa, m: usize, slivers: usize, k: usize, a: Left, b: Right, c: Target, store: Store) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        // SAFETY: the instructions exist by the proof in `isa`; bounds are the caller's.
        return unsafe {
            match (m, slivers) {
                (1, 4) => avx2::tile::<1, 4>(k, a, b, c, store),
                (1, 2) => avx2::tile::<1, 2>(k, a, b, c, store),
                (2, 2) => avx2::tile::<2, 2>(k, a, b, c, store),
                (3, 2) => avx2::tile::<3, 2>(k, a, b, c, store),
                (1, _) => avx2::tile::<1, 1>(k, a, b, c, store),
                (2, _) => avx2::tile::<2, 1>(k, a, b, c, store),
                (3, _) => avx2::tile::<3, 1>(k, a, b, c, store),
                (4, _) => avx2::tile::<4, 1>(k, a, b, c, store),
                (5, _) => avx2::tile::<5, 1>(k, a, b, c, store),
                _ => avx2::tile::<6, 1>(k, a, b, c, store),
            }
        };
    }
    let _ = isa;
    for s in 0..slivers {
        for i in 0..m {
            let mut acc = [0.0f32; NR];
            // SAFETY: inside the caller's bounds.
            unsafe {
                for k in 0..k {
                    let x = *a.ptr.add(i * a.row + k * a.step);
                    let y = b.ptr.add(s * b.sliver + k * b.step);
                    for (j, acc) in acc.iter_mut().enumerate() {
                        *acc = x.mul_add(*y.add(j), *acc);
                    }
                }
                for (j, &acc) in acc.iter().enumerate() {
                    let p = c.ptr.add(i * c.row + s * NR + j);
                    *p = if store == Store::Add { *p + acc } else { acc };
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Left, NR, Right, Store, Target};
    use std::arch::x86_64::*;

    /// Keeps `M * S * 2` accumulators in registers: at most twelve.
    ///
    /// # Safety
    /// As [`super::tile`], on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn tile<const M: usize, const S: usize>(k: usize, a: Left, b: Right, c: Target, store: Store) {
        let mut acc = [[[_mm256_setzero_ps(); 2]; S]; M];
        let (mut pa, mut pb) = (a.ptr, b.ptr);
        // SAFETY: all addresses are elements the caller vouches for; stepping past the last is wrapping.
        unsafe {
            // The output is needed after the sums; asking now hides its way from memory.
            for i in 0..M {
                let p = c.ptr.add(i * c.row);
                _mm_prefetch::<_MM_HINT_T0>(p.cast());
                _mm_prefetch::<_MM_HINT_T0>(p.add(S * NR - 1).cast());
            }
            for _ in 0..k {
                let mut y = [[_mm256_setzero_ps(); 2]; S];
                for (s, y) in y.iter_mut().enumerate() {
                    let p = pb.add(s * b.sliver);
                    *y = [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))];
                }
                for (i, acc) in acc.iter_mut().enumerate() {
                    let x = _mm256_broadcast_ss(&*pa.add(i * a.row));
                    for (acc, y) in acc.iter_mut().zip(&y) {
                        acc[0] = _mm256_fmadd_ps(x, y[0], acc[0]);
                        acc[1] = _mm256_fmadd_ps(x, y[1], acc[1]);
                    }
                }
                pa = pa.wrapping_add(a.step);
                pb = pb.wrapping_add(b.step);
            }
            for (i, acc) in acc.iter().enumerate() {
                for (h, &v) in acc.as_flattened().iter().enumerate() {
                    let p = c.ptr.add(i * c.row + h * 8);
                    let v = if store == Store::Add { _mm256_add_ps(_mm256_loadu_ps(p), v) } else { v };
                    _mm256_storeu_ps(p, v);
                }
            }
        }
    }
}
