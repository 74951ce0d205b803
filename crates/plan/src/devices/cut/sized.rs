//! A graph with the sizes of one input bound: shapes, specs and readers, derived once for all cuts that are tried.

use super::{CutError, CutObjective};
use gulliver_graph::dim::{Bindings, Dim, DimError};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::elementwise::Apply;
use gulliver_graph::graph::op::zip::Binary;
use gulliver_graph::graph::{Graph, Origin, Phase, Value};
use gulliver_graph::kinds::Kinds;
use gulliver_graph::spec::{AxisId, Combine, Index, ReduceKind, Spec};

/// A graph and what follows from the sizes of its input.
#[derive(Debug)]
pub struct SizedGraph<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Extents, by value.
    pub shapes: Vec<Vec<usize>>,
    /// Bytes of an element, by value.
    pub element: Vec<u64>,
    /// Kinds of nodes and types of values that repeat.
    pub kinds: Kinds,
    /// What nodes of one kind share, by kind.
    pub nodes: Vec<NodeKind>,
    /// By value: each node that reads it, with the operands through which it does.
    pub readers: Vec<Vec<(usize, Vec<usize>)>>,
    /// By value: the inputs that it replaces after the step.
    pub carried_by: Vec<Vec<usize>>,
    /// By value: whether it is a forward result that the backward pass reads.
    pub kept: Vec<bool>,
}

/// What nodes of one kind share.
#[derive(Debug)]
pub struct NodeKind {
    /// The spec.
    pub spec: Spec,
    /// Extents of its axes.
    pub extents: Vec<usize>,
    /// Shapes of the operands.
    pub ins: Vec<Vec<usize>>,
    /// Shapes of the results.
    pub outs: Vec<Vec<usize>>,
    /// Axes along which it may be divided.
    pub axes: Vec<AxisId>,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes of an element of every operand, then of every result.
    pub element: Vec<u64>,
    /// Whether it is a view, which takes no time.
    pub view: bool,
    /// Whether it maps partial sums of its operands to partial sums of its results.
    pub linear: bool,
}

impl<'a> SizedGraph<'a> {
    /// Binds the sizes.
    pub fn new(graph: &'a Graph, sizes: &Bindings) -> Result<SizedGraph<'a>, CutError> {
        let kinds = Kinds::of(graph);
        let shapes_of: Vec<Vec<usize>> =
            kinds.types.iter().map(|t| t.bind(sizes)).collect::<Result<_, _>>()?;
        let shapes: Vec<Vec<usize>> = kinds.type_of.iter().map(|&t| shapes_of[t as usize].clone()).collect();
        let element: Vec<u64> = graph.values.iter().map(|v| v.ty.dtype.size() as u64).collect();
        let mut readers: Vec<Vec<(usize, Vec<usize>)>> = vec![Vec::new(); graph.values.len()];
        let mut kept = vec![false; graph.values.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            for (operand, v) in node.ins.iter().enumerate() {
                let list = &mut readers[v.index()];
                match list.last_mut() {
                    Some((last, operands)) if *last == id => operands.push(operand),
                    _ => list.push((id, vec![operand])),
                }
                let forward =
                    graph.maker(*v).is_some_and(|id| graph.nodes[id.index()].phase == Phase::Forward);
                kept[v.index()] |= forward && node.phase == Phase::Backward;
            }
        }
        let mut carried_by = vec![Vec::new(); graph.values.len()];
        for (input, next) in &graph.carries {
            carried_by[next.index()].push(input.index());
        }
        let mut sized =
            SizedGraph { graph, shapes, element, kinds, nodes: Vec::new(), readers, carried_by, kept };
        for id in &sized.kinds.nodes {
            let kind = sized.node_kind(id.index(), sizes)?;
            sized.nodes.push(kind);
        }
        Ok(sized)
    }

    /// The kind of a node.
    pub fn kind(&self, node: usize) -> &NodeKind {
        &self.nodes[self.kinds.kind_of[node] as usize]
    }

    /// Whether all groups may repeat a node that could be divided. When bytes are minimised only updates and nodes on
    /// single numbers may: repeating everything moves nothing.
    pub(crate) fn may_repeat(&self, node: usize, objective: CutObjective) -> bool {
        let single = || self.kind(node).ins.iter().all(|s| s.iter().product::<usize>() <= 1);
        objective == CutObjective::Seconds || self.graph.nodes[node].phase == Phase::Update || single()
    }

    /// Whether a value is a weight or state, which resides on devices between steps.
    pub fn persists(&self, value: usize) -> bool {
        matches!(self.graph.values[value].origin, Origin::Input(role) if role.persists())
    }

    fn node_kind(&self, id: usize, sizes: &Bindings) -> Result<NodeKind, CutError> {
        let node = &self.graph.nodes[id];
        let wrong = |source| CutError::Node { node: id, op: node.op.def().name(), source: Box::new(source) };
        let spec = self.graph.spec(node).map_err(wrong)?;
        let dims: Vec<&[Dim]> = node.ins.iter().map(|v| self.graph.ty(*v).shape.as_slice()).collect();
        let extents = spec.extents(&dims).map_err(|e| wrong(e.into()))?;
        let extents: Vec<usize> = extents.iter().map(|d| d.bind(sizes)).collect::<Result<_, DimError>>()?;
        let shapes =
            |vs: &[Value]| -> Vec<Vec<usize>> { vs.iter().map(|v| self.shapes[v.index()].clone()).collect() };
        let points: f64 = extents.iter().map(|&e| e as f64).product();
        // Other reductions than sums of f32 are not implemented by exchanges.
        let adds = |(how, v): (&Combine, &Value)| {
            let sum = *how == Combine::Reduce(ReduceKind::Sum) && self.graph.ty(*v).dtype == DType::F32;
            sum || matches!(how, Combine::Concat(_))
        };
        let cuts = spec.cuts().into_iter().filter(|cut| cut.outputs.iter().zip(&node.outs).all(adds));
        let axes = cuts.map(|c| c.axis).filter(|a| !is_tap(&spec, *a)).collect();
        let elements = node.ins.iter().chain(&node.outs).map(|v| self.element[v.index()]).collect();
        Ok(NodeKind {
            ins: shapes(&node.ins),
            outs: shapes(&node.outs),
            axes,
            flops: points * node.op.def().flops_per_point() as f64,
            element: elements,
            view: node.op.def().is_view(),
            linear: takes_partial_sums(&node.op),
            spec,
            extents,
        })
    }
}

/// Whether an axis runs over the taps of a window: too few to divide, and two cuts of one window are no boxes.
fn is_tap(spec: &Spec, axis: AxisId) -> bool {
    let tap = |i: &Index| matches!(i, Index::Affine { terms, .. } if terms[1..].iter().any(|t| t.1 == axis));
    spec.inputs.iter().chain(&spec.outputs).flatten().any(tap)
}

/// Whether partial sums of all operands give partial sums of the results: views, transposition, expansion, slices and
/// their gradients, sums over axes, additions and subtractions, fused or not.
fn takes_partial_sums(op: &Op) -> bool {
    let additive = |f: &Binary| matches!(f, Binary::Add | Binary::Sub);
    match op {
        Op::Reshape(_) | Op::Transpose(_) | Op::Expand(_) | Op::Slice(_) | Op::SliceGrad(_) => true,
        Op::Reduce(reduce) => reduce.kind == ReduceKind::Sum,
        Op::Zip(zip) => additive(&zip.0),
        Op::Elementwise(chain) => {
            let steps = chain.steps.iter().all(|s| matches!(&s.apply, Apply::Zip(f) if additive(f)));
            steps && chain.reduction().is_none_or(|r| r.kind == ReduceKind::Sum)
        }
        _ => false,
    }
}

/// The reduction whose partial results may pass through operators unreduced.
pub(crate) const SUMS: ReduceKind = ReduceKind::Sum;
