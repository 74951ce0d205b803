//! A value full of one number, known when the graph is built.

use super::sample::Sample;
use super::{Backward, OpDef, OpError, check};
use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::op::Op;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// A constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// Every element.
    pub value: f32,
    /// The extents.
    pub shape: Vec<Dim>,
}

/// The spec of an operator without inputs.
pub(crate) fn source_spec(shape: &[Dim]) -> Result<Spec, OpError> {
    if shape.is_empty() {
        return Ok("-> []".parse()?);
    }
    let axes: Vec<String> = (0..shape.len()).map(|d| format!("a{d}")).collect();
    let with: Vec<String> = shape.iter().enumerate().map(|(d, e)| format!("a{d}={e}")).collect();
    Ok(format!("-> {} with {}", axes.join(" "), with.join(" ")).parse()?)
}

impl OpDef for Fill {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 0, &[])?;
        source_spec(&self.shape)
    }

    fn grad(&self, _g: &mut Builder, _at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(Vec::new())
    }

    fn eval(&self, _ins: &[&Tensor], outs: &mut [Tensor]) {
        outs[0].data.fill(f64::from(self.value));
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let shape = part.outputs[0].iter().map(|r| r.len().into()).collect();
        Some(Fill { value: self.value, shape }.into())
    }

    fn samples() -> Vec<Sample> {
        vec![Sample::normal(Fill { value: 2.5, shape: vec![3.into(), 17.into()] }, &[])]
    }
}
