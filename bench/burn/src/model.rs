//! The models of the reference workloads, made of burn's own layers. burn's attention is not fused where
//! gradients are needed: it becomes two matrix multiplies and a softmax.

use burn::module::Module;
use burn::nn::conv::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    Lstm, LstmConfig, PaddingConfig2d,
};
use burn::tensor::activation::{gelu_approximate, relu};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor};

/// Linear layers with a rectifier between them.
#[derive(Module, Debug)]
pub struct Mlp {
    inner: Vec<Linear>,
    last: Linear,
}

impl Mlp {
    pub fn new(sizes: &[usize], device: &Device) -> Mlp {
        let mut inner: Vec<Linear> =
            sizes.windows(2).map(|ends| LinearConfig::new(ends[0], ends[1]).init(device)).collect();
        let last = inner.pop().expect("a perceptron has layers");
        Mlp { inner, last }
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.last.forward(self.inner.iter().fold(x, |x, layer| relu(layer.forward(x))))
    }
}

/// A convolution without bias and its batch normalisation.
#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(ends: [usize; 2], extent: usize, stride: usize, device: &Device) -> ConvNorm {
        let config = Conv2dConfig::new(ends, [extent, extent]).with_stride([stride, stride]).with_bias(false);
        ConvNorm {
            conv: config.with_padding(padding(extent / 2)).init(device),
            norm: BatchNormConfig::new(ends[1]).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(x))
    }
}

fn padding(extent: usize) -> PaddingConfig2d {
    PaddingConfig2d::Explicit(extent, extent, extent, extent)
}

/// Convolutions beside a shortcut.
#[derive(Module, Debug)]
struct Block {
    inner: Vec<ConvNorm>,
    last: ConvNorm,
    shortcut: Option<ConvNorm>,
}

impl Block {
    /// `convs` are output channels, extent and stride of each convolution.
    fn new(inside: usize, convs: &[(usize, usize, usize)], device: &Device) -> Block {
        let (mut channels, mut inner) = (inside, Vec::new());
        for &(outside, extent, stride) in convs {
            inner.push(ConvNorm::new([channels, outside], extent, stride, device));
            channels = outside;
        }
        let last = inner.pop().expect("a block has convolutions");
        let stride = convs.iter().map(|conv| conv.2).product();
        let differs = stride != 1 || inside != channels;
        let shortcut = differs.then(|| ConvNorm::new([inside, channels], 1, stride, device));
        Block { inner, last, shortcut }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let beside = match &self.shortcut {
            Some(layer) => layer.forward(x.clone()),
            None => x.clone(),
        };
        let hidden = self.inner.iter().fold(x, |x, layer| relu(layer.forward(x)));
        relu(self.last.forward(hidden) + beside)
    }
}

/// A residual classifier of images.
#[derive(Module, Debug)]
pub struct ResNet {
    stem: ConvNorm,
    shrink: Option<MaxPool2d>,
    blocks: Vec<Block>,
    mean: AdaptiveAvgPool2d,
    out: Linear,
}

impl ResNet {
    /// For 32x32 images of ten classes.
    pub fn eighteen(device: &Device) -> ResNet {
        let (mut inside, mut blocks) = (64, Vec::new());
        for (stage, width) in [64, 128, 256, 512].into_iter().enumerate() {
            for block in 0..2 {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(Block::new(inside, &[(width, 3, stride), (width, 3, 1)], device));
                inside = width;
            }
        }
        ResNet {
            stem: ConvNorm::new([3, 64], 3, 1, device),
            shrink: None,
            blocks,
            mean: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            out: LinearConfig::new(512, 10).init(device),
        }
    }

    /// For 224x224 images of a thousand classes.
    pub fn fifty(device: &Device) -> ResNet {
        let (mut inside, mut blocks) = (64, Vec::new());
        for (stage, (planes, count)) in [(64, 3), (128, 4), (256, 6), (512, 3)].into_iter().enumerate() {
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let convs = [(planes, 1, 1), (planes, 3, stride), (4 * planes, 1, 1)];
                blocks.push(Block::new(inside, &convs, device));
                inside = 4 * planes;
            }
        }
        let shrink = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(padding(1));
        ResNet {
            stem: ConvNorm::new([3, 64], 7, 2, device),
            shrink: Some(shrink.init()),
            blocks,
            mean: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            out: LinearConfig::new(2048, 1000).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let mut x = relu(self.stem.forward(x));
        if let Some(shrink) = &self.shrink {
            x = shrink.forward(x);
        }
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.out.forward(self.mean.forward(x).flatten(1, 3))
    }
}

/// Attention and two linear layers, each normalised before and added to the stream.
#[derive(Module, Debug)]
struct GptBlock {
    heads: usize,
    norm1: LayerNorm,
    norm2: LayerNorm,
    qkv: Linear,
    proj: Linear,
    up: Linear,
    down: Linear,
}

impl GptBlock {
    fn new(width: usize, heads: usize, device: &Device) -> GptBlock {
        let norm = || LayerNormConfig::new(width).init(device);
        let linear = |inside, outside| LinearConfig::new(inside, outside).init(device);
        GptBlock {
            heads,
            norm1: norm(),
            norm2: norm(),
            qkv: linear(width, 3 * width),
            proj: linear(width, width),
            up: linear(width, 4 * width),
            down: linear(4 * width, width),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let split = self.qkv.forward(self.norm1.forward(x.clone()));
        // [3, batch, heads, length, head]
        let split = split.reshape([batch, length, 3, self.heads, width / self.heads]);
        let split = split.permute([2, 0, 3, 1, 4]);
        let part = |i| split.clone().narrow(0, i, 1).squeeze_dim::<4>(0);
        let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let mixed = attention(part(0), part(1), part(2), None, None, causal);
        let x = x + self.proj.forward(mixed.swap_dims(1, 2).reshape([batch, length, width]));
        x.clone() + self.down.forward(gelu_approximate(self.up.forward(self.norm2.forward(x))))
    }
}

/// A causal language model with learned positions and tied embeddings.
#[derive(Module, Debug)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<GptBlock>,
    norm: LayerNorm,
}

impl Gpt {
    pub fn new(
        vocabulary: usize,
        width: usize,
        heads: usize,
        layers: usize,
        context: usize,
        device: &Device,
    ) -> Gpt {
        Gpt {
            tokens: EmbeddingConfig::new(vocabulary, width).init(device),
            positions: EmbeddingConfig::new(context, width).init(device),
            blocks: (0..layers).map(|_| GptBlock::new(width, heads, device)).collect(),
            norm: LayerNormConfig::new(width).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<2, Int>) -> Tensor<2> {
        let length = x.dims()[1];
        let order = Tensor::arange(0..length as i64, &x.device()).unsqueeze::<2>();
        let stream = self.tokens.forward(x) + self.positions.forward(order);
        let stream = self.blocks.iter().fold(stream, |x, block| block.forward(x));
        self.norm.forward(stream).flatten::<2>(0, 1).matmul(self.tokens.weight.val().transpose())
    }
}

/// A recurrent language model.
#[derive(Module, Debug)]
pub struct LanguageLstm {
    tokens: Embedding,
    layers: Vec<Lstm>,
    out: Linear,
}

impl LanguageLstm {
    pub fn new(vocabulary: usize, width: usize, layers: usize, device: &Device) -> LanguageLstm {
        LanguageLstm {
            tokens: EmbeddingConfig::new(vocabulary, width).init(device),
            layers: (0..layers).map(|_| LstmConfig::new(width, width, true).init(device)).collect(),
            out: LinearConfig::new(width, vocabulary).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<2, Int>) -> Tensor<2> {
        let x = self.layers.iter().fold(self.tokens.forward(x), |x, layer| layer.forward(x, None).0);
        self.out.forward(x).flatten(0, 1)
    }
}

/// A classifier of point clouds, without learned transforms.
#[derive(Module, Debug)]
pub struct PointNet {
    points: Vec<(Conv1d, BatchNorm)>,
    cloud: Vec<(Linear, BatchNorm)>,
    out: Linear,
}

impl PointNet {
    pub fn new(device: &Device) -> PointNet {
        let norm = |width| BatchNormConfig::new(width).init(device);
        let point = |ends: &[usize]| (Conv1dConfig::new(ends[0], ends[1], 1).init(device), norm(ends[1]));
        let cloud = |ends: &[usize]| (LinearConfig::new(ends[0], ends[1]).init(device), norm(ends[1]));
        PointNet {
            points: [3, 64, 128, 1024].windows(2).map(point).collect(),
            cloud: [1024, 512, 256].windows(2).map(cloud).collect(),
            out: LinearConfig::new(256, 40).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let x = self.points.iter().fold(x, |x, (conv, norm)| relu(norm.forward(conv.forward(x))));
        let x = x.max_dim(2).squeeze_dim::<2>(2);
        let x = self.cloud.iter().fold(x, |x, (layer, norm)| relu(norm.forward(layer.forward(x))));
        self.out.forward(x)
    }
}
