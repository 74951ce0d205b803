//! The models of the reference workloads, made of candle's own layers where these have gradients. Layer
//! normalisation and attention are written out: candle's fused ones cannot be differentiated.

use candle_core::{Module, ModuleT, Result, Tensor, D};
use candle_nn::{
    batch_norm, conv1d, conv2d_no_bias, embedding, linear, lstm as lstm_layer, ops, BatchNorm, Conv2d,
    Conv2dConfig, Init, LSTMConfig, Linear, VarBuilder, LSTM, RNN,
};

/// From a batch of samples to the scores of their classes or next tokens.
pub type Forward = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send>;

/// Linear layers with a rectifier between them.
pub fn mlp(sizes: &[usize], vb: VarBuilder) -> Result<Forward> {
    let layer = |(i, ends): (usize, &[usize])| linear(ends[0], ends[1], vb.pp(i));
    let layers = sizes.windows(2).enumerate().map(layer).collect::<Result<Vec<Linear>>>()?;
    Ok(Box::new(move |x| {
        let (last, inner) = layers.split_last().expect("a perceptron has layers");
        let hidden = inner.iter().try_fold(x.clone(), |x, layer| layer.forward(&x)?.relu())?;
        last.forward(&hidden)
    }))
}

/// A convolution without bias and its batch normalisation.
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(ends: [usize; 2], extent: usize, stride: usize, vb: VarBuilder) -> Result<ConvNorm> {
        let config = Conv2dConfig { padding: extent / 2, stride, ..Default::default() };
        let conv = conv2d_no_bias(ends[0], ends[1], extent, config, vb.pp("conv"))?;
        Ok(ConvNorm { conv, norm: batch_norm(ends[1], 1e-5, vb.pp("norm"))? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward_t(&self.conv.forward(x)?, true)
    }
}

/// Convolutions beside a shortcut.
struct Block {
    body: Vec<ConvNorm>,
    shortcut: Option<ConvNorm>,
}

impl Block {
    /// `convs` are output channels, extent and stride of each convolution.
    fn new(inside: usize, convs: &[(usize, usize, usize)], vb: VarBuilder) -> Result<Block> {
        let (mut channels, mut body) = (inside, Vec::new());
        for (i, &(outside, extent, stride)) in convs.iter().enumerate() {
            body.push(ConvNorm::new([channels, outside], extent, stride, vb.pp(i))?);
            channels = outside;
        }
        let stride = convs.iter().map(|conv| conv.2).product();
        let same = stride == 1 && inside == channels;
        let shortcut = || ConvNorm::new([inside, channels], 1, stride, vb.pp("shortcut"));
        Ok(Block { body, shortcut: if same { None } else { Some(shortcut()?) } })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (last, inner) = self.body.split_last().expect("a block has convolutions");
        let hidden = inner.iter().try_fold(x.clone(), |x, layer| layer.forward(&x)?.relu())?;
        let beside = self.shortcut.as_ref().map_or(Ok(x.clone()), |layer| layer.forward(x))?;
        (last.forward(&hidden)? + beside)?.relu()
    }
}

/// For 32x32 images of ten classes.
pub fn resnet18(vb: VarBuilder) -> Result<Forward> {
    let stem = ConvNorm::new([3, 64], 3, 1, vb.pp("stem"))?;
    let (mut inside, mut blocks) = (64, Vec::new());
    for (stage, width) in [64, 128, 256, 512].into_iter().enumerate() {
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let convs = [(width, 3, stride), (width, 3, 1)];
            blocks.push(Block::new(inside, &convs, vb.pp(format!("{stage}.{block}")))?);
            inside = width;
        }
    }
    let out = linear(512, 10, vb.pp("out"))?;
    Ok(Box::new(move |x| classify(&stem.forward(x)?.relu()?, &blocks, &out)))
}

/// For 224x224 images of a thousand classes.
pub fn resnet50(vb: VarBuilder) -> Result<Forward> {
    let stem = ConvNorm::new([3, 64], 7, 2, vb.pp("stem"))?;
    let (mut inside, mut blocks) = (64, Vec::new());
    for (stage, (planes, count)) in [(64, 3), (128, 4), (256, 6), (512, 3)].into_iter().enumerate() {
        for block in 0..count {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let convs = [(planes, 1, 1), (planes, 3, stride), (4 * planes, 1, 1)];
            blocks.push(Block::new(inside, &convs, vb.pp(format!("{stage}.{block}")))?);
            inside = 4 * planes;
        }
    }
    let out = linear(2048, 1000, vb.pp("out"))?;
    Ok(Box::new(move |x| {
        let x = stem.forward(x)?.relu()?;
        classify(&halve(&halve(&x, 2)?, 3)?, &blocks, &out)
    }))
}

fn classify(x: &Tensor, blocks: &[Block], out: &Linear) -> Result<Tensor> {
    let x = blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x))?;
    out.forward(&x.mean((2, 3))?)
}

/// Maximum over windows of three, stride two, padding one, along one even axis of numbers not below zero.
/// Twice this is the pooling of ResNet-50; candle's `max_pool2d` has neither padding nor the gradient of
/// overlapping windows.
fn halve(x: &Tensor, axis: usize) -> Result<Tensor> {
    let half = x.dim(axis)? / 2;
    let mut pairs = x.dims().to_vec();
    pairs.splice(axis..=axis, [half, 2]);
    let pairs = x.reshape(pairs)?;
    let even = pairs.narrow(axis + 1, 0, 1)?.squeeze(axis + 1)?;
    let odd = pairs.narrow(axis + 1, 1, 1)?.squeeze(axis + 1)?;
    let before = odd.pad_with_zeros(axis, 1, 0)?.narrow(axis, 0, half)?;
    even.maximum(&odd)?.maximum(&before)
}

/// Weight and bias of a layer normalisation.
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    fn new(width: usize, vb: VarBuilder) -> Result<LayerNorm> {
        let weight = vb.get_with_hints(width, "weight", Init::Const(1.0))?;
        Ok(LayerNorm { weight, bias: vb.get_with_hints(width, "bias", Init::Const(0.0))? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm_slow(x, &self.weight, &self.bias, 1e-5)
    }
}

/// Attention and two linear layers, each normalised before and added to the stream.
struct GptBlock {
    heads: usize,
    norms: [LayerNorm; 2],
    qkv: Linear,
    proj: Linear,
    up: Linear,
    down: Linear,
}

impl GptBlock {
    fn new(width: usize, heads: usize, vb: VarBuilder) -> Result<GptBlock> {
        Ok(GptBlock {
            heads,
            norms: [LayerNorm::new(width, vb.pp("norm1"))?, LayerNorm::new(width, vb.pp("norm2"))?],
            qkv: linear(width, 3 * width, vb.pp("qkv"))?,
            proj: linear(width, width, vb.pp("proj"))?,
            up: linear(width, 4 * width, vb.pp("up"))?,
            down: linear(4 * width, width, vb.pp("down"))?,
        })
    }

    /// `mask` is added to the scores of attention.
    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let head = width / self.heads;
        let split = self.qkv.forward(&self.norms[0].forward(x)?)?;
        // [3, batch, heads, length, head]
        let split = split.reshape((batch, length, 3, self.heads, head))?.permute((2, 0, 3, 1, 4))?;
        let part = |i| split.get(i)?.contiguous();
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let scores = (query.matmul(&key.t()?)? * (1.0 / (head as f64).sqrt()))?;
        let mixed = ops::softmax(&scores.broadcast_add(mask)?, D::Minus1)?.matmul(&value)?;
        let x = (x + self.proj.forward(&mixed.transpose(1, 2)?.reshape((batch, length, width))?)?)?;
        // candle's `gelu` is the approximation by tanh.
        &x + self.down.forward(&self.up.forward(&self.norms[1].forward(&x)?)?.gelu()?)?
    }
}

/// A causal language model with learned positions and tied embeddings, for texts of `length` tokens.
pub fn gpt(
    vocabulary: usize,
    width: usize,
    heads: usize,
    layers: usize,
    context: usize,
    length: usize,
    vb: VarBuilder,
) -> Result<Forward> {
    let tokens = embedding(vocabulary, width, vb.pp("tokens"))?;
    let positions = embedding(context, width, vb.pp("positions"))?;
    let block = |i| GptBlock::new(width, heads, vb.pp(i));
    let blocks = (0..layers).map(block).collect::<Result<Vec<_>>>()?;
    let norm = LayerNorm::new(width, vb.pp("norm"))?;
    let device = vb.device();
    let later = |i| if i % length > i / length { f32::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f32> = (0..length * length).map(later).collect();
    let mask = Tensor::from_vec(mask, (1, 1, length, length), device)?;
    let order = Tensor::arange(0i64, length as i64, device)?;
    Ok(Box::new(move |x| {
        let stream = tokens.forward(x)?.broadcast_add(&positions.forward(&order)?)?;
        let stream = blocks.iter().try_fold(stream, |x, block| block.forward(&x, &mask))?;
        norm.forward(&stream)?.reshape(((), width))?.matmul(&tokens.embeddings().t()?)
    }))
}

/// A recurrent language model.
pub fn lstm(vocabulary: usize, width: usize, layers: usize, vb: VarBuilder) -> Result<Forward> {
    let tokens = embedding(vocabulary, width, vb.pp("tokens"))?;
    let layer = |i| lstm_layer(width, width, LSTMConfig::default(), vb.pp(i));
    let layers = (0..layers).map(layer).collect::<Result<Vec<LSTM>>>()?;
    let out = linear(width, vocabulary, vb.pp("out"))?;
    Ok(Box::new(move |x| {
        let run = |x: Tensor, layer: &LSTM| layer.states_to_tensor(&layer.seq(&x)?);
        out.forward(&layers.iter().try_fold(tokens.forward(x)?, run)?)
    }))
}

/// A classifier of point clouds, without learned transforms.
pub fn pointnet(vb: VarBuilder) -> Result<Forward> {
    let norm = |width: usize, name: String| batch_norm(width, 1e-5, vb.pp(name));
    let (mut points, mut cloud) = (Vec::new(), Vec::new());
    for (i, ends) in [3, 64, 128, 1024].windows(2).enumerate() {
        let conv = conv1d(ends[0], ends[1], 1, Default::default(), vb.pp(format!("point{i}")))?;
        points.push((conv, norm(ends[1], format!("point-norm{i}"))?));
    }
    for (i, ends) in [1024, 512, 256].windows(2).enumerate() {
        let layer = linear(ends[0], ends[1], vb.pp(format!("cloud{i}")))?;
        cloud.push((layer, norm(ends[1], format!("cloud-norm{i}"))?));
    }
    let out = linear(256, 40, vb.pp("out"))?;
    Ok(Box::new(move |x| {
        let mut x = x.clone();
        for (conv, norm) in &points {
            x = norm.forward_t(&conv.forward(&x)?, true)?.relu()?;
        }
        x = x.max(2)?;
        for (layer, norm) in &cloud {
            x = norm.forward_t(&layer.forward(&x)?, true)?.relu()?;
        }
        out.forward(&x)
    }))
}
