//! Ready models. Each family is a plain struct of parameters in its own file; the table below gives the
//! names people know them by. Data inputs are called `x` and `y` (`mask`, `segments` and `z` where a
//! model takes them), the batch is the size `batch`, the length of text the size `length`.

pub mod bert;
pub mod cnn;
pub mod cosmoflow;
pub mod dcgan;
pub mod gpt;
pub mod mlp;
pub mod mobilenet;
pub mod param;
pub mod pointnet;
pub mod recurrent;
pub mod resnet;
pub mod vgg;

use crate::build::Builder;
use crate::dim::{Dim, product};
use crate::dtype::DType;
use crate::graph::{GraphError, Value};
use param::{Param, ParamValue, Params, flag, float, int, ints, nearest, text};
use std::fmt;

/// One loss of a training step, and the weights it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objective {
    /// Its name; the single one of most models is called `loss`.
    pub name: &'static str,
    /// It trains the weights whose names start so.
    pub weights_prefix: &'static str,
}

/// What building an objective gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// What is minimised, a scalar.
    pub loss: Value,
    /// What else is worth knowing, by name: `logits`; `correct` and `count` as scalars to be summed.
    pub metrics: Vec<(String, Value)>,
}

/// A model that can be trained.
pub trait Model: fmt::Debug + Send + Sync {
    /// The objectives trained in turn within one step.
    fn objectives(&self) -> Vec<Objective> {
        vec![Objective { name: "loss", weights_prefix: "" }]
    }

    /// Builds objective `k` from the data and the newest weights.
    fn objective(&self, k: usize, g: &mut Builder) -> Result<Built, GraphError>;

    /// Builds the predictions alone, by name, from all data but the targets.
    fn forward(&self, g: &mut Builder) -> Result<Vec<(String, Value)>, GraphError>;
}

/// Models that differ in their parameters only.
#[derive(Debug)]
pub struct Family {
    /// Its parameters with their defaults.
    pub params: &'static [Param],
    /// Makes the model; refuses values that make no sense together.
    pub make: fn(&Params) -> Result<Box<dyn Model>, GraphError>,
}

/// A model by name.
#[derive(Debug)]
pub struct ModelRow {
    /// The name in job files.
    pub name: &'static str,
    /// One line for people.
    pub help: &'static str,
    /// Its family.
    pub family: &'static Family,
    /// Where it differs from the family's defaults.
    pub settings: &'static [(&'static str, ParamValue)],
}

impl ModelRow {
    /// Its parameters, with this model's defaults.
    pub fn params(&self) -> Vec<Param> {
        let mut params = self.family.params.to_vec();
        for p in &mut params {
            if let Some((_, value)) = self.settings.iter().find(|(name, _)| *name == p.name) {
                p.default = value.clone();
            }
        }
        params
    }
}

/// The model of this name with these parameters; the rest keep their defaults.
pub fn model(name: &str, given: &[(String, ParamValue)]) -> Result<Box<dyn Model>, GraphError> {
    let Some(row) = MODELS.iter().find(|row| row.name == name) else {
        let near = nearest(name, MODELS.iter().map(|row| row.name));
        return Err(GraphError::Model(format!("there is no model `{name}`; did you mean `{near}`?")));
    };
    let presets = row.settings.iter().map(|(name, value)| (*name, value));
    let given = given.iter().map(|(name, value)| (name.as_str(), value));
    (row.family.make)(&Params::new(name, row.family.params, presets.chain(given))?)
}

const fn row(
    name: &'static str,
    help: &'static str,
    family: &'static Family,
    settings: &'static [(&'static str, ParamValue)],
) -> ModelRow {
    ModelRow { name, help, family, settings }
}

/// Every model.
pub static MODELS: &[ModelRow] = &[
    row("mlp", "fully connected layers with relu", &mlp::FAMILY, &[]),
    row("mlp-tiny", "a small mlp", &mlp::FAMILY, &[("sizes", ints(&[64, 32, 10]))]),
    row("cnn", "two convolutions and a linear layer", &cnn::FAMILY, &[]),
    row(
        "resnet18",
        "ResNet-18, for 32x32 images unless told otherwise",
        &resnet::FAMILY,
        &[("stem", text("cifar")), ("classes", int(10)), ("size", int(32))],
    ),
    row("resnet34", "ResNet-34", &resnet::FAMILY, &[("blocks", ints(&[3, 4, 6, 3]))]),
    row(
        "resnet50",
        "ResNet-50",
        &resnet::FAMILY,
        &[("blocks", ints(&[3, 4, 6, 3])), ("bottleneck", flag(true))],
    ),
    row(
        "resnet101",
        "ResNet-101",
        &resnet::FAMILY,
        &[("blocks", ints(&[3, 4, 23, 3])), ("bottleneck", flag(true))],
    ),
    row(
        "resnet152",
        "ResNet-152",
        &resnet::FAMILY,
        &[("blocks", ints(&[3, 8, 36, 3])), ("bottleneck", flag(true))],
    ),
    row(
        "wide_resnet50_2",
        "ResNet-50 with inner convolutions twice as wide",
        &resnet::FAMILY,
        &[("blocks", ints(&[3, 4, 6, 3])), ("bottleneck", flag(true)), ("factor", int(2))],
    ),
    row(
        "wide_resnet101_2",
        "ResNet-101 with inner convolutions twice as wide",
        &resnet::FAMILY,
        &[("blocks", ints(&[3, 4, 23, 3])), ("bottleneck", flag(true)), ("factor", int(2))],
    ),
    row("vgg11", "VGG-11", &vgg::FAMILY, &[]),
    row("vgg13", "VGG-13", &vgg::FAMILY, &[("convolutions", ints(&[2, 2, 2, 2, 2]))]),
    row("vgg16", "VGG-16", &vgg::FAMILY, &[("convolutions", ints(&[2, 2, 3, 3, 3]))]),
    row("vgg19", "VGG-19", &vgg::FAMILY, &[("convolutions", ints(&[2, 2, 4, 4, 4]))]),
    row("mobilenet_v2", "MobileNet-V2: inverted residuals of depthwise convolutions", &mobilenet::FAMILY, &[]),
    row("dcgan", "generator and discriminator of 64x64 images, trained in turn", &dcgan::FAMILY, &[]),
    row("pointnet", "PointNet classifier of point clouds", &pointnet::FAMILY, &[]),
    row("cosmoflow", "3-D convolutions over a volume, regressing its parameters", &cosmoflow::FAMILY, &[]),
    row("lstm", "LSTM (or GRU) language model", &recurrent::FAMILY, &[]),
    row("gpt", "GPT: causal transformer language model", &gpt::FAMILY, &[]),
    row("gpt-nano", "GPT with 0.8 million parameters", &gpt::FAMILY, gpt::NANO),
    row("gpt-mini", "GPT with 11 million parameters", &gpt::FAMILY, gpt::MINI),
    row("gpt2", "GPT-2, 124 million parameters", &gpt::FAMILY, gpt::GPT2),
    row("gpt2-medium", "GPT-2 medium, 355 million parameters", &gpt::FAMILY, gpt::MEDIUM),
    row("gpt2-large", "GPT-2 large, 774 million parameters", &gpt::FAMILY, gpt::LARGE),
    row("gpt2-xl", "GPT-2 XL, 1.6 billion parameters", &gpt::FAMILY, gpt::XL),
    row("gpt-10b", "GPT with 10 billion parameters", &gpt::FAMILY, gpt::B10),
    row("gpt-20b", "GPT with 20 billion parameters", &gpt::FAMILY, gpt::B20),
    row("gpt-40b", "GPT with 40 billion parameters", &gpt::FAMILY, gpt::B40),
    row("bert", "BERT encoder, of bert-tiny's size unless told otherwise", &bert::FAMILY, &[]),
    row("bert-tiny", "BERT with 2 layers of width 128", &bert::FAMILY, bert::TINY),
    row("bert-mini", "BERT with 4 layers of width 256", &bert::FAMILY, bert::MINI),
    row("bert-small", "BERT with 4 layers of width 512", &bert::FAMILY, bert::SMALL),
    row("bert-base", "BERT with 12 layers of width 768", &bert::FAMILY, bert::BASE),
    row("bert-large", "BERT with 24 layers of width 1024", &bert::FAMILY, bert::LARGE),
];

/// The size called `batch`.
pub(crate) fn batch() -> Dim {
    Dim::symbol("batch")
}

/// Images `x` `[batch, channels, size, size]`.
pub(crate) fn images(g: &mut Builder, channels: usize, size: usize) -> Result<Value, GraphError> {
    g.data("x", DType::F32, &[batch(), channels.into(), size.into(), size.into()])
}

/// Token ids `name` `[batch, length]`.
pub(crate) fn tokens(g: &mut Builder, name: &str) -> Result<Value, GraphError> {
    g.data(name, DType::I64, &[batch(), Dim::symbol("length")])
}

/// Predictions called `logits`.
pub(crate) fn logits(value: Value) -> Vec<(String, Value)> {
    vec![("logits".into(), value)]
}

/// Cross entropy of logits `[…, classes]` against the classes `y` `[…]`, with how many were right out of
/// how many. With `ignore`, targets of [`IGNORED`] do not count.
pub(crate) fn classified(g: &mut Builder, logits: Value, ignore: bool) -> Result<Built, GraphError> {
    let shape = g.shape(logits).to_vec();
    let (rows, last) = (&shape[..shape.len() - 1], shape.len() - 1);
    let y = g.data("y", DType::I64, rows)?;
    let loss = g.cross_entropy(logits, y, ignore.then_some(IGNORED), 0.0)?;
    let guess = g.argmax(logits, last)?;
    let hits = g.equal(guess, y)?;
    let hits = g.cast_f32(hits)?;
    let correct = g.sum_all(hits)?;
    let count = if ignore {
        let target = g.cast_f32(y)?;
        let ignored = g.scalar(IGNORED as f32)?;
        let counted = g.not_equal(target, ignored)?;
        let counted = g.cast_f32(counted)?;
        g.sum_all(counted)?
    } else {
        g.size(product(rows))?
    };
    let metrics = vec![("logits".into(), logits), ("correct".into(), correct), ("count".into(), count)];
    Ok(Built { loss, metrics })
}

/// The target of positions that do not count, as in PyTorch.
pub const IGNORED: i64 = -100;
