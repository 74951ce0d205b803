//! The gradient of max pooling: each window's first largest element, in row-major order, receives all
//! of the window's gradient.

use super::max_pool::MaxPool;
use super::pool::{
    PoolText, loop_extents, pool_cases, pool_indices, pool_source, pool_targets, pool_targets_within,
};
use super::product::locate;
use super::sample::{Sample, SampleInput};
use super::window::{PoolWindow, WindowTarget};
use super::{Op, OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::{Part, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Inputs: x, the pooled y and dy; result dx.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaxPoolGrad {
    /// The windows that read x.
    pub window: Vec<PoolWindow>,
    /// Where in dx they land. In a part this is less than the x it reads: a window that straddles the
    /// part's border must be seen whole to know its maximum.
    pub into: Vec<WindowTarget>,
}

impl OpDef for MaxPoolGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 3, &[])?;
        let PoolText { axes, with, .. } = PoolText::new(&self.window)?;
        // The extent is stated: y says how many windows there are, none of which may touch this part.
        let x = pool_indices(&self.window, ins[0].shape.get(2..))?;
        let dx = pool_targets(&self.window, &self.into)?;
        Ok(format!("n c {x}, n c {axes}, n c {axes} -> n c {dx} with {with}").parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let types: Vec<Type> = ins.iter().map(|t| Type::f32(&t.shape)).collect();
        let spec = self.spec(&types).expect("checked when the node was built");
        let extents = loop_extents(&spec, ins);
        let shape = outs[0].shape.clone();
        // Points of the nest come with n, c, h, r, w, s in this order, so taps of one window are not
        // neighbours; a window is done once its first maximum was met in row-major order of its taps.
        let taps: Vec<usize> = self.window.iter().map(|w| w.kernel).collect();
        for out in positions(&ins[1].shape) {
            for tap in positions(&taps) {
                let mut loops = out[..2].to_vec();
                for (h, r) in out[2..].iter().zip(&tap) {
                    loops.extend([*h, *r]);
                }
                let Some(i) = locate(&spec.inputs[0], &loops, &extents, &ins[0].shape) else { continue };
                let (x, y) = (ins[0].data[i], ins[1].at(&out));
                if x == y || (x.is_nan() && y.is_nan()) {
                    if let Some(o) = locate(&spec.outputs[0], &loops, &extents, &shape) {
                        outs[0].data[o] += ins[2].at(&out);
                    }
                    break;
                }
            }
        }
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let seen = &part.input_windows[0][2..];
        let window = self.window.iter().zip(seen).map(|(w, s)| w.within(*s)).collect();
        Some(MaxPoolGrad { window, into: pool_targets_within(part) }.into())
    }

    fn samples() -> Vec<Sample> {
        let mut all = Vec::new();
        for (window, shape) in pool_cases() {
            // Few distinct numbers, so that windows have several largest elements; y is not the pooled
            // x, which leaves some windows without any, and the result is defined all the same.
            let y = Sample::normal(MaxPool { window: window.clone() }, &[&shape]).output_shapes().remove(0);
            let dims: Vec<_> = shape.iter().map(|&d| d.into()).collect();
            let into = pool_source(&window, &dims);
            let few = |shape: &[usize]| SampleInput {
                fill: super::sample::SampleFill::Below(3),
                ..SampleInput::normal(shape)
            };
            let inputs = vec![few(&shape), few(&y), SampleInput::normal(&y)];
            all.push(Sample::new(MaxPoolGrad { window, into }, inputs));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_elements_receives_the_gradient() {
        let window = vec![PoolWindow { kernel: 2, stride: 2, low: 0, high: 0 }; 2];
        let into = vec![WindowTarget { low: 0, size: 2.into() }, WindowTarget { low: 0, size: 4.into() }];
        let x = Tensor::new(&[1, 1, 2, 4], vec![1.0, 5.0, 2.0, 0.0, 5.0, 5.0, 2.0, f64::NAN]);
        let y = Tensor::new(&[1, 1, 1, 2], vec![5.0, f64::NAN]);
        let dy = Tensor::new(&[1, 1, 1, 2], vec![3.0, 4.0]);
        let mut dx = [Tensor::zeros(&[1, 1, 2, 4])];
        MaxPoolGrad { window, into }.eval(&[&x, &y, &dy], &mut dx);
        assert_eq!(dx[0].data, [0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0]);
    }
}
