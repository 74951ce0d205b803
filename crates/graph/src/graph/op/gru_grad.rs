//! The backward scan of a GRU layer. The gradient of the recurrent weight is left out: it is one
//! contraction of a result of this operator with the hidden states.

use super::lstm::check_square;
use super::sample::{Sample, SampleInput};
use super::{OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs dy `[b, t, h]`, w_hh `[3h, h]`, gates `[b, t, 3h]`, what the reset gate multiplied
/// `[b, t, h]`, h0 `[b, h]`, y `[b, t, h]`. Outputs dgx `[b, t, 3h]`, the gradient by w_hh·h
/// `[b, t, 3h]` (which differs in the last gate), dh0 `[b, h]` and db_hn `[h]`, a partial sum when the
/// batch is cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GruGrad {}

impl OpDef for GruGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 6, &[])?;
        check_square(&ins[1], &ins[4], 3)?;
        let gates = "b t! (q! h!)";
        let line = format!(
            "b t! h!, (q! h!) k!, {gates}, b t! h!, b k!, b t! h! -> {gates}, {gates}, b k!, h! with q=3"
        );
        Ok(line.parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let [dy, w, gates, inner, h0, y] = ins[..] else { unreachable!("six inputs") };
        let [batch, time, n] = dy.shape[..] else { unreachable!("three dimensions") };
        for b in 0..batch {
            let mut dh = vec![0.0; n];
            for t in (0..time).rev() {
                for (j, dh) in dh.iter_mut().enumerate() {
                    let [r, z, new] = [0, 1, 2].map(|q| gates.at(&[b, t, q * n + j]));
                    let before = if t == 0 { h0.at(&[b, j]) } else { y.at(&[b, t - 1, j]) };
                    let d = *dh + dy.at(&[b, t, j]);
                    let dnew = d * (1.0 - z) * (1.0 - new * new);
                    let dr = dnew * inner.at(&[b, t, j]) * r * (1.0 - r);
                    let dz = d * (before - new) * z * (1.0 - z);
                    for (q, by_x, by_h) in [(0, dr, dr), (1, dz, dz), (2, dnew, dnew * r)] {
                        *outs[0].at_mut(&[b, t, q * n + j]) = by_x;
                        *outs[1].at_mut(&[b, t, q * n + j]) = by_h;
                    }
                    outs[3].data[j] += dnew * r;
                    *dh = d * z;
                }
                for (k, dh) in dh.iter_mut().enumerate() {
                    *dh += (0..3 * n).map(|row| outs[1].at(&[b, t, row]) * w.at(&[row, k])).sum::<f64>();
                }
            }
            outs[2].data[b * n..(b + 1) * n].copy_from_slice(&dh);
        }
    }

    fn flops_per_point(&self) -> u64 {
        2
    }

    fn samples() -> Vec<Sample> {
        let sample = |b: usize, t: usize, h: usize| {
            let n = SampleInput::normal;
            let gates = SampleInput::uniform(&[b, t, 3 * h], 0.1, 0.9);
            let (sequence, state) = (n(&[b, t, h]), n(&[b, h]));
            let ins = vec![sequence.clone(), n(&[3 * h, h]), gates, sequence.clone(), state, sequence];
            Sample::new(GruGrad {}, ins)
        };
        vec![sample(3, 4, 2), sample(1, 1, 3), sample(2, 3, 5)]
    }
}
