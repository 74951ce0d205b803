//! Concat: values one after another along one dimension.

use super::sample::Sample;
use super::slice::{Slice, operand};
use super::{Backward, OpDef, OpError, attribute};
use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Any number of inputs that differ at most along `axis`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Concat {
    /// The dimension.
    pub axis: usize,
}

impl OpDef for Concat {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let axis = self.axis;
        let Some(first) = ins.first() else { return attribute("nothing to concatenate") };
        if axis >= first.rank() {
            return attribute(format!("dimension {axis} of values with {} dimensions", first.rank()));
        }
        if let Some(input) = ins.iter().position(|t| t.dtype != first.dtype) {
            return Err(OpError::DType { input, expected: first.dtype.name(), got: ins[input].dtype });
        }
        let left: Vec<String> =
            (0..ins.len()).map(|i| operand(first.rank(), axis, &format!("x{i}!"))).collect();
        let right = operand(first.rank(), axis, "y!");
        let extents = ins.iter().filter_map(|t| t.shape.get(axis));
        let total = extents.fold(Dim::from(0), |sum, extent| sum + extent);
        Ok(format!("{} -> {right} with y={total}", left.join(", ")).parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = at.dout()?;
        let mut start = Dim::from(0);
        let mut grads = Vec::new();
        for (&input, &want) in at.ins.iter().zip(at.wants) {
            let len = g.shape(input)[self.axis].clone();
            grads.push(if want {
                let here = start.as_const().and_then(|s| usize::try_from(s).ok());
                let here = here.ok_or(GraphError::NotDifferentiable(
                    "a concatenation in which a symbolic extent precedes another input",
                ))?;
                Some(g.push1(Slice { axis: self.axis, start: here, len: len.clone(), step: 1 }, &[dy])?)
            } else {
                None
            });
            start = start + len;
        }
        Ok(grads)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let mut start = 0;
        for x in ins {
            let mut region: Vec<_> = x.shape.iter().map(|&d| 0..d).collect();
            region[self.axis] = start..start + x.shape[self.axis];
            start += x.shape[self.axis];
            outs[0].set_region(&region, x);
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::normal(Concat { axis: 0 }, &[&[2, 5], &[3, 5]]),
            Sample::normal(Concat { axis: 1 }, &[&[4, 1, 3], &[4, 2, 3], &[4, 3, 3]]),
            Sample::normal(Concat { axis: 2 }, &[&[3, 2, 7]]),
            Sample::normal(Concat { axis: 0 }, &[&[1], &[1], &[1], &[2]]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_dimensions_must_agree() {
        let (a, b) = (Type::f32(&[2, 5]), Type::f32(&[3, 4]));
        let spec = Concat { axis: 0 }.spec(&[a.clone(), b.clone()]).unwrap();
        let error = spec.infer(&[&a.shape, &b.shape]).unwrap_err().to_string();
        assert_eq!(error, "axis a1 is both 5 and 4 (input 1, dimension 1)");
        let error = Concat { axis: 0 }.spec(&[]).unwrap_err().to_string();
        assert_eq!(error, "nothing to concatenate");
    }
}
