//! Operators along one axis whose result at a place depends on the order of its row: cumulative sums,
//! the largest element, the largest few.

use super::broadcast::{GRAIN, units};
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

pub(super) fn cumsum(op: &Cumsum, ins: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    let [before, extent, after] = around(&ins[0].shape, op.axis);
    let (len, reverse) = (extent * after, op.reverse);
    Some(Lowered::plain(move |call| {
        let isa = call.team.isa();
        let x = call.input::<f32>(0);
        let y = SharedMut::new(call.output::<f32>(0));
        let work = |range: std::ops::Range<usize>| {
            for b in range {
                // SAFETY: blocks are disjoint.
                let y = unsafe { y.slice(b * len..(b + 1) * len) };
                scan::running_sums(isa, &x[b * len..(b + 1) * len], after, reverse, y);
            }
        };
        units(call, before, len, &work);
        Ok(())
    }))
}

pub(super) fn argmax(op: &Argmax, ins: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    let [before, extent, after] = around(&ins[0].shape, op.axis);
    let len = extent * after;
    Some(Lowered::plain(move |call| {
        let isa = call.team.isa();
        let x = call.input::<f32>(0);
        let y = SharedMut::new(call.output::<i64>(0));
        let work = |range: std::ops::Range<usize>| {
            for b in range {
                // SAFETY: blocks are disjoint.
                let y = unsafe { y.slice(b * after..(b + 1) * after) };
                scan::largest(isa, &x[b * len..(b + 1) * len], y);
            }
        };
        units(call, before, len, &work);
        Ok(())
    }))
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
            // SAFETY: each part has its own stretch of scratch.
            let order = unsafe { orders.slice(part * width..(part + 1) * width) };
            for row in share(rows, 1, parts, part) {
                let at = row * k..(row + 1) * k;
                // SAFETY: rows are disjoint.
                let (values, indices) = unsafe { (values.slice(at.clone()), indices.slice(at)) };
                scan::top(&x[row * width..(row + 1) * width], order, values, indices);
            }
        });
        Ok(())
    }))
}
