//! One LSTM layer over a whole sequence. The products with the inputs are made outside, in one
//! contraction; this operator does the part that must go step by step.

use super::lstm_grad::LstmGrad;
use super::sample::Sample;
use super::{Backward, OpDef, OpError, attribute, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs gx `[b, t, 4h]` (inputs times their weights plus all biases), h0 `[b, h]`, c0 `[b, h]`, w_hh
/// `[4h, h]`; gates in the order input, forget, cell, output. Outputs every hidden state `[b, t, h]` and
/// the last cell `[b, h]`; for the backward pass the gates after their functions `[b, t, 4h]` and every
/// cell `[b, t, h]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lstm {}

/// The logistic function.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The product of row `row` of a `[rows, width]` matrix with a vector.
pub(crate) fn row_times(w: &Tensor, row: usize, x: &[f64]) -> f64 {
    w.data[row * x.len()..(row + 1) * x.len()].iter().zip(x).map(|(w, x)| w * x).sum()
}

/// Checks that a recurrent weight maps the hidden state to gates of itself.
pub(crate) fn check_square(w_hh: &Type, h0: &Type, gates: i64) -> Result<(), OpError> {
    let (Some(rows), Some(hidden)) = (w_hh.shape.first(), h0.shape.get(1)) else { return Ok(()) };
    if *rows != hidden * gates {
        return attribute(format!("w_hh has {rows} rows, expected {gates} gates of {hidden}"));
    }
    Ok(())
}

impl OpDef for Lstm {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 4, &[])?;
        check_square(&ins[3], &ins[1], 4)?;
        let gates = "b t! (q! h!)";
        let line = format!("{gates}, b k!, b h!, (q! h!) k! -> b t! h!, b h!, {gates}, b t! h! with q=4");
        Ok(line.parse()?)
    }

    fn results(&self) -> usize {
        2
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let [_, h0, c0, w_hh] = at.ins[..] else { unreachable!("four inputs") };
        let [y, _, gates, cells] = at.outs[..] else { unreachable!("four outputs") };
        let dy = g.or_zeros(at.douts[0], y)?;
        let dc_last = g.or_zeros(at.douts[1], c0)?;
        let grads = g.push(LstmGrad {}, &[dy, dc_last, w_hh, gates, cells, c0])?;
        let dw = if at.wants[3] {
            let before = g.previous_states(h0, y)?;
            Some(g.contract("b t j, b t k -> j k", grads[0], before)?)
        } else {
            None
        };
        Ok(vec![Some(grads[0]), Some(grads[1]), Some(grads[2]), dw])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let (gx, w) = (ins[0], ins[3]);
        let [batch, time, _] = gx.shape[..] else { unreachable!("three dimensions") };
        let n = ins[1].shape[1];
        for b in 0..batch {
            let mut h = ins[1].data[b * n..(b + 1) * n].to_vec();
            let mut c = ins[2].data[b * n..(b + 1) * n].to_vec();
            for t in 0..time {
                let before = h.clone();
                for j in 0..n {
                    let raw = |q: usize| gx.at(&[b, t, q * n + j]) + row_times(w, q * n + j, &before);
                    let (i, f, g, o) = (sigmoid(raw(0)), sigmoid(raw(1)), raw(2).tanh(), sigmoid(raw(3)));
                    c[j] = f * c[j] + i * g;
                    h[j] = o * c[j].tanh();
                    *outs[0].at_mut(&[b, t, j]) = h[j];
                    for (q, gate) in [i, f, g, o].into_iter().enumerate() {
                        *outs[2].at_mut(&[b, t, q * n + j]) = gate;
                    }
                    *outs[3].at_mut(&[b, t, j]) = c[j];
                }
            }
            outs[1].data[b * n..(b + 1) * n].copy_from_slice(&c);
        }
    }

    fn flops_per_point(&self) -> u64 {
        2
    }

    fn samples() -> Vec<Sample> {
        let sample = |b: usize, t: usize, h: usize| {
            Sample::normal(Lstm {}, &[&[b, t, 4 * h], &[b, h], &[b, h], &[4 * h, h]])
        };
        vec![sample(3, 4, 2), sample(1, 1, 3), sample(2, 3, 3), sample(4, 2, 1)]
    }
}
