//! The backward scan of an LSTM layer. The gradient of the recurrent weight is left out: it is one
//! contraction of this operator's result with the hidden states.

use super::lstm::check_square;
use super::sample::{Sample, SampleInput};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs dy `[b, t, h]`, dc_last `[b, h]`, w_hh `[4h, h]`, gates `[b, t, 4h]`, cells `[b, t, h]`, c0
/// `[b, h]`; outputs dgx `[b, t, 4h]`, dh0 `[b, h]`, dc0 `[b, h]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LstmGrad {}

impl OpDef for LstmGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 6, &[])?;
        check_square(&ins[2], &ins[1], 4)?;
        let gates = "b t! (q! h!)";
        let line =
            format!("b t! h!, b h!, (q! h!) k!, {gates}, b t! h!, b h! -> {gates}, b k!, b h! with q=4");
        Ok(line.parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let [dy, dc_last, w, gates, cells, c0] = ins[..] else { unreachable!("six inputs") };
        let [batch, time, n] = dy.shape[..] else { unreachable!("three dimensions") };
        for b in 0..batch {
            let mut dh = vec![0.0; n];
            let mut dc = dc_last.data[b * n..(b + 1) * n].to_vec();
            for t in (0..time).rev() {
                for j in 0..n {
                    let [i, f, g, o] = [0, 1, 2, 3].map(|q| gates.at(&[b, t, q * n + j]));
                    let before = if t == 0 { c0.at(&[b, j]) } else { cells.at(&[b, t - 1, j]) };
                    let squashed = cells.at(&[b, t, j]).tanh();
                    let dh = dh[j] + dy.at(&[b, t, j]);
                    let dcell = dc[j] + dh * o * (1.0 - squashed * squashed);
                    let raw = [
                        dcell * g * i * (1.0 - i),
                        dcell * before * f * (1.0 - f),
                        dcell * i * (1.0 - g * g),
                        dh * squashed * o * (1.0 - o),
                    ];
                    for (q, d) in raw.into_iter().enumerate() {
                        *outs[0].at_mut(&[b, t, q * n + j]) = d;
                    }
                    dc[j] = dcell * f;
                }
                for (k, dh) in dh.iter_mut().enumerate() {
                    *dh = (0..4 * n).map(|r| outs[0].at(&[b, t, r]) * w.at(&[r, k])).sum();
                }
            }
            outs[1].data[b * n..(b + 1) * n].copy_from_slice(&dh);
            outs[2].data[b * n..(b + 1) * n].copy_from_slice(&dc);
        }
    }

    fn flops_per_point(&self) -> u64 {
        2
    }

    fn samples() -> Vec<Sample> {
        let sample = |b: usize, t: usize, h: usize| {
            let n = SampleInput::normal;
            let gates = SampleInput::uniform(&[b, t, 4 * h], 0.1, 0.9);
            let ins = vec![n(&[b, t, h]), n(&[b, h]), n(&[4 * h, h]), gates, n(&[b, t, h]), n(&[b, h])];
            Sample::new(LstmGrad {}, ins)
        };
        vec![sample(3, 4, 2), sample(1, 1, 3), sample(2, 3, 5)]
    }
}
