//! The micro-kernel: a few rows times a few columns of sixteen over one block of the reduced index,
//! held in registers. The only file of the matrix kernels with instruction-set specific code.

use crate::team::isa::Isa;
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
        let b = Right { ptr: b.ptr.wrapping_add(j / NR * b.sliver), ..b };
        let corner = c.ptr.wrapping_add(rows.start * c.row);
        // SAFETY: the strip lies inside the operands and the block the caller vouches for.
        unsafe {
            if n == slivers * NR && at % c.inner + n <= c.inner {
                let to = Target { ptr: corner.add(c.column(at)), ..c };
                strip(isa, rows.len(), slivers, k, a, b, to, store);
            } else {
                for i in (0..rows.len()).step_by(MR) {
                    let m = (rows.len() - i).min(MR);
                    let mut whole = [0.0; 2 * MR * NR];
                    let to = Target::rows(whole.as_mut_ptr(), slivers * NR);
                    let a = Left { ptr: a.ptr.wrapping_add(i / MR * a.sliver), ..a };
                    strip(isa, m, slivers, k, a, b, to, Store::Set);
                    let corner = corner.wrapping_add(i * c.row);
                    scatter(&whole, slivers * NR, m, at..at + n, Target { ptr: corner, ..c }, store);
                }
            }
        }
        j += slivers * NR;
    }
}

/// `c (+)= a · b` where the rows of `a` lie anywhere: element (i, k) at `base + rows[i] + steps[k]`.
/// `panel` is one packed sliver of the right operand, `c` has rows of [`NR`].
///
/// # Safety
/// Every such element is valid, `panel` has `steps.len()` rows of [`NR`], and so has `c` `rows.len()`,
/// which overlap neither operand.
pub unsafe fn gathered(
    isa: Isa,
    base: *const f32,
    rows: &[usize],
    steps: &[usize],
    panel: *const f32,
    c: *mut f32,
    store: Store,
) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        // SAFETY: the instructions exist by the proof in `isa`; bounds are the caller's.
        return unsafe { avx2::gathered(base, rows, steps, panel, c, store) };
    }
    let _ = isa;
    for (i, row) in rows.iter().enumerate() {
        let mut acc = [0.0f32; NR];
        // SAFETY: inside the caller's bounds.
        unsafe {
            for (k, step) in steps.iter().enumerate() {
                let x = *base.add(row + step);
                for (j, acc) in acc.iter_mut().enumerate() {
                    *acc = x.mul_add(*panel.add(k * NR + j), *acc);
                }
            }
            finish(&acc, c.add(i * NR), store);
        }
    }
}

/// Stores or adds finished sums.
///
/// # Safety
/// `to` is valid for as many elements.
unsafe fn finish(acc: &[f32], to: *mut f32, store: Store) {
    for (j, &acc) in acc.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let p = to.add(j);
            *p = if store == Store::Add { *p + acc } else { acc };
        }
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

/// All of `m` rows and `slivers` whole slivers, tile by tile.
///
/// # Safety
/// As [`multiply`].
#[allow(clippy::too_many_arguments)]
#[inline]
unsafe fn strip(isa: Isa, m: usize, slivers: usize, k: usize, a: Left, b: Right, c: Target, store: Store) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        // SAFETY: the instructions exist by the proof in `isa`; bounds are the caller's.
        return unsafe {
            match slivers {
                4 => avx2::strip::<4>(m, k, a, b, c, store),
                2 => avx2::strip::<2>(m, k, a, b, c, store),
                _ => avx2::strip::<1>(m, k, a, b, c, store),
            }
        };
    }
    let _ = isa;
    for s in 0..slivers {
        for i in 0..m {
            let mut acc = [0.0f32; NR];
            let row = a.ptr.wrapping_add(i / MR * a.sliver + i % MR * a.row);
            // SAFETY: inside the caller's bounds.
            unsafe {
                for k in 0..k {
                    let x = *row.add(k * a.step);
                    let y = b.ptr.add(s * b.sliver + k * b.step);
                    for (j, acc) in acc.iter_mut().enumerate() {
                        *acc = x.mul_add(*y.add(j), *acc);
                    }
                }
                finish(&acc, c.ptr.add(i * c.row + s * NR), store);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Left, MR, NR, Right, Store, Target};
    use std::arch::x86_64::*;

    type Sums<const M: usize, const S: usize> = [[[__m256; 2]; S]; M];

    /// As [`super::strip`].
    ///
    /// # Safety
    /// As there, on a machine with AVX2 and FMA; at most `12 / 2 / S` rows in a tile.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn strip<const S: usize>(m: usize, k: usize, a: Left, b: Right, c: Target, store: Store) {
        // Rows at even distances are divided evenly: four tiles of five keep more chains in flight than
        // three of six and one of two.
        let tiles = m.div_ceil(MR).max(1);
        let even = a.sliver == MR * a.row;
        let height = if even { m.div_ceil(tiles).max(1) } else { MR };
        let share = k.div_ceil(tiles);
        for (t, i) in (0..m).step_by(height).enumerate() {
            let row = if even { i * a.row } else { i / MR * a.sliver };
            let a = Left { ptr: a.ptr.wrapping_add(row), ..a };
            let c = Target { ptr: c.ptr.wrapping_add(i * c.row), ..c };
            // The next strip's slivers come from further off while this one is multiplied.
            for k in t * share..k.min((t + 1) * share) {
                for s in S..2 * S {
                    _mm_prefetch::<_MM_HINT_T1>(b.ptr.wrapping_add(s * b.sliver + k * b.step).cast());
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                match (height.min(m - i), S) {
                    (1, _) => tile::<1, S>(k, a, b, c, store),
                    (2, 1 | 2) => tile::<2, S>(k, a, b, c, store),
                    (3, 1 | 2) => tile::<3, S>(k, a, b, c, store),
                    (4, 1) => tile::<4, S>(k, a, b, c, store),
                    (5, 1) => tile::<5, S>(k, a, b, c, store),
                    (6, 1) if a.row == 1 && a.step == MR => packed::<S>(k, a, b, c, store),
                    (6, 1) => tile::<6, S>(k, a, b, c, store),
                    (rows, _) => unreachable!("a tile of {rows} rows and {S} slivers"),
                }
            }
        }
    }

    /// One tile whose rows lie at a distance.
    ///
    /// # Safety
    /// As [`strip`].
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile<const M: usize, const S: usize>(k: usize, a: Left, b: Right, c: Target, store: Store) {
        let rows: [*const f32; M] = std::array::from_fn(|i| a.ptr.wrapping_add(i * a.row));
        let mut acc: Sums<M, S> = [[[_mm256_setzero_ps(); 2]; S]; M];
        ask_for::<M, S>(c);
        let mut y = b.ptr;
        for k in 0..k {
            // SAFETY: element k of rows the caller vouches for; stepping past the last is wrapping.
            unsafe { multiply_add(&mut acc, y, b.sliver, |i| *rows[i].add(k * a.step)) };
            y = y.wrapping_add(b.step);
        }
        // SAFETY: the caller's promise.
        unsafe { put(&acc, c, store) };
    }

    /// One full tile of a packed left operand: [`MR`] rows side by side.
    ///
    /// # Safety
    /// As [`strip`].
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn packed<const S: usize>(k: usize, a: Left, b: Right, c: Target, store: Store) {
        let mut acc: Sums<MR, S> = [[[_mm256_setzero_ps(); 2]; S]; MR];
        ask_for::<MR, S>(c);
        let (mut x, mut y) = (a.ptr, b.ptr);
        for _ in 0..k / 4 {
            for u in 0..4 {
                // SAFETY: elements the caller vouches for; stepping past the last is wrapping.
                unsafe {
                    multiply_add(&mut acc, y.wrapping_add(u * b.step), b.sliver, |i| *x.add(u * MR + i))
                };
            }
            (x, y) = (x.wrapping_add(4 * MR), y.wrapping_add(4 * b.step));
        }
        for _ in 0..k % 4 {
            // SAFETY: as above.
            unsafe { multiply_add(&mut acc, y, b.sliver, |i| *x.add(i)) };
            (x, y) = (x.wrapping_add(MR), y.wrapping_add(b.step));
        }
        // SAFETY: the caller's promise.
        unsafe { put(&acc, c, store) };
    }

    /// As [`super::gathered`].
    ///
    /// # Safety
    /// As there, on a machine with AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn gathered(
        base: *const f32,
        rows: &[usize],
        steps: &[usize],
        panel: *const f32,
        c: *mut f32,
        store: Store,
    ) {
        for (i, rows) in rows.chunks(MR).enumerate() {
            let c = c.wrapping_add(i * MR * NR);
            // SAFETY: the caller's promise.
            unsafe {
                match rows.len() {
                    1 => gathered_tile::<1>(base, rows, steps, panel, c, store),
                    2 => gathered_tile::<2>(base, rows, steps, panel, c, store),
                    3 => gathered_tile::<3>(base, rows, steps, panel, c, store),
                    4 => gathered_tile::<4>(base, rows, steps, panel, c, store),
                    5 => gathered_tile::<5>(base, rows, steps, panel, c, store),
                    _ => gathered_tile::<6>(base, rows, steps, panel, c, store),
                }
            }
        }
    }

    /// # Safety
    /// As [`gathered`], with `M` rows.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn gathered_tile<const M: usize>(
        base: *const f32,
        rows: &[usize],
        steps: &[usize],
        panel: *const f32,
        c: *mut f32,
        store: Store,
    ) {
        let rows: [*const f32; M] = std::array::from_fn(|i| base.wrapping_add(rows[i]));
        let mut acc: Sums<M, 1> = [[[_mm256_setzero_ps(); 2]; 1]; M];
        let mut y = panel;
        for &step in steps {
            // SAFETY: elements the caller vouches for; stepping past the last is wrapping.
            unsafe { multiply_add(&mut acc, y, 0, |i| *rows[i].add(step)) };
            y = y.wrapping_add(NR);
        }
        // SAFETY: the caller's promise.
        unsafe { put(&acc, Target::rows(c, NR), store) };
    }

    /// The output is needed after the sums; asking now hides its way from memory.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn ask_for<const M: usize, const S: usize>(c: Target) {
        for i in 0..M {
            let p = c.ptr.wrapping_add(i * c.row);
            _mm_prefetch::<_MM_HINT_T0>(p.cast());
            _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(S * NR - 1).cast());
        }
    }

    /// One reduced index: every row's element times `S` slivers of the right operand at `y`.
    ///
    /// # Safety
    /// `y` is valid for the slivers, and `x` may be called for every row.
    #[inline(always)]
    unsafe fn multiply_add<const M: usize, const S: usize>(
        acc: &mut Sums<M, S>,
        y: *const f32,
        sliver: usize,
        x: impl Fn(usize) -> f32,
    ) {
        // SAFETY: callers have AVX2 and FMA; addresses are theirs to vouch for.
        unsafe {
            let mut ys = [[_mm256_setzero_ps(); 2]; S];
            for (s, ys) in ys.iter_mut().enumerate() {
                let p = y.wrapping_add(s * sliver);
                *ys = [_mm256_loadu_ps(p), _mm256_loadu_ps(p.wrapping_add(8))];
            }
            for (i, acc) in acc.iter_mut().enumerate() {
                let x = _mm256_set1_ps(x(i));
                for (acc, y) in acc.iter_mut().zip(&ys) {
                    acc[0] = _mm256_fmadd_ps(x, y[0], acc[0]);
                    acc[1] = _mm256_fmadd_ps(x, y[1], acc[1]);
                }
            }
        }
    }

    /// Stores or adds the sums of a tile.
    ///
    /// # Safety
    /// `c` is valid for `M` rows of `S` slivers.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn put<const M: usize, const S: usize>(acc: &Sums<M, S>, c: Target, store: Store) {
        for (i, acc) in acc.iter().enumerate() {
            for (h, &v) in acc.as_flattened().iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let p = c.ptr.add(i * c.row + h * 8);
                    let v = if store == Store::Add { _mm256_add_ps(_mm256_loadu_ps(p), v) } else { v };
                    _mm256_storeu_ps(p, v);
                }
            }
        }
    }
}
