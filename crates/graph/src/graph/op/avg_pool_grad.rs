//! The gradient of average pooling: every element of a window receives an equal share.

use super::avg_pool::AvgPool;
use super::pool::{PoolText, loop_extents, pool_cases, pool_source, pool_targets, pool_targets_within};
use super::product::locate;
use super::sample::Sample;
use super::window::{PoolWindow, WindowTarget};
use super::{Op, OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::{Part, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Input dy; result dx.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AvgPoolGrad {
    /// One per spatial dimension; their padding is that of the targets.
    pub window: Vec<PoolWindow>,
    /// The divisor of the forward sums.
    pub divisor: f32,
    /// The places of the windows in dx.
    pub into: Vec<WindowTarget>,
}

impl OpDef for AvgPoolGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let PoolText { axes, with, .. } = PoolText::new(&self.window)?;
        let dx = pool_targets(&self.window, &self.into)?;
        Ok(format!("n c {axes} -> n c {dx} with {with}").parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let spec = self.spec(&[Type::f32(&ins[0].shape)]).expect("checked when the node was built");
        let extents = loop_extents(&spec, ins);
        let shape = outs[0].shape.clone();
        for loops in positions(&extents) {
            let i = locate(&spec.inputs[0], &loops, &extents, &ins[0].shape);
            let o = locate(&spec.outputs[0], &loops, &extents, &shape);
            if let (Some(i), Some(o)) = (i, o) {
                outs[0].data[o] += ins[0].data[i] / f64::from(self.divisor);
            }
        }
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let into = pool_targets_within(part);
        Some(AvgPoolGrad { window: self.window.clone(), divisor: self.divisor, into }.into())
    }

    fn samples() -> Vec<Sample> {
        let mut all = Vec::new();
        for (window, shape) in pool_cases() {
            let forward = AvgPool { window: window.clone(), divisor: 4.0 };
            let y = Sample::normal(forward, &[&shape]).output_shapes().remove(0);
            let dims: Vec<_> = shape.iter().map(|&d| d.into()).collect();
            let into = pool_source(&window, &dims);
            all.push(Sample::normal(AvgPoolGrad { window, divisor: 4.0, into }, &[&y]));
        }
        all
    }
}
