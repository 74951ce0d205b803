//! Scaled dot-product attention in one operator, so that the scores never exist as a value.

use super::attention_grad::AttentionGrad;
use super::sample::{Sample, SampleInput};
use super::softmax::log_sum_exp;
use super::{Backward, MASK, OpDef, OpError, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::Spec;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Inputs q `[b, t, h, d]`, k and v `[b, s, h, d]`, and if masked a key mask `[b, s]` whose ones are
/// visible: `o = softmax(scale·q·kᵀ)·v` per head over the visible keys. Outputs o `[b, t, h, d]`; for
/// the backward pass `lse = log Σ e^score` `[b, h, t]`. A query that sees no key gives zeros and an lse
/// of minus infinity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Key `j` is visible to query `i` only if `j <= i + s - t`: the last query sees every key.
    pub causal: bool,
    /// Factor of the scores, usually `1/√d`.
    pub scale: f32,
    /// Whether there is a key mask.
    pub masked: bool,
}

impl Attention {
    /// Whether a query may look at a key.
    pub(crate) fn visible(&self, mask: Option<&Tensor>, [b, i, j]: [usize; 3], [t, s]: [usize; 2]) -> bool {
        (!self.causal || j + t <= i + s) && mask.is_none_or(|m| m.at(&[b, j]) != 0.0)
    }

    /// The scaled product of a query and a key.
    pub(crate) fn score(&self, q: &Tensor, k: &Tensor, [b, i, j, h]: [usize; 4]) -> f64 {
        let dot: f64 = (0..q.shape[3]).map(|d| q.at(&[b, i, h, d]) * k.at(&[b, j, h, d])).sum();
        dot * f64::from(self.scale)
    }
}

impl OpDef for Attention {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        // A causal query's own position decides what it sees, so a part would need to know its place.
        let t = if self.causal { "t!" } else { "t" };
        let mask = if self.masked { ", b s!" } else { "" };
        check(ins, 3 + usize::from(self.masked), if self.masked { &[(3, MASK)] } else { &[] })?;
        let line = format!("b {t} h d!, b s! h d!, b s! h d!{mask} -> b {t} h d!, b h {t}");
        Ok(line.parse()?)
    }

    fn results(&self) -> usize {
        1
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let ins = [at.ins, &[at.outs[0], at.outs[1], at.dout()?]].concat();
        let grads = g.push(AttentionGrad(self.clone()), &ins)?;
        let mut grads: Vec<Option<Value>> = grads.into_iter().map(Some).collect();
        grads.resize(at.ins.len(), None);
        Ok(grads)
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        let (q, k, v, mask) = (ins[0], ins[1], ins[2], ins.get(3).copied());
        let [batch, t, heads, width] = q.shape[..] else { unreachable!("four dimensions") };
        let s = k.shape[1];
        for (b, h, i) in triples([batch, heads, t]) {
            let seen: Vec<usize> = (0..s).filter(|&j| self.visible(mask, [b, i, j], [t, s])).collect();
            let scores: Vec<f64> = seen.iter().map(|&j| self.score(q, k, [b, i, j, h])).collect();
            let lse = log_sum_exp(scores.iter().copied());
            *outs[1].at_mut(&[b, h, i]) = lse;
            for d in 0..width {
                let weighted = seen.iter().zip(&scores).map(|(&j, x)| (x - lse).exp() * v.at(&[b, j, h, d]));
                *outs[0].at_mut(&[b, i, h, d]) = weighted.sum();
            }
        }
    }

    /// Two products of two operations each; the causal form does about half of the points.
    fn flops_per_point(&self) -> u64 {
        if self.causal { 2 } else { 4 }
    }

    fn samples() -> Vec<Sample> {
        samples(|_, _| Vec::new(), |op| op.into())
    }
}

/// All triples below three extents.
pub(crate) fn triples([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
}

/// The cases of attention and of its gradient, which has `more` inputs, given the shapes of q and lse.
pub(crate) fn samples(
    more: impl Fn(&[usize], &[usize]) -> Vec<SampleInput>,
    wrap: impl Fn(Attention) -> super::Op,
) -> Vec<Sample> {
    let cases = [
        // batch, queries, keys, heads, width
        (false, false, [2, 3, 5, 2, 4]),
        (true, false, [2, 5, 5, 1, 3]),
        (true, false, [1, 2, 4, 3, 2]),
        // The first queries see nothing.
        (true, false, [2, 4, 2, 1, 3]),
        (false, true, [3, 2, 3, 2, 3]),
        (true, true, [2, 4, 4, 2, 2]),
    ];
    let case = |&(causal, masked, [b, t, s, h, d]): &(bool, bool, [usize; 5])| {
        let (q, k) = ([b, t, h, d], [b, s, h, d]);
        let mut inputs = vec![SampleInput::normal(&q), SampleInput::normal(&k), SampleInput::normal(&k)];
        if masked {
            inputs.push(SampleInput::mask(&[b, s]));
        }
        inputs.extend(more(&q, &[b, h, t]));
        Sample::new(wrap(Attention { causal, scale: 0.5, masked }), inputs)
    };
    cases.iter().map(case).collect()
}
