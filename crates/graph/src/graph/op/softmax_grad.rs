//! The gradient of softmax from its result.

use super::sample::{Sample, SampleInput};
use super::softmax::{for_each_line, whole_axis_spec};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs `y`, `dy`: `dx = y·(dy - Σ y·dy)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxGrad {
    /// The dimension that sums to one.
    pub axis: usize,
}

impl OpDef for SoftmaxGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[])?;
        whole_axis_spec(ins, self.axis)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let (y, dy) = (&ins[0].data, &ins[1].data);
        for_each_line(ins[0], self.axis, |line| {
            let dot: f64 = line.iter().map(|&i| y[i] * dy[i]).sum();
            for &i in line {
                outs[0].data[i] = y[i] * (dy[i] - dot);
            }
        });
    }

    fn flops_per_point(&self) -> u64 {
        4
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(1, 0), (0, 0)]
    }

    fn samples() -> Vec<Sample> {
        let sample = |axis: usize, shape: &[usize]| {
            let inputs = vec![SampleInput::uniform(shape, 0.0, 0.5), SampleInput::normal(shape)];
            Sample::new(SoftmaxGrad { axis }, inputs)
        };
        vec![sample(1, &[5, 19]), sample(1, &[2, 5, 3]), sample(0, &[7])]
    }
}
