//! Attention and its gradient on the tiled kernels.

use super::{Lowered, TensorType, all_f32};
use crate::kernel::attention::{self as kernel, AttentionShape};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::attention::Attention;
use gulliver_graph::graph::op::attention_grad::AttentionGrad;

/// The extents, if the kernel knows the element types.
fn shape(op: &Attention, ins: &[TensorType]) -> Option<AttentionShape> {
    let (floats, rest) = ins.split_at(3);
    let (mask, saved) = rest.split_at(usize::from(op.masked));
    let known = all_f32(floats) && all_f32(saved);
    let bytes = mask.iter().all(|m| matches!(m.dtype, DType::Bool | DType::U8));
    let (&[b, t, h, d], &[_, s, _, _]) = (ins[0].shape.as_slice(), ins[1].shape.as_slice()) else {
        return None;
    };
    (known && bytes).then_some(AttentionShape { b, t, s, h, d, scale: op.scale, causal: op.causal })
}

pub(super) fn forward(op: &Attention, ins: &[TensorType], threads: usize) -> Option<Lowered> {
    let (shape, masked) = (shape(op, ins)?, op.masked);
    Some(Lowered::with_scratch(kernel::forward_scratch_len(&shape, threads), move |call| {
        let [q, k, v] = [0, 1, 2].map(|i| call.input::<f32>(i));
        let mask = masked.then(|| call.input::<u8>(3));
        let (o, lse) = (call.output::<f32>(0), call.output::<f32>(1));
        kernel::forward(call.team, &shape, q, k, v, mask, o, lse, call.scratch());
        Ok(())
    }))
}

pub(super) fn backward(op: &AttentionGrad, ins: &[TensorType], threads: usize) -> Option<Lowered> {
    let (shape, masked) = (shape(&op.0, ins)?, op.0.masked);
    let saved = 3 + usize::from(masked);
    Some(Lowered::with_scratch(kernel::backward_scratch_len(&shape, threads), move |call| {
        let [q, k, v, o, lse, dout] = [0, 1, 2, saved, saved + 1, saved + 2].map(|i| call.input::<f32>(i));
        let mask = masked.then(|| call.input::<u8>(3));
        let grads = [0, 1, 2].map(|o| call.output::<f32>(o));
        kernel::backward(call.team, &shape, [q, k, v], mask, o, lse, dout, grads, call.scratch());
        Ok(())
    }))
}
