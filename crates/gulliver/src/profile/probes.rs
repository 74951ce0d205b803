//! The networks that are run to see how fast families of kernels are: every layer of theirs, forward, backward
//! and update, is one point of a table. Widths and sizes are spread so that those of other networks lie between.

use super::ProfileError;
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, GraphError, Role};
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{Architecture, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_graph::role::DataRole;
use gulliver_graph::training::{evaluation_graph, training_graph};
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};
use serde::Serialize;

/// One network, trained on noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// Its model.
    pub model: &'static str,
    /// Where that differs from the model's defaults: `width=48 blocks=1,1`.
    pub settings: &'static str,
    /// Samples of a step on one device, and tokens of a sample where samples are text.
    pub sizes: [usize; 2],
    /// How it is trained.
    pub optimizer: &'static str,
    /// On several devices, the rule by which its nodes are cut; each has samples of its own if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<&'static str>,
    /// On several devices, whether they meet over links, though fast ones: collectives are then held beside the computation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub wired: bool,
}

/// A row of a table of networks.
pub const fn probe(
    model: &'static str,
    settings: &'static str,
    sizes: [usize; 2],
    optimizer: &'static str,
) -> Probe {
    Probe { model, settings, sizes, optimizer, cut: None, wired: false }
}

/// Every probe.
pub static PROBES: &[Probe] = &[
    probe("resnet18", "width=48 size=48 blocks=1,1,1,1", [2, 0], "sgd"),
    probe("resnet18", "width=32 size=40 blocks=1,1,1,1", [8, 0], "adam").wired(),
    probe("resnet50", "width=48 size=96 blocks=1,1,1,1", [2, 0], "sgd"),
    probe("resnet50", "width=80 size=48 blocks=1,1,1,1", [3, 0], "sgd"),
    probe("resnet50", "width=64 size=40 blocks=1,1,1,1", [4, 0], "sgd"),
    probe("vgg11", "width=48 size=96 hidden=2048 pool=3", [1, 0], "sgd"),
    probe("vgg11", "width=80 size=48 hidden=1024 pool=1", [3, 0], "adam").wired(),
    probe("mobilenet_v2", "size=48 classes=100", [2, 0], "sgd"),
    probe("cosmoflow", "size=48 width=12", [4, 0], "sgd"),
    probe("cosmoflow", "size=40 width=32", [1, 0], "adam").wired(),
    probe("cosmoflow", "size=32 width=8", [2, 0], "sgd"),
    probe("pointnet", "points=600 width=48", [4, 0], "adam"),
    probe("dcgan", "generator=32 discriminator=32", [4, 0], "adam"),
    probe("mlp", "sizes=784,1536,1536,10", [24, 0], "adam").wired(),
    probe("mlp", "sizes=512,640,320,10", [96, 0], "sgd"),
    probe("gpt", "vocab=300 width=256 heads=4 layers=2 context=192", [2, 192], "adam"),
    probe("gpt", "vocab=96 width=512 heads=8 layers=1 context=96", [3, 96], "adam").wired(),
    probe("gpt", "vocab=96 width=96 heads=3 layers=2 context=320", [2, 320], "sgd"),
    probe("gpt", "vocab=160 width=320 heads=5 layers=1 context=56", [3, 56], "adam"),
    probe("bert", "vocab=2000 width=192 heads=3 layers=1 hidden=768", [4, 48], "adam"),
    probe("lstm", "vocab=600 width=384 layers=1", [14, 28], "sgd"),
    probe("lstm", "vocab=1500 width=640 layers=1", [28, 12], "sgd").wired(),
    probe("lstm", "vocab=256 width=256 layers=1", [24, 24], "sgd").wired(),
    probe("lstm", "vocab=128 width=1024 layers=1", [12, 8], "sgd"),
    probe("lstm", "vocab=300 width=512 layers=1", [3, 20], "sgd"),
    probe("lstm", "vocab=200 width=576 layers=1", [6, 12], "sgd"),
    probe("lstm", "vocab=400 width=256 layers=1 cell=gru", [16, 24], "adam"),
    probe("vgg11", "width=48 size=32 hidden=512 pool=1", [3, 0], "sgd").cut("channel"),
    probe("resnet18", "width=40 size=32 blocks=1,1,1,1", [3, 0], "sgd").cut("spatial"),
    probe("gpt", "vocab=200 width=320 heads=4 layers=2 context=64", [2, 64], "adam").cut("filter"),
    probe("lstm", "vocab=256 width=448 layers=1", [6, 16], "sgd").cut("filter"),
    probe("cosmoflow", "size=24 width=12", [2, 0], "sgd").cut("channel"),
];

/// The probes for so many devices at work at once.
pub fn probes(devices: usize) -> impl Iterator<Item = &'static Probe> + Clone {
    PROBES.iter().filter(move |probe| devices > 1 || probe.cut.is_none())
}

impl Probe {
    /// The same with its nodes cut by a rule.
    const fn cut(self, rule: &'static str) -> Probe {
        Probe { cut: Some(rule), ..self }
    }

    /// The same over links.
    const fn wired(self) -> Probe {
        Probe { wired: true, ..self }
    }

    /// The graph of a training step.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        let optimizer = Optimizer::new(self.optimizer, &[])?;
        training_graph(self.model()?.as_ref(), &[optimizer], None)
    }

    /// The graph of the evaluation of a batch.
    pub fn evaluation(&self) -> Result<Graph, GraphError> {
        evaluation_graph(self.model()?.as_ref())
    }

    fn model(&self) -> Result<Box<dyn Architecture>, GraphError> {
        let settings = self.settings.split_whitespace().filter_map(|setting| setting.split_once('='));
        let settings: Vec<(String, ParamValue)> = settings.map(value).collect();
        model(self.model, &settings)
    }

    /// The graph of a training step with a batch of noise.
    pub fn built(&self) -> Result<(Graph, Batch), ProfileError> {
        let failed = |source| ProfileError::Graph { model: self.model, source };
        let graph = self.graph().map_err(failed)?;
        let batch = noise(&graph, &self.bindings()).map_err(failed)?;
        Ok((graph, batch))
    }

    /// The sizes of its batch.
    pub fn bindings(&self) -> Bindings {
        Bindings::new().with("batch", self.sizes[0]).with("length", self.sizes[1])
    }
}

/// A number, several numbers, or a word.
fn value((name, text): (&str, &str)) -> (String, ParamValue) {
    let numbers: Result<Vec<i64>, _> = text.split(',').map(str::parse).collect();
    let value = match numbers.as_deref() {
        Ok([one]) => ParamValue::Int(*one),
        Ok(several) => ParamValue::Ints(several.to_vec().into()),
        Err(_) => ParamValue::Text(text.to_string().into()),
    };
    (name.to_string(), value)
}

/// A batch of noise for the data inputs of a graph: standard normal numbers, few tokens, fewer labels, masks
/// that hide nothing.
fn noise(graph: &Graph, sizes: &Bindings) -> Result<Batch, GraphError> {
    let mut fields = Vec::new();
    for (_, role, info) in graph.inputs().filter(|(_, role, _)| role.is_data()) {
        let invalid = |what: String| GraphError::Invalid(format!("input `{}`: {what}", info.name));
        let shape = info.ty.bind(sizes).map_err(|e| invalid(e.to_string()))?;
        let stream = RandomStream::new(0, hash_name(&info.name), 0);
        let elements = 0..shape.iter().product::<usize>() as u64;
        let below = if role == Role::Data(DataRole::Example) { TOKENS } else { 2 };
        let data = match info.ty.dtype {
            DType::F32 => HostData::F32(elements.map(|i| stream.normal_at(i)).collect()),
            DType::I64 => HostData::I64(elements.map(|i| stream.below(i, below) as i64).collect()),
            DType::Bool => HostData::Bool(elements.map(|_| 1).collect()),
            other => return Err(invalid(format!("noise of {other} is not made"))),
        };
        let tensor = HostTensor::new(&shape, data).ok_or_else(|| invalid("wrong length".into()))?;
        fields.push((info.name.clone(), tensor));
    }
    Ok(Batch { fields })
}

/// Different tokens of noise; every vocabulary has as many.
const TOKENS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver_graph::model::{Family, MODELS};
    use gulliver_graph::work::Work;
    use std::collections::BTreeSet;

    /// First words of the families of a graph's nodes.
    fn operators(graph: &Graph) -> BTreeSet<String> {
        let nodes = graph.nodes.iter().filter(|node| !node.op.def().is_view());
        let families = nodes.map(|node| Work::of(graph, node).family);
        families.map(|family| family.split(' ').next().unwrap_or_default().to_string()).collect()
    }

    #[test]
    fn every_operator_of_a_model_is_probed() {
        let mut probed = BTreeSet::new();
        for probe in PROBES {
            probed.extend(operators(&probe.built().unwrap().0));
        }
        let mut seen: Vec<&'static Family> = Vec::new();
        for row in MODELS {
            // Models of a family differ in sizes alone.
            if seen.iter().any(|family| std::ptr::eq(*family, row.family)) {
                continue;
            }
            seen.push(row.family);
            let probe = probe(row.name, "", [1, 8], "adam");
            let missing: Vec<String> =
                operators(&probe.graph().unwrap()).difference(&probed).cloned().collect();
            assert!(missing.is_empty(), "{}: {missing:?}", row.name);
        }
        assert!(seen.len() > 5);
    }
}
