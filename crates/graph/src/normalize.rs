//! Normalisations, attention and the parametric relu as methods of [`Builder`]. Weights are operands;
//! layers that own them are built on top.

use crate::build::Builder;
use crate::dim::Dim;
use crate::graph::{GraphError, Value};
use crate::op::attention::Attention;
use crate::op::batch_norm::BatchNorm;
use crate::op::group_norm::GroupNorm;
use crate::op::layer_norm::LayerNorm;
use crate::op::log_softmax::LogSoftmax;
use crate::op::rms_norm::RmsNorm;
use crate::op::softmax::Softmax;

type Built = Result<Value, GraphError>;

impl Builder {
    /// Softmax along an axis.
    pub fn softmax(&mut self, x: Value, axis: usize) -> Built {
        self.push1(Softmax { axis }, &[x])
    }

    /// The logarithm of softmax along an axis.
    pub fn log_softmax(&mut self, x: Value, axis: usize) -> Built {
        self.push1(LogSoftmax { axis }, &[x])
    }

    /// Layer normalisation over as many of the last dimensions as gamma and beta have.
    pub fn layer_norm(&mut self, x: Value, gamma: Value, beta: Value, eps: f32) -> Built {
        self.push1(LayerNorm { axes: self.rank(gamma), eps }, &[x, gamma, beta])
    }

    /// Normalisation by the root mean square of the last dimension.
    pub fn rms_norm(&mut self, x: Value, gamma: Value, eps: f32) -> Built {
        self.push1(RmsNorm { eps }, &[x, gamma])
    }

    /// Group normalisation of `[n, c, spatial…]`; gamma and beta are `[c]`.
    pub fn group_norm(&mut self, x: Value, gamma: Value, beta: Value, groups: usize, eps: f32) -> Built {
        self.push1(GroupNorm { groups, eps }, &[x, gamma, beta])
    }

    /// Normalisation of each channel of each sample of `[n, c, spatial…]`.
    pub fn instance_norm(&mut self, x: Value, gamma: Value, beta: Value, eps: f32) -> Built {
        let channels = self.shape(x).get(1).and_then(Dim::as_const).and_then(|c| usize::try_from(c).ok());
        let Some(groups) = channels else {
            let ty = self.ty(x);
            return Err(GraphError::Model(format!(
                "instance norm needs a fixed number of channels, got {ty}"
            )));
        };
        self.group_norm(x, gamma, beta, groups, eps)
    }

    /// Batch normalisation of `[n, c, spatial…]` by the batch's own statistics; also their mean and
    /// biased variance per channel, through which no gradient flows.
    pub fn batch_norm(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Value,
        eps: f32,
    ) -> Result<(Value, Value, Value), GraphError> {
        let outs = self.push(BatchNorm { eps }, &[x, gamma, beta])?;
        Ok((outs[0], outs[1], outs[2]))
    }

    /// `x` where positive, elsewhere `slope·x`; the slope is a scalar, one number, or one per channel
    /// (dimension 1).
    pub fn prelu(&mut self, x: Value, slope: Value) -> Built {
        let slope = match (self.rank(slope), self.rank(x)) {
            (1, rank) if rank > 2 => {
                let mut shape = vec![Dim::from(1); rank - 1];
                shape[0] = self.shape(slope)[0].clone();
                self.reshape(slope, &shape)?
            }
            _ => slope,
        };
        let positive = self.relu(x)?;
        let negative = self.sub(x, positive)?;
        let scaled = self.mul(slope, negative)?;
        self.add(positive, scaled)
    }

    /// Scaled dot-product attention of q `[b, t, h, d]` over k and v `[b, s, h, d]`, with a key mask
    /// `[b, s]` (1 is visible) if there is one. The scale is `1/√d` unless given.
    pub fn attention(
        &mut self,
        q: Value,
        k: Value,
        v: Value,
        mask: Option<Value>,
        causal: bool,
        scale: Option<f32>,
    ) -> Built {
        let width = self.shape(q).last().and_then(Dim::as_const).filter(|&d| d > 0);
        let scale = match (scale, width) {
            (Some(scale), _) => scale,
            (None, Some(d)) => (1.0 / (d as f64).sqrt()) as f32,
            (None, None) => {
                let ty = self.ty(q);
                return Err(GraphError::Model(format!("attention needs a fixed head width, got {ty}")));
            }
        };
        let op = Attention { causal, scale, masked: mask.is_some() };
        let ins: Vec<Value> = [q, k, v].into_iter().chain(mask).collect();
        self.push1(op, &ins)
    }
}
