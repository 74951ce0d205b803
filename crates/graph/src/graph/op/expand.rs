//! Expand: repeats dimensions of extent one, and adds leading ones, up to a shape.

use super::sample::Sample;
use super::zip::broadcast_at;
use super::{Backward, OpDef, OpError, attribute};
use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::op::Op;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec, SpecError};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// To this shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expand {
    /// The new extents.
    pub shape: Vec<Dim>,
}

impl OpDef for Expand {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let [x] = ins else { return Err(SpecError::Arity { expected: 1, got: ins.len() }.into()) };
        let Some(skip) = self.shape.len().checked_sub(x.rank()) else {
            return attribute(format!("cannot expand {x} to fewer dimensions {:?}", self.shape));
        };
        let one = Dim::from(1);
        let left: Vec<String> = (0..x.rank())
            .map(|d| if x.shape[d] == one { "1".into() } else { format!("a{}", d + skip) })
            .collect();
        let right: Vec<String> = (0..self.shape.len()).map(|d| format!("a{d}")).collect();
        let with: Vec<String> = self.shape.iter().enumerate().map(|(d, e)| format!("a{d}={e}")).collect();
        let side = |words: Vec<String>| if words.is_empty() { "[]".into() } else { words.join(" ") };
        let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(" ")) };
        Ok(format!("{} -> {}{with}", side(left), side(right)).parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![Some(g.sum_to(at.dout()?, at.ins[0])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = outs[0].shape.clone();
        for (y, p) in outs[0].data.iter_mut().zip(positions(&shape)) {
            *y = broadcast_at(ins[0], &p);
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        Some(Expand { shape: part.outputs[0].iter().map(|r| r.len().into()).collect() }.into())
    }

    fn samples() -> Vec<Sample> {
        let to = |shape: &[usize]| Expand { shape: shape.iter().map(|&d| d.into()).collect() };
        vec![
            Sample::normal(to(&[3, 5]), &[&[3, 1]]),
            Sample::normal(to(&[2, 3, 5]), &[&[5]]),
            Sample::normal(to(&[2, 3]), &[&[]]),
            Sample::normal(to(&[4, 3, 2, 17]), &[&[3, 1, 17]]),
        ]
    }
}
