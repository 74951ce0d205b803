//! Single-precision matrix product: blocking, packing and the division over threads. The arithmetic
//! is in `tile`, the shape of the operands in `pack`; batches are the caller's loop.

use crate::kernel::K_BLOCK;
use crate::kernel::pack::{Operand, Strided};
use crate::kernel::tile::{self, Left, MR, NR, Right, Store, Target};
use crate::team::isa::Isa;
use crate::team::{SharedMut, Team, share};
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of A packed at a time: with a block of the reduced index they stay in the second-level cache.
const MC: usize = 32 * MR;
/// Columns of B packed at a time.
const NC: usize = 48 * NR;
/// Below this many multiply-adds per thread, waking another one costs more than it saves.
const PART: usize = 1 << 17;

/// Where the product goes: element (i, j) at `i * row + (j / inner) * outer + j % inner`, so that
/// columns may be (image, position) pairs of a tensor with rows in between, or at any distance. The
/// elements not addressed are left alone.
pub struct Output<'a> {
    /// Element (0, 0), to be reached only as the constructors promise.
    ptr: *mut f32,
    /// Elements from there to the end of the memory.
    len: usize,
    row: usize,
    inner: usize,
    outer: usize,
    owner: PhantomData<&'a mut [f32]>,
}

impl<'a> Output<'a> {
    /// Rows of contiguous columns at distance `row`.
    pub fn rows(data: &'a mut [f32], row: usize) -> Output<'a> {
        Output::runs(data, row, usize::MAX, 0)
    }

    /// Columns in contiguous runs of `inner`, `outer` apart; rows at distance `row`.
    pub fn runs(data: &'a mut [f32], row: usize, inner: usize, outer: usize) -> Output<'a> {
        Output { ptr: data.as_mut_ptr(), len: data.len(), row, inner, outer, owner: PhantomData }
    }

    /// As [`Output::runs`], starting at element `at` of memory in which other threads write elsewhere.
    ///
    /// # Safety
    /// Until the product is done, nobody else reaches the elements it addresses.
    pub unsafe fn shared(
        data: &'a SharedMut<'_, f32>,
        at: usize,
        row: usize,
        inner: usize,
        outer: usize,
    ) -> Output<'a> {
        assert!(at <= data.len(), "output starts outside its memory");
        let ptr = data.as_ptr().wrapping_add(at);
        Output { ptr, len: data.len() - at, row, inner, outer, owner: PhantomData }
    }

    fn target(self) -> Target {
        Target { ptr: self.ptr, row: self.row, inner: self.inner, outer: self.outer }
    }

    fn covers(&self, m: usize, n: usize) -> bool {
        if m == 0 || n == 0 {
            return true;
        }
        // Whole runs are asked for, the last one too.
        let last = ((n - 1) / self.inner).saturating_mul(self.outer).saturating_add(self.inner.min(n) - 1);
        (m - 1).saturating_mul(self.row).saturating_add(last) < self.len
    }
}

/// Floats of scratch [`gemm`] needs with a team of `threads`.
pub fn scratch_len(m: usize, n: usize, k: usize, threads: usize) -> usize {
    threads * serial_scratch_len(m, n, k)
}

/// Floats of scratch [`serial`] needs.
pub fn serial_scratch_len(m: usize, n: usize, k: usize) -> usize {
    (m.min(MC).next_multiple_of(MR) + n.min(NC).next_multiple_of(NR)) * k.min(K_BLOCK)
}

/// C = A·B, or C = C + A·B if `accumulate`, with the sum order of the parent module. `a` has outer
/// index `m`, `b` has outer index `n`, both reduced index `k`. Panics if an operand, the output or
/// the scratch is too small.
#[allow(clippy::too_many_arguments)]
pub fn gemm(
    team: &Team,
    [m, n, k]: [usize; 3],
    a: &impl Operand,
    b: &impl Operand,
    c: Output<'_>,
    accumulate: bool,
    scratch: &mut [f32],
) {
    let (tm, tn) = grid(team.threads(), m, n, k);
    let each = serial_scratch_len(m, n, k);
    check(m, n, k, a, b, &c, scratch.len(), each * tm * tn);
    let target = &Shared(c.target());
    let scratch = SharedMut::new(scratch);
    team.run(tm * tn, &|part| {
        let rows = share(m, MR, tm, part / tn);
        let cols = share(n, NR, tn, part % tn);
        // SAFETY: each part has its own stretch of scratch.
        let scratch = unsafe { scratch.slice(part * each..(part + 1) * each) };
        // SAFETY: `check` covers all rows and columns, and parts write disjoint blocks of C.
        unsafe { block(team.isa(), rows, cols, k, a, b, target.0, accumulate, scratch) };
    });
}

/// [`gemm`] on the calling thread alone, for callers that divide a batch over threads themselves.
#[allow(clippy::too_many_arguments)]
pub fn serial(
    isa: Isa,
    [m, n, k]: [usize; 3],
    a: &impl Operand,
    b: &impl Operand,
    c: Output<'_>,
    accumulate: bool,
    scratch: &mut [f32],
) {
    check(m, n, k, a, b, &c, scratch.len(), serial_scratch_len(m, n, k));
    // SAFETY: `check` covers all rows and columns, and the elements of C are this product's alone.
    unsafe { serial_to(isa, [m, n, k], a, b, c.target(), accumulate, scratch) };
}

/// [`serial`] into memory that other threads write elsewhere.
///
/// # Safety
/// Strided operands cover their extents; every element of `c` is valid and nobody else touches it.
#[allow(clippy::too_many_arguments)]
pub(crate) unsafe fn serial_to(
    isa: Isa,
    [m, n, k]: [usize; 3],
    a: &impl Operand,
    b: &impl Operand,
    c: Target,
    accumulate: bool,
    scratch: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe { block(isa, 0..m, 0..n, k, a, b, c, accumulate, scratch) };
}

/// The right operand of many products, packed once.
pub struct Panels<'a> {
    data: &'a [f32],
    n: usize,
    k: usize,
}

impl<'a> Panels<'a> {
    /// Floats of memory for `n` columns and `k` reduced indices.
    pub fn len(n: usize, k: usize) -> usize {
        n.next_multiple_of(NR) * k
    }

    /// Packs `b` into `data`, which has [`Panels::len`] floats.
    pub fn pack(team: &Team, n: usize, k: usize, b: &impl Operand, data: &'a mut [f32]) -> Panels<'a> {
        assert_eq!(data.len(), Panels::len(n, k), "memory for the panels of {k} x {n}");
        let memory = SharedMut::new(data);
        team.split(n, NR, &|cols| {
            let range = cols.start * k..cols.end.next_multiple_of(NR) * k;
            if !range.is_empty() {
                // SAFETY: parts start at multiples of a panel and share none.
                b.pack(cols, 0..k, NR, unsafe { memory.slice(range) });
            }
        });
        Panels { data, n, k }
    }

    /// Columns `p * NR` and on, [`NR`] of them for every reduced index; zeros beyond the last column.
    pub fn panel(&self, p: usize) -> &[f32] {
        &self.data[p * self.k * NR..(p + 1) * self.k * NR]
    }

    /// C = A·B, or C = C + A·B if `accumulate`, where A is `m` rows read where they lie; best for few.
    pub fn multiply(&self, team: &Team, m: usize, a: Strided<'_>, c: Output<'_>, accumulate: bool) {
        let (n, k) = (self.n, self.k);
        assert!(a.covers(m, k), "left operand is smaller than {m} x {k}");
        assert!(c.inner > 0 && c.covers(m, n), "output is smaller than {m} x {n}");
        let target = &Shared(c.target());
        let multiply = |cols: Range<usize>| {
            for start in (0..k.max(1)).step_by(K_BLOCK) {
                let len = K_BLOCK.min(k - start);
                let store = if accumulate || start > 0 { Store::Add } else { Store::Set };
                let ptr = a.data.as_ptr().wrapping_add(start * a.reduced);
                let left = Left { ptr, sliver: MR * a.outer, row: a.outer, step: a.reduced };
                let ptr = self.data.as_ptr().wrapping_add(cols.start * k + start * NR);
                let right = Right { ptr, sliver: NR * k, step: NR };
                // SAFETY: the operands cover the product as checked; parts write disjoint columns.
                unsafe { tile::multiply(team.isa(), 0..m, cols.clone(), len, left, right, target.0, store) };
            }
        };
        if m * n * k < 2 * PART { multiply(0..n) } else { team.split(n, NR, &multiply) }
    }
}

/// Rows and columns of the grid of parts: as many parts as pay off, as square as possible.
fn grid(threads: usize, m: usize, n: usize, k: usize) -> (usize, usize) {
    let work = m.saturating_mul(n).saturating_mul(k.max(1));
    let parts = threads.min(work / PART).max(1);
    let cost = |tm: usize| {
        let tn = parts / tm;
        let (rows, cols) = (m.div_ceil(MR).div_ceil(tm) * MR, n.div_ceil(NR).div_ceil(tn) * NR);
        rows * cols + 16 * (rows + cols)
    };
    let tm = (1..=parts).min_by_key(|&tm| cost(tm)).unwrap_or(1);
    (tm, parts / tm)
}

#[allow(clippy::too_many_arguments)]
fn check(
    m: usize,
    n: usize,
    k: usize,
    a: &impl Operand,
    b: &impl Operand,
    c: &Output<'_>,
    scratch: usize,
    needed: usize,
) {
    assert!(a.strided().is_none_or(|s| s.covers(m, k)), "left operand is smaller than {m} x {k}");
    assert!(b.strided().is_none_or(|s| s.covers(n, k)), "right operand is smaller than {k} x {n}");
    assert!(c.inner > 0 && c.covers(m, n), "output is smaller than {m} x {n}");
    assert!(scratch >= needed, "scratch has {scratch} floats, {needed} needed");
}

/// The output as threads share it.
struct Shared(Target);

// SAFETY: threads write disjoint blocks of it.
unsafe impl Sync for Shared {}

/// Whether A may be read where it lies: few columns use each element, or it is all close by.
fn left_in_place(a: Option<Strided<'_>>, m: usize, n: usize, k: usize) -> Option<Strided<'_>> {
    a.filter(|s| (s.reduced == 1 && n <= 8 * NR) || n <= NR || m * k <= 4096)
}

/// Whether B may be read where it lies: its columns are contiguous and few rows use each element.
fn right_in_place(b: Option<Strided<'_>>, m: usize, n: usize, k: usize) -> Option<Strided<'_>> {
    b.filter(|s| s.outer == 1 && (m <= 2 * MR || n * k <= 4096))
}

/// The rows and columns of one thread.
///
/// # Safety
/// Strided operands and `c` cover `rows`, `cols` and `k`; nobody else touches that block of C.
#[allow(clippy::too_many_arguments)]
unsafe fn block(
    isa: Isa,
    rows: Range<usize>,
    cols: Range<usize>,
    k: usize,
    a: &impl Operand,
    b: &impl Operand,
    c: Target,
    accumulate: bool,
    scratch: &mut [f32],
) {
    let a_here = left_in_place(a.strided(), rows.len(), cols.len(), k);
    let b_here = right_in_place(b.strided(), rows.len(), cols.len(), k);
    for j0 in cols.clone().step_by(NC) {
        let cols = j0..cols.end.min(j0 + NC);
        // With nothing to reduce, one empty block still sets C to zero.
        let mut ks = 0..if k > 0 { k.min(a.block_end(0)) } else { 0 };
        loop {
            let store = if accumulate || ks.start > 0 { Store::Add } else { Store::Set };
            let (b_pack, a_pack) = scratch.split_at_mut(cols.len().next_multiple_of(NR) * ks.len());
            // Slivers read in place must be whole, so a last partial one is packed all the same.
            let here = if b_here.is_some() { cols.len() / NR * NR } else { 0 };
            let packed = cols.start + here..cols.end;
            let b_pack = &mut b_pack[..packed.len().next_multiple_of(NR) * ks.len()];
            if !b_pack.is_empty() {
                b.pack(packed.clone(), ks.clone(), NR, b_pack);
            }
            let right_packed = Right { ptr: b_pack.as_ptr(), sliver: NR * ks.len(), step: NR };
            let right_here = b_here.map(|s| {
                let ptr = s.data.as_ptr().wrapping_add(cols.start + ks.start * s.reduced);
                Right { ptr, sliver: NR, step: s.reduced }
            });
            for i0 in rows.clone().step_by(MC) {
                let rows = i0..rows.end.min(i0 + MC);
                let left = match a_here {
                    Some(s) => {
                        let ptr = s.data.as_ptr().wrapping_add(i0 * s.outer + ks.start * s.reduced);
                        Left { ptr, sliver: MR * s.outer, row: s.outer, step: s.reduced }
                    }
                    None => {
                        let a_pack = &mut a_pack[..rows.len().next_multiple_of(MR) * ks.len()];
                        if !a_pack.is_empty() {
                            a.pack(rows.clone(), ks.clone(), MR, a_pack);
                        }
                        Left { ptr: a_pack.as_ptr(), sliver: MR * ks.len(), row: 1, step: MR }
                    }
                };
                // SAFETY: the operands were packed for, or checked to cover, these ranges.
                unsafe {
                    if let Some(right) = right_here {
                        let cols = cols.start..cols.start + here;
                        tile::multiply(isa, rows.clone(), cols, ks.len(), left, right, c, store);
                    }
                    tile::multiply(isa, rows, packed.clone(), ks.len(), left, right_packed, c, store);
                }
            }
            if ks.end == k {
                break;
            }
            ks = ks.end..k.min(a.block_end(ks.end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    /// The contract, literally.
    fn definition(m: usize, n: usize, k: usize, a: Strided<'_>, b: Strided<'_>, c: &mut [f32], add: bool) {
        for i in 0..m {
            for j in 0..n {
                let mut total = if add { Some(c[i * n + j]) } else { None };
                for k0 in (0..k).step_by(K_BLOCK) {
                    let mut acc = 0.0f32;
                    for k in k0..k.min(k0 + K_BLOCK) {
                        let (x, y) =
                            (a.data[i * a.outer + k * a.reduced], b.data[j * b.outer + k * b.reduced]);
                        acc = x.mul_add(y, acc);
                    }
                    total = Some(total.map_or(acc, |t| t + acc));
                }
                c[i * n + j] = total.unwrap_or(0.0);
            }
        }
    }

    fn teams() -> Vec<Team> {
        let mut teams: Vec<_> = Isa::all().into_iter().map(|isa| Team::with_isa(1, isa)).collect();
        teams.extend([2, 3].map(Team::new));
        teams
    }

    const SIZES: [[usize; 3]; 16] = [
        [1, 1, 1],
        [1, 70, 300],
        [2, 33, 17],
        [3, 40, 256],
        [4, 5, 6],
        [6, 16, 64],
        [7, 17, 257],
        [13, 31, 513],
        [64, 10, 40],
        [100, 100, 100],
        [1, 200, 600],
        [97, 130, 300],
        [5, 800, 20],
        [0, 4, 4],
        [4, 0, 4],
        [4, 7, 0],
    ];

    #[test]
    fn every_path_has_the_bits_of_the_definition() {
        let teams = teams();
        for [m, n, k] in SIZES {
            let (x, y) = (noise(m * k, 1), noise(k * n, 2));
            for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
                let a = Strided { data: &x, outer: if ta { 1 } else { k }, reduced: if ta { m } else { 1 } };
                let b = Strided { data: &y, outer: if tb { k } else { 1 }, reduced: if tb { 1 } else { n } };
                for add in [false, true] {
                    let start = noise(m * n, 3);
                    let mut want = start.clone();
                    definition(m, n, k, a, b, &mut want, add);
                    for team in &teams {
                        let mut c = start.clone();
                        let mut scratch = vec![f32::NAN; scratch_len(m, n, k, team.threads())];
                        gemm(team, [m, n, k], &a, &b, Output::rows(&mut c, n), add, &mut scratch);
                        let what = (m, n, k, ta, tb, add, team.threads(), team.isa());
                        assert_eq!(bits(&c), bits(&want), "{what:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn panels_packed_once_give_the_same_bits() {
        let teams = teams();
        for [m, n, k] in SIZES {
            let (x, y, start) = (noise(m * k, 1), noise(k * n, 2), noise(m * n, 3));
            let (a, b) =
                (Strided { data: &x, outer: k, reduced: 1 }, Strided { data: &y, outer: k, reduced: 1 });
            for (team, add) in teams.iter().flat_map(|t| [(t, false), (t, true)]) {
                let (mut want, mut got) = (start.clone(), start.clone());
                definition(m, n, k, a, b, &mut want, add);
                let mut memory = vec![f32::NAN; Panels::len(n, k)];
                let panels = Panels::pack(team, n, k, &b, &mut memory);
                panels.multiply(team, m, a, Output::rows(&mut got, n), add);
                assert_eq!(bits(&got), bits(&want), "{:?} {add} {}", (m, n, k), team.threads());
            }
        }
    }

    #[test]
    fn close_to_f64() {
        let [m, n, k] = [37, 53, 700];
        let (x, y) = (noise(m * k, 1), noise(k * n, 2));
        let a = Strided { data: &x, outer: k, reduced: 1 };
        let b = Strided { data: &y, outer: 1, reduced: n };
        let mut c = vec![0.0; m * n];
        let mut scratch = vec![0.0; serial_scratch_len(m, n, k)];
        serial(Isa::detect(), [m, n, k], &a, &b, Output::rows(&mut c, n), false, &mut scratch);
        for i in 0..m {
            for j in 0..n {
                let want: f64 = (0..k).map(|p| x[i * k + p] as f64 * y[p * n + j] as f64).sum();
                assert!((c[i * n + j] as f64 - want).abs() < 1e-4, "({i}, {j})");
            }
        }
    }

    #[test]
    fn a_piece_has_the_bits_of_the_whole() {
        let [m, n, k] = [40, 150, 300];
        let (x, y) = (noise(m * k, 1), noise(k * n, 2));
        let run = |rows: Range<usize>, cols: Range<usize>| {
            let a = Strided { data: &x[rows.start * k..], outer: k, reduced: 1 };
            let b = Strided { data: &y[cols.start..], outer: 1, reduced: n };
            let mut c = vec![0.0; rows.len() * cols.len()];
            let shape = [rows.len(), cols.len(), k];
            let mut scratch = vec![0.0; serial_scratch_len(shape[0], shape[1], k)];
            serial(Isa::detect(), shape, &a, &b, Output::rows(&mut c, cols.len()), false, &mut scratch);
            c
        };
        let whole = run(0..m, 0..n);
        for (rows, cols) in [(0..1, 0..n), (3..5, 1..18), (11..40, 100..101), (2..3, 50..150)] {
            let piece = run(rows.clone(), cols.clone());
            for (i, row) in rows.clone().zip(piece.chunks(cols.len())) {
                assert_eq!(bits(row), bits(&whole[i * n..][cols.clone()]), "{rows:?} {cols:?}");
            }
        }
    }

    #[test]
    fn columns_may_be_runs_at_a_distance() {
        // Three images of 7 positions, 5 rows each: c[image, row, position].
        let [m, n, k] = [5, 21, 30];
        let (x, y) = (noise(m * k, 1), noise(k * n, 2));
        let a = Strided { data: &x, outer: k, reduced: 1 };
        let b = Strided { data: &y, outer: 1, reduced: n };
        let mut want = vec![0.0; m * n];
        definition(m, n, k, a, b, &mut want, false);
        let mut c = vec![0.0; m * n];
        let mut scratch = vec![0.0; serial_scratch_len(m, n, k)];
        let out = Output::runs(&mut c, 7, 7, 35);
        serial(Isa::detect(), [m, n, k], &a, &b, out, false, &mut scratch);
        for i in 0..m {
            for j in 0..n {
                assert_eq!(c[j / 7 * 35 + i * 7 + j % 7], want[i * n + j]);
            }
        }
    }
}
