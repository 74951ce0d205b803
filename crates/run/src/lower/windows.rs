//! Convolutions and their gradients.

use super::{Lowered, TensorType};
use crate::kernel::conv::{self as kernel, ConvShape};
use crate::team::Team;
use gulliver_graph::graph::op::conv::{Conv, ConvRotation};

pub(super) fn conv(op: &Conv, ins: &[TensorType], outs: &[TensorType], threads: usize) -> Option<Lowered> {
    // The shape is the same whichever of x, w and y is the result.
    let (x, w, y) = match op.rotation {
        ConvRotation::Forward => (&ins[0], &ins[1], &outs[0]),
        ConvRotation::InputGrad { .. } => (&outs[0], &ins[1], &ins[0]),
        ConvRotation::WeightGrad { .. } => (&ins[0], &outs[0], &ins[1]),
    };
    let shape = shape(op, &x.shape, &w.shape, &y.shape)?;
    type Kernel = fn(&Team, &ConvShape, &[f32], &[f32], &mut [f32], &mut [f32]);
    let (run, scratch): (Kernel, usize) = match op.rotation {
        ConvRotation::Forward => (kernel::forward, kernel::forward_scratch_len(&shape, threads)),
        ConvRotation::InputGrad { .. } => {
            (kernel::input_grad, kernel::input_grad_scratch_len(&shape, threads))
        }
        ConvRotation::WeightGrad { .. } => {
            (kernel::weight_grad, kernel::weight_grad_scratch_len(&shape, threads))
        }
    };
    Some(Lowered::with_scratch(scratch, move |call| {
        let (a, b, c) = (call.input(0), call.input(1), call.output(0));
        run(call.team, &shape, a, b, c, call.scratch());
    }))
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
