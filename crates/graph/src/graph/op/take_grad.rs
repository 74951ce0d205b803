//! The gradient of taking one element of each row: that element, in zeros.

use super::gather::{axes, or_scalar};
use super::sample::{Sample, SampleInput};
use super::{INTEGER, Op, OpDef, OpError, check};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Type;
use crate::spec::{Part, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs: index [n…] with numbers below `size`, and dy [n…]; result [n…, size].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TakeGrad {
    /// The last extent of the result.
    pub size: Dim,
}

impl OpDef for TakeGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[(0, INTEGER)])?;
        let n = axes('n', ins[0].rank());
        let rows = or_scalar(n.clone());
        Ok(format!("{rows}, {rows} -> {n}v! with v={}", self.size).parse()?)
    }

    fn dtypes(&self, ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![ins[1].dtype]
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let width = *outs[0].shape.last().expect("a row");
        for (n, (&i, &dy)) in ins[0].data.iter().zip(&ins[1].data).enumerate() {
            outs[0].data[n * width..(n + 1) * width][i as usize] = dy;
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let size = part.outputs[0].last().expect("a row").len().into();
        Some(TakeGrad { size }.into())
    }

    fn samples() -> Vec<Sample> {
        let n = SampleInput::normal;
        vec![
            Sample::new(TakeGrad { size: 5.into() }, vec![SampleInput::below(&[4], 5), n(&[4])]),
            Sample::new(TakeGrad { size: 4.into() }, vec![SampleInput::below(&[2, 3], 4), n(&[2, 3])]),
        ]
    }
}
