//! The workload of a training graph. A layer begins where weights enter a product; nodes after it belong to it. All
//! figures are derived from the operators' specs.

mod framework;

use crate::OracleError;
use crate::kernel::{Divide, Grows, KernelFamily, KernelWork};
use crate::workload::{ModelLayer, Workload};
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::conv::ConvRotation;
use gulliver_graph::graph::{Graph, GraphError, Node, Origin, Phase, Role, Value};
use gulliver_graph::model::Architecture;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{plain_training_graph, training_graph};
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
    let drops = graph.nodes.iter().any(|node| matches!(node.op, Op::Dropout(_)));
    let (one, two) = (sizes.clone().with("batch", 1), sizes.clone().with("batch", 2));
    let reader = Reader { graph, one, two, kernels, drops };
    let unneeded = if kernels == KernelStyle::Nodes { BTreeSet::new() } else { metrics(graph) };
    let gradient_of = gradients(graph);
    let mut layers: Vec<ModelLayer> = Vec::new();
    // By layer, how a tensor-parallel cut divides its product; by value, the layer that makes it.
    let mut divides: Vec<Divide> = Vec::new();
    let mut layer_of: Vec<Option<usize>> = vec![None; graph.values.len()];
    let mut tied = BTreeSet::new();
    let mut after_attention = false;
    let forward = |(i, node): &(usize, &Node)| node.phase == Phase::Forward && !unneeded.contains(i);
    for (_, node) in graph.nodes.iter().enumerate().filter(forward) {
        let weights: Vec<Value> = node.ins.iter().copied().filter(|v| is_weight(graph, *v)).collect();
        if layers.is_empty() || (is_product(&node.op) && !weights.is_empty()) {
            let mut layer =
                ModelLayer::new(layer_name(graph, &weights, layers.len()), Vec::new(), Vec::new());
            layer.input = layers.last().map_or(0.0, |last| last.output);
            layers.push(layer);
            divides.push(Divide::Columns);
        }
        let at = layers.len() - 1;
        for weight in weights {
            match layer_of[weight.index()] {
                Some(first) if first != at => drop(tied.insert(weight)),
                Some(_) => {}
                None => {
                    layer_of[weight.index()] = Some(at);
                    layers[at].weights += reader.elements(weight)?.1;
                }
            }
        }
        let mut works = reader.works(node)?;
        let layer = &mut layers[at];
        let first = layer.forward.iter().all(|w| w.family == KernelFamily::Memory);
        for work in &mut works {
            if matches!(node.op, Op::Contract(_)) && first {
                work.divide = if work.columns < work.depth || (work.columns == work.depth && after_attention)
                {
                    layer.reductions = 1.0;
                    Divide::Depth
                } else {
                    Divide::Columns
                };
                divides[at] = work.divide;
                (layer.filters, layer.channels) = (work.columns, work.depth);
            } else if work.family == KernelFamily::Memory && layer.reductions > 0.0 {
                work.divide = Divide::Sequence;
            }
        }
        reader.describe(node, layer)?;
        if matches!(node.op, Op::Gather(_)) && kernels != KernelStyle::Nodes && at == 0 {
            // Each device looks up the words of its part of the table; the parts are added up.
            layer.reductions = 1.0;
        }
        if is_product(&node.op) {
            after_attention = matches!(node.op, Op::Attention(_));
        }
        layer.forward.extend(works);
        for &out in &node.outs {
            layer_of[out.index()] = Some(at);
        }
        if let Some(&out) = node.outs.first() {
            let (each, _) = reader.elements(out)?;
            if each > 0.0 {
                layer.output = each;
                layer.working = layer.working.max(each);
                let extents = reader.extents(out)?;
                // A flattened value was computed in space.
                if !layer.extents.is_empty() && !extents.is_empty() {
                    layer.extents = extents;
                }
            }
        }
        if kernels != KernelStyle::Nodes {
            framework::keep(&reader, node, layer)?;
        }
    }
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Backward) {
        let of = |v: &Value| layer_of[v.index()].filter(|_| !tied.contains(v));
        let any = || node.ins.iter().filter_map(of);
        let of_forward = || node.ins.iter().filter(|v| is_forward(graph, **v)).filter_map(of).max();
        let trained = node.outs.iter().filter_map(|v| gradient_of.get(v)).find_map(of);
        // A product belongs to the layer of its weight; without one, or with a tied one, to that of the gradient.
        let weighted = || node.ins.iter().filter(|v| is_weight(graph, **v)).find_map(of);
        let product = is_product(&node.op).then(|| weighted().or_else(|| any().max())).flatten();
        let at = trained.or(product).or_else(of_forward).or_else(|| any().min());
        let at = at.unwrap_or(layers.len().max(1) - 1);
        for &out in &node.outs {
            layer_of[out.index()] = Some(at);
        }
        let Some(layer) = layers.get_mut(at) else { continue };
        for mut work in reader.works(node)? {
            if work.family == KernelFamily::Memory && layer.reductions > 0.0 {
                work.divide = Divide::Sequence;
            } else if matches!(node.op, Op::Contract(_)) && kernels != KernelStyle::Nodes {
                divide_gradient(&mut work, layer, divides[at]);
            }
            layer.backward.push(work);
        }
    }
    for v in kept(graph) {
        let (each, _) = reader.elements(v)?;
        let at = layer_of[v.index()].unwrap_or(0);
        if let Some(layer) = layers.get_mut(at) {
            if layer.reductions > 0.0 { layer.kept_whole += each } else { layer.kept += each }
        }
    }
    let mut sample = 0.0;
    for (v, role, _) in graph.inputs() {
        if role.is_data() {
            sample += reader.elements(v)?.0;
        }
    }
    let mut shared = 0.0;
    for v in tied {
        shared += reader.elements(v)?.1;
    }
    let workload = Workload { name: name.to_string(), layers, sample, tied: shared };
    workload.check()?;
    Ok(workload)
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

/// Values of the forward pass and data that the backward pass reads; a view counts as what it is a view of.
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

/// A graph whose figures are read for one sample.
pub(crate) struct Reader<'a> {
    pub(crate) graph: &'a Graph,
    one: Bindings,
    two: Bindings,
    pub(crate) kernels: KernelStyle,
    /// Whether the model drops anything.
    pub(crate) drops: bool,
}

impl Reader<'_> {
    /// The part of an extent that grows with every sample, and the part that does not.
    fn split(&self, dim: &Dim) -> Result<(f64, f64), OracleError> {
        let bind = |sizes| dim.bind(sizes).map_err(|e| OracleError::Graph(e.to_string()));
        let (one, two) = (bind(&self.one)? as f64, bind(&self.two)? as f64);
        Ok((two - one, 2.0 * one - two))
    }

    /// Elements of four bytes of a value: for every sample, and whatever the batch.
    pub(crate) fn elements(&self, v: Value) -> Result<(f64, f64), OracleError> {
        let (each, fixed) = self.split(&self.graph.ty(v).bytes())?;
        Ok((each / 4.0, fixed.max(0.0) / 4.0))
    }

    /// The shape of a value for one sample.
    pub(crate) fn shape(&self, v: Value) -> Result<Vec<f64>, OracleError> {
        let shape = self.graph.ty(v).bind(&self.one).map_err(|e| OracleError::Graph(e.to_string()))?;
        Ok(shape.into_iter().map(|extent| extent as f64).collect())
    }

    fn extents(&self, v: Value) -> Result<Vec<f64>, OracleError> {
        let shape = self.shape(v)?;
        Ok(if shape.len() > 2 { shape[2..].to_vec() } else { Vec::new() })
    }

    /// The kernels of a node; none of a view.
    fn works(&self, node: &Node) -> Result<Vec<KernelWork>, OracleError> {
        if node.op.def().is_view() {
            return Ok(Vec::new());
        }
        let work = self.work(node)?;
        match self.kernels {
            KernelStyle::Nodes => Ok(vec![work]),
            KernelStyle::Framework | KernelStyle::FusedAttention => framework::works(self, node, work),
        }
    }

    fn work(&self, node: &Node) -> Result<KernelWork, OracleError> {
        let wrong = |e: gulliver_graph::graph::op::OpError| OracleError::Graph(e.to_string());
        // Points of operators that only move may be beyond counting.
        let (flops, fixed) = match node.op.def().flops_per_point() {
            0 => (0.0, 0.0),
            _ => self.split(&self.graph.flops(node).map_err(wrong)?)?,
        };
        let (mut moved, mut weights) = (0.0, 0.0);
        for v in node.ins.iter().chain(&node.outs) {
            let (each, fixed) = self.elements(*v)?;
            moved += each;
            weights += fixed;
        }
        let family = match &node.op {
            Op::Contract(_) => KernelFamily::Matrix,
            Op::Conv(_) => KernelFamily::Convolution,
            op if is_product(op) => KernelFamily::Batched,
            Op::AttentionGrad(_) | Op::LstmGrad(_) | Op::GruGrad(_) => KernelFamily::Batched,
            _ => KernelFamily::Memory,
        };
        let mut work = KernelWork { family, flops, weights, ..KernelWork::memory(moved, 1.0, Divide::Batch) };
        if matches!(family, KernelFamily::Matrix | KernelFamily::Convolution) {
            self.extents_of_product(node, &mut work)?;
            // A product without the batch in it is done once for all samples.
            if flops == 0.0 {
                work.flops = fixed;
            }
        } else if family == KernelFamily::Batched {
            // Blocks of a usual size: such kernels walk through them.
            (work.rows, work.columns, work.depth) = (128.0, 128.0, 64.0);
            work.products = (flops / (2.0 * 128.0 * 128.0 * 64.0)).max(1.0);
        }
        Ok(work)
    }

    /// Rows, columns, depth and products of a product of two operands, by where its axes are.
    fn extents_of_product(&self, node: &Node, work: &mut KernelWork) -> Result<(), OracleError> {
        let wrong = |e: gulliver_graph::graph::op::OpError| OracleError::Graph(e.to_string());
        let spec = self.graph.spec(node).map_err(wrong)?;
        let ins: Vec<&[Dim]> = node.ins.iter().map(|v| self.graph.ty(*v).shape.as_slice()).collect();
        let extents = spec.extents(&ins).map_err(|e| OracleError::Graph(e.to_string()))?;
        let (mut products, mut rows, mut columns, mut depth) = (1.0, 1.0, 1.0, 1.0);
        work.grows = Grows::Products;
        for (i, extent) in extents.iter().enumerate() {
            let axis = gulliver_graph::spec::AxisId(i);
            let has =
                |operand: usize| spec.inputs.get(operand).is_some_and(|all| all.iter().any(|x| x.has(axis)));
            let (size, grows) = match (spec.in_outputs(axis), has(0), has(1)) {
                (false, _, _) => (&mut depth, Grows::Depth),
                (true, true, true) => (&mut products, Grows::Products),
                (true, true, false) => (&mut rows, Grows::Rows),
                (true, false, _) => (&mut columns, Grows::Rows),
            };
            let (each, fixed) = self.split(extent)?;
            *size *= each + fixed;
            if each > 0.0 {
                work.grows = grows;
            }
        }
        (work.products, work.rows, work.columns, work.depth) = (products, rows, columns, depth);
        Ok(())
    }

    /// Adds figures of a layer that cuts need: halo, channels, extents, statistics, heads.
    fn describe(&self, node: &Node, layer: &mut ModelLayer) -> Result<(), OracleError> {
        match &node.op {
            Op::Conv(conv) if conv.rotation == ConvRotation::Forward => {
                let taps = self.shape(node.ins[1])?;
                let dilation = conv.window.first().map_or(1, |w| w.dilation);
                layer.halo = (taps.get(2).copied().unwrap_or(1.0).max(1.0) - 1.0) * dilation as f64 / 2.0;
                layer.filters = taps[0];
                layer.channels = taps[1] * conv.groups as f64;
                layer.input_extents = self.extents(node.ins[0])?;
                layer.extents = self.extents(node.outs[0])?;
            }
            Op::MaxPool(pool) => {
                let reach = pool.window.first().map_or(0, |w| w.kernel.saturating_sub(w.stride));
                layer.halo += reach as f64 / 2.0;
            }
            Op::BatchNorm(_) => layer.statistics += 2.0 * layer.filters,
            Op::Attention(_) => layer.heads = self.shape(node.ins[0])?.get(2).copied().unwrap_or(0.0),
            _ => {}
        }
        Ok(())
    }
}
