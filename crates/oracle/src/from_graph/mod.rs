//! The workload of a training graph. A layer begins where weights enter a product; nodes after it belong to it. All
//! figures are derived from the operators' specs.

mod framework;
mod reader;

use crate::OracleError;
use crate::kernel::{Divide, Grows, KernelFamily, KernelWork};
use crate::workload::{ModelLayer, Workload};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::{Graph, GraphError, Node, Origin, Phase, Role, Value};
use gulliver_graph::model::Architecture;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{plain_training_graph, training_graph};
use reader::Reader;
use std::collections::{BTreeMap, BTreeSet};

/// Which kernels run the operators of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelStyle {
    /// Gulliver's: each node of the graph is one.
    Nodes,
    /// A framework's, one operator after the other; attention writes its scores to memory. The graph is one before
    /// fusion.
    Framework,
    /// A framework's with fused attention, which never writes its scores.
    FusedAttention,
}

/// The workload of a model that is trained with Adam, equal blocks in a row [folded](Workload::folded).
pub fn from_model(
    name: &str,
    model: &dyn Architecture,
    sizes: &Bindings,
    kernels: KernelStyle,
) -> Result<Workload, OracleError> {
    let wrong = |e: GraphError| OracleError::Graph(e.to_string());
    let adam = [Optimizer::new("adam", &[]).map_err(wrong)?];
    let graph = match kernels {
        KernelStyle::Nodes => training_graph(model, &adam, None),
        KernelStyle::Framework | KernelStyle::FusedAttention => plain_training_graph(model, &adam, None),
    };
    Ok(from_graph(name, &graph.map_err(wrong)?, sizes, kernels)?.folded())
}

/// The workload of a training graph. `sizes` binds every size but `batch`; figures are those of one sample.
pub fn from_graph(
    name: &str,
    graph: &Graph,
    sizes: &Bindings,
    kernels: KernelStyle,
) -> Result<Workload, OracleError> {
    let unneeded = if kernels == KernelStyle::Nodes { BTreeSet::new() } else { metrics(graph) };
    let mut found = Found {
        reader: Reader::new(graph, sizes, kernels),
        layers: Vec::new(),
        divides: Vec::new(),
        layer_of: vec![None; graph.values.len()],
        tied: BTreeSet::new(),
        after_attention: false,
    };
    for (i, node) in graph.nodes.iter().enumerate() {
        if node.phase == Phase::Forward && !unneeded.contains(&i) {
            found.forward(node)?;
        }
    }
    let gradient_of = gradients(graph);
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Backward) {
        found.backward(node, &gradient_of)?;
    }
    let Found { reader, mut layers, layer_of, tied, .. } = found;
    for v in kept(graph) {
        let elements = reader.elements(v)?.each;
        if let Some(layer) = layers.get_mut(layer_of[v.index()].unwrap_or(0)) {
            layer.keep(elements);
        }
    }
    let data = graph.inputs().filter(|(_, role, _)| role.is_data());
    let sample = data.map(|(v, ..)| Ok(reader.elements(v)?.each)).sum::<Result<f64, OracleError>>()?;
    let tied = tied.into_iter().map(|v| Ok(reader.elements(v)?.fixed)).sum::<Result<f64, OracleError>>()?;
    let workload = Workload { name: name.to_string(), layers, sample, tied };
    workload.check()?;
    Ok(workload)
}

/// The layers found so far.
struct Found<'a> {
    reader: Reader<'a>,
    layers: Vec<ModelLayer>,
    /// By layer, the extent of its product that a tensor-parallel cut divides.
    divides: Vec<Divide>,
    /// By value, the layer that makes it, or that reads it first if it is a weight.
    layer_of: Vec<Option<usize>>,
    /// Weights that several layers read.
    tied: BTreeSet<Value>,
    /// Whether the last product was attention.
    after_attention: bool,
}

impl Found<'_> {
    /// Adds a node of the forward pass to the last layer, or begins a new one with it.
    fn forward(&mut self, node: &Node) -> Result<(), OracleError> {
        let (graph, kernels) = (self.reader.graph, self.reader.kernels);
        let weights: Vec<Value> = node.ins.iter().copied().filter(|v| is_weight(graph, *v)).collect();
        if self.layers.is_empty() || (is_product(&node.op) && !weights.is_empty()) {
            let name = layer_name(graph, &weights, self.layers.len());
            let mut layer = ModelLayer::new(name, Vec::new(), Vec::new());
            layer.input = self.layers.last().map_or(0.0, |last| last.output);
            self.layers.push(layer);
            self.divides.push(Divide::Columns);
        }
        let at = self.layers.len() - 1;
        let layer = &mut self.layers[at];
        for weight in weights {
            match self.layer_of[weight.index()] {
                Some(first) if first != at => drop(self.tied.insert(weight)),
                Some(_) => {}
                None => {
                    self.layer_of[weight.index()] = Some(at);
                    layer.weights += self.reader.elements(weight)?.fixed;
                }
            }
        }
        let mut works = self.reader.works(node)?;
        let first = layer.forward.iter().all(|w| w.family == KernelFamily::Memory);
        for work in &mut works {
            if matches!(node.op, Op::Contract(_)) && first {
                let narrows = work.columns < work.depth;
                if narrows || (work.columns == work.depth && self.after_attention) {
                    layer.reductions = 1.0;
                    work.divide = Divide::Depth;
                } else {
                    work.divide = Divide::Columns;
                }
                self.divides[at] = work.divide;
                (layer.filters, layer.channels) = (work.columns, work.depth);
            } else if work.family == KernelFamily::Memory && layer.reductions > 0.0 {
                work.divide = Divide::Sequence;
            }
        }
        self.reader.describe(node, layer)?;
        if matches!(node.op, Op::Gather(_)) && kernels != KernelStyle::Nodes && at == 0 {
            // Each device looks up the words of its part of the table; the parts are added up.
            layer.reductions = 1.0;
        }
        if is_product(&node.op) {
            self.after_attention = matches!(node.op, Op::Attention(_));
        }
        layer.forward.extend(works);
        node.outs.iter().for_each(|out| self.layer_of[out.index()] = Some(at));
        if let Some(&out) = node.outs.first() {
            let elements = self.reader.elements(out)?.each;
            if elements > 0.0 {
                layer.output = elements;
                layer.working = layer.working.max(elements);
                let extents = self.reader.extents(out)?;
                // A flattened value was computed in space.
                if !layer.extents.is_empty() && !extents.is_empty() {
                    layer.extents = extents;
                }
            }
        }
        if kernels != KernelStyle::Nodes {
            framework::keep(&self.reader, node, layer)?;
        }
        Ok(())
    }

    /// Adds a node of the backward pass to the layer that it belongs to.
    fn backward(&mut self, node: &Node, gradient_of: &BTreeMap<Value, Value>) -> Result<(), OracleError> {
        let (graph, kernels) = (self.reader.graph, self.reader.kernels);
        let of = |v: &Value| self.layer_of[v.index()].filter(|_| !self.tied.contains(v));
        let any = || node.ins.iter().filter_map(of);
        let of_forward = || node.ins.iter().filter(|v| is_forward(graph, **v)).filter_map(of).max();
        let trained = node.outs.iter().filter_map(|v| gradient_of.get(v)).find_map(of);
        // A product belongs to the layer of its weight; without one, or with a tied one, to that of the gradient.
        let weighted = || node.ins.iter().filter(|v| is_weight(graph, **v)).find_map(of);
        let product = is_product(&node.op).then(|| weighted().or_else(|| any().max())).flatten();
        let at = trained.or(product).or_else(of_forward).or_else(|| any().min());
        let at = at.unwrap_or(self.layers.len().max(1) - 1);
        node.outs.iter().for_each(|out| self.layer_of[out.index()] = Some(at));
        let Some(layer) = self.layers.get_mut(at) else { return Ok(()) };
        for mut work in self.reader.works(node)? {
            if work.family == KernelFamily::Memory && layer.reductions > 0.0 {
                work.divide = Divide::Sequence;
            } else if matches!(node.op, Op::Contract(_)) && kernels != KernelStyle::Nodes {
                divide_gradient(&mut work, layer, self.divides[at]);
            }
            layer.backward.push(work);
        }
        Ok(())
    }
}

/// Which extent of a product of the backward pass a tensor-parallel cut divides, given that of the forward pass.
fn divide_gradient(work: &mut KernelWork, layer: &ModelLayer, forward: Divide) {
    let cut = if forward == Divide::Depth { layer.channels } else { layer.filters };
    if work.grows == Grows::Depth {
        // Of weights: the extent that the weights are cut along.
        if work.columns != cut {
            std::mem::swap(&mut work.rows, &mut work.columns);
        }
        work.divide = Divide::Columns;
    } else {
        work.divide = if forward == Divide::Depth { Divide::Columns } else { Divide::Depth };
    }
}

fn layer_name(graph: &Graph, weights: &[Value], at: usize) -> String {
    let name = weights.first().map(|v| graph.value(*v).name.trim_end_matches(".weight").to_string());
    name.unwrap_or_else(|| format!("layer{at}"))
}

fn is_weight(graph: &Graph, v: Value) -> bool {
    matches!(graph.value(v).origin, Origin::Input(Role::Weight(_)))
}

fn is_forward(graph: &Graph, v: Value) -> bool {
    match graph.value(v).origin {
        Origin::Input(_) => false,
        Origin::Node { node, .. } => graph.nodes[node.index()].phase == Phase::Forward,
    }
}

fn is_product(op: &Op) -> bool {
    matches!(op, Op::Contract(_) | Op::Conv(_) | Op::Attention(_) | Op::Lstm(_) | Op::Gru(_))
}

/// The forward nodes that the backward pass does not depend on, such as accuracies.
fn metrics(graph: &Graph) -> BTreeSet<usize> {
    let mut needed = vec![false; graph.values.len()];
    let mut unneeded = BTreeSet::new();
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        if node.phase == Phase::Backward || node.outs.iter().any(|v| needed[v.index()]) {
            node.ins.iter().for_each(|v| needed[v.index()] = true);
        } else if node.phase == Phase::Forward {
            unneeded.insert(i);
        }
    }
    unneeded
}

/// The weight that each gradient updates; views of a gradient count as the gradient.
fn gradients(graph: &Graph) -> BTreeMap<Value, Value> {
    let mut all = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Update) {
        let Some(weight) = node.ins.iter().find(|v| is_weight(graph, **v)) else { continue };
        for v in node.ins.iter().filter(|v| *v != weight) {
            all.insert(whole(graph, *v), *weight);
        }
    }
    all
}

/// The value that a view is of.
fn whole(graph: &Graph, mut v: Value) -> Value {
    while let Origin::Node { node, .. } = graph.value(v).origin {
        let node = &graph.nodes[node.index()];
        if !node.op.def().is_view() {
            break;
        }
        v = node.ins[0];
    }
    v
}

/// Values of the forward pass and data that the backward pass reads. A view counts as its whole value.
fn kept(graph: &Graph) -> BTreeSet<Value> {
    let backward = graph.nodes.iter().filter(|node| node.phase == Phase::Backward);
    let mut all = BTreeSet::new();
    for v in backward.flat_map(|node| &node.ins).map(|v| whole(graph, *v)) {
        let data = matches!(graph.value(v).origin, Origin::Input(Role::Data(_)));
        if data || is_forward(graph, v) {
            all.insert(v);
        }
    }
    all
}
