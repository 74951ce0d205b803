//! Scatter-add: adds rows into a table of zeros, each where its index says. The gradient of a gather.

use super::cast::Cast;
use super::gather::{Gather, axes, or_scalar};
use super::sample::{Sample, SampleInput};
use super::{Backward, INTEGER, Op, OpDef, OpError, attribute, check};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs: index [n…] with numbers below `rows`, and rows [n…, d…]; result [rows, d…].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScatterAdd {
    /// Rows of the result.
    pub rows: Dim,
    /// Rows with this index are skipped.
    pub padding: Option<i64>,
}

impl OpDef for ScatterAdd {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[(0, INTEGER)])?;
        let Some(width) = ins[1].rank().checked_sub(ins[0].rank()) else {
            return attribute(format!("rows {} have fewer dimensions than their index {}", ins[1], ins[0]));
        };
        let (n, d) = (axes('n', ins[0].rank()), axes('d', width));
        let (index, rows) = (or_scalar(n.clone()), or_scalar(format!("{n}{d}")));
        Ok(format!("{index}, {rows} -> v! {d} with v={}", self.rows).parse()?)
    }

    fn dtypes(&self, ins: &[Type], _outputs: usize) -> Vec<DType> {
        vec![ins[1].dtype]
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        if !at.wants[1] {
            return Ok(vec![None, None]);
        }
        let index = at.ins[0];
        let mut rows = g.push1(Gather { padding: None }, &[at.dout()?, index])?;
        if let Some(padding) = self.padding {
            let to = g.ty(index).dtype;
            let padding = g.scalar(padding as f32)?;
            let padding = g.push1(Cast { to }, &[padding])?;
            let kept = g.not_equal(index, padding)?;
            let mut shape = g.shape(index).to_vec();
            shape.resize(g.rank(rows), 1.into());
            let kept = g.reshape(kept, &shape)?;
            let zero = g.scalar(0.0)?;
            rows = g.select(kept, rows, zero)?;
        }
        Ok(vec![None, Some(rows)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let width: usize = outs[0].shape[1..].iter().product();
        for (n, &row) in ins[0].data.iter().enumerate() {
            if self.padding == Some(row as i64) {
                continue;
            }
            for d in 0..width {
                outs[0].data[row as usize * width + d] += ins[1].data[n * width + d];
            }
        }
    }

    // The nest visits every row of the table for each index; one addition per element is done.
    fn flops_per_point(&self) -> u64 {
        0
    }

    fn part(&self, part: &Part) -> Option<Op> {
        Some(ScatterAdd { rows: part.outputs[0][0].len().into(), padding: self.padding }.into())
    }

    fn samples() -> Vec<Sample> {
        let n = SampleInput::normal;
        let op = |rows: usize, padding| ScatterAdd { rows: rows.into(), padding };
        vec![
            Sample::new(op(5, None), vec![SampleInput::below(&[7], 5), n(&[7, 3])]),
            Sample::new(op(6, Some(2)), vec![SampleInput::below(&[2, 4], 6), n(&[2, 4, 2, 3])]),
            Sample::new(op(4, Some(0)), vec![SampleInput::below(&[3, 2], 4), n(&[3, 2])]),
            Sample::new(op(4, None), vec![SampleInput::below(&[], 3), n(&[5])]),
        ]
    }
}
