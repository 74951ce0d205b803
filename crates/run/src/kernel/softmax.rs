//! Softmax, its logarithm and their gradients, on one contiguous row or down the columns of a matrix.
//! Sums are in lane order, so a column has the bits of the same elements as a row. An operand that is
//! not given lies in the result. Dividing rows or matrices over a team is the caller's business.

use crate::kernel::LANES;
use crate::kernel::math::{exp_normal, ln};
use crate::kernel::reduce::{
    self, COLUMNS, Matrix, add, dot_range, fold_columns, max_range, sum_range, tree,
};
use crate::team::isa::{Isa, simd};

/// Elements whose exponentials are taken before they are added up: a whole number of lanes.
const BLOCK: usize = 16 * LANES;

#[inline(always)]
fn add_lanes(lanes: &mut [f32; LANES], x: &[f32]) {
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for l in 0..LANES {
            lanes[l] += chunk[l];
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
}

#[inline(always)]
fn exp_sum_body(x: &[f32], shift: f32) -> f32 {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for x in whole {
        for l in 0..LANES {
            lanes[l] += exp_normal(x[l] - shift);
        }
    }
    if !rest.is_empty() {
        // Filled up with what adds exact zeros, so that no element is handled alone.
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        for l in 0..LANES {
            lanes[l] += exp_normal(last[l] - shift);
        }
    }
    tree(lanes, add)
}

#[inline(always)]
fn exp_block(x: &[f32], shift: f32, y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = exp_normal(x - shift);
    }
}

#[inline(always)]
fn softmax_body(x: Option<&[f32]>, largest: f32, y: &mut [f32]) {
    let mut lanes = [0.0; LANES];
    for (i, y) in y.chunks_mut(BLOCK).enumerate() {
        match x {
            Some(x) => exp_block(&x[i * BLOCK..], largest, y),
            None => y.iter_mut().for_each(|y| *y = exp_normal(*y - largest)),
        }
        add_lanes(&mut lanes, y);
    }
    let scale = 1.0 / tree(lanes, add);
    for y in y {
        *y *= scale;
    }
}

#[inline(always)]
fn subtract_body(x: Option<&[f32]>, largest: f32, rest: f32, y: &mut [f32]) {
    match x {
        Some(x) => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x - largest - rest;
            }
        }
        None => y.iter_mut().for_each(|y| *y = *y - largest - rest),
    }
}

/// `dx = f(y, dy)`; at most one of them lies in `dx`.
#[inline(always)]
fn pairs(y: Option<&[f32]>, dy: Option<&[f32]>, dx: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match (y, dy) {
        (Some(y), Some(dy)) => {
            for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
                *dx = f(y, dy);
            }
        }
        (Some(y), None) => {
            for (dx, &y) in dx.iter_mut().zip(y) {
                *dx = f(y, *dx);
            }
        }
        (None, Some(dy)) => {
            for (dx, &dy) in dx.iter_mut().zip(dy) {
                *dx = f(*dx, dy);
            }
        }
        (None, None) => dx.iter_mut().for_each(|dx| *dx = f(*dx, *dx)),
    }
}

#[inline(always)]
fn softmax_grad_body(y: Option<&[f32]>, dy: Option<&[f32]>, dot: f32, dx: &mut [f32]) {
    pairs(y, dy, dx, |y, dy| y * (dy - dot));
}

#[inline(always)]
fn log_softmax_grad_body(y: Option<&[f32]>, dy: Option<&[f32]>, sum: f32, dx: &mut [f32]) {
    pairs(y, dy, dx, |y, dy| (-exp_normal(y)).mul_add(sum, dy));
}

simd! {
    /// The sum of `e^(x - shift)`.
    pub fn exp_sum(x: &[f32], shift: f32) -> f32 = exp_sum_body;
    fn softmax_shifted(x: Option<&[f32]>, largest: f32, y: &mut [f32]) = softmax_body;
    fn subtract(x: Option<&[f32]>, largest: f32, rest: f32, y: &mut [f32]) = subtract_body;
    fn softmax_slopes(y: Option<&[f32]>, dy: Option<&[f32]>, dot: f32, dx: &mut [f32]) = softmax_grad_body;
    fn log_softmax_slopes(y: Option<&[f32]>, dy: Option<&[f32]>, sum: f32, dx: &mut [f32]) = log_softmax_grad_body;
}

/// The row's exponentials, scaled to sum to one.
pub fn softmax(isa: Isa, x: Option<&[f32]>, y: &mut [f32]) {
    let largest = reduce::max(isa, x.unwrap_or(y));
    softmax_shifted(isa, x, largest, y);
}

/// The largest element of a row and `ln Σ e^(x - largest)`; their sum is the logarithm of the sum of
/// exponentials. A row of nothing but -infinity gives (-infinity, 0).
pub fn log_sum_exp(isa: Isa, x: &[f32]) -> (f32, f32) {
    let largest = reduce::max(isa, x);
    (largest, if largest == f32::NEG_INFINITY { 0.0 } else { ln(exp_sum(isa, x, largest)) })
}

/// The logarithms of what [`softmax`] gives.
pub fn log_softmax(isa: Isa, x: Option<&[f32]>, y: &mut [f32]) {
    let (largest, rest) = log_sum_exp(isa, x.unwrap_or(y));
    subtract(isa, x, largest, rest, y);
}

/// `dx = y·(dy - Σ y·dy)`; panics if the lengths differ.
pub fn softmax_grad(isa: Isa, y: Option<&[f32]>, dy: Option<&[f32]>, dx: &mut [f32]) {
    let dot = reduce::dot(isa, y.unwrap_or(dx), dy.unwrap_or(dx));
    softmax_slopes(isa, y, dy, dot, dx);
}

/// `dx = dy - e^y · Σ dy`.
pub fn log_softmax_grad(isa: Isa, y: Option<&[f32]>, dy: Option<&[f32]>, dx: &mut [f32]) {
    let sum = reduce::sum(isa, dy.unwrap_or(dx));
    log_softmax_slopes(isa, y, dy, sum, dx);
}

#[inline(always)]
fn exp_columns_body(y: &mut [f32], cols: usize, c0: usize, largest: &[f32]) {
    for row in y.chunks_exact_mut(cols) {
        for (y, &largest) in row[c0..][..largest.len()].iter_mut().zip(largest) {
            *y = exp_normal(*y - largest);
        }
    }
}

#[inline(always)]
fn scale_columns_body(y: &mut [f32], cols: usize, c0: usize, scale: &[f32]) {
    for row in y.chunks_exact_mut(cols) {
        for (y, &scale) in row[c0..][..scale.len()].iter_mut().zip(scale) {
            *y *= scale;
        }
    }
}

#[inline(always)]
fn subtract_columns_body(y: &mut [f32], cols: usize, c0: usize, largest: &[f32], rest: &[f32]) {
    for row in y.chunks_exact_mut(cols) {
        for ((y, &largest), &rest) in row[c0..].iter_mut().zip(largest).zip(rest) {
            *y = *y - largest - rest;
        }
    }
}

#[inline(always)]
fn exp_sum_columns_body(x: Matrix<'_>, c0: usize, largest: &[f32], out: &mut [f32]) {
    let step = |lanes: &mut [f32], row: &[f32], _: usize, c: usize| {
        for ((lane, &v), &largest) in lanes.iter_mut().zip(row).zip(&largest[c - c0..]) {
            *lane += exp_normal(v - largest);
        }
    };
    fold_columns(x, c0, out, 0.0, step, add);
}

#[inline(always)]
fn grad_columns_body(
    y: Option<&[f32]>,
    dy: Option<&[f32]>,
    dx: &mut [f32],
    cols: usize,
    c0: usize,
    sums: &[f32],
    log: bool,
) {
    for (row, dx) in dx.chunks_exact_mut(cols).enumerate() {
        let at = row * cols + c0;
        let (y, dy) = (y.map(|y| &y[at..]), dy.map(|dy| &dy[at..]));
        for (j, (dx, &sum)) in dx[c0..].iter_mut().zip(sums).enumerate() {
            let (y, dy) = (y.map_or(*dx, |y| y[j]), dy.map_or(*dx, |dy| dy[j]));
            *dx = if log { (-exp_normal(y)).mul_add(sum, dy) } else { y * (dy - sum) };
        }
    }
}

simd! {
    fn exp_columns(y: &mut [f32], cols: usize, c0: usize, largest: &[f32]) = exp_columns_body;
    fn scale_columns(y: &mut [f32], cols: usize, c0: usize, scale: &[f32]) = scale_columns_body;
    fn subtract_columns(y: &mut [f32], cols: usize, c0: usize, largest: &[f32], rest: &[f32]) = subtract_columns_body;
    fn exp_sum_columns(x: Matrix<'_>, c0: usize, largest: &[f32], out: &mut [f32]) = exp_sum_columns_body;
    fn grad_columns(y: Option<&[f32]>, dy: Option<&[f32]>, dx: &mut [f32], cols: usize, c0: usize, sums: &[f32], log: bool) = grad_columns_body;
}

/// Calls `f(first column, statistics, more statistics)` for stretches of columns.
fn blocks(cols: usize, mut f: impl FnMut(usize, &mut [f32], &mut [f32])) {
    let (mut a, mut b) = ([0.0; COLUMNS], [0.0; COLUMNS]);
    for c0 in (0..cols).step_by(COLUMNS) {
        let width = COLUMNS.min(cols - c0);
        f(c0, &mut a[..width], &mut b[..width]);
    }
}

fn matrix(data: &[f32], cols: usize) -> Matrix<'_> {
    Matrix { data, rows: data.len() / cols, cols }
}

fn put(x: Option<&[f32]>, y: &mut [f32]) {
    if let Some(x) = x {
        y.copy_from_slice(x);
    }
}

/// [`softmax`] down each column of `y[_, cols]`.
pub fn softmax_columns(isa: Isa, x: Option<&[f32]>, y: &mut [f32], cols: usize) {
    put(x, y);
    blocks(cols, |c0, largest, sums| {
        max_range(isa, matrix(y, cols), c0, largest);
        exp_columns(isa, y, cols, c0, largest);
        sum_range(isa, matrix(y, cols), c0, sums);
        sums.iter_mut().for_each(|s| *s = 1.0 / *s);
        scale_columns(isa, y, cols, c0, sums);
    });
}

/// [`log_softmax`] down each column of `y[_, cols]`.
pub fn log_softmax_columns(isa: Isa, x: Option<&[f32]>, y: &mut [f32], cols: usize) {
    put(x, y);
    blocks(cols, |c0, largest, sums| {
        max_range(isa, matrix(y, cols), c0, largest);
        exp_sum_columns(isa, matrix(y, cols), c0, largest, sums);
        for (sum, &largest) in sums.iter_mut().zip(largest.iter()) {
            *sum = if largest == f32::NEG_INFINITY { 0.0 } else { ln(*sum) };
        }
        subtract_columns(isa, y, cols, c0, largest, sums);
    });
}

/// [`softmax_grad`] down each column of matrices of `cols` columns.
pub fn softmax_grad_columns(isa: Isa, y: Option<&[f32]>, dy: Option<&[f32]>, dx: &mut [f32], cols: usize) {
    blocks(cols, |c0, dots, _| {
        dot_range(isa, matrix(y.unwrap_or(dx), cols), dy.unwrap_or(dx), c0, dots);
        grad_columns(isa, y, dy, dx, cols, c0, dots, false);
    });
}

/// [`log_softmax_grad`] down each column of matrices of `cols` columns.
pub fn log_softmax_grad_columns(
    isa: Isa,
    y: Option<&[f32]>,
    dy: Option<&[f32]>,
    dx: &mut [f32],
    cols: usize,
) {
    blocks(cols, |c0, sums, _| {
        sum_range(isa, matrix(dy.unwrap_or(dx), cols), c0, sums);
        grad_columns(isa, y, dy, dx, cols, c0, sums, true);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    /// Forward functions ignore the second operand; `cols` chooses the column form.
    fn call(
        case: usize,
        isa: Isa,
        a: Option<&[f32]>,
        b: Option<&[f32]>,
        out: &mut [f32],
        cols: Option<usize>,
    ) {
        match (case, cols) {
            (0, None) => softmax(isa, a, out),
            (0, Some(cols)) => softmax_columns(isa, a, out, cols),
            (1, None) => log_softmax(isa, a, out),
            (1, Some(cols)) => log_softmax_columns(isa, a, out, cols),
            (2, None) => softmax_grad(isa, a, b, out),
            (2, Some(cols)) => softmax_grad_columns(isa, a, b, out, cols),
            (_, None) => log_softmax_grad(isa, a, b, out),
            (_, Some(cols)) => log_softmax_grad_columns(isa, a, b, out, cols),
        }
    }

    #[test]
    fn columns_have_the_bits_of_rows_in_place_or_not() {
        for (rows, cols) in [(1, 3), (5, 1), (19, 70), (300, 130)] {
            let (a, b) = (noise(rows * cols, 1), noise(rows * cols, 2));
            let column = |x: &[f32], c: usize| (0..rows).map(|r| x[r * cols + c]).collect::<Vec<_>>();
            for (case, isa) in (0..4).flat_map(|case| Isa::all().into_iter().map(move |isa| (case, isa))) {
                let mut apart = vec![f32::NAN; a.len()];
                call(case, isa, Some(&a), Some(&b), &mut apart, Some(cols));
                let mut over = a.clone();
                call(case, isa, None, Some(&b), &mut over, Some(cols));
                assert_eq!(bits(&apart), bits(&over), "case {case}, {rows}x{cols}, {isa:?}");
                for c in 0..cols {
                    let (a, b) = (column(&a, c), column(&b, c));
                    let mut row = a.clone();
                    call(case, isa, None, Some(&b), &mut row, None);
                    assert_eq!(bits(&row), bits(&column(&apart, c)), "case {case}, {rows}x{cols}, {isa:?}");
                    let mut row = b.clone();
                    call(case, isa, Some(&a), None, &mut row, None);
                    assert_eq!(bits(&row), bits(&column(&apart, c)), "case {case}, {rows}x{cols}, {isa:?}");
                }
            }
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        for isa in Isa::all() {
            let mut y = [1e4, 1e4, f32::NEG_INFINITY];
            softmax(isa, None, &mut y);
            assert_eq!(y, [0.5, 0.5, 0.0]);
            let mut y = [0.0; 2];
            log_softmax(isa, Some(&[-1e4; 2]), &mut y);
            assert!(y.iter().all(|y| (y + std::f32::consts::LN_2).abs() < 1e-6));
            assert_eq!(log_sum_exp(isa, &[f32::NEG_INFINITY; 5]), (f32::NEG_INFINITY, 0.0));
            assert!(log_sum_exp(isa, &[1.0, f32::NAN]).1.is_nan());
        }
    }
}
