//! The reference workloads: models, batches and optimizers that speed and memory are measured on. The
//! same are written for PyTorch in `bench/torch_train.py`; the two must be changed together.

use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, GraphError, Role};
use gulliver_graph::model::param::{ParamValue, float, int};
use gulliver_graph::model::{Architecture, IGNORED, Settings, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::{RandomStream, hash_name};
use gulliver_graph::role::DataRole;
use gulliver_graph::training::{plain_training_graph, training_graph};
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};

/// One row of [`WORKLOADS`] or [`ARRAY_WORKLOADS`].
#[derive(Clone, Debug, PartialEq)]
pub struct BenchWorkload {
    /// What people call it.
    pub name: &'static str,
    /// Its model.
    pub model: &'static str,
    /// Where that differs from the model's defaults.
    pub settings: Settings,
    /// Trained numbers; the same in PyTorch.
    pub parameters: u64,
    /// Samples of a step.
    pub batch: usize,
    /// Tokens of a sample; zero where samples are not text.
    pub length: usize,
    /// Tokens, classes: integer inputs are below this.
    pub labels: u64,
    /// Share of the labels that count; the others are [`IGNORED`].
    pub counted: f32,
    /// How it is trained.
    pub optimizer: BenchOptimizer,
}

/// How a workload is trained; every objective alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchOptimizer {
    /// Learning rate 0.001.
    Adam,
    /// Learning rate 0.0002, first beta 0.5.
    AdamOfDcgan,
    /// Learning rate 0.01, momentum 0.9.
    Momentum,
}

impl BenchOptimizer {
    /// The optimizer and its settings, the learning rate first.
    fn settings(self) -> (&'static str, [(&'static str, f32); 2]) {
        match self {
            BenchOptimizer::Adam => ("adam", [("lr", 1e-3), ("beta1", 0.9)]),
            BenchOptimizer::AdamOfDcgan => ("adam", [("lr", 2e-4), ("beta1", 0.5)]),
            BenchOptimizer::Momentum => ("sgd", [("lr", 0.01), ("momentum", 0.9)]),
        }
    }

    /// Its learning rate.
    pub fn lr(self) -> f32 {
        self.settings().1[0].1
    }

    fn optimizer(self) -> Result<Optimizer, GraphError> {
        let (name, settings) = self.settings();
        Optimizer::new(name, &settings)
    }
}

/// A row whose model has its name and its defaults.
const fn row(
    name: &'static str,
    parameters: u64,
    [batch, length]: [usize; 2],
    labels: u64,
    optimizer: BenchOptimizer,
) -> BenchWorkload {
    let (model, counted) = (name, 1.0);
    BenchWorkload { name, model, settings: &[], parameters, batch, length, labels, counted, optimizer }
}

/// The workloads that are compared with peers one job at a time.
pub static WORKLOADS: &[BenchWorkload] = &[
    row("mlp", 1_863_690, [64, 0], 10, BenchOptimizer::Adam),
    row("mlp-tiny", 2_410, [32, 0], 10, BenchOptimizer::Adam),
    row("resnet18", 11_173_962, [32, 0], 10, BenchOptimizer::Momentum),
    row("resnet50", 25_557_032, [4, 0], 1000, BenchOptimizer::Momentum),
    row("gpt-nano", 809_856, [16, 64], 65, BenchOptimizer::Adam),
    row("gpt-mini", 10_770_816, [4, 256], 65, BenchOptimizer::Adam),
    row("gpt2", 124_439_808, [1, 256], 50257, BenchOptimizer::Adam),
    row("lstm", 5_227_496, [20, 35], 1000, BenchOptimizer::Momentum),
    row("pointnet", 811_048, [16, 0], 40, BenchOptimizer::Adam),
];

/// More, for arrays of jobs. None has dropout, so that jobs of other programs can have the same losses.
pub static ARRAY_WORKLOADS: &[BenchWorkload] = &[
    row("cnn", 20_490, [32, 0], 10, BenchOptimizer::Adam),
    row("mobilenet_v2", 2_236_682, [32, 0], 10, BenchOptimizer::Momentum).with(MOBILENET),
    row("dcgan", 6_342_272, [16, 0], 0, BenchOptimizer::AdamOfDcgan),
    row("transformer-lm", 4_660_480, [32, 32], 33278, BenchOptimizer::Adam).of("gpt").with(TRANSFORMER_LM),
    row("bert-small", 41_404_730, [4, 64], 30522, BenchOptimizer::Adam).with(BERT).counting(0.15),
];

static MOBILENET: Settings = &[("size", int(32)), ("classes", int(10)), ("dropout", float(0.0))];
static TRANSFORMER_LM: Settings = &[
    ("vocab", int(33278)),
    ("width", int(128)),
    ("heads", int(2)),
    ("layers", int(2)),
    ("context", int(32)),
];
static BERT: Settings = &[("layers", int(8)), ("dropout", float(0.0))];

/// Every workload there is.
pub fn workloads() -> impl Iterator<Item = &'static BenchWorkload> + Clone {
    WORKLOADS.iter().chain(ARRAY_WORKLOADS)
}

impl BenchWorkload {
    const fn of(self, model: &'static str) -> BenchWorkload {
        BenchWorkload { model, ..self }
    }

    const fn with(self, settings: Settings) -> BenchWorkload {
        BenchWorkload { settings, ..self }
    }

    const fn counting(self, counted: f32) -> BenchWorkload {
        BenchWorkload { counted, ..self }
    }

    /// Sizes of a step.
    pub fn sizes(&self) -> Bindings {
        let sizes = Bindings::new().with("batch", self.batch);
        if self.length > 0 { sizes.with("length", self.length) } else { sizes }
    }

    /// The graph of a training step.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        self.graph_with(&[])
    }

    /// The graph of a training step, with other settings of the model than the workload's.
    pub fn graph_with(&self, settings: &[(String, ParamValue)]) -> Result<Graph, GraphError> {
        training_graph(self.model_with(settings)?.as_ref(), &[self.optimizer.optimizer()?], None)
    }

    /// The graph of a training step before fusion.
    pub fn plain_graph(&self) -> Result<Graph, GraphError> {
        plain_training_graph(self.model_with(&[])?.as_ref(), &[self.optimizer.optimizer()?], None)
    }

    fn model_with(&self, settings: &[(String, ParamValue)]) -> Result<Box<dyn Architecture>, GraphError> {
        let own = self.settings.iter().map(|(name, value)| (name.to_string(), value.clone()));
        model(self.model, &own.chain(settings.iter().cloned()).collect::<Vec<_>>())
    }

    /// The batch every step uses: standard normal numbers; integers below `labels`, of which targets do not
    /// all count; and masks of the beginning of each row, half of it at least.
    pub fn data(&self, graph: &Graph) -> Result<Batch, GraphError> {
        let mut fields = Vec::new();
        for (_, role, info) in graph.inputs().filter(|(_, role, _)| role.is_data()) {
            let invalid = |what: String| GraphError::Invalid(format!("input `{}`: {what}", info.name));
            let shape = info.ty.bind(&self.sizes()).map_err(|e| invalid(e.to_string()))?;
            let [stream, choice] = [0, 1].map(|index| RandomStream::new(0, hash_name(&info.name), index));
            let elements = 0..shape.iter().product::<usize>() as u64;
            let width = shape.last().map_or(1, |&n| n.max(1) as u64);
            let counts = |i| role != Role::Data(DataRole::Target) || choice.uniform_at(i) < self.counted;
            let label = |i| if counts(i) { stream.below(i, self.labels) as i64 } else { IGNORED };
            let unmasked = |i| u8::from(i % width < width - stream.below(i / width, width / 2));
            let data = match info.ty.dtype {
                DType::F32 => HostData::F32(elements.map(|i| stream.normal_at(i)).collect()),
                DType::I64 => HostData::I64(elements.map(label).collect()),
                DType::Bool => HostData::Bool(elements.map(unmasked).collect()),
                other => return Err(invalid(format!("no workload has {other}"))),
            };
            let tensor = HostTensor::new(&shape, data).ok_or_else(|| invalid("wrong length".into()))?;
            fields.push((info.name.clone(), tensor));
        }
        Ok(Batch { fields })
    }
}

/// Floating-point operations of one step.
pub fn step_flops(graph: &Graph, sizes: &Bindings) -> Result<u64, GraphError> {
    let invalid = |what: String| GraphError::Invalid(what);
    graph.nodes.iter().try_fold(0u64, |sum, node| {
        let flops = graph.flops(node).map_err(|e| invalid(e.to_string()))?;
        let flops = flops.bind(sizes).map_err(|e| invalid(e.to_string()))?;
        Ok(sum.saturating_add(flops as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_the_stated_parameters() {
        for (n, workload) in workloads().enumerate() {
            let graph = workload.graph().unwrap_or_else(|e| panic!("{}: {e}", workload.name));
            let parameters = graph.parameters().bind(&Bindings::new()).unwrap() as u64;
            assert_eq!(parameters, workload.parameters, "{}", workload.name);
            let flops = step_flops(&graph, &workload.sizes()).unwrap();
            // Each weight is multiplied at least once forward and twice backward, save embeddings.
            assert!(flops > parameters, "{}: {flops}", workload.name);
            assert!(workloads().take(n).all(|other| other.name != workload.name), "{}", workload.name);
        }
    }

    fn named(name: &str) -> &'static BenchWorkload {
        workloads().find(|w| w.name == name).unwrap_or_else(|| panic!("{name}"))
    }

    #[test]
    fn data_has_the_shapes_of_the_peer() {
        let shapes: [(&str, &[usize], &[usize]); 9] = [
            ("mlp", &[64, 784], &[64]),
            ("mlp-tiny", &[32, 64], &[32]),
            ("resnet18", &[32, 3, 32, 32], &[32]),
            ("gpt-mini", &[4, 256], &[4, 256]),
            ("pointnet", &[16, 3, 1024], &[16]),
            ("cnn", &[32, 1, 28, 28], &[32]),
            ("mobilenet_v2", &[32, 3, 32, 32], &[32]),
            ("transformer-lm", &[32, 32], &[32, 32]),
            ("bert-small", &[4, 64], &[4, 64]),
        ];
        for (name, x, y) in shapes {
            let workload = named(name);
            let batch = workload.data(&workload.graph().unwrap()).unwrap();
            assert_eq!(batch.get("x").unwrap().shape(), x, "{name}");
            let y_tensor = batch.get("y").unwrap();
            assert_eq!(y_tensor.shape(), y, "{name}");
            let labels = y_tensor.as_i64().unwrap();
            let counted: Vec<i64> = labels.iter().copied().filter(|&l| l != IGNORED).collect();
            assert!(counted.iter().all(|&l| (0..workload.labels as i64).contains(&l)), "{name}");
            let share = counted.len() as f32 / labels.len() as f32;
            assert!((share - workload.counted).abs() < 0.08, "{name}: {share} of the labels count");
        }
        let dcgan = named("dcgan");
        let batch = dcgan.data(&dcgan.graph().unwrap()).unwrap();
        assert_eq!(batch.get("x").unwrap().shape(), [16, 3, 64, 64]);
        assert_eq!(batch.get("z").unwrap().shape(), [16, 100, 1, 1]);
    }

    #[test]
    fn masks_leave_the_beginning_of_every_row() {
        let bert = named("bert-small");
        let batch = bert.data(&bert.graph().unwrap()).unwrap();
        let HostData::Bool(mask) = batch.get("mask").unwrap().data() else { panic!("not a mask") };
        let lengths: Vec<usize> =
            mask.chunks(64).map(|row| row.iter().filter(|&&m| m == 1).count()).collect();
        assert_eq!(lengths.len(), 4);
        assert!(lengths.iter().all(|n| (33..=64).contains(n)), "{lengths:?}");
        assert!(mask.chunks(64).zip(&lengths).all(|(row, &n)| row[..n].iter().all(|&m| m == 1)));
    }

    #[test]
    fn rules_are_optimizers() {
        for (rule, lr) in [
            (BenchOptimizer::Adam, 1e-3),
            (BenchOptimizer::AdamOfDcgan, 2e-4),
            (BenchOptimizer::Momentum, 0.01),
        ] {
            assert_eq!(rule.lr(), lr);
            let hypers = rule.optimizer().unwrap().hypers;
            assert!(hypers.contains(&("lr", lr)), "{rule:?}: {hypers:?}");
        }
    }
}
