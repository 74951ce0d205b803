//! Layer normalisation over the last dimensions.

use super::layer_norm_grad::LayerNormGrad;
use super::moments::{NormSlot, axis_names, moments, normalize, operand};
use super::sample::Sample;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs x, gamma, beta: `y = (x - mean)·rstd·gamma + beta` with the mean and the biased variance over
/// the last dimensions, `rstd = 1/√(variance + eps)`. Outputs y; for the backward pass mean and rstd,
/// each of the shape of the leading dimensions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// Number of the last dimensions that are normalised together; gamma and beta have their shape.
    pub axes: usize,
    /// Added to the variance.
    pub eps: f32,
}

/// The operands of a line: (all dimensions, the leading ones, the normalised ones).
pub(crate) fn operands(x: &Type, axes: usize) -> Result<[String; 3], OpError> {
    let Some(leading) = x.rank().checked_sub(axes).filter(|_| axes > 0) else {
        return attribute(format!("cannot normalise {axes} of {} dimensions", x.rank()));
    };
    let (rows, inner) = (axis_names("a", leading, ""), axis_names("x", axes, "!"));
    Ok([operand(&[rows.clone(), inner.clone()].concat()), operand(&rows), operand(&inner)])
}

impl OpDef for LayerNorm {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 3, &[])?;
        let [all, rows, inner] = operands(&ins[0], self.axes)?;
        Ok(format!("{all}, {inner}, {inner} -> {all}, {rows}, {rows}").parse()?)
    }

    fn results(&self) -> usize {
        1
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let ins = [at.ins[0], at.ins[1], at.outs[1], at.outs[2], at.dout()?];
        Ok(g.push(LayerNormGrad { axes: self.axes }, &ins)?.into_iter().map(Some).collect())
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let width = ins[1].len().max(1);
        let slot = |i: usize| NormSlot { set: i / width, channel: i % width };
        let (mean, variance) = moments(ins[0], slot, outs[1].len());
        let rstd: Vec<f64> = variance.iter().map(|v| 1.0 / (v + f64::from(self.eps)).sqrt()).collect();
        normalize([ins[0], ins[1], ins[2]], &mean, &rstd, slot, &mut outs[0]);
        outs[1].data = mean;
        outs[2].data = rstd;
    }

    fn flops_per_point(&self) -> u64 {
        8
    }

    fn samples() -> Vec<Sample> {
        let norm = |axes| LayerNorm { axes, eps: 1e-5 };
        vec![
            Sample::normal(norm(1), &[&[4, 17], &[17], &[17]]),
            Sample::normal(norm(1), &[&[2, 3, 5], &[5], &[5]]),
            Sample::normal(norm(2), &[&[3, 2, 4], &[2, 4], &[2, 4]]),
            Sample::normal(norm(1), &[&[9], &[9], &[9]]),
        ]
    }
}
