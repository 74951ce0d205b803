//! Take: one element of each row along the last dimension, chosen by an index.

use super::gather::{axes, or_scalar};
use super::sample::{Sample, SampleInput};
use super::take_grad::TakeGrad;
use super::{Backward, INTEGER, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs: x [n…, v] and index [n…] with numbers below v; result [n…].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Take {}

impl OpDef for Take {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[(1, INTEGER)])?;
        let Some(rank) = ins[0].rank().checked_sub(1) else {
            return attribute("nothing to take of a scalar");
        };
        let n = axes('n', rank);
        let rows = or_scalar(n.clone());
        Ok(format!("{n}v!, {rows} -> {rows}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let shape = g.shape(at.ins[0]);
        let size = shape[shape.len() - 1].clone();
        Ok(vec![Some(g.push1(TakeGrad { size }, &[at.ins[1], at.dout()?])?), None])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let width = *ins[0].shape.last().expect("a row");
        for (n, (y, &i)) in outs[0].data.iter_mut().zip(&ins[1].data).enumerate() {
            *y = ins[0].data[n * width..(n + 1) * width][i as usize];
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn samples() -> Vec<Sample> {
        let n = SampleInput::normal;
        vec![
            Sample::new(Take {}, vec![n(&[4, 5]), SampleInput::below(&[4], 5)]),
            Sample::new(Take {}, vec![n(&[2, 3, 4]), SampleInput::below(&[2, 3], 4)]),
            Sample::new(Take {}, vec![n(&[6]), SampleInput::below(&[], 6)]),
        ]
    }
}
