//! One GRU layer over a whole sequence. The products with the inputs are made outside, in one
//! contraction; this operator does the part that must go step by step.

use super::gru_grad::GruGrad;
use super::lstm::{check_square, row_times, sigmoid};
use super::sample::Sample;
use super::{Backward, OpDef, OpError, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs gx `[b, t, 3h]` (inputs times their weights plus all biases but b_hn), h0 `[b, h]`, w_hh
/// `[3h, h]`, b_hn `[h]`; gates in the order reset, update, new:
/// `n = tanh(gx_n + r·(w_hn·h + b_hn))`, `h = (1 - z)·n + z·h`. Outputs every hidden state `[b, t, h]`;
/// for the backward pass the gates after their functions `[b, t, 3h]` and what the reset gate
/// multiplies `[b, t, h]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gru {}

impl OpDef for Gru {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 4, &[])?;
        check_square(&ins[2], &ins[1], 3)?;
        let gates = "b t! (q! h!)";
        let line = format!("{gates}, b k!, (q! h!) k!, h! -> b t! h!, {gates}, b t! h! with q=3");
        Ok(line.parse()?)
    }

    fn results(&self) -> usize {
        1
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let [_, h0, w_hh, _] = at.ins[..] else { unreachable!("four inputs") };
        let [y, gates, inner] = at.outs[..] else { unreachable!("three outputs") };
        let grads = g.push(GruGrad {}, &[at.dout()?, w_hh, gates, inner, h0, y])?;
        let dw = if at.wants[2] {
            let before = g.previous_states(h0, y)?;
            Some(g.contract("b t j, b t k -> j k", grads[1], before)?)
        } else {
            None
        };
        Ok(vec![Some(grads[0]), Some(grads[2]), dw, Some(grads[3])])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let [gx, h0, w, bias] = ins[..] else { unreachable!("four inputs") };
        let [batch, time, _] = gx.shape[..] else { unreachable!("three dimensions") };
        let n = h0.shape[1];
        for b in 0..batch {
            let mut h = h0.data[b * n..(b + 1) * n].to_vec();
            for t in 0..time {
                let before = h.clone();
                for j in 0..n {
                    let from_x = |q: usize| gx.at(&[b, t, q * n + j]);
                    let from_h = |q: usize| row_times(w, q * n + j, &before);
                    let inner = from_h(2) + bias.data[j];
                    let (r, z) = (sigmoid(from_x(0) + from_h(0)), sigmoid(from_x(1) + from_h(1)));
                    let new = (from_x(2) + r * inner).tanh();
                    h[j] = (1.0 - z) * new + z * before[j];
                    *outs[0].at_mut(&[b, t, j]) = h[j];
                    for (q, gate) in [r, z, new].into_iter().enumerate() {
                        *outs[1].at_mut(&[b, t, q * n + j]) = gate;
                    }
                    *outs[2].at_mut(&[b, t, j]) = inner;
                }
            }
        }
    }

    fn flops_per_point(&self) -> u64 {
        2
    }

    fn samples() -> Vec<Sample> {
        let sample = |b: usize, t: usize, h: usize| {
            Sample::normal(Gru {}, &[&[b, t, 3 * h], &[b, h], &[3 * h, h], &[h]])
        };
        vec![sample(3, 4, 2), sample(1, 1, 3), sample(2, 3, 3), sample(4, 2, 1)]
    }
}
