//! The logarithm of softmax along one axis.

use super::log_softmax_grad::LogSoftmaxGrad;
use super::sample::Sample;
use super::softmax::{for_each_line, log_sum_exp, whole_axis_spec};
use super::{Backward, OpDef, OpError, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// `y = x - log Σ eˣ`, the sum running along `axis`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogSoftmax {
    /// The dimension whose exponentials sum to one.
    pub axis: usize,
}

impl OpDef for LogSoftmax {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        whole_axis_spec(ins, self.axis)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![Some(g.push1(LogSoftmaxGrad { axis: self.axis }, &[at.outs[0], at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let x = &ins[0].data;
        for_each_line(ins[0], self.axis, |line| {
            let lse = log_sum_exp(line.iter().map(|&i| x[i]));
            for &i in line {
                outs[0].data[i] = x[i] - lse;
            }
        });
    }

    fn flops_per_point(&self) -> u64 {
        12
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(LogSoftmax { axis: 1 }, &[&[5, 19]]),
            Sample::normal(LogSoftmax { axis: 0 }, &[&[7]]),
            Sample::normal(LogSoftmax { axis: 1 }, &[&[2, 5, 3]]),
        ]
    }
}
