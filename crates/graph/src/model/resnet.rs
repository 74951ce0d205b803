//! ResNets and wide ResNets of any depth, with torchvision's weight names. The stem is that of
//! ImageNet (7x7 with stride 2, then a maximum) or of small images (3x3).

use super::head::{CLASSIFY_OR_REGRESS, Head, Headed};
use super::param::{Param, Params, extents, flag, int, ints, param, text, wrong};
use super::{Architecture, Family, ModelInput, Settings, rectangles};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Init, Value};
use crate::windows::ConvOptions;

/// Shape of a ResNet.
#[derive(Clone, Debug, PartialEq)]
pub struct ResNet {
    /// Residual blocks of each of the stages.
    pub blocks: Vec<usize>,
    /// Three convolutions per block, the outer of extent one, rather than two.
    pub bottleneck: bool,
    /// Factor of the width of the inner convolution of a bottleneck.
    pub factor: usize,
    /// Channels of the first stage; doubled by each following.
    pub width: usize,
    /// The first layers.
    pub stem: Stem,
    /// Colour channels.
    pub channels: usize,
    /// Height and width of the images.
    pub size: [usize; 2],
    /// Classes, or numbers to regress.
    pub classes: usize,
    /// The kind of prediction.
    pub head: Head,
}

/// The first layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stem {
    /// 7x7 with stride 2, then a 3x3 maximum with stride 2.
    Imagenet,
    /// 3x3.
    Cifar,
}

/// Parameters of the family.
pub static FAMILY: Family =
    Family { takes: ModelInput::Images, heads: CLASSIFY_OR_REGRESS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("blocks", ints(&[2, 2, 2, 2]), "residual blocks of each stage"),
    param("bottleneck", flag(false), "three convolutions per block rather than two"),
    param("factor", int(1), "how much wider the inner convolution of a bottleneck is"),
    param("width", int(64), "channels of the first stage"),
    param("stem", text("imagenet"), "`imagenet` (7x7/2 and maximum) or `cifar` (3x3)"),
    param("channels", int(3), "colour channels"),
    extents("size", int(224), "height and width of the images; `[height, width]` if they differ"),
    param("classes", int(1000), "classes, or numbers to regress"),
    param("head", text("classify"), "`classify` predicts a class, `regress` numbers"),
];

/// ResNet-18, as it is used for 32x32 images.
pub static RESNET18: Settings = &[("stem", text("cifar")), ("classes", int(10)), ("size", int(32))];
/// ResNet-34.
pub static RESNET34: Settings = &[("blocks", ints(&[3, 4, 6, 3]))];
/// ResNet-50.
pub static RESNET50: Settings = &[("blocks", ints(&[3, 4, 6, 3])), ("bottleneck", flag(true))];
/// ResNet-101.
pub static RESNET101: Settings = &[("blocks", ints(&[3, 4, 23, 3])), ("bottleneck", flag(true))];
/// ResNet-152.
pub static RESNET152: Settings = &[("blocks", ints(&[3, 8, 36, 3])), ("bottleneck", flag(true))];
/// ResNet-50 with twice the inner width.
pub static WIDE50: Settings =
    &[("blocks", ints(&[3, 4, 6, 3])), ("bottleneck", flag(true)), ("factor", int(2))];
/// ResNet-101 with twice the inner width.
pub static WIDE101: Settings =
    &[("blocks", ints(&[3, 4, 23, 3])), ("bottleneck", flag(true)), ("factor", int(2))];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    let net = ResNet {
        blocks: p.sizes("blocks")?,
        bottleneck: p.flag("bottleneck")?,
        factor: p.size("factor")?,
        width: p.size("width")?,
        stem: [Stem::Imagenet, Stem::Cifar][p.choice("stem", &["imagenet", "cifar"])?],
        channels: p.size("channels")?,
        size: p.extents("size")?,
        classes: p.size("classes")?,
        head: Head::read(p, CLASSIFY_OR_REGRESS)?,
    };
    if net.blocks.is_empty() || net.blocks.len() > 8 {
        return wrong(&p.model, format!("`blocks` must name 1 to 8 stages, got {}", net.blocks.len()));
    }
    if net.factor > 1 && !net.bottleneck {
        return wrong(&p.model, "`factor` widens bottlenecks; set `bottleneck` too".into());
    }
    Ok(Box::new(net))
}

/// A convolution without bias and its normalisation, under these two names.
fn conv_norm(
    g: &mut Builder,
    x: Value,
    [conv, norm]: [&str; 2],
    out: usize,
    kernel: usize,
    stride: usize,
) -> Result<Value, GraphError> {
    let options = ConvOptions::new(2).stride(stride).padding(kernel / 2);
    let start = Init::Normal((2.0 / (out * kernel * kernel) as f32).sqrt());
    let x = g.scope(conv, |g| g.conv_layer_from(x, out, &[kernel, kernel], &options, start, None))?;
    g.scope(norm, |g| g.batch_norm_layer(x))
}

impl ResNet {
    fn block(&self, g: &mut Builder, x: Value, planes: usize, stride: usize) -> Result<Value, GraphError> {
        let out = if self.bottleneck { 4 * planes } else { planes };
        let mut y = x;
        if self.bottleneck {
            let inner = planes * self.factor;
            y = conv_norm(g, y, ["conv1", "bn1"], inner, 1, 1)?;
            y = g.relu(y)?;
            y = conv_norm(g, y, ["conv2", "bn2"], inner, 3, stride)?;
            y = g.relu(y)?;
            y = conv_norm(g, y, ["conv3", "bn3"], out, 1, 1)?;
        } else {
            y = conv_norm(g, y, ["conv1", "bn1"], out, 3, stride)?;
            y = g.relu(y)?;
            y = conv_norm(g, y, ["conv2", "bn2"], out, 3, 1)?;
        }
        let shortcut = if stride != 1 || g.fixed(x, 1)? != out {
            conv_norm(g, x, ["downsample.0", "downsample.1"], out, 1, stride)?
        } else {
            x
        };
        let y = g.add(y, shortcut)?;
        g.relu(y)
    }
}

impl Headed for ResNet {
    fn head(&self) -> Head {
        self.head
    }

    /// From the images `x` to the logits `[batch, classes]`.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let mut x = rectangles(g, self.channels, self.size)?;
        let (kernel, stride) = if self.stem == Stem::Imagenet { (7, 2) } else { (3, 1) };
        x = conv_norm(g, x, ["conv1", "bn1"], self.width, kernel, stride)?;
        x = g.relu(x)?;
        if self.stem == Stem::Imagenet {
            x = g.max_pool(x, &[3, 3], &[2, 2], &[1, 1])?;
        }
        for (stage, &count) in self.blocks.iter().enumerate() {
            for k in 0..count {
                let stride = if stage > 0 && k == 0 { 2 } else { 1 };
                x = g.scope(format!("layer{}.{k}", stage + 1), |g| {
                    self.block(g, x, self.width << stage, stride)
                })?;
            }
        }
        let x = g.mean(x, &[2, 3], false)?;
        g.scope("fc", |g| g.linear(x, self.classes, true))
    }
}
