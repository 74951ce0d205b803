//! Sums, dot products, squared differences and extremes over rows and columns, in the lane order of
//! the parent module. Row forms take one contiguous slice; column forms a row-major matrix and a team.

use crate::kernel::LANES;
use crate::team::isa::{Isa, simd};
use crate::team::{SharedMut, Team};

/// Columns whose lanes are held at once: long stretches of a row, 16 lanes of which stay in the
/// second-level cache.
pub(super) const COLUMNS: usize = 1024;
/// The same for matrices with few columns.
const FEW: usize = 64;
/// Columns a thread takes at a time.
const STRIPE: usize = 64;

/// The greater of two, NaN if either is; the first if equal.
#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

/// The lesser of two, NaN if either is; the first if equal.
#[inline(always)]
fn lesser(a: f32, b: f32) -> f32 {
    if b < a || b.is_nan() { b } else { a }
}

#[inline(always)]
pub(super) fn add(a: f32, b: f32) -> f32 {
    a + b
}

/// The fixed tree: 16 lanes to 8, 4, 2, 1.
#[inline(always)]
pub(super) fn tree(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] = join(lanes[l], lanes[l + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// One slice; `step(lane, x)` takes an element in, `join` combines lanes.
#[inline(always)]
pub(super) fn fold(
    x: &[f32],
    start: f32,
    step: impl Fn(f32, f32) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut lanes = [start; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for l in 0..LANES {
            lanes[l] = step(lanes[l], chunk[l]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, x);
    }
    tree(lanes, join)
}

#[inline(always)]
fn sum_body(x: &[f32]) -> f32 {
    fold(x, 0.0, add, add)
}

#[inline(always)]
fn sum_sq_diff_body(x: &[f32], mean: f32) -> f32 {
    fold(x, 0.0, |acc, x| (x - mean).mul_add(x - mean, acc), add)
}

#[inline(always)]
fn max_body(x: &[f32]) -> f32 {
    fold(x, f32::NEG_INFINITY, greater, greater)
}

#[inline(always)]
fn min_body(x: &[f32]) -> f32 {
    fold(x, f32::INFINITY, lesser, lesser)
}

#[inline(always)]
fn dot_body(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    let rest = xs.remainder().iter().zip(ys.remainder());
    for (x, y) in xs.zip(ys) {
        for l in 0..LANES {
            lanes[l] = x[l].mul_add(y[l], lanes[l]);
        }
    }
    for (lane, (&x, &y)) in lanes.iter_mut().zip(rest) {
        *lane = x.mul_add(y, *lane);
    }
    tree(lanes, add)
}

simd! {
    /// The sum.
    pub fn sum(x: &[f32]) -> f32 = sum_body;
    /// The sum of squares of `x - mean`, each `fma(d, d, lane)`.
    pub fn sum_sq_diff(x: &[f32], mean: f32) -> f32 = sum_sq_diff_body;
    /// The greatest element, NaN if any is; -infinity of nothing.
    pub fn max(x: &[f32]) -> f32 = max_body;
    /// The least element, NaN if any is; infinity of nothing.
    pub fn min(x: &[f32]) -> f32 = min_body;
    fn dot_equal(x: &[f32], y: &[f32]) -> f32 = dot_body;
}

/// The sum of products, each `fma(x, y, lane)`; panics if the lengths differ.
pub fn dot(isa: Isa, x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len(), "slices of different lengths");
    dot_equal(isa, x, y)
}

/// One row-major matrix read by columns.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub cols: usize,
}

/// The columns from `c0` on, as many as `out` holds: `step(lanes, elements, row, column)` takes a stretch
/// of a row, which starts at that column, into the lanes of its columns.
#[inline(always)]
pub(super) fn fold_columns(
    x: Matrix<'_>,
    c0: usize,
    out: &mut [f32],
    start: f32,
    step: impl Fn(&mut [f32], &[f32], usize, usize),
    join: impl Fn(f32, f32) -> f32,
) {
    if out.len() <= FEW {
        fold_blocks::<FEW>(x, c0, out, start, step, join);
    } else {
        fold_blocks::<COLUMNS>(x, c0, out, start, step, join);
    }
}

#[inline(always)]
fn fold_blocks<const BLOCK: usize>(
    x: Matrix<'_>,
    c0: usize,
    out: &mut [f32],
    start: f32,
    step: impl Fn(&mut [f32], &[f32], usize, usize),
    join: impl Fn(f32, f32) -> f32,
) {
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let (c0, width) = (c0 + block * BLOCK, out.len());
        let mut lanes = [[start; BLOCK]; LANES];
        for r in 0..x.rows {
            let row = &x.data[r * x.cols + c0..][..width];
            step(&mut lanes[r % LANES][..width], row, r, c0);
        }
        let mut half = LANES / 2;
        while half > 0 {
            let (low, high) = lanes.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high) {
                for (a, &b) in low[..width].iter_mut().zip(high.iter()) {
                    *a = join(*a, b);
                }
            }
            half /= 2;
        }
        out.copy_from_slice(&lanes[0][..width]);
    }
}

/// `lane = f(lane, element)` along a stretch.
#[inline(always)]
fn take(lanes: &mut [f32], row: &[f32], f: impl Fn(f32, f32) -> f32) {
    for (lane, &v) in lanes.iter_mut().zip(row) {
        *lane = f(*lane, v);
    }
}

#[inline(always)]
fn sum_columns_body(x: Matrix<'_>, c0: usize, out: &mut [f32]) {
    fold_columns(x, c0, out, 0.0, |lanes, row, _, _| take(lanes, row, add), add);
}

#[inline(always)]
fn dot_columns_body(x: Matrix<'_>, y: &[f32], c0: usize, out: &mut [f32]) {
    let step = |lanes: &mut [f32], row: &[f32], r: usize, c: usize| {
        for ((lane, &v), &y) in lanes.iter_mut().zip(row).zip(&y[r * x.cols + c..]) {
            *lane = v.mul_add(y, *lane);
        }
    };
    fold_columns(x, c0, out, 0.0, step, add);
}

#[inline(always)]
fn sum_sq_diff_columns_body(x: Matrix<'_>, mean: &[f32], c0: usize, out: &mut [f32]) {
    let step = |lanes: &mut [f32], row: &[f32], _: usize, c: usize| {
        for ((lane, &v), &mean) in lanes.iter_mut().zip(row).zip(&mean[c..]) {
            *lane = (v - mean).mul_add(v - mean, *lane);
        }
    };
    fold_columns(x, c0, out, 0.0, step, add);
}

#[inline(always)]
fn max_columns_body(x: Matrix<'_>, c0: usize, out: &mut [f32]) {
    fold_columns(x, c0, out, f32::NEG_INFINITY, |lanes, row, _, _| take(lanes, row, greater), greater);
}

#[inline(always)]
fn min_columns_body(x: Matrix<'_>, c0: usize, out: &mut [f32]) {
    fold_columns(x, c0, out, f32::INFINITY, |lanes, row, _, _| take(lanes, row, lesser), lesser);
}

simd! {
    pub(super) fn sum_range(x: Matrix<'_>, c0: usize, out: &mut [f32]) = sum_columns_body;
    pub(super) fn dot_range(x: Matrix<'_>, y: &[f32], c0: usize, out: &mut [f32]) = dot_columns_body;
    pub(super) fn sum_sq_diff_range(x: Matrix<'_>, mean: &[f32], c0: usize, out: &mut [f32]) = sum_sq_diff_columns_body;
    pub(super) fn max_range(x: Matrix<'_>, c0: usize, out: &mut [f32]) = max_columns_body;
    fn min_range(x: Matrix<'_>, c0: usize, out: &mut [f32]) = min_columns_body;
}

/// Divides the columns over the team; panics if `x` is not a whole number of rows of `out.len()`.
fn columns(
    team: &Team,
    x: &[f32],
    rows: usize,
    out: &mut [f32],
    f: impl Fn(Isa, Matrix<'_>, usize, &mut [f32]) + Sync,
) {
    let matrix = Matrix { data: x, rows, cols: out.len() };
    assert_eq!(x.len(), rows * out.len(), "matrix is not {rows} rows of {} columns", out.len());
    let out = SharedMut::new(out);
    team.split(out.len(), STRIPE, &|range| {
        // SAFETY: the team's ranges are disjoint.
        f(team.isa(), matrix, range.start, unsafe { out.slice(range) });
    });
}

/// Sums of the columns of `x[rows, out.len()]`.
pub fn sum_columns(team: &Team, x: &[f32], rows: usize, out: &mut [f32]) {
    columns(team, x, rows, out, sum_range);
}

/// Sums over rows of `x * y`, column by column, both `[rows, out.len()]`.
pub fn dot_columns(team: &Team, x: &[f32], y: &[f32], rows: usize, out: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "matrices of different sizes");
    columns(team, x, rows, out, |isa, x, c0, out| dot_range(isa, x, y, c0, out));
}

/// Sums over rows of the squares of `x - mean[column]`.
pub fn sum_sq_diff_columns(team: &Team, x: &[f32], mean: &[f32], rows: usize, out: &mut [f32]) {
    assert_eq!(mean.len(), out.len(), "one mean per column");
    columns(team, x, rows, out, |isa, x, c0, out| sum_sq_diff_range(isa, x, mean, c0, out));
}

/// The greatest element of each column.
pub fn max_columns(team: &Team, x: &[f32], rows: usize, out: &mut [f32]) {
    columns(team, x, rows, out, max_range);
}

/// The least element of each column.
pub fn min_columns(team: &Team, x: &[f32], rows: usize, out: &mut [f32]) {
    columns(team, x, rows, out, min_range);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    const LENGTHS: [usize; 12] = [0, 1, 2, 15, 16, 17, 31, 32, 33, 100, 1000, 4099];

    /// The contract, literally: `term(lane, index)` for sums and products.
    fn definition(
        len: usize,
        start: f32,
        term: impl Fn(f32, usize) -> f32,
        join: fn(f32, f32) -> f32,
    ) -> f32 {
        let mut lanes = [start; 16];
        for j in 0..len {
            lanes[j % 16] = term(lanes[j % 16], j);
        }
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                lanes[l] = join(lanes[l], lanes[l + half]);
            }
        }
        lanes[0]
    }

    fn all_five(x: &[f32], y: &[f32], mean: f32, at: impl Fn(usize) -> usize, len: usize) -> [f32; 5] {
        let diff = |j: usize| x[at(j)] - mean;
        [
            definition(len, 0.0, |a, j| a + x[at(j)], |a, b| a + b),
            definition(len, 0.0, |a, j| x[at(j)].mul_add(y[at(j)], a), |a, b| a + b),
            definition(len, 0.0, |a, j| diff(j).mul_add(diff(j), a), |a, b| a + b),
            definition(len, f32::NEG_INFINITY, |a, j| a.max(x[at(j)]), f32::max),
            definition(len, f32::INFINITY, |a, j| a.min(x[at(j)]), f32::min),
        ]
    }

    #[test]
    fn rows_have_the_bits_of_the_definition() {
        for len in LENGTHS {
            let (x, y) = (noise(len, 1), noise(len, 2));
            let want = all_five(&x, &y, 0.3, |j| j, len);
            for isa in Isa::all() {
                let got =
                    [sum(isa, &x), dot(isa, &x, &y), sum_sq_diff(isa, &x, 0.3), max(isa, &x), min(isa, &x)];
                assert_eq!(bits(&got), bits(&want), "{len} {isa:?}");
            }
        }
    }

    #[test]
    fn columns_have_the_bits_of_the_definition() {
        let mut teams: Vec<_> = Isa::all().into_iter().map(|isa| Team::with_isa(1, isa)).collect();
        teams.extend([2, 3].map(Team::new));
        for rows in [0, 1, 16, 17, 50, 200] {
            for cols in [0, 1, 7, 64, 65, 1100] {
                let (x, y) = (noise(rows * cols, 1), noise(rows * cols, 2));
                let mean = vec![0.3; cols];
                for team in &teams {
                    let mut got = vec![vec![9.0; cols]; 5];
                    sum_columns(team, &x, rows, &mut got[0]);
                    dot_columns(team, &x, &y, rows, &mut got[1]);
                    sum_sq_diff_columns(team, &x, &mean, rows, &mut got[2]);
                    max_columns(team, &x, rows, &mut got[3]);
                    min_columns(team, &x, rows, &mut got[4]);
                    for c in 0..cols {
                        let want = all_five(&x, &y, 0.3, |r| r * cols + c, rows);
                        let got: Vec<_> = got.iter().map(|g| g[c]).collect();
                        assert_eq!(bits(&got), bits(&want), "{rows} x {cols}, column {c}");
                    }
                }
            }
        }
    }

    #[test]
    fn close_to_f64_and_nan_propagates() {
        let x = noise(10_000, 5);
        let exact: f64 = x.iter().map(|&v| v as f64).sum();
        assert!((sum(Isa::detect(), &x) as f64 - exact).abs() < 1e-3);
        for at in [0, 5, 16, 40, 49] {
            let mut x = noise(50, 1);
            x[at] = f32::NAN;
            for isa in Isa::all() {
                assert!(max(isa, &x).is_nan() && min(isa, &x).is_nan() && sum(isa, &x).is_nan(), "{at}");
            }
        }
    }
}
