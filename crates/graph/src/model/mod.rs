//! Ready models. Each family is a plain struct of parameters in its own file; the table below gives the
//! names people know them by. Data inputs are called `x` and `y` (`mask`, `segments` and `z` where a
//! model takes them), the batch is the size `batch`, the length of text the size `length`.

pub mod bert;
pub mod classifier;
pub mod cnn;
pub mod cosmoflow;
pub mod dcgan;
pub mod gpt;
pub mod head;
pub mod mlp;
pub mod mobilenet;
pub mod param;
pub mod pointnet;
pub mod recurrent;
pub mod resnet;
pub mod vgg;
pub mod weighted;

use crate::dim::{Dim, product};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, GraphOutput, Role, Type, Value};
use crate::nearest::suggestion;
use crate::role::{DataRole, OutputRole};
use param::{Param, ParamValue, Params};
use std::fmt;

/// One loss of a training step, and the weights it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objective {
    /// Its name; the single one of most models is called `loss`.
    pub name: &'static str,
    /// It trains the weights whose names start so.
    pub weights_prefix: &'static str,
}

/// The outputs of an objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// The loss to minimise, a scalar.
    pub loss: Value,
    /// Other outputs: predictions, and scalars that are summed over partials.
    pub metrics: Vec<GraphOutput>,
}

/// The architecture of a model: it builds the graphs of training, evaluation and prediction.
pub trait Architecture: fmt::Debug + Send + Sync {
    /// The objectives trained in turn within one step.
    fn objectives(&self) -> Vec<Objective> {
        vec![Objective { name: "loss", weights_prefix: "" }]
    }

    /// Builds objective `k` from the data and the newest weights.
    fn objective(&self, k: usize, g: &mut Builder) -> Result<Built, GraphError>;

    /// Builds the predictions alone, from all data but the targets.
    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError>;
}

/// The kind of data that a model reads as `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelInput {
    /// Numbers of any shape, as one row.
    Vectors,
    /// Images of any height and width.
    Images,
    /// Square images of this height and width.
    ImagesOf(usize),
    /// Cubes of numbers with channels.
    Volumes,
    /// Points of three coordinates.
    Points,
    /// Ids of tokens.
    Tokens,
}

/// Models that differ in their parameters only.
#[derive(Debug)]
pub struct Family {
    /// The kind of its data `x`.
    pub takes: ModelInput,
    /// What it can predict: the values of its parameter `head`, or the one thing it predicts without such a
    /// parameter; empty if it needs no targets.
    pub heads: &'static [&'static str],
    /// Its parameters with their defaults.
    pub params: &'static [Param],
    /// Makes the model; refuses values that make no sense together.
    pub make: fn(&Params) -> Result<Box<dyn Architecture>, GraphError>,
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
    /// Settings that differ from the family's defaults.
    pub settings: Settings,
}

/// Values that replace a family's defaults.
pub type Settings = &'static [(&'static str, ParamValue)];

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
pub fn model(name: &str, given: &[(String, ParamValue)]) -> Result<Box<dyn Architecture>, GraphError> {
    let Some(row) = MODELS.iter().find(|row| row.name == name) else {
        let hint = suggestion(name, MODELS.iter().map(|row| row.name), "there are");
        return Err(GraphError::Model(format!("there is no model `{name}`{hint}")));
    };
    let presets = row.settings.iter().map(|(name, value)| (*name, value));
    let given = given.iter().map(|(name, value)| (name.as_str(), value));
    (row.family.make)(&Params::new(name, row.family.params, presets.chain(given))?)
}

const fn row(
    name: &'static str,
    help: &'static str,
    family: &'static Family,
    settings: Settings,
) -> ModelRow {
    ModelRow { name, help, family, settings }
}

/// Every model.
pub static MODELS: &[ModelRow] = &[
    row("mlp", "fully connected layers with relu", &mlp::FAMILY, &[]),
    row("mlp-tiny", "a small mlp", &mlp::FAMILY, mlp::TINY),
    row("cnn", "two convolutions and a linear layer", &cnn::FAMILY, &[]),
    row("resnet18", "ResNet-18, for 32x32 images unless told otherwise", &resnet::FAMILY, resnet::RESNET18),
    row("resnet34", "ResNet-34", &resnet::FAMILY, resnet::RESNET34),
    row("resnet50", "ResNet-50", &resnet::FAMILY, resnet::RESNET50),
    row("resnet101", "ResNet-101", &resnet::FAMILY, resnet::RESNET101),
    row("resnet152", "ResNet-152", &resnet::FAMILY, resnet::RESNET152),
    row(
        "wide_resnet50_2",
        "ResNet-50 with inner convolutions twice as wide",
        &resnet::FAMILY,
        resnet::WIDE50,
    ),
    row(
        "wide_resnet101_2",
        "ResNet-101 with inner convolutions twice as wide",
        &resnet::FAMILY,
        resnet::WIDE101,
    ),
    row("vgg11", "VGG-11", &vgg::FAMILY, &[]),
    row("vgg13", "VGG-13", &vgg::FAMILY, vgg::VGG13),
    row("vgg16", "VGG-16", &vgg::FAMILY, vgg::VGG16),
    row("vgg19", "VGG-19", &vgg::FAMILY, vgg::VGG19),
    row(
        "mobilenet_v2",
        "MobileNet-V2: inverted residuals of depthwise convolutions",
        &mobilenet::FAMILY,
        &[],
    ),
    row("dcgan", "generator and discriminator of 64x64 images, trained in turn", &dcgan::FAMILY, &[]),
    row("pointnet", "PointNet classifier of point clouds", &pointnet::FAMILY, &[]),
    row("cosmoflow", "3-D convolutions over a volume, regressing its parameters", &cosmoflow::FAMILY, &[]),
    row(
        "cosmoflow-512",
        "CosmoFlow for volumes of 512: seven convolutions of at most 256 channels",
        &cosmoflow::FAMILY,
        cosmoflow::SIZE_512,
    ),
    row("lstm", "LSTM (or GRU) language model", &recurrent::FAMILY, &[]),
    row("gpt", "GPT: causal transformer language model", &gpt::FAMILY, &[]),
    row("gpt-nano", "GPT with 0.8 million parameters", &gpt::FAMILY, gpt::NANO),
    row("gpt-mini", "GPT with 11 million parameters", &gpt::FAMILY, gpt::MINI),
    row("gpt2", "GPT-2, 124 million parameters", &gpt::FAMILY, gpt::GPT2),
    row("gpt2-124m", "another name for gpt2", &gpt::FAMILY, gpt::GPT2),
    row("gpt2-350m", "another name for gpt2-medium", &gpt::FAMILY, gpt::MEDIUM),
    row("gpt2-medium", "GPT-2 medium, 355 million parameters", &gpt::FAMILY, gpt::MEDIUM),
    row("gpt2-large", "GPT-2 large, 774 million parameters", &gpt::FAMILY, gpt::LARGE),
    row("gpt2-xl", "GPT-2 XL, 1.6 billion parameters", &gpt::FAMILY, gpt::XL),
    row("gpt2-10b", "GPT-2 with 50 layers of width 4096", &gpt::FAMILY, gpt::GPT2_10B),
    row("gpt2-20b", "GPT-2 with 100 layers of width 4096", &gpt::FAMILY, gpt::GPT2_20B),
    row("gpt2-30b", "GPT-2 with 150 layers of width 4096", &gpt::FAMILY, gpt::GPT2_30B),
    row("gpt2-40b", "GPT-2 with 200 layers of width 4096", &gpt::FAMILY, gpt::GPT2_40B),
    row("gpt-10b", "GPT with 10 billion parameters", &gpt::FAMILY, gpt::B10),
    row("gpt-20b", "GPT with 20 billion parameters", &gpt::FAMILY, gpt::B20),
    row("gpt-40b", "GPT with 40 billion parameters", &gpt::FAMILY, gpt::B40),
    row("gpt3-1.3b", "GPT-3 with 1.3 billion parameters", &gpt::FAMILY, gpt::GPT3_1B),
    row("gpt3-6.7b", "GPT-3 with 6.7 billion parameters", &gpt::FAMILY, gpt::GPT3_7B),
    row("gpt3-13b", "GPT-3 with 13 billion parameters", &gpt::FAMILY, gpt::GPT3_13B),
    row("gpt3-175b", "GPT-3 with 175 billion parameters", &gpt::FAMILY, gpt::GPT3_175B),
    row("megatron-22b", "Megatron's GPT with 22 billion parameters", &gpt::FAMILY, gpt::MEGATRON_22B),
    row("megatron-530b", "Megatron-Turing NLG with 530 billion parameters", &gpt::FAMILY, gpt::MEGATRON_530B),
    row("megatron-1t", "Megatron's GPT with a trillion parameters", &gpt::FAMILY, gpt::MEGATRON_1T),
    row("bert", "BERT encoder, of bert-tiny's size unless told otherwise", &bert::FAMILY, &[]),
    row("bert-tiny", "BERT with 2 layers of width 128", &bert::FAMILY, bert::TINY),
    row("bert-mini", "BERT with 4 layers of width 256", &bert::FAMILY, bert::MINI),
    row("bert-small", "BERT with 4 layers of width 512", &bert::FAMILY, bert::SMALL),
    row("bert-base", "BERT with 12 layers of width 768", &bert::FAMILY, bert::BASE),
    row("bert-large", "BERT with 24 layers of width 1024", &bert::FAMILY, bert::LARGE),
];

/// The size called `batch`.
pub fn batch() -> Dim {
    Dim::symbol("batch")
}

/// Square images `x` `[batch, channels, size, size]`.
pub fn images(g: &mut Builder, channels: usize, size: usize) -> Result<Value, GraphError> {
    rectangles(g, channels, [size, size])
}

/// Images `x` `[batch, channels, height, width]`.
pub fn rectangles(
    g: &mut Builder,
    channels: usize,
    [height, width]: [usize; 2],
) -> Result<Value, GraphError> {
    g.data("x", DType::F32, &[batch(), channels.into(), height.into(), width.into()])
}

/// Token ids `name` `[batch, length]`.
pub fn tokens(g: &mut Builder, name: &str) -> Result<Value, GraphError> {
    g.data(name, DType::I64, &[batch(), Dim::symbol("length")])
}

/// Predictions that are scores of classes.
pub fn logits(value: Value) -> Vec<GraphOutput> {
    vec![GraphOutput::of(OutputRole::Logits, value)]
}

/// Cross entropy of logits `[…, classes]` against the classes `y` `[…]`, with how many were right out of
/// how many. With `ignore`, targets of [`IGNORED`] do not count and there is no [`OutputRole::Guess`]. Without it, each row
/// counts as much as the data `weight` says if the builder [weighs examples](Builder::weigh_examples).
pub fn classified(g: &mut Builder, logits: Value, ignore: bool) -> Result<Built, GraphError> {
    let shape = g.shape(logits).to_vec();
    let (rows, last) = (&shape[..shape.len() - 1], shape.len() - 1);
    let y = g.target("y", DType::I64, rows)?;
    let weight = match g.weighs_examples() && !ignore {
        true => Some(g.input("weight", Role::Data(DataRole::Weight), Type::f32(rows))?),
        false => None,
    };
    let loss = match weight {
        Some(weight) => g.weighted_cross_entropy(logits, y, weight)?,
        None => g.cross_entropy(logits, y, ignore.then_some(IGNORED), 0.0)?,
    };
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
    let mut metrics = vec![
        GraphOutput::of(OutputRole::Logits, logits),
        GraphOutput::of(OutputRole::Correct, correct),
        GraphOutput::of(OutputRole::Count, count),
    ];
    if !ignore {
        metrics.push(GraphOutput::of(OutputRole::Guess, guess));
    }
    if let Some(weight) = weight {
        metrics.push(GraphOutput::of(OutputRole::Weight, g.sum_all(weight)?));
    }
    Ok(Built { loss, metrics })
}

/// Mean squared error of predictions `[batch, n]` against the numbers `y` of the same shape.
pub fn regressed(g: &mut Builder, prediction: Value) -> Result<Built, GraphError> {
    let shape = g.shape(prediction).to_vec();
    let y = g.target("y", DType::F32, &shape)?;
    let loss = g.mse(prediction, y)?;
    Ok(Built { loss, metrics: vec![GraphOutput::of(OutputRole::Prediction, prediction)] })
}

/// The target of positions that do not count, as in PyTorch.
pub const IGNORED: i64 = -100;

#[cfg(test)]
mod tests {
    use super::param::{int, ints, text};
    use super::*;
    use crate::graph::Graph;
    use crate::training::evaluation_graph;

    fn graph(name: &str, given: &[(&str, ParamValue)]) -> Graph {
        let given: Vec<_> = given.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
        let model = model(name, &given).unwrap_or_else(|e| panic!("{name}: {e}"));
        evaluation_graph(&*model).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn count(graph: &Graph, prefix: &str) -> i64 {
        let weights = graph.weights().filter(|(_, info)| info.name.starts_with(prefix));
        weights.map(|(_, info)| product(&info.ty.shape).as_const().unwrap()).sum()
    }

    #[test]
    fn parameter_counts_are_the_well_known_ones() {
        let imagenet = [("stem", text("imagenet")), ("classes", int(1000)), ("size", int(224))];
        let plain: &[(&str, ParamValue)] = &[];
        for (name, given, expected) in [
            ("mlp", plain, 1_863_690),
            ("mlp-tiny", plain, 2_410),
            ("resnet18", &imagenet, 11_689_512),
            ("resnet18", plain, 11_173_962),
            ("resnet34", plain, 21_797_672),
            ("resnet50", plain, 25_557_032),
            ("resnet101", plain, 44_549_160),
            ("resnet152", plain, 60_192_808),
            ("wide_resnet50_2", plain, 68_883_240),
            ("wide_resnet101_2", plain, 126_886_696),
            ("vgg11", plain, 132_863_336),
            ("vgg13", plain, 133_047_848),
            ("vgg16", plain, 138_357_544),
            ("vgg19", plain, 143_667_240),
            ("mobilenet_v2", plain, 3_504_872),
            ("pointnet", plain, 811_048),
            ("lstm", plain, 5_227_496),
            ("gpt-nano", plain, 809_856),
            ("gpt-mini", plain, 10_770_816),
            ("gpt2", plain, 124_439_808),
            ("gpt2-medium", plain, 354_823_168),
            ("gpt2-large", plain, 774_030_080),
            ("gpt2-xl", plain, 1_557_611_200),
            // Hugging Face's BertForMaskedLM, which has no pooler.
            ("bert-base", plain, 109_514_298),
            ("bert-base", &[("head", text("classify"))], 109_482_240 + 2 * 769),
            ("bert-tiny", &[("head", text("classify"))], 4_385_920 + 2 * 129),
        ] {
            assert_eq!(count(&graph(name, given), ""), expected, "{name} {given:?}");
        }
        let dcgan = graph("dcgan", &[]);
        assert_eq!(count(&dcgan, "generator."), 3_576_704);
        assert_eq!(count(&dcgan, "discriminator."), 2_765_568);
    }

    #[test]
    fn the_largest_models_have_the_size_of_their_name() {
        for (name, billions) in [("gpt-10b", 10), ("gpt-20b", 20), ("gpt-40b", 40)] {
            let off = count(&graph(name, &[]), "") - billions * 1_000_000_000;
            assert!(off.abs() < billions * 50_000_000, "{name}: {off}");
        }
    }

    #[test]
    fn weights_have_the_names_people_know() {
        for (name, expected) in [
            ("resnet50", "conv1.weight layer1.0.downsample.1.running_mean layer4.2.bn3.bias fc.bias"),
            ("vgg16", "features.0.weight features.28.bias classifier.0.weight classifier.6.bias"),
            ("mobilenet_v2", "features.0.0.weight features.1.conv.1.weight features.17.conv.2.weight"),
            ("mobilenet_v2", "features.2.conv.1.1.running_var features.18.1.bias classifier.1.weight"),
            ("gpt2", "wte.weight wpe.weight h.11.attn.c_attn.bias h.0.mlp.c_proj.weight ln_f.weight"),
            ("bert-base", "bert.encoder.layer.11.attention.output.LayerNorm.weight cls.predictions.bias"),
            ("lstm", "encoder.weight rnn.weight_ih_l0 rnn.bias_hh_l1 decoder.bias"),
            (
                "dcgan",
                "generator.main.12.weight discriminator.main.11.weight discriminator.main.9.running_var",
            ),
        ] {
            let graph = graph(name, &[]);
            for input in expected.split_whitespace() {
                assert!(graph.input(input).is_some(), "{name} has no {input}");
            }
        }
    }

    #[test]
    fn heads_add_only_their_own_weights() {
        let of = |name: &str, head: &str| -> Vec<String> {
            let head = ParamValue::Text(head.to_string().into());
            let graph = graph(name, &[("head", head), ("vocab", int(30)), ("classes", int(3))]);
            graph.weights().map(|(_, info)| format!("{} {}", info.name, info.ty)).collect()
        };
        for (name, heads, own) in [
            ("gpt-nano", &["lm", "classify"], vec!["score.weight f32[3,128]"]),
            ("lstm", &["lm", "classify"], vec!["decoder.weight f32[3,512]", "decoder.bias f32[3]"]),
        ] {
            let plain = of(name, heads[0]);
            let added: Vec<String> =
                of(name, heads[1]).into_iter().filter(|weight| !plain.contains(weight)).collect();
            assert_eq!(added, own, "{name}");
            assert_eq!(of(name, "classify"), of(name, "regress"), "{name}");
        }
    }

    #[test]
    fn every_head_of_a_family_can_be_built() {
        for row in MODELS.iter().filter(|row| ["mlp", "cnn", "lstm", "gpt", "bert"].contains(&row.name)) {
            for head in row.family.heads {
                let graph = graph(row.name, &[("head", ParamValue::Text((*head).into()))]);
                let result = if *head == "regress" { "prediction" } else { "logits" };
                assert!(graph.output(result).is_some(), "{} {head}", row.name);
                assert_eq!(graph.output("guess").is_some(), *head == "classify", "{} {head}", row.name);
                assert_eq!(graph.output("correct").is_some(), *head != "regress", "{} {head}", row.name);
            }
        }
        for row in MODELS {
            let default = row.params().into_iter().find(|p| p.name == "head").map(|p| p.default);
            let first = row.family.heads.first().map(|head| ParamValue::Text((*head).into()));
            assert!(default.is_none() || default == first, "{}", row.name);
        }
    }

    #[test]
    fn images_may_be_rectangles() {
        for name in ["cnn", "resnet18", "vgg11", "mobilenet_v2"] {
            let small = [("width", int(4)), ("hidden", int(8)), ("pool", int(1))];
            let row = MODELS.iter().find(|row| row.name == name).unwrap();
            let has = |param: &str| {
                row.params().iter().any(|p| p.name == param && matches!(p.default, ParamValue::Int(_)))
            };
            let mut given: Vec<(&str, ParamValue)> = small.into_iter().filter(|(p, _)| has(p)).collect();
            given.push(("size", ints(&[32, 48])));
            let graph = graph(name, &given);
            let x = graph.input("x").unwrap();
            let [_, _, height, width] = &graph.ty(x).shape[..] else { panic!("{name}") };
            assert_eq!((height.as_const(), width.as_const()), (Some(32), Some(48)), "{name}");
        }
        for (value, said) in [
            (ints(&[3, 9]), "model `cnn`: images of size 3 vanish in two poolings; use 4 or more"),
            (
                ints(&[3]),
                "model `cnn`: parameter `size` must be a whole number or [height, width], got `[3]`",
            ),
            (ints(&[0, 9]), "model `cnn`: parameter `size` must be sizes from 1 to 1048576, got [0, 9]"),
        ] {
            assert_eq!(model("cnn", &[("size".into(), value)]).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn names_are_unique_and_settings_fit_their_family() {
        for (i, row) in MODELS.iter().enumerate() {
            assert!(MODELS[..i].iter().all(|other| other.name != row.name), "{}", row.name);
            for (name, value) in row.settings {
                assert!(row.params().iter().any(|p| p.name == *name && p.default == *value), "{}", row.name);
            }
        }
    }

    #[test]
    fn mistakes_say_what_to_do() {
        for (name, param, value, said) in [
            ("resnet5", "size", int(3), "there is no model `resnet5`; did you mean `resnet50`?"),
            ("gpt", "headz", int(3), "model `gpt`: has no parameter `headz`; did you mean `heads`?"),
            ("gpt", "heads", int(3), "model `gpt`: 3 heads do not divide width 128"),
            ("bert", "heads", int(7), "model `bert`: 7 heads do not divide width 128"),
            (
                "bert",
                "head",
                text("x"),
                "model `bert`: parameter `head` must be `mlm` or `classify` or `regress`, got `x`",
            ),
            (
                "mlp",
                "sizes",
                ints(&[3]),
                "model `mlp`: `sizes` needs at least the widths of input and output",
            ),
            (
                "resnet18",
                "factor",
                int(2),
                "model `resnet18`: `factor` widens bottlenecks; set `bottleneck` too",
            ),
            (
                "resnet18",
                "size",
                int(-1),
                "model `resnet18`: parameter `size` must be from 1 to 1048576, got -1",
            ),
            (
                "lstm",
                "cell",
                text("rnn"),
                "model `lstm`: parameter `cell` must be `lstm` or `gru`, got `rnn`",
            ),
            ("cnn", "size", int(3), "model `cnn`: images of size 3 vanish in two poolings; use 4 or more"),
        ] {
            assert_eq!(model(name, &[(param.into(), value)]).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn extreme_sizes_are_errors_not_panics() {
        let families = [
            "cnn",
            "resnet18",
            "vgg11",
            "mobilenet_v2",
            "dcgan",
            "pointnet",
            "cosmoflow",
            "lstm",
            "gpt",
            "bert",
        ];
        for row in MODELS.iter().filter(|row| families.contains(&row.name)) {
            for p in row.params() {
                for extreme in [i64::MIN, 0, 1, 1 << 20, i64::MAX] {
                    let value = match p.default {
                        // Many layers are slow to build, not wrong.
                        ParamValue::Int(_) if p.name != "layers" => int(extreme),
                        ParamValue::Float(_) => ParamValue::Float(extreme as f64),
                        _ => continue,
                    };
                    if let Ok(model) = model(row.name, &[(p.name.into(), value)]) {
                        let _ = evaluation_graph(&*model);
                    }
                }
            }
        }
    }
}
