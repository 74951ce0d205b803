//! Cross entropy and its gradient, rows in parallel. Labels are checked before anything is written.

use super::divide::{each_row, over_rows};
use super::index::{Integer, by_integer, check};
use super::{Lowered, TensorType};
use crate::kernel::loss;
use crate::team::SharedMut;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::cross_entropy::CrossEntropy;
use gulliver_graph::graph::op::cross_entropy_grad::CrossEntropyGrad;

pub(super) fn cross_entropy(op: &CrossEntropy, ins: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    by_integer!(ins[1].dtype, cross_entropy_as(*ins[0].shape.last()?, op.ignore, op.smoothing))
}

fn cross_entropy_as<I: Integer>(classes: usize, ignore: Option<i64>, smoothing: f32) -> Lowered {
    Lowered::fallible(move |call| {
        let (isa, x, labels) = (call.team.isa(), call.input::<f32>(0), call.input::<I>(1));
        check(labels, classes, ignore)?;
        let [losses, lse] = [0, 1].map(|o| SharedMut::new(call.output::<f32>(o)));
        over_rows(call.team, losses.len(), x.len(), &|range| {
            for r in range {
                let x = &x[r * classes..(r + 1) * classes];
                // SAFETY: rows are disjoint.
                let (to, lse) = unsafe { (losses.slice(r..r + 1), lse.slice(r..r + 1)) };
                (to[0], lse[0]) = loss::cross_entropy(isa, x, class(labels[r], ignore), smoothing);
            }
        });
        Ok(())
    })
}

pub(super) fn cross_entropy_grad(op: &CrossEntropyGrad, ins: &[TensorType]) -> Option<Lowered> {
    if [0, 2, 3].iter().any(|&i| ins[i].dtype != DType::F32) {
        return None;
    }
    by_integer!(ins[1].dtype, cross_entropy_grad_as(*ins[0].shape.last()?, op.ignore, op.smoothing))
}

fn cross_entropy_grad_as<I: Integer>(classes: usize, ignore: Option<i64>, smoothing: f32) -> Lowered {
    Lowered::fallible(move |call| {
        let (isa, labels) = (call.team.isa(), call.input::<I>(1));
        check(labels, classes, ignore)?;
        let x = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
        let [lse, drow] = [2, 3].map(|i| call.input::<f32>(i));
        let dx = call.output::<f32>(0);
        each_row(call.team, dx, classes, 0, |r, dx| {
            let x = x.map(|x| &x[r * classes..(r + 1) * classes]);
            loss::cross_entropy_grad(isa, x, dx, class(labels[r], ignore), smoothing, lse[r], drow[r]);
        });
        Ok(())
    })
}

/// The class of a label; `None` if it is ignored.
fn class<I: Integer>(label: I, ignore: Option<i64>) -> Option<usize> {
    (ignore != Some(label.wide())).then_some(label.wide() as usize)
}
