//! Cumulative sum along one dimension, from either end.

use super::sample::Sample;
use super::slice::operand;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Each element plus all before it, or plus all after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cumsum {
    /// The dimension.
    pub axis: usize,
    /// From the last element to the first.
    pub reverse: bool,
}

impl OpDef for Cumsum {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let (rank, axis) = (ins[0].rank(), self.axis);
        if axis >= rank {
            return attribute(format!("dimension {axis} of a value with {rank} dimensions"));
        }
        let whole = operand(rank, axis, &format!("a{axis}!"));
        Ok(format!("{whole} -> {whole}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let op = Cumsum { axis: self.axis, reverse: !self.reverse };
        Ok(vec![Some(g.push1(op, &[at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let [before, extent, after] = ins[0].around(self.axis);
        for (b, a) in (0..before).flat_map(|b| (0..after).map(move |a| (b, a))) {
            let mut sum = 0.0;
            for i in 0..extent {
                let i = if self.reverse { extent - 1 - i } else { i };
                let at = (b * extent + i) * after + a;
                sum += ins[0].data[at];
                outs[0].data[at] = sum;
            }
        }
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(Cumsum { axis: 0, reverse: false }, &[&[7]]),
            Sample::normal(Cumsum { axis: 1, reverse: true }, &[&[3, 5, 2]]),
            Sample::normal(Cumsum { axis: 2, reverse: false }, &[&[2, 3, 19]]),
        ]
    }
}
