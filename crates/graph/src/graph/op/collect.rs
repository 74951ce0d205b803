//! Collect: the rows of all partials, one below the other. Only an update can collect: nodes that run for one partial
//! do not know the others.

use super::sample::Sample;
use super::{OpDef, OpError, attribute, check};
use crate::dim::Dim;
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Collects a row of each partial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collect {
    /// The number of partials.
    pub partials: usize,
}

impl OpDef for Collect {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        if ins[0].rank() != 2 || ins[0].shape[0] != Dim::from(1) {
            return attribute(format!("collects rows, not {}", ins[0]));
        }
        Ok(format!("1 e -> p! e with p={}", self.partials).parse()?)
    }

    /// As if all partials were alike.
    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let row = &ins[0].data;
        for (i, y) in outs[0].data.iter_mut().enumerate() {
            *y = row[i % row.len()];
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn each_partial(&self, _input: usize) -> bool {
        true
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(Collect { partials: 1 }, &[&[1, 5]]),
            Sample::normal(Collect { partials: 1 }, &[&[1, 1]]),
        ]
    }
}
