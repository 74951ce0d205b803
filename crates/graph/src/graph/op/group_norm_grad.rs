//! The gradient of group normalisation in one operator.

use super::group_norm::{operands, slots};
use super::moments::normalize_grad;
use super::sample::{Sample, SampleInput};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::graph::op::Op;
use crate::spec::{Part, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs x, gamma, mean, rstd, dy; outputs dx, dgamma, dbeta. Samples may be cut: then dgamma and dbeta
/// are partial sums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNormGrad {
    /// Number of groups of channels.
    pub groups: usize,
}

impl OpDef for GroupNormGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 5, &[])?;
        let [x, with] = operands(&ins[0], self.groups)?;
        Ok(format!("{x}, (g c!), n g, n g, {x} -> {x}, (g c!), (g c!) {with}").parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let slot = slots(ins[0], self.groups);
        normalize_grad([ins[0], ins[1], ins[4]], &ins[2].data, &ins[3].data, slot, outs);
    }

    fn flops_per_point(&self) -> u64 {
        16
    }

    fn part(&self, part: &Part) -> Option<Op> {
        Some(GroupNormGrad { groups: part.inputs[2][1].len() }.into())
    }

    fn samples() -> Vec<Sample> {
        let sample = |groups, x: &[usize]| {
            let n = SampleInput::normal;
            let sets = [x[0], groups];
            let rstd = SampleInput::uniform(&sets, 0.5, 2.0);
            Sample::new(GroupNormGrad { groups }, vec![n(x), n(&x[1..2]), n(&sets), rstd, n(x)])
        };
        vec![sample(3, &[2, 6, 5]), sample(2, &[3, 4, 2, 3]), sample(3, &[2, 3, 3, 3]), sample(1, &[4, 5])]
    }
}
