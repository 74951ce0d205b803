//! Softmax, its logarithm and their gradients: rows in parallel when the axis is last, otherwise one
//! matrix per index before the axis.

use super::reduce::over_rows;
use super::{Lowered, TensorType, all_f32};
use crate::kernel::softmax as kernel;
use crate::lower::call::Call;
use crate::team::SharedMut;
use crate::team::isa::Isa;

/// On one row, or down the columns of a matrix this wide.
type Forward = (fn(Isa, Option<&[f32]>, &mut [f32]), fn(Isa, Option<&[f32]>, &mut [f32], usize));
type Gradient = (
    fn(Isa, Option<&[f32]>, Option<&[f32]>, &mut [f32]),
    fn(Isa, Option<&[f32]>, Option<&[f32]>, &mut [f32], usize),
);

pub(super) fn softmax(axis: usize, ins: &[TensorType]) -> Option<Lowered> {
    forward((kernel::softmax, kernel::softmax_columns), axis, ins)
}

pub(super) fn log_softmax(axis: usize, ins: &[TensorType]) -> Option<Lowered> {
    forward((kernel::log_softmax, kernel::log_softmax_columns), axis, ins)
}

pub(super) fn softmax_grad(axis: usize, ins: &[TensorType]) -> Option<Lowered> {
    gradient((kernel::softmax_grad, kernel::softmax_grad_columns), axis, ins)
}

pub(super) fn log_softmax_grad(axis: usize, ins: &[TensorType]) -> Option<Lowered> {
    gradient((kernel::log_softmax_grad, kernel::log_softmax_grad_columns), axis, ins)
}

/// Elements of the matrix at one index before the axis, and its columns.
fn around(axis: usize, shape: &[usize]) -> (usize, usize) {
    let cols = shape[axis + 1..].iter().product();
    (shape[axis] * cols, cols)
}

fn forward((row, columns): Forward, axis: usize, ins: &[TensorType]) -> Option<Lowered> {
    let (size, cols) = around(axis, &ins[0].shape);
    all_f32(ins).then(|| {
        Lowered::plain(move |call| {
            let isa = call.team.isa();
            let x = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
            each(call, size, &|y, at| {
                let x = x.map(|x| &x[at..at + size]);
                if cols == 1 { row(isa, x, y) } else { columns(isa, x, y, cols) }
            });
            Ok(())
        })
    })
}

fn gradient((row, columns): Gradient, axis: usize, ins: &[TensorType]) -> Option<Lowered> {
    let (size, cols) = around(axis, &ins[0].shape);
    all_f32(ins).then(|| {
        Lowered::plain(move |call| {
            let isa = call.team.isa();
            let [y, dy] = [0, 1].map(|i| (!call.in_place(i, 0)).then(|| call.input::<f32>(i)));
            each(call, size, &|dx, at| {
                let [y, dy] = [y, dy].map(|x| x.map(|x| &x[at..at + size]));
                if cols == 1 { row(isa, y, dy, dx) } else { columns(isa, y, dy, dx, cols) }
            });
            Ok(())
        })
    })
}

/// Calls `f` with every stretch of `size` elements of the result and where it starts.
fn each(call: &mut Call<'_>, size: usize, f: &(dyn Fn(&mut [f32], usize) + Sync)) {
    let out = SharedMut::new(call.output::<f32>(0));
    if out.is_empty() {
        return;
    }
    over_rows(call, out.len() / size, out.len(), &|range| {
        for i in range {
            // SAFETY: stretches are disjoint.
            f(unsafe { out.slice(i * size..(i + 1) * size) }, i * size);
        }
    });
}
