//! The gradient of attention in one operator: the scores are recomputed rather than kept.

use super::attention::{Attention, samples, triples};
use super::sample::{Sample, SampleInput};
use super::{MASK, OpDef, OpError, check};
use crate::graph::Type;
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs q, k, v, the key mask if there is one, o, lse, do; outputs dq, dk, dv. Without the causal
/// mask queries may be cut, leaving partial sums of dk and dv, and keys, leaving partial sums of dq.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionGrad(pub Attention);

impl OpDef for AttentionGrad {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        let masked = self.0.masked;
        check(ins, 6 + usize::from(masked), if masked { &[(3, MASK)] } else { &[] })?;
        let (t, s) = if self.0.causal { ("t!", "s!") } else { ("t", "s") };
        let (q, k) = (format!("b {t} h d!"), format!("b {s} h d!"));
        let mask = if masked { format!(", b {s}") } else { String::new() };
        Ok(format!("{q}, {k}, {k}{mask}, {q}, b h {t}, {q} -> {q}, {k}, {k}").parse()?)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let (q, k, v, mask) = (ins[0], ins[1], ins[2], self.0.masked.then(|| ins[3]));
        let [o, lse, d_o] = ins[ins.len() - 3..] else { unreachable!("three saved inputs") };
        let [batch, t, heads, width] = q.shape[..] else { unreachable!("four dimensions") };
        let s = k.shape[1];
        let scale = f64::from(self.0.scale);
        for (b, h, i) in triples([batch, heads, t]) {
            let delta: f64 = (0..width).map(|d| d_o.at(&[b, i, h, d]) * o.at(&[b, i, h, d])).sum();
            for j in (0..s).filter(|&j| self.0.visible(mask, [b, i, j], [t, s])) {
                let p = (self.0.score(q, k, [b, i, j, h]) - lse.at(&[b, h, i])).exp();
                let dp: f64 = (0..width).map(|d| d_o.at(&[b, i, h, d]) * v.at(&[b, j, h, d])).sum();
                let dscore = scale * p * (dp - delta);
                for d in 0..width {
                    *outs[0].at_mut(&[b, i, h, d]) += dscore * k.at(&[b, j, h, d]);
                    *outs[1].at_mut(&[b, j, h, d]) += dscore * q.at(&[b, i, h, d]);
                    *outs[2].at_mut(&[b, j, h, d]) += p * d_o.at(&[b, i, h, d]);
                }
            }
        }
    }

    /// Five products of two operations each; the causal form does about half of the points.
    fn flops_per_point(&self) -> u64 {
        if self.0.causal { 5 } else { 10 }
    }

    fn samples() -> Vec<Sample> {
        let saved = |q: &[usize], lse: &[usize]| {
            vec![SampleInput::normal(q), SampleInput::uniform(lse, 1.0, 2.0), SampleInput::normal(q)]
        };
        samples(saved, |op| AttentionGrad(op).into())
    }
}
