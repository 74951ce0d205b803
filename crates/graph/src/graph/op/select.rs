//! Select (`where`): element by element, one value or the other.

use super::sample::{Sample, SampleInput};
use super::zip::{broadcast_at, broadcast_spec};
use super::{Backward, MASK, OpDef, OpError, OpName, check};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::{Tensor, positions};
use serde::{Deserialize, Serialize};

/// Inputs: condition, value where it holds, value where it does not; all broadcast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Select {}

impl OpName for Select {
    fn name(&self) -> &'static str {
        "where"
    }

    fn help(&self) -> &'static str {
        "element-wise choice between two values by a condition"
    }
}

impl OpDef for Select {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 3, &[(0, MASK)])?;
        broadcast_spec(ins)
    }

    fn dtypes(&self, ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![ins[1].dtype]
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let (condition, dy) = (at.ins[0], at.dout()?);
        let zero = g.scalar(0.0)?;
        let mut side = |want: bool, yes: Value, no: Value, input: Value| -> Result<_, GraphError> {
            if !want {
                return Ok(None);
            }
            let d = g.select(condition, yes, no)?;
            Ok(Some(g.sum_to(d, input)?))
        };
        let da = side(at.wants[1], dy, zero, at.ins[1])?;
        let db = side(at.wants[2], zero, dy, at.ins[2])?;
        Ok(vec![None, da, db])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let shape = outs[0].shape.clone();
        for (y, p) in outs[0].data.iter_mut().zip(positions(&shape)) {
            let side = if broadcast_at(ins[0], &p) != 0.0 { ins[1] } else { ins[2] };
            *y = broadcast_at(side, &p);
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(1, 0), (2, 0)]
    }

    fn samples() -> Vec<Sample> {
        let n = SampleInput::normal;
        vec![
            Sample::new(Select {}, vec![SampleInput::mask(&[4, 9]), n(&[4, 9]), n(&[4, 9])]),
            Sample::new(Select {}, vec![SampleInput::mask(&[4, 1]), n(&[]), n(&[2, 4, 5])]),
        ]
    }
}
