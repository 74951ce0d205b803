//! A CosmoFlow-like network: 3-D convolutions over a volume, regressing a few numbers.

use super::param::{Param, Params, float, int, param, wrong};
use super::{Architecture, Built, Family, ModelInput, Settings, batch, regressed};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::op::map::Function;
use crate::graph::{GraphError, GraphOutput, Value};
use crate::role::OutputRole;
use crate::windows::ConvOptions;

/// Shape of the network.
#[derive(Clone, Debug, PartialEq)]
pub struct CosmoFlow {
    /// Channels of the volume.
    pub channels: usize,
    /// Depth, height and width of the volume.
    pub size: usize,
    /// Channels of the first convolution; doubled by each following, up to `widest`.
    pub width: usize,
    /// Most channels of a convolution.
    pub widest: usize,
    /// Convolutions, each halving the volume.
    pub layers: usize,
    /// Width of the first linear layer; the second has half.
    pub hidden: usize,
    /// Numbers regressed.
    pub outputs: usize,
    /// Share dropped after each hidden linear layer.
    pub dropout: f32,
}

/// Parameters of the family.
pub static FAMILY: Family = Family { takes: ModelInput::Volumes, heads: &["regress"], params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("channels", int(4), "channels of the volume"),
    param("size", int(32), "depth, height and width of the volume"),
    param("width", int(16), "channels of the first convolution"),
    param("widest", int(1 << 20), "most channels of a convolution"),
    param("layers", int(3), "convolutions, each halving the volume"),
    param("hidden", int(128), "width of the first linear layer"),
    param("outputs", int(4), "numbers regressed"),
    param("dropout", float(0.0), "share dropped after each hidden linear layer"),
];

/// Volumes of 512, as ParaDL's authors train it (Kahira et al., 2021).
pub static SIZE_512: Settings = &[("size", int(512)), ("layers", int(7)), ("widest", int(256))];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    let net = CosmoFlow {
        channels: p.size("channels")?,
        size: p.size("size")?,
        width: p.size("width")?,
        widest: p.size("widest")?,
        layers: p.size("layers")?,
        hidden: p.size("hidden")?,
        outputs: p.size("outputs")?,
        dropout: p.rate("dropout")?,
    };
    if net.layers > 16 || net.size >> net.layers == 0 {
        return wrong(
            &p.model,
            format!("{} layers halve a volume of size {} too often", net.layers, net.size),
        );
    }
    if net.hidden < 2 {
        return wrong(&p.model, "`hidden` must be 2 or more".into());
    }
    Ok(Box::new(net))
}

impl CosmoFlow {
    /// From the volume `x` to the predictions `[batch, outputs]`.
    pub fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let leaky = Function::LeakyRelu { slope: 0.3 };
        let cube = [batch(), self.channels.into(), self.size.into(), self.size.into(), self.size.into()];
        let mut x = g.data("x", DType::F32, &cube)?;
        for layer in 0..self.layers {
            let options = ConvOptions::new(3).padding(1);
            let name = format!("features.{}", 3 * layer);
            x = g.scope(name, |g| {
                g.conv_layer(x, (self.width << layer).min(self.widest), &[3, 3, 3], &options, true)
            })?;
            x = g.map(leaky, x)?;
            x = g.max_pool(x, &[2, 2, 2], &[2, 2, 2], &[0, 0, 0])?;
        }
        x = g.flatten(x)?;
        for (layer, out) in [(0, self.hidden), (3, self.hidden / 2)] {
            x = g.scope(format!("head.{layer}"), |g| g.linear(x, out, true))?;
            x = g.map(leaky, x)?;
            x = g.dropout(x, self.dropout)?;
        }
        g.scope("head.6", |g| g.linear(x, self.outputs, true))
    }
}

impl Architecture for CosmoFlow {
    fn objective(&self, _: usize, g: &mut Builder) -> Result<Built, GraphError> {
        let prediction = self.build(g)?;
        regressed(g, prediction)
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError> {
        Ok(vec![GraphOutput::of(OutputRole::Prediction, self.build(g)?)])
    }
}
