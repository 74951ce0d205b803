//! Normalisations, attention and the parametric relu as methods of [`Builder`]. Weights are operands;
//! layers that own them are built on top.

use crate::dim::Dim;
use crate::graph::build::Builder;
use crate::graph::op::attention::Attention;
use crate::graph::op::batch_norm::BatchNorm;
use crate::graph::op::group_norm::GroupNorm;
use crate::graph::op::layer_norm::LayerNorm;
use crate::graph::op::log_softmax::LogSoftmax;
use crate::graph::op::rms_norm::RmsNorm;
use crate::graph::op::softmax::Softmax;
use crate::graph::{GraphError, Value};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Bindings;
    use crate::dtype::DType;
    use crate::graph::Type;
    use crate::interpret::interpret;
    use crate::random::RandomStream;
    use crate::tensor::Tensor;

    type Shapes<'a> = &'a [(DType, &'a [usize])];

    /// Results of a function of random inputs of these types.
    fn run(
        types: Shapes,
        build: impl Fn(&mut Builder, &[Value]) -> Result<Vec<Value>, GraphError>,
    ) -> Vec<Tensor> {
        let mut g = Builder::new(true);
        let ins: Vec<Value> = types
            .iter()
            .enumerate()
            .map(|(i, (dtype, shape))| g.data(&format!("in{i}"), *dtype, shape).unwrap())
            .collect();
        let outs = build(&mut g, &ins).unwrap();
        let values = interpret(&g.finish(), &Bindings::new(), |v, shape| {
            let stream = RandomStream::new(9, v.index() as u64, 0);
            let element = |i: u64| match types[v.index()].0 {
                DType::Bool => stream.below(i, 2) as f64,
                _ => f64::from(stream.normal_at(i)),
            };
            Tensor::new(shape, (0..shape.iter().product::<usize>() as u64).map(element).collect())
        })
        .unwrap();
        outs.iter().map(|v| values[v.index()].clone()).collect()
    }

    fn assert_pairs(outs: &[Tensor]) {
        for pair in outs.chunks(2) {
            assert_eq!(pair[0].shape, pair[1].shape);
            let close = pair[0].data.iter().zip(&pair[1].data).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(close, "{pair:?}");
        }
    }

    /// Each normalisation beside the same made of means and variances.
    #[test]
    fn normalisations_equal_their_compositions() {
        let types: Shapes = &[(DType::F32, &[2, 3, 5]), (DType::F32, &[3]), (DType::F32, &[3])];
        let composed = |g: &mut Builder, x: Value, axes: &[usize], gamma: Value, beta: Value| {
            let mean = g.mean(x, axes, true)?;
            let variance = g.variance(x, axes, 0, true)?;
            let variance = g.affine(variance, 1.0, 0.125)?;
            let rstd = g.rsqrt(variance)?;
            let centered = g.sub(x, mean)?;
            let normal = g.mul(centered, rstd)?;
            let gamma = g.reshape(gamma, &[3, 1])?;
            let beta = g.reshape(beta, &[3, 1])?;
            let scaled = g.mul(normal, gamma)?;
            g.add(scaled, beta)
        };
        assert_pairs(&run(types, |g, ins| {
            let [x, gamma, beta] = ins[..] else { unreachable!("three inputs") };
            let (batch, mean, variance) = g.batch_norm(x, gamma, beta, 0.125)?;
            Ok(vec![
                batch,
                composed(g, x, &[0, 2], gamma, beta)?,
                mean,
                g.mean(x, &[0, 2], false)?,
                variance,
                g.variance(x, &[0, 2], 0, false)?,
                g.instance_norm(x, gamma, beta, 0.125)?,
                composed(g, x, &[2], gamma, beta)?,
                g.group_norm(x, gamma, beta, 1, 0.125)?,
                composed(g, x, &[1, 2], gamma, beta)?,
            ])
        }));
    }

    #[test]
    fn prelu_takes_one_slope_or_one_per_channel() {
        let types: Shapes =
            &[(DType::F32, &[2, 3, 5]), (DType::F32, &[3]), (DType::F32, &[]), (DType::F32, &[1])];
        assert_pairs(&run(types, |g, ins| {
            let zero = g.scalar(0.0)?;
            let positive = g.greater(ins[0], zero)?;
            let mut pairs = Vec::new();
            for (slope, shape) in [(ins[1], &[3, 1][..]), (ins[2], &[]), (ins[3], &[1, 1])] {
                pairs.push(g.prelu(ins[0], slope)?);
                let slope = g.reshape(slope, shape)?;
                let scaled = g.mul(ins[0], slope)?;
                pairs.push(g.select(positive, ins[0], scaled)?);
            }
            Ok(pairs)
        }));
    }

    #[test]
    fn attention_equals_softmax_of_scores() {
        let q: &[usize] = &[2, 3, 2, 4];
        let k: &[usize] = &[2, 5, 2, 4];
        let types: Shapes = &[(DType::F32, q), (DType::F32, k), (DType::F32, k), (DType::Bool, &[2, 5])];
        assert_pairs(&run(types, |g, ins| {
            let [q, k, v, mask] = ins[..] else { unreachable!("four inputs") };
            let scores = g.contract("b t h d, b s h d -> b h t s", q, k)?;
            let scores = g.affine(scores, 0.5, 0.0)?;
            let wide = g.reshape(mask, &[2, 1, 1, 5])?;
            let hidden = g.scalar(-1e9)?;
            let masked = g.select(wide, scores, hidden)?;
            let mut pairs = Vec::new();
            for (mask, scores) in [(None, scores), (Some(mask), masked)] {
                pairs.push(g.attention(q, k, v, mask, false, None)?);
                let weights = g.softmax(scores, 3)?;
                pairs.push(g.contract("b h t s, b s h d -> b t h d", weights, v)?);
            }
            Ok(pairs)
        }));
    }

    #[test]
    fn what_cannot_be_normalised_is_refused() {
        let mut g = Builder::new(true);
        let x = g.data("x", DType::F32, &[Dim::from(2), Dim::symbol("c"), Dim::from(3)]).unwrap();
        let c = g
            .input(
                "c",
                crate::graph::Role::Data(crate::role::DataRole::Example),
                Type::f32(&[Dim::symbol("c")]),
            )
            .unwrap();
        assert!(g.instance_norm(x, c, c, 1e-5).is_err());
        let x = g.data("y", DType::F32, &[2, 6, 3]).unwrap();
        let c = g.data("d", DType::F32, &[6]).unwrap();
        let error = g.group_norm(x, c, c, 4, 1e-5).unwrap_err().to_string();
        assert!(error.contains("6 channels do not form 4 groups"), "{error}");
        assert!(g.softmax(x, 3).is_err());
    }
}
