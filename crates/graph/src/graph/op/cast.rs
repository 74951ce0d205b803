//! Cast: the same numbers as another element type.

use super::sample::{Sample, SampleInput};
use super::{Backward, OpDef, OpError};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Spec, SpecError, expand_ellipsis};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// To this element type; floats become integers by truncation, booleans by comparison with zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    /// The new element type.
    pub to: DType,
}

impl OpDef for Cast {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let [x] = ins else { return Err(SpecError::Arity { expected: 1, got: ins.len() }.into()) };
        Ok(expand_ellipsis("... -> ...", x.rank()).parse()?)
    }

    fn dtypes(&self, _ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![self.to]
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let from = g.ty(at.ins[0]).dtype;
        if !from.is_float() {
            return Ok(vec![None]);
        }
        Ok(vec![Some(g.push1(Cast { to: from }, &[at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        for (y, &x) in outs[0].data.iter_mut().zip(&ins[0].data) {
            *y = match self.to {
                DType::F32 | DType::F16 | DType::BF16 => x,
                DType::Bool => f64::from(u8::from(x != 0.0)),
                _ => x.trunc(),
            };
        }
    }

    fn samples() -> Vec<Sample> {
        vec![
            Sample::new(Cast { to: DType::F32 }, vec![SampleInput::below(&[3, 5], 9)]),
            Sample::new(Cast { to: DType::F32 }, vec![SampleInput::mask(&[3, 5])]),
            Sample::new(Cast { to: DType::I64 }, vec![SampleInput::below(&[7], 200)]),
            Sample::normal(Cast { to: DType::Bool }, &[&[7]]),
        ]
    }
}
