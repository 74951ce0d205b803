//! Batch normalisation in its training form. Running statistics and the evaluation form are composed
//! of other operators from the mean and variance given here.

use super::batch_norm_grad::BatchNormGrad;
use super::moments::{NormSlot, axis_names, moments, normalize};
use super::sample::Sample;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs x `[n, c, spatial…]`, gamma `[c]`, beta `[c]`: each channel is normalised over the batch and
/// all positions. Outputs y, and per channel the mean and the biased variance. The variance rather than
/// `1/√(variance + eps)` is kept, because running statistics need it and the backward pass gets the
/// other from it at the cost of one root per channel. No gradient flows through mean and variance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    /// Added to the variance.
    pub eps: f32,
}

/// The operand of x, and the clause that names the axes of the statistics.
pub(crate) fn operands(x: &Type) -> Result<[String; 2], OpError> {
    if x.rank() < 2 {
        return attribute(format!("needs a batch and a channel dimension, got {x}"));
    }
    let spatial: String = axis_names("s", x.rank() - 2, "").iter().map(|a| format!(" {a}")).collect();
    Ok([format!("n c{spatial}"), format!("over n{spatial}")])
}

/// The sets of each element of x.
pub(crate) fn slots(x: &Tensor) -> impl Fn(usize) -> NormSlot + use<> {
    let [_, channels, space] = x.around(1);
    move |i| {
        let channel = i / space % channels;
        NormSlot { set: channel, channel }
    }
}

impl OpDef for BatchNorm {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 3, &[])?;
        let [x, over] = operands(&ins[0])?;
        Ok(format!("{x}, c, c -> {x}, c, c {over}").parse()?)
    }

    fn results(&self) -> usize {
        1
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let ins = [at.ins[0], at.ins[1], at.outs[1], at.outs[2], at.dout()?];
        Ok(g.push(BatchNormGrad { eps: self.eps }, &ins)?.into_iter().map(Some).collect())
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let slot = slots(ins[0]);
        let (mean, variance) = moments(ins[0], &slot, outs[1].len());
        let rstd: Vec<f64> = variance.iter().map(|v| 1.0 / (v + f64::from(self.eps)).sqrt()).collect();
        normalize([ins[0], ins[1], ins[2]], &mean, &rstd, &slot, &mut outs[0]);
        outs[1].data = mean;
        outs[2].data = variance;
    }

    fn flops_per_point(&self) -> u64 {
        8
    }

    fn samples() -> Vec<Sample> {
        let norm = || BatchNorm { eps: 1e-5 };
        vec![
            Sample::normal(norm(), &[&[7, 3], &[3], &[3]]),
            Sample::normal(norm(), &[&[2, 3, 5], &[3], &[3]]),
            Sample::normal(norm(), &[&[2, 4, 2, 3], &[4], &[4]]),
        ]
    }
}
