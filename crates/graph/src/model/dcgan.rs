//! DCGAN: a generator of 64x64 images and a discriminator, trained in turn; the generator sees the
//! discriminator just updated. Weights are named as in PyTorch's example.

use super::param::{Param, Params, int, param};
use super::{Architecture, Built, Family, ModelInput, Objective, batch, images};
use crate::graph::build::Builder;
use crate::graph::op::map::Function;
use crate::graph::{GraphError, GraphOutput, Init, Value};
use crate::layer::BatchNormOptions;
use crate::role::OutputRole;
use crate::windows::ConvOptions;

/// Sizes of the two networks.
#[derive(Clone, Debug, PartialEq)]
pub struct Dcgan {
    /// Length of the noise an image is made from.
    pub latent: usize,
    /// Channels of the generator's last hidden layer.
    pub generator: usize,
    /// Channels of the discriminator's first layer.
    pub discriminator: usize,
    /// Colour channels.
    pub channels: usize,
}

/// Parameters of the family.
pub static FAMILY: Family = Family { takes: ModelInput::ImagesOf(SIZE), heads: &[], params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("latent", int(100), "length of the noise an image is made from"),
    param("generator", int(64), "channels of the generator's last hidden layer"),
    param("discriminator", int(64), "channels of the discriminator's first layer"),
    param("channels", int(3), "colour channels"),
];

fn make(p: &Params) -> Result<Box<dyn Architecture>, GraphError> {
    Ok(Box::new(Dcgan {
        latent: p.size("latent")?,
        generator: p.size("generator")?,
        discriminator: p.size("discriminator")?,
        channels: p.size("channels")?,
    }))
}

const START: Init = Init::Normal(0.02);
/// Height and width of the images.
const SIZE: usize = 64;

impl Dcgan {
    /// From the noise `z` `[batch, latent, 1, 1]` to images; `track` moves the running statistics.
    pub fn generate(&self, g: &mut Builder, track: bool) -> Result<Value, GraphError> {
        let mut x = g.noise("z", &[batch(), self.latent.into(), 1.into(), 1.into()])?;
        g.scope("generator.main", |g| {
            for (n, factor) in [8, 4, 2, 1].into_iter().enumerate() {
                let options =
                    if n == 0 { ConvOptions::new(2) } else { ConvOptions::new(2).stride(2).padding(1) };
                let out = factor * self.generator;
                x = g.scope(3 * n, |g| g.conv_transpose_layer(x, out, &[4, 4], &options, START, None))?;
                x = g.scope(3 * n + 1, |g| norm(g, x, track))?;
                x = g.relu(x)?;
            }
            let options = ConvOptions::new(2).stride(2).padding(1);
            x = g.scope(12, |g| g.conv_transpose_layer(x, self.channels, &[4, 4], &options, START, None))?;
            g.tanh(x)
        })
    }

    /// From images to how real they look, as logits `[batch]`.
    pub fn discriminate(&self, g: &mut Builder, images: Value) -> Result<Value, GraphError> {
        let leaky = Function::LeakyRelu { slope: 0.2 };
        let mut x = images;
        g.scope("discriminator.main", |g| {
            for n in 0..4 {
                let options = ConvOptions::new(2).stride(2).padding(1);
                let (layer, out) = (if n == 0 { 0 } else { 3 * n - 1 }, self.discriminator << n);
                x = g.scope(layer, |g| g.conv_layer_from(x, out, &[4, 4], &options, START, None))?;
                if n > 0 {
                    x = g.scope(layer + 1, |g| norm(g, x, true))?;
                }
                x = g.map(leaky, x)?;
            }
            x = g.scope(11, |g| g.conv_layer_from(x, 1, &[4, 4], &ConvOptions::new(2), START, None))?;
            g.reshape(x, &[batch()])
        })
    }
}

/// Batch normalisation whose gain starts near one, as the authors of DCGAN do.
fn norm(g: &mut Builder, x: Value, track: bool) -> Result<Value, GraphError> {
    let options =
        BatchNormOptions { track, gain: Init::NormalAround(1.0, 0.02), ..BatchNormOptions::default() };
    g.batch_norm_with(x, &options)
}

/// Mean binary cross entropy of logits against one answer for all.
fn judged(g: &mut Builder, logits: Value, answer: f32) -> Result<Value, GraphError> {
    let shape = g.shape(logits).to_vec();
    let answer = g.fill(answer, &shape)?;
    g.bce_with_logits(logits, answer)
}

fn metric(name: &str, value: Value) -> GraphOutput {
    GraphOutput::new(name, OutputRole::Metric, value)
}

impl Architecture for Dcgan {
    fn objectives(&self) -> Vec<Objective> {
        vec![
            Objective { name: "discriminator", weights_prefix: "discriminator." },
            Objective { name: "generator", weights_prefix: "generator." },
        ]
    }

    fn objective(&self, k: usize, g: &mut Builder) -> Result<Built, GraphError> {
        // Both objectives see the same fakes; only one of them may count in the running statistics.
        if k == 0 {
            let x = images(g, self.channels, SIZE)?;
            let real = self.discriminate(g, x)?;
            let fake = self.generate(g, false)?;
            let fake = self.discriminate(g, fake)?;
            let (on_real, on_fake) = (judged(g, real, 1.0)?, judged(g, fake, 0.0)?);
            let loss = g.add(on_real, on_fake)?;
            Ok(Built { loss, metrics: vec![metric("real", on_real), metric("fake", on_fake)] })
        } else {
            let images = self.generate(g, true)?;
            let fake = self.discriminate(g, images)?;
            let loss = judged(g, fake, 1.0)?;
            Ok(Built { loss, metrics: vec![metric("images", images)] })
        }
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError> {
        Ok(vec![metric("images", self.generate(g, false)?)])
    }
}
