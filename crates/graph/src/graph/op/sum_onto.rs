//! Sum onto: adds the values of all partials, in order, to a sum that other devices have begun.

use super::sample::Sample;
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Operands: the sum so far, and the value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumOnto {}

impl OpDef for SumOnto {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[])?;
        let axes = match ins[0].rank() {
            0 => "[]".to_string(),
            rank => (0..rank).map(|d| format!("a{d}")).collect::<Vec<_>>().join(" "),
        };
        Ok(format!("{axes}, {axes} -> {axes}").parse()?)
    }

    /// As if there were one partial.
    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        for ((y, sum), x) in outs[0].data.iter_mut().zip(&ins[0].data).zip(&ins[1].data) {
            *y = sum + x;
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn each_partial(&self, input: usize) -> bool {
        input == 1
    }

    fn samples() -> Vec<Sample> {
        vec![Sample::normal(SumOnto {}, &[&[3, 7], &[3, 7]]), Sample::normal(SumOnto {}, &[&[], &[]])]
    }
}
