//! The gradient of layer normalisation in one operator.

use super::layer_norm::operands;
use super::moments::{NormSlot, normalize_grad};
use super::sample::{Sample, SampleInput};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs x, gamma, mean, rstd, dy; outputs dx, dgamma, dbeta. Rows may be cut: then dgamma and dbeta
/// are partial sums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNormGrad {
    /// Number of the last dimensions that are normalised together.
    pub axes: usize,
}

impl OpDef for LayerNormGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 5, &[])?;
        let [all, rows, inner] = operands(&ins[0], self.axes)?;
        Ok(format!("{all}, {inner}, {rows}, {rows}, {all} -> {all}, {inner}, {inner}").parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let width = ins[1].len().max(1);
        let slot = |i: usize| NormSlot { set: i / width, channel: i % width };
        normalize_grad([ins[0], ins[1], ins[4]], &ins[2].data, &ins[3].data, slot, outs);
    }

    fn flops_per_point(&self) -> u64 {
        16
    }

    fn samples() -> Vec<Sample> {
        let sample = |axes, x: &[usize], rows: &[usize], inner: &[usize]| {
            let n = SampleInput::normal;
            let rstd = SampleInput::uniform(rows, 0.5, 2.0);
            Sample::new(LayerNormGrad { axes }, vec![n(x), n(inner), n(rows), rstd, n(x)])
        };
        vec![
            sample(1, &[4, 17], &[4], &[17]),
            sample(1, &[2, 3, 5], &[2, 3], &[5]),
            sample(2, &[3, 2, 4], &[3], &[2, 4]),
            sample(1, &[9], &[], &[9]),
        ]
    }
}
