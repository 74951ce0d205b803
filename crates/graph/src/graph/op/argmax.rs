//! The index of the largest element along one dimension.

use super::sample::Sample;
use super::slice::operand;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// The first of several largest; the first NaN if there is one. The dimension disappears.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Argmax {
    /// The dimension.
    pub axis: usize,
}

impl OpDef for Argmax {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        let (rank, axis) = (ins[0].rank(), self.axis);
        if axis >= rank {
            return attribute(format!("dimension {axis} of a value with {rank} dimensions"));
        }
        let whole = operand(rank, axis, &format!("a{axis}!"));
        let kept: Vec<String> = (0..rank).filter(|d| *d != axis).map(|d| format!("a{d}")).collect();
        let kept = if kept.is_empty() { "[]".into() } else { kept.join(" ") };
        Ok(format!("{whole} -> {kept}").parse()?)
    }

    fn dtypes(&self, _ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![DType::I64]
    }

    fn grad(&self, _g: &mut Builder, _at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![None])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let [before, extent, after] = ins[0].around(self.axis);
        for (b, a) in (0..before).flat_map(|b| (0..after).map(move |a| (b, a))) {
            let x = |i: usize| ins[0].data[(b * extent + i) * after + a];
            let mut best = 0;
            for i in 1..extent {
                if x(i) > x(best) || (x(i).is_nan() && !x(best).is_nan()) {
                    best = i;
                }
            }
            outs[0].data[b * after + a] = best as f64;
        }
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(Argmax { axis: 0 }, &[&[7]]),
            Sample::normal(Argmax { axis: 1 }, &[&[3, 5, 2]]),
            Sample::normal(Argmax { axis: 2 }, &[&[2, 3, 19]]),
        ]
    }
}
