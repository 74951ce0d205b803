//! Softmax, its logarithm and their gradients: rows in parallel if the axis is last, else one matrix per index before the
//! axis.

use super::divide::each_row;
use super::{Lowered, TensorType};
use crate::kernel::softmax as kernel;
use crate::team::isa::Isa;

/// Functions for one row, and for the columns of a matrix.
type Forward = (fn(Isa, Option<&[f32]>, &mut [f32]), fn(Isa, Option<&[f32]>, &mut [f32], usize));
type Gradient = (
    fn(Isa, Option<&[f32]>, Option<&[f32]>, &mut [f32]),
    fn(Isa, Option<&[f32]>, Option<&[f32]>, &mut [f32], usize),
);

pub(super) fn softmax(axis: usize, ins: &[TensorType]) -> Lowered {
    forward((kernel::softmax, kernel::softmax_columns), axis, ins)
}

pub(super) fn log_softmax(axis: usize, ins: &[TensorType]) -> Lowered {
    forward((kernel::log_softmax, kernel::log_softmax_columns), axis, ins)
}

pub(super) fn softmax_grad(axis: usize, ins: &[TensorType]) -> Lowered {
    gradient((kernel::softmax_grad, kernel::softmax_grad_columns), axis, ins)
}

pub(super) fn log_softmax_grad(axis: usize, ins: &[TensorType]) -> Lowered {
    gradient((kernel::log_softmax_grad, kernel::log_softmax_grad_columns), axis, ins)
}

/// Elements and columns of the matrix at one index before the axis.
fn around(axis: usize, shape: &[usize]) -> (usize, usize) {
    let cols = shape[axis + 1..].iter().product();
    (shape[axis] * cols, cols)
}

fn forward((row, columns): Forward, axis: usize, ins: &[TensorType]) -> Lowered {
    let (size, cols) = around(axis, &ins[0].shape);
    Lowered::plain(move |call| {
        let isa = call.team.isa();
        let x = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
        let y = call.output::<f32>(0);
        each_row(call.team, y, size, 0, |i, y| {
            let x = x.map(|x| &x[i * size..(i + 1) * size]);
            if cols == 1 { row(isa, x, y) } else { columns(isa, x, y, cols) }
        });
    })
}

fn gradient((row, columns): Gradient, axis: usize, ins: &[TensorType]) -> Lowered {
    let (size, cols) = around(axis, &ins[0].shape);
    Lowered::plain(move |call| {
        let isa = call.team.isa();
        let [y, dy] = [0, 1].map(|i| (!call.in_place(i, 0)).then(|| call.input::<f32>(i)));
        let dx = call.output::<f32>(0);
        each_row(call.team, dx, size, 0, |i, dx| {
            let [y, dy] = [y, dy].map(|x| x.map(|x| &x[i * size..(i + 1) * size]));
            if cols == 1 { row(isa, y, dy, dx) } else { columns(isa, y, dy, dx, cols) }
        });
    })
}
