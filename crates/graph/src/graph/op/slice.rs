//! Slice: every `step`th element along one dimension, from a start on.

use super::sample::Sample;
use super::slice_grad::SliceGrad;
use super::{Backward, Op, OpDef, OpError, attribute};
use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec, SpecError};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// `y[…i…] = x[…start + step·i…]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The dimension.
    pub axis: usize,
    /// The first element.
    pub start: usize,
    /// Number of elements. Whether a symbolic number of them exists is only known once it is bound.
    pub len: Dim,
    /// Distance between neighbours.
    pub step: usize,
}

/// An operand of this rank with one dimension written out, and all others plain axes.
pub(crate) fn operand(rank: usize, axis: usize, index: &str) -> String {
    let name = |d: usize| if d == axis { index.to_string() } else { format!("a{d}") };
    (0..rank).map(name).collect::<Vec<_>>().join(" ")
}

impl OpDef for Slice {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let [x] = ins else { return Err(SpecError::Arity { expected: 1, got: ins.len() }.into()) };
        let Slice { axis, start, len, step } = self;
        let Some(extent) = x.shape.get(*axis) else {
            return attribute(format!("dimension {axis} of a value with {} dimensions", x.rank()));
        };
        if *step == 0 {
            return attribute("the step must be above 0");
        }
        let last = (len - 1) * *step + *start;
        if let (Some(n), Some(last), Some(have)) = (len.as_const(), last.as_const(), extent.as_const())
            && (n < 0 || (n > 0 && last >= have))
        {
            return attribute(format!("{n} elements from {start} by {step} do not fit into {have}"));
        }
        let window = operand(x.rank(), *axis, &format!("{step}*a{axis}+{start}{{{extent}}}"));
        let plain = operand(x.rank(), *axis, &format!("a{axis}"));
        Ok(format!("{window} -> {plain} with a{axis}={len}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let size = g.shape(at.ins[0])[self.axis].clone();
        let op = SliceGrad { axis: self.axis, start: self.start as i64, step: self.step, size };
        Ok(vec![Some(g.push1(op, &[at.dout()?])?)])
    }

    fn fits(&self, ins: &[&[usize]], outs: &[&[usize]]) -> Result<(), String> {
        let (have, len) = (ins[0][self.axis], outs[0][self.axis]);
        let end = if len == 0 { 0 } else { self.start + (len - 1) * self.step + 1 };
        if end <= have {
            return Ok(());
        }
        Err(format!("needs {end} positions along dimension {}, there are {have}", self.axis))
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = outs[0].shape.clone();
        for (y, mut p) in outs[0].data.iter_mut().zip(positions(&shape)) {
            p[self.axis] = self.start + self.step * p[self.axis];
            *y = ins[0].at(&p);
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        // The region a part reads begins with its first element.
        let start = part.input_windows[0][self.axis].map_or(0, |w| -w.low) as usize;
        let len = part.outputs[0][self.axis].len().into();
        Some(Slice { axis: self.axis, start, len, step: self.step }.into())
    }

    fn samples() -> Vec<Sample> {
        let slice = |axis, start, len: usize, step| Slice { axis, start, len: len.into(), step };
        vec![
            Sample::normal(slice(0, 2, 4, 1), &[&[9, 3]]),
            Sample::normal(slice(1, 0, 5, 1), &[&[3, 5]]),
            Sample::normal(slice(1, 1, 4, 3), &[&[2, 12, 2]]),
            Sample::normal(slice(0, 7, 1, 2), &[&[8]]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_must_fit() {
        let slice = |axis, start, len: usize, step| Slice { axis, start, len: len.into(), step };
        for (op, expected) in [
            (slice(2, 0, 1, 1), "dimension 2 of a value with 2 dimensions"),
            (slice(1, 2, 4, 1), "4 elements from 2 by 1 do not fit into 5"),
            (slice(1, 0, 4, 2), "4 elements from 0 by 2 do not fit into 5"),
            (slice(1, 0, 4, 0), "the step must be above 0"),
        ] {
            assert_eq!(op.spec(&[Type::f32(&[3, 5])]).unwrap_err().to_string(), expected);
        }
    }
}
