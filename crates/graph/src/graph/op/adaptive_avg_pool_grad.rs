//! The gradient of adaptive average pooling.

use super::adaptive_avg_pool::{adaptive_range, box_positions};
use super::sample::Sample;
use super::window::spatial;
use super::{Op, OpDef, OpError, check};
use crate::dim::Dim;
use crate::graph::Type;
use crate::spec::{Part, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Input dy; result dx.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveAvgPoolGrad {
    /// Spatial extents of dx.
    pub size: Vec<Dim>,
}

impl OpDef for AdaptiveAvgPoolGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let (axes, taps) = spatial(self.size.len())?;
        let whole = |names: &[&str]| names.iter().map(|a| format!("{a}!")).collect::<Vec<_>>().join(" ");
        let with: Vec<String> = axes.iter().zip(&self.size).map(|(h, s)| format!("{h}={s}")).collect();
        Ok(format!("opaque n c {} -> n c {} with {}", whole(taps), whole(axes), with.join(" ")).parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let (from, to) = (outs[0].shape.clone(), &ins[0].shape);
        for (out, dy) in positions(to).zip(&ins[0].data) {
            let range = |d: usize| adaptive_range(out[d], from[d], to[d]);
            let mut ranges = vec![out[0]..out[0] + 1, out[1]..out[1] + 1];
            ranges.extend((2..from.len()).map(range));
            let window = box_positions(&ranges);
            for p in &window {
                *outs[0].at_mut(p) += dy / window.len() as f64;
            }
        }
    }

    // As in the forward operator, the nest is not the work.
    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let size = part.outputs[0][2..].iter().map(|r| r.len().into()).collect();
        Some(AdaptiveAvgPoolGrad { size }.into())
    }

    fn samples() -> Vec<Sample> {
        let to = |size: &[usize]| AdaptiveAvgPoolGrad { size: size.iter().map(|&d| d.into()).collect() };
        vec![Sample::normal(to(&[7, 5]), &[&[2, 3, 3, 2]]), Sample::normal(to(&[9]), &[&[2, 2, 4]])]
    }
}
