//! Convolutions and their rotations on the convolution kernels.

use super::{Lowered, TensorType, all_f32};
use crate::kernel::conv::{self as kernel, ConvShape};
use gulliver_graph::graph::op::conv::{Conv, ConvRotation};

pub(super) fn conv(op: &Conv, ins: &[TensorType], outs: &[TensorType], threads: usize) -> Option<Lowered> {
    // Whichever of x, w and y is the result, the shape is the same.
    let (x, w, y) = match op.rotation {
        ConvRotation::Forward => (&ins[0], &ins[1], &outs[0]),
        ConvRotation::InputGrad { .. } => (&outs[0], &ins[1], &ins[0]),
        ConvRotation::WeightGrad { .. } => (&ins[0], &outs[0], &ins[1]),
    };
    if !all_f32(ins) {
        return None;
    }
    let shape = shape(op, &x.shape, &w.shape, &y.shape)?;
    Some(match op.rotation {
        ConvRotation::Forward => {
            Lowered::with_scratch(kernel::forward_scratch_len(&shape, threads), move |call| {
                let (x, w, y) = (call.input(0), call.input(1), call.output(0));
                kernel::forward(call.team, &shape, x, w, y, call.scratch());
                Ok(())
            })
        }
        ConvRotation::InputGrad { .. } => {
            Lowered::with_scratch(kernel::input_grad_scratch_len(&shape, threads), move |call| {
                let (dy, w, dx) = (call.input(0), call.input(1), call.output(0));
                kernel::input_grad(call.team, &shape, dy, w, dx, call.scratch());
                Ok(())
            })
        }
        ConvRotation::WeightGrad { .. } => {
            Lowered::with_scratch(kernel::weight_grad_scratch_len(&shape, threads), move |call| {
                let (x, dy, dw) = (call.input(0), call.input(1), call.output(0));
                kernel::weight_grad(call.team, &shape, x, dy, dw, call.scratch());
                Ok(())
            })
        }
    })
}

/// The kernel's three spatial dimensions; absent ones come first and have extent 1.
fn shape(op: &Conv, x: &[usize], w: &[usize], y: &[usize]) -> Option<ConvShape> {
    let dims = op.window.len();
    let missing = 3usize.checked_sub(dims)?;
    let along =
        |shape: &[usize]| std::array::from_fn(|a| if a < missing { 1 } else { shape[2 + a - missing] });
    let window = |a: usize| a.checked_sub(missing).map(|d| &op.window[d]);
    Some(ConvShape {
        n: x[0],
        groups: op.groups,
        c: w[1],
        o: w[0] / op.groups.max(1),
        input: along(x),
        kernel: along(w),
        output: along(y),
        stride: std::array::from_fn(|a| window(a).map_or(1, |w| w.stride)),
        dilation: std::array::from_fn(|a| window(a).map_or(1, |w| w.dilation)),
        pad: std::array::from_fn(|a| window(a).map_or(0, |w| w.low as isize)),
    })
}
