//! The gradient of batch normalisation in one operator.

use super::batch_norm::{operands, slots};
use super::moments::normalize_grad;
use super::sample::{Sample, SampleInput};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs x, gamma, mean, variance, dy; outputs dx, dgamma, dbeta.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormGrad {
    /// Added to the variance.
    pub eps: f32,
}

impl OpDef for BatchNormGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 5, &[])?;
        let [x, over] = operands(&ins[0])?;
        Ok(format!("{x}, c, c, c, {x} -> {x}, c, c {over}").parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let rstd: Vec<f64> = ins[3].data.iter().map(|v| 1.0 / (v + f64::from(self.eps)).sqrt()).collect();
        normalize_grad([ins[0], ins[1], ins[4]], &ins[2].data, &rstd, slots(ins[0]), outs);
    }

    fn flops_per_point(&self) -> u64 {
        16
    }

    fn samples() -> Vec<Sample> {
        let sample = |x: &[usize]| {
            let n = SampleInput::normal;
            let c = &x[1..2];
            let variance = SampleInput::uniform(c, 0.5, 2.0);
            Sample::new(BatchNormGrad { eps: 1e-5 }, vec![n(x), n(c), n(c), variance, n(x)])
        };
        vec![sample(&[7, 3]), sample(&[2, 3, 5]), sample(&[2, 4, 2, 3])]
    }
}
