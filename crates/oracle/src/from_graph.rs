//! The workload of any graph of a training step: layers begin where weights enter a product, and whatever
//! follows belongs to them. All figures are derived from the operators' specs.

use crate::OracleError;
use crate::kernel::{Divide, Family, Grows, Work};
use crate::workload::{Layer, Workload};
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::conv::ConvRotation;
use gulliver_graph::graph::{Graph, Node, Origin, Phase, Role, Value};
use std::collections::BTreeSet;

/// The workload of a training graph. `sizes` binds every size but `batch`, which figures are for one of.
pub fn from_graph(name: &str, graph: &Graph, sizes: &Bindings) -> Result<Workload, OracleError> {
    let reader = Reader { graph, one: sizes.clone().with("batch", 1), two: sizes.clone().with("batch", 2) };
    let mut layers: Vec<Layer> = Vec::new();
    let mut layer_of: Vec<Option<usize>> = vec![None; graph.values.len()];
    let mut after_attention = false;
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward) {
        let weights: Vec<Value> = node.ins.iter().copied().filter(|v| is_weight(graph, *v)).collect();
        if layers.is_empty() || (is_product(&node.op) && !weights.is_empty()) {
            let mut layer = Layer::new(layer_name(graph, &weights, layers.len()), Vec::new(), Vec::new());
            layer.input = layers.last().map_or(0.0, |last| last.output);
            layers.push(layer);
        }
        let at = layers.len() - 1;
        for weight in weights {
            if layer_of[weight.index()].is_none() {
                layer_of[weight.index()] = Some(at);
                layers[at].weights += reader.elements(weight)?.1;
            }
        }
        let mut work = reader.work(node)?;
        let layer = &mut layers[at];
        if matches!(node.op, Op::Contract(_)) && layer.forward.iter().all(|w| w.family == Family::Memory) {
            work.divide = if work.columns < work.depth || (work.columns == work.depth && after_attention) {
                layer.reductions = 1.0;
                Divide::Depth
            } else {
                Divide::Columns
            };
            (layer.filters, layer.channels) = (work.columns, work.depth);
        } else if work.family == Family::Memory && layer.reductions > 0.0 {
            work.divide = Divide::Sequence;
        }
        reader.describe(node, layer)?;
        if is_product(&node.op) {
            after_attention = matches!(node.op, Op::Attention(_));
        }
        if !node.op.def().is_view() {
            layer.forward.push(work);
        }
        for &out in &node.outs {
            layer_of[out.index()] = Some(at);
        }
        if let Some(&out) = node.outs.first() {
            let (each, _) = reader.elements(out)?;
            if each > 0.0 {
                layer.output = each;
                layer.working = layer.working.max(each);
                if !layer.extents.is_empty() {
                    layer.extents = reader.extents(out)?;
                }
            }
        }
    }
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Backward) {
        let of = |v: &Value| layer_of[v.index()];
        let forward = node.ins.iter().filter(|v| is_forward(graph, **v)).filter_map(of).max();
        let at = forward.or_else(|| node.ins.iter().filter_map(of).min()).unwrap_or(layers.len().max(1) - 1);
        for &out in &node.outs {
            layer_of[out.index()] = Some(at);
        }
        if node.op.def().is_view() {
            continue;
        }
        let mut work = reader.work(node)?;
        if let Some(layer) = layers.get_mut(at) {
            if work.family == Family::Memory && layer.reductions > 0.0 {
                work.divide = Divide::Sequence;
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
    let workload = Workload { name: name.to_string(), layers, sample, tied: 0.0 };
    workload.check()?;
    Ok(workload)
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

/// Values of the forward pass and data that the backward pass reads; what is a view of another is that.
fn kept(graph: &Graph) -> BTreeSet<Value> {
    let backward = graph.nodes.iter().filter(|node| node.phase == Phase::Backward);
    let mut all = BTreeSet::new();
    for &v in backward.flat_map(|node| &node.ins) {
        let mut v = v;
        while let Origin::Node { node, .. } = graph.value(v).origin {
            let node = &graph.nodes[node.index()];
            if !node.op.def().is_view() {
                break;
            }
            v = node.ins[0];
        }
        let data = matches!(graph.value(v).origin, Origin::Input(Role::Data(_)));
        if data || is_forward(graph, v) {
            all.insert(v);
        }
    }
    all
}

struct Reader<'a> {
    graph: &'a Graph,
    one: Bindings,
    two: Bindings,
}

impl Reader<'_> {
    /// What grows with every sample, and what does not.
    fn split(&self, dim: &Dim) -> Result<(f64, f64), OracleError> {
        let bind = |sizes| dim.bind(sizes).map_err(|e| OracleError::Graph(e.to_string()));
        let (one, two) = (bind(&self.one)? as f64, bind(&self.two)? as f64);
        Ok((two - one, 2.0 * one - two))
    }

    /// Elements of four bytes of a value: for every sample, and whatever the batch.
    fn elements(&self, v: Value) -> Result<(f64, f64), OracleError> {
        let (each, fixed) = self.split(&self.graph.ty(v).bytes())?;
        Ok((each / 4.0, fixed.max(0.0) / 4.0))
    }

    fn extents(&self, v: Value) -> Result<Vec<f64>, OracleError> {
        let shape = self.graph.ty(v).bind(&self.one).map_err(|e| OracleError::Graph(e.to_string()))?;
        Ok(if shape.len() > 2 { shape[2..].iter().map(|&e| e as f64).collect() } else { Vec::new() })
    }

    fn work(&self, node: &Node) -> Result<Work, OracleError> {
        let wrong = |e: gulliver_graph::graph::op::OpError| OracleError::Graph(e.to_string());
        let (flops, fixed) = self.split(&self.graph.flops(node).map_err(wrong)?)?;
        let (mut moved, mut weights) = (0.0, 0.0);
        for v in node.ins.iter().chain(&node.outs) {
            let (each, fixed) = self.elements(*v)?;
            moved += each;
            weights += fixed;
        }
        let family = match &node.op {
            Op::Contract(_) => Family::Matrix,
            Op::Conv(_) => Family::Convolution,
            op if is_product(op) => Family::Batched,
            Op::AttentionGrad(_) | Op::LstmGrad(_) | Op::GruGrad(_) => Family::Batched,
            _ => Family::Memory,
        };
        let mut work = Work { family, flops, weights, ..Work::memory(moved, 1.0, Divide::Batch) };
        if matches!(family, Family::Matrix | Family::Convolution) {
            self.extents_of_product(node, &mut work)?;
            // A product without the batch in it is done once for all samples.
            if flops == 0.0 {
                work.flops = fixed;
            }
        } else if family == Family::Batched {
            // Blocks of a usual size: such kernels walk through them.
            (work.rows, work.columns, work.depth) = (128.0, 128.0, 64.0);
            work.products = (flops / (2.0 * 128.0 * 128.0 * 64.0)).max(1.0);
        }
        Ok(work)
    }

    /// Rows, columns, depth and products of a product of two operands, by where its axes are.
    fn extents_of_product(&self, node: &Node, work: &mut Work) -> Result<(), OracleError> {
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
            let (size, grows, which) = match (spec.in_outputs(axis), has(0), has(1)) {
                (false, _, _) => (&mut depth, Grows::Depth, extent),
                (true, true, true) => (&mut products, Grows::Products, extent),
                (true, true, false) => (&mut rows, Grows::Rows, extent),
                (true, false, _) => (&mut columns, Grows::Rows, extent),
            };
            let (each, fixed) = self.split(which)?;
            *size *= each + fixed;
            if each > 0.0 {
                work.grows = grows;
            }
        }
        (work.products, work.rows, work.columns, work.depth) = (products, rows, columns, depth);
        Ok(())
    }

    /// What cuts need to know of a layer.
    fn describe(&self, node: &Node, layer: &mut Layer) -> Result<(), OracleError> {
        match &node.op {
            Op::Conv(conv) if conv.rotation == ConvRotation::Forward => {
                let taps = self
                    .graph
                    .ty(node.ins[1])
                    .bind(&self.one)
                    .map_err(|e| OracleError::Graph(e.to_string()))?;
                let dilation = conv.window.first().map_or(1, |w| w.dilation);
                layer.halo = (taps.get(2).copied().unwrap_or(1).max(1) - 1) as f64 * dilation as f64 / 2.0;
                layer.filters = taps[0] as f64;
                layer.channels = (taps[1] * conv.groups) as f64;
                layer.input_extents = self.extents(node.ins[0])?;
                layer.extents = self.extents(node.outs[0])?;
            }
            Op::MaxPool(pool) => {
                let reach = pool.window.first().map_or(0, |w| w.kernel.saturating_sub(w.stride));
                layer.halo += reach as f64 / 2.0;
            }
            Op::BatchNorm(_) => layer.statistics += 2.0 * layer.filters,
            Op::Attention(_) => {
                let shape = self
                    .graph
                    .ty(node.ins[0])
                    .bind(&self.one)
                    .map_err(|e| OracleError::Graph(e.to_string()))?;
                layer.heads = shape.get(2).copied().unwrap_or(0) as f64;
            }
            _ => {}
        }
        Ok(())
    }
}
