//! Recurrent layers: passes operands and results to the kernels in order.

use super::{Lowered, TensorType};
use crate::kernel::recurrent::{self, Extents};
use gulliver_graph::dtype::DType;

/// Extents from a sequence [b, t, …] and a weight [gates · h, h]; `None` if not single precision.
fn extents(ins: &[TensorType], sequence: usize, weight: usize) -> Option<Extents> {
    if ins.iter().any(|ty| ty.dtype != DType::F32) {
        return None;
    }
    let (batch, time) = (ins[sequence].shape[0], ins[sequence].shape[1]);
    let (wide, hidden) = (ins[weight].shape[0], ins[weight].shape[1]);
    Some(Extents { batch, time, hidden, gates: wide.checked_div(hidden)? })
}

pub(super) fn lstm(ins: &[TensorType]) -> Option<Lowered> {
    let e = extents(ins, 0, 3)?;
    Some(Lowered::with_scratch(e.scratch(), move |call| {
        let operands = std::array::from_fn(|i| call.input(i));
        let [y, last, gates, cells] = std::array::from_fn(|o| call.output(o));
        recurrent::lstm(call.team, e, operands, y, last, gates, cells, call.scratch());
    }))
}

pub(super) fn lstm_grad(ins: &[TensorType]) -> Option<Lowered> {
    let e = extents(ins, 0, 2)?;
    Some(Lowered::with_scratch(e.grad_scratch(), move |call| {
        let operands = std::array::from_fn(|i| call.input(i));
        let [dgx, dh0, dc0] = std::array::from_fn(|o| call.output(o));
        recurrent::lstm_grad(call.team, e, operands, dgx, dh0, dc0, call.scratch());
    }))
}

pub(super) fn gru(ins: &[TensorType]) -> Option<Lowered> {
    let e = extents(ins, 0, 2)?;
    Some(Lowered::with_scratch(e.scratch(), move |call| {
        let operands = std::array::from_fn(|i| call.input(i));
        let [y, gates, inner] = std::array::from_fn(|o| call.output(o));
        recurrent::gru(call.team, e, operands, y, gates, inner, call.scratch());
    }))
}

pub(super) fn gru_grad(ins: &[TensorType]) -> Option<Lowered> {
    let e = extents(ins, 0, 1)?;
    Some(Lowered::with_scratch(e.grad_scratch(), move |call| {
        let operands = std::array::from_fn(|i| call.input(i));
        let [dgx, dgh, dh0, dbias] = std::array::from_fn(|o| call.output(o));
        recurrent::gru_grad(call.team, e, operands, dgx, dgh, dh0, dbias, call.scratch());
    }))
}
