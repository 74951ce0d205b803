//! The gradient of the logarithm of softmax from its result.

use super::sample::{Sample, SampleInput};
use super::softmax::{for_each_line, whole_axis_spec};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs `y`, `dy`: `dx = dy - eʸ·Σ dy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogSoftmaxGrad {
    /// The dimension whose exponentials sum to one.
    pub axis: usize,
}

impl OpDef for LogSoftmaxGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[])?;
        whole_axis_spec(ins, self.axis)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let (y, dy) = (&ins[0].data, &ins[1].data);
        for_each_line(ins[0], self.axis, |line| {
            let sum: f64 = line.iter().map(|&i| dy[i]).sum();
            for &i in line {
                outs[0].data[i] = dy[i] - y[i].exp() * sum;
            }
        });
    }

    fn flops_per_point(&self) -> u64 {
        10
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(1, 0), (0, 0)]
    }

    fn samples() -> Vec<Sample> {
        let sample = |axis: usize, shape: &[usize]| {
            let inputs = vec![SampleInput::uniform(shape, -4.0, -0.5), SampleInput::normal(shape)];
            Sample::new(LogSoftmaxGrad { axis }, inputs)
        };
        vec![sample(1, &[5, 19]), sample(1, &[2, 5, 3]), sample(0, &[7])]
    }
}
