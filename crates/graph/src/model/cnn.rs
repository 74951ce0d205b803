//! The smallest useful image classifier: two convolutions and a linear layer.

use super::head::{CLASSIFY_OR_REGRESS, Head, Headed};
use super::param::{Param, Params, extents, int, param, text, wrong};
use super::{Architecture, Family, ModelInput, rectangles};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Value};
use crate::windows::ConvOptions;

/// Sizes of the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Cnn {
    /// Colour channels.
    pub channels: usize,
    /// Height and width of the images.
    pub size: [usize; 2],
    /// Channels of the first convolution; the second has twice as many.
    pub width: usize,
    /// Classes, or numbers to regress.
    pub classes: usize,
    /// The kind of prediction.
    pub head: Head,
}

/// Parameters of the family.
pub static FAMILY: Family =
    Family { takes: ModelInput::Images, heads: CLASSIFY_OR_REGRESS, params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("channels", int(1), "colour channels"),
    extents("size", int(28), "height and width of the images, from 4 up; `[height, width]` if they differ"),
    param("width", int(16), "channels of the first convolution"),
    param("classes", int(10), "classes, or numbers to regress"),
    param("head", text("classify"), "`classify` predicts a class, `regress` numbers"),
];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    let cnn = Cnn {
        channels: p.size("channels")?,
        size: p.extents("size")?,
        width: p.size("width")?,
        classes: p.size("classes")?,
        head: Head::read(p, CLASSIFY_OR_REGRESS)?,
    };
    let least = cnn.size[0].min(cnn.size[1]);
    if least < 4 {
        return wrong(&p.model, format!("images of size {least} vanish in two poolings; use 4 or more"));
    }
    Ok(Box::new(cnn))
}

impl Headed for Cnn {
    fn head(&self) -> Head {
        self.head
    }

    /// From the images `x` to the logits `[batch, classes]`.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let mut x = rectangles(g, self.channels, self.size)?;
        for (name, out) in [("conv1", self.width), ("conv2", 2 * self.width)] {
            let options = ConvOptions::new(2).padding(1);
            x = g.scope(name, |g| g.conv_layer(x, out, &[3, 3], &options, true))?;
            x = g.relu(x)?;
            x = g.max_pool(x, &[2, 2], &[2, 2], &[0, 0])?;
        }
        let x = g.flatten(x)?;
        g.scope("fc", |g| g.linear(x, self.classes, true))
    }
}
