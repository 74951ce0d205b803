//! Group normalisation; with as many groups as channels, instance normalisation.

use super::group_norm_grad::GroupNormGrad;
use super::moments::{NormSlot, axis_names, moments, normalize};
use super::sample::Sample;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::op::Op;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs x `[n, c, spatial…]`, gamma `[c]`, beta `[c]`: each sample's channels are normalised in groups
/// of neighbours, together with all spatial positions. Outputs y; for the backward pass mean and
/// `rstd = 1/√(biased variance + eps)`, both `[n, groups]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNorm {
    /// Number of groups; divides the number of channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
}

/// The operand of x, and the clause that gives the number of groups.
pub(crate) fn operands(x: &Type, groups: usize) -> Result<[String; 2], OpError> {
    if x.rank() < 2 {
        return attribute(format!("needs a batch and a channel dimension, got {x}"));
    }
    let channels = x.shape[1].as_const();
    if groups == 0 || channels.is_some_and(|c| c % groups as i64 != 0) {
        return attribute(format!("{} channels do not form {groups} groups", x.shape[1]));
    }
    let spatial: String = axis_names("s", x.rank() - 2, "!").iter().map(|a| format!(" {a}")).collect();
    Ok([format!("n (g c!){spatial}"), format!("with g={groups}")])
}

/// The sets of each element of x.
pub(crate) fn slots(x: &Tensor, groups: usize) -> impl Fn(usize) -> NormSlot + use<> {
    let channels = x.shape[1];
    let space: usize = x.shape[2..].iter().product();
    move |i| {
        let (sample, channel) = (i / (space * channels), i / space % channels);
        NormSlot { set: sample * groups + channel / (channels / groups), channel }
    }
}

impl OpDef for GroupNorm {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 3, &[])?;
        let [x, with] = operands(&ins[0], self.groups)?;
        Ok(format!("{x}, (g c!), (g c!) -> {x}, n g, n g {with}").parse()?)
    }

    fn results(&self) -> usize {
        1
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let ins = [at.ins[0], at.ins[1], at.outs[1], at.outs[2], at.dout()?];
        Ok(g.push(GroupNormGrad { groups: self.groups }, &ins)?.into_iter().map(Some).collect())
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let slot = slots(ins[0], self.groups);
        let (mean, variance) = moments(ins[0], &slot, outs[1].len());
        let rstd: Vec<f64> = variance.iter().map(|v| 1.0 / (v + f64::from(self.eps)).sqrt()).collect();
        normalize([ins[0], ins[1], ins[2]], &mean, &rstd, &slot, &mut outs[0]);
        outs[1].data = mean;
        outs[2].data = rstd;
    }

    fn flops_per_point(&self) -> u64 {
        8
    }

    fn part(&self, part: &Part) -> Option<Op> {
        Some(GroupNorm { groups: part.outputs[1][1].len(), eps: self.eps }.into())
    }

    fn samples() -> Vec<Sample> {
        let norm = |groups| GroupNorm { groups, eps: 1e-5 };
        vec![
            Sample::normal(norm(3), &[&[2, 6, 5], &[6], &[6]]),
            Sample::normal(norm(2), &[&[3, 4, 2, 3], &[4], &[4]]),
            Sample::normal(norm(3), &[&[2, 3, 3, 3], &[3], &[3]]),
            Sample::normal(norm(1), &[&[4, 5], &[5], &[5]]),
        ]
    }
}
