//! Layers: functions with weights, as methods of [`Builder`]. Names, layouts and first values of the
//! weights are PyTorch's; the names stand under the current scope.

use crate::graph::build::Builder;
use crate::graph::{GraphError, Init, Value};
use crate::windows::ConvOptions;

type Built = Result<Value, GraphError>;

/// Settings of batch normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// Added to the variance.
    pub eps: f32,
    /// Weight of the newest batch in the running statistics.
    pub momentum: f32,
    /// Whether training changes the running statistics.
    pub track: bool,
    /// First value of the gain.
    pub gain: Init,
}

impl Default for BatchNormOptions {
    fn default() -> BatchNormOptions {
        BatchNormOptions { eps: 1e-5, momentum: 0.1, track: true, gain: Init::Constant(1.0) }
    }
}

impl Builder {
    /// `x·Wᵀ + b` over the last dimension; `weight` `[out, in]` and `bias` `[out]`, both uniform within
    /// `1/√in`.
    pub fn linear(&mut self, x: Value, out: usize, bias: bool) -> Built {
        let bound = Init::Uniform(1.0 / (self.fixed(x, self.rank(x).max(1) - 1)? as f32).sqrt());
        self.linear_from(x, out, bound, bias.then_some(bound))
    }

    /// As [`Builder::linear`], with other first values; no bias unless it has some.
    pub fn linear_from(&mut self, x: Value, out: usize, weight: Init, bias: Option<Init>) -> Built {
        let fan_in = self.fixed(x, self.rank(x).max(1) - 1)?;
        let weight = self.weight("weight", &[out, fan_in], weight)?;
        let y = self.project(x, weight)?;
        self.add_bias(y, out, 0, bias)
    }

    /// `x·Wᵀ` over the last dimension, for a weight that exists.
    pub fn project(&mut self, x: Value, weight: Value) -> Built {
        let rows: String = (0..self.rank(x).max(1) - 1).map(|d| format!("a{d} ")).collect();
        self.contract(&format!("{rows}i, o i -> {rows}o"), x, weight)
    }

    /// A convolution; `weight` `[out, in/groups, kernel…]` and `bias` `[out]`, both uniform within
    /// `1/√fan_in`. One kernel extent per spatial dimension.
    pub fn conv_layer(
        &mut self,
        x: Value,
        out: usize,
        kernel: &[usize],
        options: &ConvOptions,
        bias: bool,
    ) -> Built {
        let fan_in = self.fixed(x, 1)? / options.groups.max(1) * kernel.iter().product::<usize>();
        let bound = Init::Uniform(1.0 / (fan_in as f32).sqrt());
        self.conv_layer_from(x, out, kernel, options, bound, bias.then_some(bound))
    }

    /// As [`Builder::conv_layer`], with other first values; no bias unless it has some.
    pub fn conv_layer_from(
        &mut self,
        x: Value,
        out: usize,
        kernel: &[usize],
        options: &ConvOptions,
        weight: Init,
        bias: Option<Init>,
    ) -> Built {
        let shape = [&[out, self.fixed(x, 1)? / options.groups.max(1)], kernel].concat();
        let weight = self.weight("weight", &shape, weight)?;
        let y = self.conv(x, weight, options)?;
        self.add_bias(y, out, kernel.len(), bias)
    }

    /// A transposed convolution; `weight` `[in, out/groups, kernel…]` and `bias` `[out]`.
    pub fn conv_transpose_layer(
        &mut self,
        x: Value,
        out: usize,
        kernel: &[usize],
        options: &ConvOptions,
        weight: Init,
        bias: Option<Init>,
    ) -> Built {
        let shape = [&[self.fixed(x, 1)?, out / options.groups.max(1)], kernel].concat();
        let weight = self.weight("weight", &shape, weight)?;
        let y = self.conv_transpose(x, weight, options, &vec![0; kernel.len()])?;
        self.add_bias(y, out, kernel.len(), bias)
    }

    /// Batch normalisation of `[n, c, …]` with PyTorch's settings.
    pub fn batch_norm_layer(&mut self, x: Value) -> Built {
        self.batch_norm_with(x, &BatchNormOptions::default())
    }

    /// Batch normalisation of `[n, c, …]`: by the batch's own statistics in training, which move
    /// `running_mean` and `running_var`, and by those in evaluation.
    pub fn batch_norm_with(&mut self, x: Value, options: &BatchNormOptions) -> Built {
        let channels = self.fixed(x, 1)?;
        let gain = self.weight("weight", &[channels], options.gain)?;
        let shift = self.weight("bias", &[channels], Init::Constant(0.0))?;
        let running_mean = self.state("running_mean", &[channels], Init::Constant(0.0))?;
        let running_var = self.state("running_var", &[channels], Init::Constant(1.0))?;
        if !self.training() {
            return self.normalized(x, [gain, shift, running_mean, running_var], options.eps);
        }
        let (y, mean, variance) = self.batch_norm(x, gain, shift, options.eps)?;
        if options.track {
            let next = self.moved(running_mean, mean, options.momentum)?;
            self.carry(running_mean, next);
            let unbiased = self.unbiased(variance, x)?;
            let next = self.moved(running_var, unbiased, options.momentum)?;
            self.carry(running_var, next);
        }
        Ok(y)
    }

    /// `(x - mean)/√(variance + eps)·gain + shift` per channel.
    fn normalized(&mut self, x: Value, per_channel: [Value; 4], eps: f32) -> Built {
        let mut shape = vec![1usize; self.rank(x) - 1];
        shape[0] = self.fixed(x, 1)?;
        let [gain, shift, mean, variance] = per_channel;
        let variance = self.affine(variance, 1.0, eps)?;
        let scale = self.rsqrt(variance)?;
        let scale = self.mul(scale, gain)?;
        let centre = self.mul(mean, scale)?;
        let offset = self.sub(shift, centre)?;
        let (scale, offset) = (self.reshape(scale, &shape)?, self.reshape(offset, &shape)?);
        let y = self.mul(x, scale)?;
        self.add(y, offset)
    }

    /// The variance of the elements of `x` per channel, times `n/(n-1)`.
    fn unbiased(&mut self, variance: Value, x: Value) -> Built {
        let count = self.shape(x).iter().enumerate().filter(|(d, _)| *d != 1);
        let count = crate::dim::product(count.map(|(_, extent)| extent));
        let (n, less) = (self.size(count.clone())?, self.size(count - 1)?);
        let scaled = self.mul(variance, n)?;
        self.div(scaled, less)
    }

    /// `(1-share)·old + share·new`.
    fn moved(&mut self, old: Value, new: Value, share: f32) -> Built {
        let (old, new) = (self.affine(old, 1.0 - share, 0.0)?, self.affine(new, share, 0.0)?);
        self.add(old, new)
    }

    /// Layer normalisation over the last dimension with `weight` and `bias`.
    pub fn layer_norm_layer(&mut self, x: Value, eps: f32) -> Built {
        let width = self.fixed(x, self.rank(x).max(1) - 1)?;
        let gain = self.weight("weight", &[width], Init::Constant(1.0))?;
        let shift = self.weight("bias", &[width], Init::Constant(0.0))?;
        self.layer_norm(x, gain, shift, eps)
    }

    /// Rows of `weight` `[vocab, dim]` by id.
    pub fn embedding_layer(&mut self, ids: Value, vocab: usize, dim: usize, init: Init) -> Built {
        let table = self.weight("weight", &[vocab, dim], init)?;
        self.embedding(table, ids, None)
    }

    /// `x` where positive, elsewhere `weight·x` with one slope per channel, starting at a quarter.
    pub fn prelu_layer(&mut self, x: Value) -> Built {
        let channels = self.fixed(x, 1)?;
        let slope = self.weight("weight", &[channels], Init::Constant(0.25))?;
        self.prelu(x, slope)
    }

    /// The (weight_ih, weight_hh, bias_ih, bias_hh) of layer `layer` of a recurrent network with
    /// `gates` gates, all uniform within `1/√hidden`.
    pub fn recurrent_weights(
        &mut self,
        layer: usize,
        gates: usize,
        input: usize,
        hidden: usize,
    ) -> Result<[Value; 4], GraphError> {
        let init = Init::Uniform(1.0 / (hidden as f32).sqrt());
        Ok([
            self.weight(&format!("weight_ih_l{layer}"), &[gates * hidden, input], init)?,
            self.weight(&format!("weight_hh_l{layer}"), &[gates * hidden, hidden], init)?,
            self.weight(&format!("bias_ih_l{layer}"), &[gates * hidden], init)?,
            self.weight(&format!("bias_hh_l{layer}"), &[gates * hidden], init)?,
        ])
    }

    /// Layer `layer` of an LSTM over `[batch, length, in]`, starting from zeros: every hidden state
    /// `[batch, length, hidden]`.
    pub fn lstm_layer(&mut self, x: Value, layer: usize, hidden: usize) -> Built {
        let input = self.fixed(x, 2)?;
        let [w_ih, w_hh, b_ih, b_hh] = self.recurrent_weights(layer, 4, input, hidden)?;
        let gates = self.project(x, w_ih)?;
        let bias = self.add(b_ih, b_hh)?;
        let gates = self.add(gates, bias)?;
        let shape = [self.shape(x)[0].clone(), hidden.into()];
        let zeros = self.fill(0.0, &shape)?;
        Ok(self.lstm(gates, zeros, zeros, w_hh)?.0)
    }

    /// Layer `layer` of a GRU over `[batch, length, in]`, starting from zeros: every hidden state
    /// `[batch, length, hidden]`.
    pub fn gru_layer(&mut self, x: Value, layer: usize, hidden: usize) -> Built {
        let input = self.fixed(x, 2)?;
        let [w_ih, w_hh, b_ih, b_hh] = self.recurrent_weights(layer, 3, input, hidden)?;
        let gates = self.project(x, w_ih)?;
        // The reset gate multiplies the recurrent bias of the new state, so that one stays apart.
        let outer = self.slice(b_hh, 0, 0, 2 * hidden)?;
        let inner = self.slice(b_hh, 0, 2 * hidden, hidden)?;
        let outer = self.pad(outer, &[0], &[hidden as i64], 0.0)?;
        let bias = self.add(b_ih, outer)?;
        let gates = self.add(gates, bias)?;
        let shape = [self.shape(x)[0].clone(), hidden.into()];
        let zeros = self.fill(0.0, &shape)?;
        self.gru(gates, zeros, w_hh, inner)
    }

    /// `[batch, length, heads·d]` as `[batch, length, heads, d]`.
    pub fn heads(&mut self, x: Value, heads: usize) -> Built {
        let width = self.fixed(x, 2)?;
        let shape =
            [self.shape(x)[0].clone(), self.shape(x)[1].clone(), heads.into(), (width / heads).into()];
        self.reshape(x, &shape)
    }

    /// The inverse of [`Builder::heads`].
    pub fn merge_heads(&mut self, x: Value) -> Built {
        let width = self.fixed(x, 2)? * self.fixed(x, 3)?;
        let shape = [self.shape(x)[0].clone(), self.shape(x)[1].clone(), width.into()];
        self.reshape(x, &shape)
    }

    /// `[batch, …]` as `[batch, everything else]`.
    pub fn flatten(&mut self, x: Value) -> Built {
        let mut width = 1usize;
        for axis in 1..self.rank(x) {
            let wider = width.checked_mul(self.fixed(x, axis)?);
            width =
                wider.ok_or_else(|| GraphError::Model(format!("{} has too many elements", self.ty(x))))?;
        }
        let shape = [self.shape(x)[0].clone(), width.into()];
        self.reshape(x, &shape)
    }

    /// Adds `bias` `[out]` along the dimension that `inner` others follow.
    fn add_bias(&mut self, y: Value, out: usize, inner: usize, init: Option<Init>) -> Built {
        let Some(init) = init else { return Ok(y) };
        let bias = self.weight("bias", &[out], init)?;
        let mut shape = vec![1usize; inner + 1];
        shape[0] = out;
        let bias = self.reshape(bias, &shape)?;
        self.add(y, bias)
    }

    /// An extent that must be a number, because a weight's shape follows from it.
    pub fn fixed(&self, x: Value, axis: usize) -> Result<usize, GraphError> {
        let extent = self.shape(x).get(axis).and_then(|d| d.as_const());
        extent.and_then(|d| usize::try_from(d).ok()).filter(|d| *d > 0).ok_or_else(|| {
            let info = self.graph().value(x);
            let why = format!("`{}` {} needs a fixed extent in dimension {axis}", info.name, info.ty);
            GraphError::Model(why)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::{Bindings, Dim};
    use crate::dtype::DType;
    use crate::graph::{Origin, Role};
    use crate::interpret::interpret;
    use crate::tensor::Tensor;

    fn init_of(g: &Builder, name: &str) -> (String, Init) {
        let info = g.graph().value(g.graph().input(name).unwrap_or_else(|| panic!("no {name}")));
        match info.origin {
            Origin::Input(Role::Weight(init) | Role::State(init)) => (info.ty.to_string(), init),
            _ => panic!("{name} is no weight"),
        }
    }

    #[test]
    fn weights_have_pytorchs_shapes_and_first_values() {
        let mut g = Builder::new(true);
        let x = g.data("x", DType::F32, &[Dim::symbol("batch"), 8.into(), 6.into(), 6.into()]).unwrap();
        let y =
            g.scope("conv", |g| g.conv_layer(x, 12, &[3, 3], &ConvOptions::new(2).groups(4), true)).unwrap();
        let y = g.scope("norm", |g| g.batch_norm_layer(y)).unwrap();
        let y = g.scope("act", |g| g.prelu_layer(y)).unwrap();
        let zero = Init::Constant(0.0);
        let up = ConvOptions::new(2).stride(2);
        let y = g.scope("up", |g| g.conv_transpose_layer(y, 5, &[2, 2], &up, zero, Some(zero))).unwrap();
        assert_eq!(g.ty(y).to_string(), "f32[batch,5,8,8]");
        let y = g.flatten(y).unwrap();
        let y = g.scope("fc", |g| g.linear(y, 7, true)).unwrap();
        assert_eq!(g.ty(y).to_string(), "f32[batch,7]");
        for (name, ty, init) in [
            ("conv.weight", "f32[12,2,3,3]", Init::Uniform(1.0 / 18f32.sqrt())),
            ("conv.bias", "f32[12]", Init::Uniform(1.0 / 18f32.sqrt())),
            ("norm.weight", "f32[12]", Init::Constant(1.0)),
            ("norm.running_var", "f32[12]", Init::Constant(1.0)),
            ("act.weight", "f32[12]", Init::Constant(0.25)),
            ("up.weight", "f32[12,5,2,2]", zero),
            ("fc.weight", "f32[7,320]", Init::Uniform(1.0 / 320f32.sqrt())),
            ("fc.bias", "f32[7]", Init::Uniform(1.0 / 320f32.sqrt())),
        ] {
            assert_eq!(init_of(&g, name), (ty.to_string(), init), "{name}");
        }
    }

    #[test]
    fn evaluation_normalises_by_running_statistics() {
        let mut g = Builder::new(false);
        let x = g.data("x", DType::F32, &[2, 1, 2]).unwrap();
        let y = g.batch_norm_layer(x).unwrap();
        let values = interpret(g.graph(), &Bindings::new(), |v, shape| {
            let data = match g.graph().value(v).name.as_str() {
                "x" => vec![1.0, 2.0, 3.0, 5.0],
                "weight" => vec![2.0],
                "bias" => vec![0.5],
                "running_mean" => vec![3.0],
                _ => vec![4.0],
            };
            Tensor::new(shape, data)
        })
        .unwrap();
        for (got, x) in values[y.index()].data.iter().zip([1.0, 2.0, 3.0, 5.0]) {
            assert!((got - ((x - 3.0) / (4.0f64 + 1e-5).sqrt() * 2.0 + 0.5)).abs() < 1e-6, "{x}: {got}");
        }
        assert!(g.graph().carries.is_empty());
    }

    #[test]
    fn extents_that_weights_need_must_be_fixed() {
        let mut g = Builder::new(true);
        let x = g.data("x", DType::F32, &[4.into(), Dim::symbol("length")]).unwrap();
        let said = g.linear(x, 3, true).unwrap_err().to_string();
        assert_eq!(said, "`x` f32[4,length] needs a fixed extent in dimension 1");
    }
}
