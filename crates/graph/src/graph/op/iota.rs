//! Counting: 0, 1, 2… along one dimension, the same along all others.

use super::fill::source_spec;
use super::sample::Sample;
use super::{Backward, Op, OpDef, OpError, attribute, check};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec};
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Each element is `start` plus its position along `axis`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Iota {
    /// i64 or f32.
    pub dtype: DType,
    /// The extents.
    pub shape: Vec<Dim>,
    /// The dimension that is counted along.
    pub axis: usize,
    /// The first number; a part counts on from the parts before it.
    pub start: i64,
}

impl OpDef for Iota {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 0, &[])?;
        if self.axis >= self.shape.len() {
            return attribute(format!(
                "dimension {} of a value with {} dimensions",
                self.axis,
                self.shape.len()
            ));
        }
        if !matches!(self.dtype, DType::I64 | DType::F32) {
            return attribute(format!("counts in i64 or f32, not {}", self.dtype));
        }
        source_spec(&self.shape)
    }

    fn dtypes(&self, _ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![self.dtype]
    }

    fn grad(&self, _g: &mut Builder, _at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(Vec::new())
    }

    fn eval(&self, _ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = outs[0].shape.clone();
        for (y, p) in outs[0].data.iter_mut().zip(positions(&shape)) {
            *y = (self.start + p[self.axis] as i64) as f64;
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let shape = part.outputs[0].iter().map(|r| r.len().into()).collect();
        let start = self.start + part.outputs[0][self.axis].start as i64;
        Some(Iota { dtype: self.dtype, shape, axis: self.axis, start }.into())
    }

    fn samples() -> Vec<Sample> {
        let iota = |dtype, shape: &[usize], axis, start| {
            let shape = shape.iter().map(|&d| d.into()).collect();
            Sample::normal(Iota { dtype, shape, axis, start }, &[])
        };
        vec![
            iota(DType::I64, &[5], 0, 0),
            iota(DType::F32, &[3, 7], 1, 2),
            iota(DType::I64, &[4, 2, 3], 0, -1),
        ]
    }
}
