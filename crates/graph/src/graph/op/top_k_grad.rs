//! The gradient of the k largest elements: each goes back to where it was, in zeros.

use super::gather::axes;
use super::sample::{Sample, SampleInput};
use super::{INTEGER, Op, OpDef, OpError, attribute, check};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::Type;
use crate::spec::{Part, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs: indices [n…, k] below `size`, and the gradients [n…, k]; result [n…, size].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopKGrad {
    /// The last extent of the result.
    pub size: Dim,
}

impl OpDef for TopKGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[(0, INTEGER)])?;
        let Some(rank) = ins[0].rank().checked_sub(1) else { return attribute("a scalar has no rows") };
        let n = axes('n', rank);
        Ok(format!("{n}k!, {n}k! -> {n}v! with v={}", self.size).parse()?)
    }

    fn dtypes(&self, ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![ins[1].dtype]
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let (k, width) = (*ins[0].shape.last().expect("a row"), *outs[0].shape.last().expect("a row"));
        for (n, (&i, &dy)) in ins[0].data.iter().zip(&ins[1].data).enumerate() {
            outs[0].data[n / k * width..(n / k + 1) * width][i as usize] += dy;
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        let size = part.outputs[0].last().expect("a row").len().into();
        Some(TopKGrad { size }.into())
    }

    fn samples() -> Vec<Sample> {
        let n = SampleInput::normal;
        vec![
            Sample::new(TopKGrad { size: 7.into() }, vec![SampleInput::below(&[4, 3], 7), n(&[4, 3])]),
            Sample::new(TopKGrad { size: 5.into() }, vec![SampleInput::below(&[2, 3, 1], 5), n(&[2, 3, 1])]),
        ]
    }
}
