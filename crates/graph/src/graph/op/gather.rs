//! Gather: rows of a table, chosen by an index of any rank.

use super::sample::{Sample, SampleInput};
use super::scatter_add::ScatterAdd;
use super::{Backward, INTEGER, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs: table [v, d…] and index [n…] with numbers below v; result [n…, d…].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    /// The row of this number is read like any other but receives no gradient.
    pub padding: Option<i64>,
}

/// Axes `letter0 letter1 …`, with a blank after each.
pub(crate) fn axes(letter: char, count: usize) -> String {
    (0..count).map(|d| format!("{letter}{d} ")).collect()
}

/// An operand from its text; nothing is a scalar.
pub(crate) fn or_scalar(text: String) -> String {
    if text.trim().is_empty() { "[]".into() } else { text }
}

impl OpDef for Gather {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 2, &[(1, INTEGER)])?;
        let Some(width) = ins[0].rank().checked_sub(1) else { return attribute("the table is a scalar") };
        let (n, d) = (axes('n', ins[1].rank()), axes('d', width));
        let (index, out) = (or_scalar(n.clone()), or_scalar(format!("{n}{d}")));
        Ok(format!("v! {d}, {index} -> {out}").parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        if !at.wants[0] {
            return Ok(vec![None, None]);
        }
        let rows = g.shape(at.ins[0])[0].clone();
        let op = ScatterAdd { rows, padding: self.padding };
        Ok(vec![Some(g.push1(op, &[at.ins[1], at.dout()?])?), None])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let width: usize = ins[0].shape[1..].iter().product();
        for (n, &row) in ins[1].data.iter().enumerate() {
            let from = row as usize * width;
            outs[0].data[n * width..(n + 1) * width].copy_from_slice(&ins[0].data[from..from + width]);
        }
    }

    fn flops_per_point(&self) -> u64 {
        0
    }

    fn samples() -> Vec<Sample> {
        let n = SampleInput::normal;
        let op = Gather { padding: None };
        vec![
            Sample::new(op.clone(), vec![n(&[5, 3]), SampleInput::below(&[7], 5)]),
            Sample::new(op.clone(), vec![n(&[6, 2, 3]), SampleInput::below(&[2, 4], 6)]),
            Sample::new(op.clone(), vec![n(&[4]), SampleInput::below(&[3, 2], 4)]),
            Sample::new(op, vec![n(&[4, 5]), SampleInput::below(&[], 4)]),
        ]
    }
}
