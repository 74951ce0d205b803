//! MobileNet-V2: inverted residuals around depthwise convolutions, with torchvision's weight names.

use super::head::{CLASSIFY_OR_REGRESS, Head, Headed};
use super::param::{Param, Params, extents, float, int, param, text};
use super::{Architecture, Family, ModelInput, rectangles};
use crate::graph::build::Builder;
use crate::graph::op::map::Function;
use crate::graph::{GraphError, Init, Value};
use crate::windows::ConvOptions;

/// Shape of a MobileNet-V2.
#[derive(Clone, Debug, PartialEq)]
pub struct MobileNetV2 {
    /// Multiplies the channels of every layer.
    pub width: f32,
    /// Colour channels.
    pub channels: usize,
    /// Height and width of the images.
    pub size: [usize; 2],
    /// Classes, or numbers to regress.
    pub classes: usize,
    /// The kind of prediction.
    pub head: Head,
    /// Share dropped before the classifier.
    pub dropout: f32,
}

/// Parameters of the family.
pub static FAMILY: Family =
    Family { takes: ModelInput::Images, heads: CLASSIFY_OR_REGRESS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("width", float(1.0), "multiplies the channels of every layer"),
    param("channels", int(3), "colour channels"),
    extents("size", int(224), "height and width of the images; `[height, width]` if they differ"),
    param("classes", int(1000), "classes, or numbers to regress"),
    param("head", text("classify"), "`classify` predicts a class, `regress` numbers"),
    param("dropout", float(0.2), "share dropped before the classifier"),
];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    Ok(Box::new(MobileNetV2 {
        width: p.number("width", 0.01, 100.0)?,
        channels: p.size("channels")?,
        size: p.extents("size")?,
        classes: p.size("classes")?,
        head: Head::read(p, CLASSIFY_OR_REGRESS)?,
        dropout: p.rate("dropout")?,
    }))
}

/// (expansion, channels, blocks, stride) of each stage.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// The multiple of eight next to `channels`, never less than nine tenths of it.
fn round_channels(channels: f32) -> usize {
    let rounded = ((channels + 4.0) as usize / 8 * 8).max(8);
    if (rounded as f32) < 0.9 * channels { rounded + 8 } else { rounded }
}

/// A square convolution: its kernel and stride, and whether each channel is convolved alone.
struct Shape {
    kernel: usize,
    stride: usize,
    depthwise: bool,
}

const POINT: Shape = Shape { kernel: 1, stride: 1, depthwise: false };

fn inverted_residual(
    g: &mut Builder,
    x: Value,
    out: usize,
    stride: usize,
    expand: usize,
) -> Result<Value, GraphError> {
    let channels = g.fixed(x, 1)?;
    let hidden = channels * expand;
    let (mut y, mut layer) = (x, 0);
    if expand != 1 {
        y = g.scope(layer, |g| conv_norm_clamp(g, y, hidden, POINT))?;
        layer += 1;
    }
    let depthwise = Shape { kernel: 3, stride, depthwise: true };
    y = g.scope(layer, |g| conv_norm_clamp(g, y, hidden, depthwise))?;
    y = conv_norm(g, y, layer + 1, out, POINT)?;
    if stride == 1 && channels == out { g.add(x, y) } else { Ok(y) }
}

/// Convolution `0` and normalisation `1`, then relu up to six.
fn conv_norm_clamp(g: &mut Builder, x: Value, out: usize, shape: Shape) -> Result<Value, GraphError> {
    let x = conv_norm(g, x, 0, out, shape)?;
    g.map(Function::Clamp { low: 0.0, high: 6.0 }, x)
}

/// Convolution `first` without bias, and normalisation `first + 1`.
fn conv_norm(
    g: &mut Builder,
    x: Value,
    first: usize,
    out: usize,
    Shape { kernel, stride, depthwise }: Shape,
) -> Result<Value, GraphError> {
    let options = ConvOptions::new(2).stride(stride).padding(kernel / 2);
    let options = options.groups(if depthwise { out } else { 1 });
    let start = Init::Normal((2.0 / (out * kernel * kernel) as f32).sqrt());
    let x = g.scope(first, |g| g.conv_layer_from(x, out, &[kernel, kernel], &options, start, None))?;
    g.scope(first + 1, |g| g.batch_norm_layer(x))
}

impl Headed for MobileNetV2 {
    fn head(&self) -> Head {
        self.head
    }

    /// From the images `x` to the logits `[batch, classes]`.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let channels = |c: usize| round_channels(c as f32 * self.width);
        let x = rectangles(g, self.channels, self.size)?;
        let stem = Shape { kernel: 3, stride: 2, depthwise: false };
        let mut x = g.scope("features.0", |g| conv_norm_clamp(g, x, channels(32), stem))?;
        let mut layer = 1;
        for (expand, out, count, stride) in STAGES {
            for k in 0..count {
                let stride = if k == 0 { stride } else { 1 };
                let name = format!("features.{layer}.conv");
                x = g.scope(name, |g| inverted_residual(g, x, channels(out), stride, expand))?;
                layer += 1;
            }
        }
        let last = round_channels(1280.0 * self.width.max(1.0));
        let x = g.scope(format!("features.{layer}"), |g| conv_norm_clamp(g, x, last, POINT))?;
        let x = g.mean(x, &[2, 3], false)?;
        let x = g.dropout(x, self.dropout)?;
        let (start, zero) = (Init::Normal(0.01), Some(Init::Constant(0.0)));
        g.scope("classifier.1", |g| g.linear_from(x, self.classes, start, zero))
    }
}
