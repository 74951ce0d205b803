//! Softmax, its logarithm and their gradients, on one contiguous row or down the columns of a matrix.
//! Sums are in lane order, so a column has the bits of the same elements as a row. One thread; rows and
//! matrices are independent, and dividing them over a team is the caller's business.

use crate::kernel::LANES;
use crate::kernel::isa::{Isa, simd};
use crate::kernel::math::{exp, ln};
use crate::kernel::reduce::{
    self, COLUMNS, Matrix, add, dot_range, fold_columns, max_range, sum_range, tree,
};

/// Which operand of a gradient lies in the buffer that becomes the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The result y of the forward pass; the other slice is dy.
    Result,
    /// The gradient dy; the other slice is y.
    Gradient,
}

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
    let (mut lanes, mut block) = ([0.0; LANES], [0.0; BLOCK]);
    for x in x.chunks(BLOCK) {
        let block = &mut block[..x.len()];
        for (e, &x) in block.iter_mut().zip(x) {
            *e = exp(x - shift);
        }
        add_lanes(&mut lanes, block);
    }
    tree(lanes, add)
}

#[inline(always)]
fn softmax_body(y: &mut [f32], largest: f32) {
    let mut lanes = [0.0; LANES];
    for y in y.chunks_mut(BLOCK) {
        for y in y.iter_mut() {
            *y = exp(*y - largest);
        }
        add_lanes(&mut lanes, y);
    }
    let scale = 1.0 / tree(lanes, add);
    for y in y {
        *y *= scale;
    }
}

#[inline(always)]
fn subtract_body(y: &mut [f32], largest: f32, rest: f32) {
    for y in y {
        *y = *y - largest - rest;
    }
}

/// `out = f(y, dy)`, whichever of them lies in `out`.
#[inline(always)]
fn pairs(held: Held, other: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match held {
        Held::Result => {
            for (out, &dy) in out.iter_mut().zip(other) {
                *out = f(*out, dy);
            }
        }
        Held::Gradient => {
            for (out, &y) in out.iter_mut().zip(other) {
                *out = f(y, *out);
            }
        }
    }
}

#[inline(always)]
fn softmax_grad_body(held: Held, other: &[f32], dx: &mut [f32], dot: f32) {
    pairs(held, other, dx, |y, dy| y * (dy - dot));
}

#[inline(always)]
fn log_softmax_grad_body(held: Held, other: &[f32], dx: &mut [f32], sum: f32) {
    pairs(held, other, dx, |y, dy| (-exp(y)).mul_add(sum, dy));
}

simd! {
    /// The sum of `e^(x - shift)`.
    pub fn exp_sum(x: &[f32], shift: f32) -> f32 = exp_sum_body;
    fn softmax_shifted(y: &mut [f32], largest: f32) = softmax_body;
    fn subtract(y: &mut [f32], largest: f32, rest: f32) = subtract_body;
    fn softmax_slopes(held: Held, other: &[f32], dx: &mut [f32], dot: f32) = softmax_grad_body;
    fn log_softmax_slopes(held: Held, other: &[f32], dx: &mut [f32], sum: f32) = log_softmax_grad_body;
}

/// The row's exponentials, scaled to sum to one.
pub fn softmax(isa: Isa, y: &mut [f32]) {
    let largest = reduce::max(isa, y);
    softmax_shifted(isa, y, largest);
}

/// The largest element of a row and `ln Σ e^(x - largest)`; their sum is the logarithm of the sum of
/// exponentials. A row of nothing but -infinity gives (-infinity, 0).
pub fn log_sum_exp(isa: Isa, x: &[f32]) -> (f32, f32) {
    let largest = reduce::max(isa, x);
    (largest, if largest == f32::NEG_INFINITY { 0.0 } else { ln(exp_sum(isa, x, largest)) })
}

/// The logarithms of what [`softmax`] gives.
pub fn log_softmax(isa: Isa, y: &mut [f32]) {
    let (largest, rest) = log_sum_exp(isa, y);
    subtract(isa, y, largest, rest);
}

/// `y · (dy - Σ y·dy)`; panics if the lengths differ.
pub fn softmax_grad(isa: Isa, held: Held, other: &[f32], dx: &mut [f32]) {
    let dot = reduce::dot(isa, other, dx);
    softmax_slopes(isa, held, other, dx, dot);
}

/// `dy - e^y · Σ dy`; panics if the lengths differ.
pub fn log_softmax_grad(isa: Isa, held: Held, other: &[f32], dx: &mut [f32]) {
    assert_eq!(other.len(), dx.len(), "slices of different lengths");
    let sum = reduce::sum(isa, if held == Held::Gradient { dx } else { other });
    log_softmax_slopes(isa, held, other, dx, sum);
}

#[inline(always)]
fn exp_columns_body(y: &mut [f32], cols: usize, c0: usize, largest: &[f32]) {
    for row in y.chunks_exact_mut(cols) {
        for (y, &largest) in row[c0..][..largest.len()].iter_mut().zip(largest) {
            *y = exp(*y - largest);
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
    fold_columns(x, c0, out, 0.0, |acc, v, _, c| acc + exp(v - largest[c - c0]), add);
}

#[inline(always)]
fn grad_columns_body(
    held: Held,
    other: &[f32],
    dx: &mut [f32],
    cols: usize,
    c0: usize,
    sums: &[f32],
    log: bool,
) {
    for (other, dx) in other.chunks_exact(cols).zip(dx.chunks_exact_mut(cols)) {
        let (other, dx) = (&other[c0..][..sums.len()], &mut dx[c0..][..sums.len()]);
        for ((&other, dx), &sum) in other.iter().zip(dx).zip(sums) {
            let (y, dy) = if held == Held::Result { (*dx, other) } else { (other, *dx) };
            *dx = if log { (-exp(y)).mul_add(sum, dy) } else { y * (dy - sum) };
        }
    }
}

simd! {
    fn exp_columns(y: &mut [f32], cols: usize, c0: usize, largest: &[f32]) = exp_columns_body;
    fn scale_columns(y: &mut [f32], cols: usize, c0: usize, scale: &[f32]) = scale_columns_body;
    fn subtract_columns(y: &mut [f32], cols: usize, c0: usize, largest: &[f32], rest: &[f32]) = subtract_columns_body;
    fn exp_sum_columns(x: Matrix<'_>, c0: usize, largest: &[f32], out: &mut [f32]) = exp_sum_columns_body;
    fn grad_columns(held: Held, other: &[f32], dx: &mut [f32], cols: usize, c0: usize, sums: &[f32], log: bool) = grad_columns_body;
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

/// [`softmax`] down each column of `y[_, cols]`.
pub fn softmax_columns(isa: Isa, y: &mut [f32], cols: usize) {
    blocks(cols, |c0, largest, sums| {
        max_range(isa, matrix(y, cols), c0, largest);
        exp_columns(isa, y, cols, c0, largest);
        sum_range(isa, matrix(y, cols), c0, sums);
        sums.iter_mut().for_each(|s| *s = 1.0 / *s);
        scale_columns(isa, y, cols, c0, sums);
    });
}

/// [`log_softmax`] down each column of `y[_, cols]`.
pub fn log_softmax_columns(isa: Isa, y: &mut [f32], cols: usize) {
    blocks(cols, |c0, largest, sums| {
        max_range(isa, matrix(y, cols), c0, largest);
        exp_sum_columns(isa, matrix(y, cols), c0, largest, sums);
        for (sum, &largest) in sums.iter_mut().zip(largest.iter()) {
            *sum = if largest == f32::NEG_INFINITY { 0.0 } else { ln(*sum) };
        }
        subtract_columns(isa, y, cols, c0, largest, sums);
    });
}

/// [`softmax_grad`] down each column of two matrices of `cols` columns.
pub fn softmax_grad_columns(isa: Isa, held: Held, other: &[f32], dx: &mut [f32], cols: usize) {
    assert_eq!(other.len(), dx.len(), "matrices of different sizes");
    blocks(cols, |c0, dots, _| {
        dot_range(isa, matrix(dx, cols), other, c0, dots);
        grad_columns(isa, held, other, dx, cols, c0, dots, false);
    });
}

/// [`log_softmax_grad`] down each column of two matrices of `cols` columns.
pub fn log_softmax_grad_columns(isa: Isa, held: Held, other: &[f32], dx: &mut [f32], cols: usize) {
    assert_eq!(other.len(), dx.len(), "matrices of different sizes");
    blocks(cols, |c0, sums, _| {
        let dy = if held == Held::Gradient { &*dx } else { other };
        sum_range(isa, matrix(dy, cols), c0, sums);
        grad_columns(isa, held, other, dx, cols, c0, sums, true);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    #[test]
    fn columns_have_the_bits_of_rows() {
        for (rows, cols) in [(1, 3), (5, 1), (19, 70), (40, 130)] {
            let (x, other) = (noise(rows * cols, 1), noise(rows * cols, 2));
            let column = |x: &[f32], c: usize| (0..rows).map(|r| x[r * cols + c]).collect::<Vec<_>>();
            for isa in Isa::all() {
                type InPlace<'a> = Box<dyn Fn(&mut [f32], &[f32], Option<usize>) + 'a>;
                let mut cases: Vec<InPlace<'_>> = vec![
                    Box::new(move |x, _, c| {
                        c.map_or_else(|| softmax(isa, x), |c| softmax_columns(isa, x, c))
                    }),
                    Box::new(move |x, _, c| match c {
                        Some(c) => log_softmax_columns(isa, x, c),
                        None => log_softmax(isa, x),
                    }),
                ];
                for held in [Held::Result, Held::Gradient] {
                    cases.push(Box::new(move |x, o, c| match c {
                        Some(c) => softmax_grad_columns(isa, held, o, x, c),
                        None => softmax_grad(isa, held, o, x),
                    }));
                    cases.push(Box::new(move |x, o, c| match c {
                        Some(c) => log_softmax_grad_columns(isa, held, o, x, c),
                        None => log_softmax_grad(isa, held, o, x),
                    }));
                }
                for (i, case) in cases.iter().enumerate() {
                    let mut whole = x.clone();
                    case(&mut whole, &other, Some(cols));
                    for c in 0..cols {
                        let mut row = column(&x, c);
                        case(&mut row, &column(&other, c), None);
                        assert_eq!(bits(&row), bits(&column(&whole, c)), "case {i}, {rows}x{cols}, {isa:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        for isa in Isa::all() {
            let mut y = [1e4, 1e4, f32::NEG_INFINITY];
            softmax(isa, &mut y);
            assert_eq!(y, [0.5, 0.5, 0.0]);
            let mut y = [-1e4f32; 2];
            log_softmax(isa, &mut y);
            assert!(y.iter().all(|y| (y + std::f32::consts::LN_2).abs() < 1e-6));
            assert_eq!(log_sum_exp(isa, &[f32::NEG_INFINITY; 5]), (f32::NEG_INFINITY, 0.0));
            assert!(log_sum_exp(isa, &[1.0, f32::NAN]).1.is_nan());
        }
    }
}
