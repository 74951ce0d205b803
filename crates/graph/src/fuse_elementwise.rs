//! The pass that fuses element-wise operators: neighbouring nodes that work element by element on one shape become
//! one [`Elementwise`](crate::graph::op::elementwise::Elementwise) node, with the reductions of their results. The fused node
//! runs where its nodes ran, so no value lives longer. Each element goes through the same arithmetic, so no bit
//! changes.

mod assemble;

use crate::dim::Dim;
use crate::graph::op::Op;
use crate::graph::op::elementwise::Apply;
use crate::graph::{Graph, GraphError, Node, Origin, Value};
use crate::rewrite::Rewriter;
use assemble::{Assembled, assemble};
use std::collections::HashMap;

/// Windows of at most this many nodes are searched for neighbours, which keeps the pass linear.
const WINDOW: usize = 256;
/// Unrelated nodes on no more elements than this are fused to save calls.
const SMALL: i64 = 1 << 6;

/// The same graph with fused nodes in place of runs of element-wise nodes.
pub fn fuse_elementwise(graph: &Graph) -> Result<Graph, GraphError> {
    let uses = Uses::of(graph);
    let mut order: Vec<Unit> = Vec::with_capacity(graph.nodes.len());
    let mut at = 0;
    while at < graph.nodes.len() {
        let end = window_end(graph, at);
        order.extend(Window::fill(graph, &uses, at..end).ordered());
        at = end;
    }
    rebuild(graph, &uses, &order)
}

/// The readers of each value, and the operands of each node.
struct Uses {
    readers: Vec<Vec<usize>>,
    /// An output of the graph, or carried to the next step.
    wanted: Vec<bool>,
    /// Operands of every node. An element-wise node reads past an expansion that has no other reader.
    ins: Vec<Vec<Value>>,
}

impl Uses {
    fn of(graph: &Graph) -> Uses {
        let mut readers = vec![Vec::new(); graph.values.len()];
        let mut wanted = vec![false; graph.values.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            for v in &node.ins {
                readers[v.index()].push(id);
            }
        }
        let outputs = graph.outputs.iter().map(|output| &output.value);
        for v in outputs.chain(graph.carries.iter().map(|(_, next)| next)) {
            wanted[v.index()] = true;
        }
        let mut uses = Uses { readers, wanted, ins: Vec::new() };
        uses.ins = graph.nodes.iter().map(|node| uses.past_expansions(graph, node)).collect();
        uses
    }

    fn past_expansions(&self, graph: &Graph, node: &Node) -> Vec<Value> {
        if !fusible(graph, node) {
            return node.ins.clone();
        }
        let shape = &graph.ty(node.outs[0]).shape;
        let expanded = |v: &Value| {
            let Origin::Node { node: id, .. } = graph.value(*v).origin else { return None };
            let from = &graph.nodes[id.index()];
            let alone = self.readers[v.index()].len() == 1 && !self.wanted[v.index()];
            let here = (from.phase, from.objective) == (node.phase, node.objective);
            (matches!(from.op, Op::Expand(_)) && alone && here).then(|| from.ins[0])
        };
        // Some operand must be left that has the shape of the result.
        let whole = |v: &Value| expanded(v).is_none() && graph.ty(*v).shape == *shape;
        if !node.ins.iter().any(whole) {
            return node.ins.clone();
        }
        node.ins.iter().map(|v| expanded(v).unwrap_or(*v)).collect()
    }
}

/// Whether a node can be a step of a fused node: element-wise, of types that the kernels know.
fn fusible(graph: &Graph, node: &Node) -> bool {
    use crate::dtype::DType::{Bool, F32, I32, I64, U8};
    let Some(apply) = Apply::of(&node.op) else { return false };
    let types: Vec<_> = node.ins.iter().map(|v| graph.ty(*v).dtype).collect();
    match apply {
        Apply::Cast(to) => to == F32 && matches!(types[0], F32 | Bool | U8 | I64 | I32),
        Apply::Zip(f) if f.compares() => matches!(types[0], F32 | I64),
        Apply::Select => types[1] == F32 && types[2] == F32,
        _ => types.iter().all(|t| *t == F32),
    }
}

/// Whether an operator costs nothing or a few bytes, so that it may move among its neighbours.
fn movable(op: &Op) -> bool {
    op.def().is_view() || matches!(op, Op::Fill(_) | Op::Size(_) | Op::Expand(_))
}

/// The end of the window that starts at a node.
fn window_end(graph: &Graph, start: usize) -> usize {
    let soft = |node: &Node| fusible(graph, node) || movable(&node.op) || matches!(node.op, Op::Reduce(_));
    let first = &graph.nodes[start];
    let alike = |node: &&Node| soft(node) && (node.phase, node.objective) == (first.phase, first.objective);
    let len = graph.nodes[start..].iter().take(WINDOW).take_while(alike).count();
    start + len.max(1)
}

/// Nodes that run together: one, or the members of a fused node, in order.
#[derive(Clone, Debug, Default)]
struct Unit {
    members: Vec<usize>,
    /// The shape that the members loop over; `None` if they cannot be fused.
    shape: Option<Vec<Dim>>,
}

/// The units of a window of neighbours.
struct Window<'a> {
    graph: &'a Graph,
    uses: &'a Uses,
    /// Emptied when merged into another.
    units: Vec<Unit>,
    owner: HashMap<usize, usize>,
}

impl<'a> Window<'a> {
    fn fill(graph: &'a Graph, uses: &'a Uses, nodes: std::ops::Range<usize>) -> Window<'a> {
        let mut window = Window { graph, uses, units: Vec::new(), owner: HashMap::new() };
        // The unit that last read a value, and the one that last looped over a small shape.
        let mut reader: HashMap<Value, usize> = HashMap::new();
        let mut small: HashMap<Vec<Dim>, usize> = HashMap::new();
        for id in nodes {
            let node = &graph.nodes[id];
            let shape = loop_shape(graph, node);
            window.units.push(Unit { members: vec![id], shape: shape.clone() });
            window.owner.insert(id, window.units.len() - 1);
            let Some(shape) = shape else { continue };
            let mut candidates: Vec<usize> = uses.ins[id].iter().filter_map(|v| window.maker(*v)).collect();
            if !matches!(node.op, Op::Reduce(_)) {
                let whole = uses.ins[id].iter().filter(|v| graph.ty(**v).shape == shape);
                candidates.extend(whole.filter_map(|v| reader.get(v)).map(|&node| window.owner[&node]));
                if is_small(&shape) {
                    candidates.extend(small.get(&shape).map(|&node| window.owner[&node]));
                    small.insert(shape, id);
                }
                reader.extend(uses.ins[id].iter().map(|v| (*v, id)));
            }
            for unit in candidates {
                window.merge(unit, window.owner[&id]);
            }
        }
        window
    }

    /// The unit of this window that makes a value.
    fn maker(&self, v: Value) -> Option<usize> {
        match self.graph.value(v).origin {
            Origin::Node { node, .. } => self.owner.get(&node.index()).copied(),
            Origin::Input(_) => None,
        }
    }

    /// Units whose results these members read.
    fn sources(&self, members: &[usize]) -> Vec<usize> {
        members.iter().flat_map(|&id| &self.uses.ins[id]).filter_map(|v| self.maker(*v)).collect()
    }

    /// Merges two units, if they can be one fused node and no other unit must run between their members.
    fn merge(&mut self, a: usize, b: usize) {
        if a == b || self.units[a].shape.is_none() || self.units[a].shape != self.units[b].shape {
            return;
        }
        let mut members = [self.units[a].members.as_slice(), &self.units[b].members].concat();
        members.sort_unstable();
        if self.between(a, b, &members) || assemble(self.graph, self.uses, &members).is_none() {
            return;
        }
        for id in &members {
            self.owner.insert(*id, a);
        }
        self.units[a].members = members;
        self.units[b] = Unit::default();
    }

    /// Whether some other unit reads results of these two and makes operands of them.
    fn between(&self, a: usize, b: usize, members: &[usize]) -> bool {
        let mut seen = vec![false; self.units.len()];
        let mut stack: Vec<usize> =
            self.sources(members).into_iter().filter(|u| *u != a && *u != b).collect();
        while let Some(unit) = stack.pop() {
            if unit == a || unit == b {
                return true;
            }
            if !std::mem::replace(&mut seen[unit], true) {
                stack.extend(self.sources(&self.units[unit].members));
            }
        }
        false
    }

    /// The units, each after those it reads, otherwise in the order of their last members.
    fn ordered(self) -> Vec<Unit> {
        let mut order: Vec<usize> =
            (0..self.units.len()).filter(|&u| !self.units[u].members.is_empty()).collect();
        order.sort_by_key(|&u| self.units[u].members.last().copied());
        let mut placed = vec![false; self.units.len()];
        let mut result = Vec::with_capacity(order.len());
        for unit in order {
            let mut stack = vec![unit];
            while let Some(&top) = stack.last() {
                let open =
                    self.sources(&self.units[top].members).into_iter().find(|&u| u != top && !placed[u]);
                match open {
                    Some(source) => stack.push(source),
                    None => {
                        stack.pop();
                        if !std::mem::replace(&mut placed[top], true) {
                            result.push(self.units[top].clone());
                        }
                    }
                }
            }
        }
        result
    }
}

/// Whether a shape has few elements for all input sizes.
fn is_small(shape: &[Dim]) -> bool {
    let elements = shape.iter().try_fold(1i64, |n, extent| n.checked_mul(extent.as_const()?));
    elements.is_some_and(|n| n <= SMALL)
}

/// The shape that a node loops over, if it can be part of a fused node.
fn loop_shape(graph: &Graph, node: &Node) -> Option<Vec<Dim>> {
    let of = match &node.op {
        Op::Reduce(_) if graph.ty(node.ins[0]).dtype == crate::dtype::DType::F32 => node.ins[0],
        _ if fusible(graph, node) => node.outs[0],
        _ => return None,
    };
    Some(graph.ty(of).shape.clone())
}

/// The graph of these units.
fn rebuild(graph: &Graph, uses: &Uses, units: &[Unit]) -> Result<Graph, GraphError> {
    let mut nodes: Vec<Node> = Vec::with_capacity(units.len());
    for unit in units {
        let node = &graph.nodes[unit.members[0]];
        let alone = unit.members.len() == 1 && uses.ins[unit.members[0]] == node.ins;
        match assemble(graph, uses, &unit.members) {
            Some(Assembled { chain, ins, outs }) if !alone => {
                nodes.push(Node { op: chain.into(), ins, outs, ..*node });
            }
            _ => nodes.extend(unit.members.iter().map(|&id| graph.nodes[id].clone())),
        }
    }
    // Drop expansions whose only reader reads past them.
    let mut read = uses.wanted.clone();
    nodes.iter().flat_map(|node| &node.ins).for_each(|v| read[v.index()] = true);
    let mut to = Rewriter::of(graph);
    for node in nodes.into_iter().filter(|n| !matches!(n.op, Op::Expand(_)) || read[n.outs[0].index()]) {
        to.push(node);
    }
    to.finish()
}
