//! Operators that depend on the order of elements along one axis: cumulative sums, argmax and top-k.

use super::divide::{GRAIN, each_row};
use super::{Lowered, TensorType};
use crate::kernel::scan;
use crate::team::{SharedMut, share};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::argmax::Argmax;
use gulliver_graph::graph::op::cumsum::Cumsum;
use gulliver_graph::graph::op::top_k::TopK;

/// Extents before, at and after an axis.
pub(super) fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

pub(super) fn cumsum(op: &Cumsum, ins: &[TensorType]) -> Lowered {
    let [_, extent, after] = around(&ins[0].shape, op.axis);
    let (len, reverse) = (extent * after, op.reverse);
    Lowered::plain(move |call| {
        let isa = call.team.isa();
        let x = call.input::<f32>(0);
        each_row(call.team, call.output::<f32>(0), len, x.len(), |b, y| {
            scan::running_sums(isa, &x[b * len..(b + 1) * len], after, reverse, y);
        });
    })
}

pub(super) fn argmax(op: &Argmax, ins: &[TensorType]) -> Lowered {
    let [_, extent, after] = around(&ins[0].shape, op.axis);
    let len = extent * after;
    Lowered::plain(move |call| {
        let isa = call.team.isa();
        let x = call.input::<f32>(0);
        each_row(call.team, call.output::<i64>(0), after, x.len(), |b, y| {
            scan::largest(isa, &x[b * len..(b + 1) * len], y);
        });
    })
}

pub(super) fn top_k(op: &TopK, ins: &[TensorType], threads: usize) -> Option<Lowered> {
    let (&width, k) = (ins[0].shape.last()?, op.k);
    if ins[0].dtype != DType::F32 || i32::try_from(width).is_err() {
        return None;
    }
    let rows: usize = ins[0].shape[..ins[0].shape.len() - 1].iter().product();
    Some(Lowered::with_scratch(width * threads, move |call| {
        let x = call.input::<f32>(0);
        let (values, indices) = (call.output::<f32>(0), call.output::<i64>(1));
        let (values, indices) = (SharedMut::new(values), SharedMut::new(indices));
        let orders = SharedMut::new(call.scratch::<i32>());
        let parts = if rows * width < 2 * GRAIN { 1 } else { call.team.threads() };
        call.team.run(parts, &|part| {
            // SAFETY: each part has its own range of scratch.
            let order = unsafe { orders.slice(part * width..(part + 1) * width) };
            for row in share(rows, 1, parts, part) {
                let at = row * k..(row + 1) * k;
                // SAFETY: rows are disjoint.
                let (values, indices) = unsafe { (values.slice(at.clone()), indices.slice(at)) };
                scan::top(&x[row * width..(row + 1) * width], order, values, indices);
            }
        });
    }))
}
