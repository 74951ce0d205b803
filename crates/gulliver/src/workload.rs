//! The reference workloads: models, batches and optimizers that speed and memory are measured on. The
//! same are written for PyTorch in `bench/torch_train.py`; the two must be changed together.

use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, GraphError, Role};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::{Stream, hash_name};
use gulliver_graph::training::{plain_training_graph, training_graph};
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};

/// One row of [`WORKLOADS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its name and that of its model, with the model's defaults.
    pub name: &'static str,
    /// Trained numbers; the same in PyTorch.
    pub parameters: u64,
    /// Samples of a step.
    pub batch: usize,
    /// Tokens of a sample; zero where samples are not text.
    pub length: usize,
    /// Tokens, classes: integer inputs are below this.
    pub labels: u64,
    /// How it is trained.
    pub optimizer: Rule,
}

/// How a workload is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Learning rate 0.001.
    Adam,
    /// Learning rate 0.01, momentum 0.9.
    Momentum,
}

const fn row(
    name: &'static str,
    parameters: u64,
    [batch, length]: [usize; 2],
    labels: u64,
    optimizer: Rule,
) -> Workload {
    Workload { name, parameters, batch, length, labels, optimizer }
}

/// Every reference workload.
pub static WORKLOADS: &[Workload] = &[
    row("mlp", 1_863_690, [64, 0], 10, Rule::Adam),
    row("mlp-tiny", 2_410, [32, 0], 10, Rule::Adam),
    row("resnet18", 11_173_962, [32, 0], 10, Rule::Momentum),
    row("resnet50", 25_557_032, [4, 0], 1000, Rule::Momentum),
    row("gpt-nano", 809_856, [16, 64], 65, Rule::Adam),
    row("gpt-mini", 10_770_816, [4, 256], 65, Rule::Adam),
    row("gpt2", 124_439_808, [1, 256], 50257, Rule::Adam),
    row("lstm", 5_227_496, [20, 35], 1000, Rule::Momentum),
    row("pointnet", 811_048, [16, 0], 40, Rule::Adam),
];

impl Workload {
    /// Sizes of a step.
    pub fn sizes(&self) -> Bindings {
        let sizes = Bindings::new().with("batch", self.batch);
        if self.length > 0 { sizes.with("length", self.length) } else { sizes }
    }

    /// The graph of a training step.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        self.graph_with(&[])
    }

    /// The graph of a training step, with other settings of the model than its defaults.
    pub fn graph_with(&self, settings: &[(String, ParamValue)]) -> Result<Graph, GraphError> {
        training_graph(model(self.name, settings)?.as_ref(), &[self.rule()?], None)
    }

    /// The graph of a training step before fusion.
    pub fn plain_graph(&self) -> Result<Graph, GraphError> {
        plain_training_graph(model(self.name, &[])?.as_ref(), &[self.rule()?], None)
    }

    fn rule(&self) -> Result<Optimizer, GraphError> {
        match self.optimizer {
            Rule::Adam => Optimizer::new("adam", &[("lr", 1e-3)]),
            Rule::Momentum => Optimizer::new("sgd", &[("lr", 0.01), ("momentum", 0.9)]),
        }
    }

    /// The batch every step uses: standard normal numbers, and integers below `labels`.
    pub fn data(&self, graph: &Graph) -> Result<Batch, GraphError> {
        let mut fields = Vec::new();
        for (_, _, info) in graph.inputs().filter(|(_, role, _)| *role == Role::Data) {
            let invalid = |what: String| GraphError::Invalid(format!("input `{}`: {what}", info.name));
            let shape = info.ty.bind(&self.sizes()).map_err(|e| invalid(e.to_string()))?;
            let stream = Stream::new(0, hash_name(&info.name), 0);
            let elements = 0..shape.iter().product::<usize>() as u64;
            let data = match info.ty.dtype {
                DType::F32 => HostData::F32(elements.map(|i| stream.normal_at(i)).collect()),
                DType::I64 => HostData::I64(elements.map(|i| stream.below(i, self.labels) as i64).collect()),
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
        for workload in WORKLOADS {
            let graph = workload.graph().unwrap_or_else(|e| panic!("{}: {e}", workload.name));
            let parameters = graph.parameters().bind(&Bindings::new()).unwrap() as u64;
            assert_eq!(parameters, workload.parameters, "{}", workload.name);
            let flops = step_flops(&graph, &workload.sizes()).unwrap();
            // Each weight is multiplied at least once forward and twice backward, save embeddings.
            assert!(flops > parameters, "{}: {flops}", workload.name);
        }
    }

    #[test]
    fn data_has_the_shapes_of_the_peer() {
        let shapes: [(&str, &[usize], &[usize]); 5] = [
            ("mlp", &[64, 784], &[64]),
            ("mlp-tiny", &[32, 64], &[32]),
            ("resnet18", &[32, 3, 32, 32], &[32]),
            ("gpt-mini", &[4, 256], &[4, 256]),
            ("pointnet", &[16, 3, 1024], &[16]),
        ];
        for (name, x, y) in shapes {
            let workload = WORKLOADS.iter().find(|w| w.name == name).unwrap();
            let batch = workload.data(&workload.graph().unwrap()).unwrap();
            assert_eq!(batch.get("x").unwrap().shape(), x, "{name}");
            let y_tensor = batch.get("y").unwrap();
            assert_eq!(y_tensor.shape(), y, "{name}");
            let labels = y_tensor.as_i64().unwrap();
            assert!(labels.iter().all(|&l| (0..workload.labels as i64).contains(&l)), "{name}");
        }
    }
}
