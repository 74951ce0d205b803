//! The gradient of a slice: its elements spread out in zeros.

use super::sample::Sample;
use super::slice::{Slice, operand};
use super::{Backward, Op, OpDef, OpError, OpName, attribute};
use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec, SpecError};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// `dx[…start + step·i…] = dy[…i…]`, zero elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceGrad {
    /// The dimension.
    pub axis: usize,
    /// Position of the first element.
    pub start: i64,
    /// Distance between neighbours.
    pub step: usize,
    /// Extent of the result.
    pub size: Dim,
}

impl OpDef for SliceGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let [x] = ins else { return Err(SpecError::Arity { expected: 1, got: ins.len() }.into()) };
        let SliceGrad { axis, start, step, size } = self;
        if *axis >= x.rank() {
            return attribute(format!("dimension {axis} of a value with {} dimensions", x.rank()));
        }
        if *step == 0 {
            return attribute("the step must be above 0");
        }
        let plain = operand(x.rank(), *axis, &format!("a{axis}"));
        let window = operand(x.rank(), *axis, &format!("{step}*a{axis}{start:+}{{{size}}}"));
        Ok(format!("{plain} -> {window}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let len = g.shape(at.ins[0])[self.axis].clone();
        // Only parts start before the first element, and parts are not differentiated.
        let start = usize::try_from(self.start).map_err(|_| GraphError::NotDifferentiable(self.name()))?;
        Ok(vec![Some(g.push1(Slice { axis: self.axis, start, len, step: self.step }, &[at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        for (mut p, dy) in positions(&ins[0].shape).zip(&ins[0].data) {
            let at = self.start + (self.step * p[self.axis]) as i64;
            if let Some(at) = usize::try_from(at).ok().filter(|&i| i < outs[0].shape[self.axis]) {
                p[self.axis] = at;
                *outs[0].at_mut(&p) = *dy;
            }
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let start = part.output_windows[0][self.axis].map_or(0, |w| -w.low);
        let size = part.outputs[0][self.axis].len().into();
        Some(SliceGrad { axis: self.axis, start, step: self.step, size }.into())
    }

    fn samples() -> Vec<Sample> {
        let grad = |axis, start, step, size: usize| SliceGrad { axis, start, step, size: size.into() };
        vec![
            Sample::normal(grad(0, 2, 1, 9), &[&[4, 3]]),
            Sample::normal(grad(1, 0, 1, 5), &[&[3, 5]]),
            Sample::normal(grad(1, 1, 3, 12), &[&[2, 4, 2]]),
            Sample::normal(grad(0, 6, 2, 11), &[&[2]]),
        ]
    }
}
