//! VGG networks with torchvision's weight names.

use super::head::{CLASSIFY_OR_REGRESS, Head, Headed};
use super::param::{Param, Params, extents, float, int, ints, param, text, wrong};
use super::{Architecture, Family, ModelInput, Settings, rectangles};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Init, Value};
use crate::windows::ConvOptions;

/// Shape of a VGG.
#[derive(Clone, Debug, PartialEq)]
pub struct Vgg {
    /// Convolutions of each stage; a stage ends with a maximum of stride 2.
    pub convolutions: Vec<usize>,
    /// Channels of the first stage; doubled by each following, up to eight times.
    pub width: usize,
    /// Width of the two hidden linear layers.
    pub hidden: usize,
    /// Height and width that the classifier sees.
    pub pool: usize,
    /// Colour channels.
    pub channels: usize,
    /// Height and width of the images.
    pub size: [usize; 2],
    /// Classes, or numbers to regress.
    pub classes: usize,
    /// The kind of prediction.
    pub head: Head,
    /// Share dropped after each hidden layer.
    pub dropout: f32,
}

/// Parameters of the family.
pub static FAMILY: Family =
    Family { takes: ModelInput::Images, heads: CLASSIFY_OR_REGRESS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("convolutions", ints(&[1, 1, 2, 2, 2]), "convolutions of each stage"),
    param("width", int(64), "channels of the first stage"),
    param("hidden", int(4096), "width of the hidden linear layers"),
    param("pool", int(7), "height and width the classifier sees"),
    param("channels", int(3), "colour channels"),
    extents("size", int(224), "height and width of the images; `[height, width]` if they differ"),
    param("classes", int(1000), "classes, or numbers to regress"),
    param("head", text("classify"), "`classify` predicts a class, `regress` numbers"),
    param("dropout", float(0.5), "share dropped after each hidden layer"),
];

/// VGG-13.
pub static VGG13: Settings = &[("convolutions", ints(&[2, 2, 2, 2, 2]))];
/// VGG-16.
pub static VGG16: Settings = &[("convolutions", ints(&[2, 2, 3, 3, 3]))];
/// VGG-19.
pub static VGG19: Settings = &[("convolutions", ints(&[2, 2, 4, 4, 4]))];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    let vgg = Vgg {
        convolutions: p.sizes("convolutions")?,
        width: p.size("width")?,
        hidden: p.size("hidden")?,
        pool: p.size("pool")?,
        channels: p.size("channels")?,
        size: p.extents("size")?,
        classes: p.size("classes")?,
        head: Head::read(p, CLASSIFY_OR_REGRESS)?,
        dropout: p.rate("dropout")?,
    };
    let (stages, least) = (vgg.convolutions.len(), vgg.size[0].min(vgg.size[1]));
    if stages == 0 || stages > 16 || least >> stages < vgg.pool {
        let smallest = vgg.pool << stages.min(16);
        return wrong(
            &p.model,
            format!("{stages} stages halve images of size {least} too often; use {smallest} or more"),
        );
    }
    Ok(Box::new(vgg))
}

impl Headed for Vgg {
    fn head(&self) -> Head {
        self.head
    }

    /// From the images `x` to the logits `[batch, classes]`.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let mut x = rectangles(g, self.channels, self.size)?;
        let mut layer = 0;
        for (stage, &count) in self.convolutions.iter().enumerate() {
            let out = self.width << stage.min(3);
            for _ in 0..count {
                let start = Init::Normal((2.0 / (9 * out) as f32).sqrt());
                let options = ConvOptions::new(2).padding(1);
                x = g.scope(format!("features.{layer}"), |g| {
                    g.conv_layer_from(x, out, &[3, 3], &options, start, Some(Init::Constant(0.0)))
                })?;
                x = g.relu(x)?;
                layer += 2;
            }
            x = g.max_pool(x, &[2, 2], &[2, 2], &[0, 0])?;
            layer += 1;
        }
        let x = g.adaptive_avg_pool(x, &[self.pool, self.pool])?;
        let mut x = g.flatten(x)?;
        for (layer, out) in [(0, self.hidden), (3, self.hidden), (6, self.classes)] {
            let (start, zero) = (Init::Normal(0.01), Some(Init::Constant(0.0)));
            x = g.scope(format!("classifier.{layer}"), |g| g.linear_from(x, out, start, zero))?;
            if layer < 6 {
                x = g.relu(x)?;
                x = g.dropout(x, self.dropout)?;
            }
        }
        Ok(x)
    }
}
