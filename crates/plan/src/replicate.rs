//! Data parallel: every device has all weights and takes one partial of the batch. Its graph is the job's
//! own, save that gradients are added up over all devices before the update, in the order of the partials,
//! so that each ends up with the bits that one device has after all partials.

use crate::cut::split;
use gulliver_graph::dim::Dim;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Node, NodeId, Origin, Phase, Type, Value, ValueInfo};
use gulliver_graph::op::Op;
use gulliver_graph::op::exchange::{Exchange, Piece};
use gulliver_graph::op::reshape::Reshape;
use gulliver_graph::op::slice::Slice;
use std::ops::Range;

/// Why a graph cannot be replicated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplicateError {
    /// A gradient whose size depends on the input.
    #[error("`{name}` is {ty}: what devices exchange for an update must have a fixed size")]
    NotFixed {
        /// The value.
        name: String,
        /// Its type.
        ty: String,
    },
    /// A state that the forward pass changes and also computes with, or that belongs to a later objective.
    #[error(
        "`{0}` is changed by the forward pass, and more than its next value depends on it, or an objective before it updates"
    )]
    Entangled(String),
}

/// Sums smaller than this are fetched whole by everyone: one meeting instead of two.
const SMALL: u64 = 64 << 10;

/// The graph of one of several devices. Its data are those of one partial; outputs of the forward pass are
/// of that partial too.
pub fn replica(graph: &Graph, party: u32, parties: u32) -> Result<Graph, ReplicateError> {
    if parties < 2 {
        return Ok(graph.clone());
    }
    let late = Late::of(graph)?;
    let mut r = Replica { from: graph, party, parties, to: graph.clone(), meetings: 0 };
    r.to.nodes.clear();
    let mut summed: Vec<Option<Value>> = vec![None; graph.values.len()];
    let mut caught_up = false;
    for (id, node) in graph.nodes.iter().enumerate() {
        if late.node[id] {
            continue;
        }
        let mut node = node.clone();
        if node.phase == Phase::Update {
            if !caught_up {
                r.catch_up(&late)?;
                caught_up = true;
            }
            for v in &mut node.ins {
                if graph.repeats(*v) {
                    let sum = match summed[v.index()] {
                        Some(sum) => sum,
                        None => r.sum(*v, node.stage)?,
                    };
                    summed[v.index()] = Some(sum);
                    *v = sum;
                }
            }
        }
        r.push(node);
    }
    if !caught_up {
        r.catch_up(&late)?;
    }
    Ok(r.to)
}

/// What the forward pass computes of the states it changes: running statistics. It is done after the
/// backward pass, for all partials in order.
struct Late {
    /// By node.
    node: Vec<bool>,
    /// (state, next value).
    carries: Vec<(Value, Value)>,
}

impl Late {
    fn of(graph: &Graph) -> Result<Late, ReplicateError> {
        let carries = graph.carries.iter().filter(|(_, next)| graph.repeats(*next));
        let carries: Vec<(Value, Value)> = carries.copied().collect();
        let mut depends = vec![false; graph.values.len()];
        carries.iter().for_each(|(state, _)| depends[state.index()] = true);
        let mut late = vec![false; graph.nodes.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            late[id] = node.ins.iter().any(|v| depends[v.index()]);
            if late[id] {
                node.outs.iter().for_each(|v| depends[v.index()] = true);
            }
        }
        // Nothing else may need them: neither backward nor update, nor who looks at the outputs.
        let entangled = |v: Value| Err(ReplicateError::Entangled(graph.value(v).name.clone()));
        for (node, _) in graph.nodes.iter().zip(&late).filter(|(_, late)| **late) {
            if node.phase != Phase::Forward || node.stage > 0 {
                return entangled(node.ins[0]);
            }
        }
        if let Some((_, v)) = graph.outputs.iter().find(|(_, v)| depends[v.index()]) {
            return entangled(*v);
        }
        Ok(Late { node: late, carries })
    }
}

struct Replica<'a> {
    from: &'a Graph,
    party: u32,
    parties: u32,
    to: Graph,
    meetings: u32,
}

impl Replica<'_> {
    fn push(&mut self, node: Node) {
        let id = NodeId(self.to.nodes.len() as u32);
        for (output, v) in node.outs.iter().enumerate() {
            self.to.values[v.index()].origin = Origin::Node { node: id, output };
        }
        self.to.nodes.push(node);
    }

    /// Appends a node with one new result.
    fn add(&mut self, op: Op, ins: Vec<Value>, name: String, ty: Type, stage: u32) -> Value {
        let out = Value(self.to.values.len() as u32);
        let origin = Origin::Node { node: NodeId(0), output: 0 };
        self.to.values.push(ValueInfo { name, ty, origin });
        self.push(Node { op, ins, outs: vec![out], phase: Phase::Update, stage });
        out
    }

    fn fixed(&self, v: Value) -> Result<(DType, Vec<usize>), ReplicateError> {
        let info = self.to.value(v);
        let extent = |d: &Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
        let shape: Option<Vec<usize>> = info.ty.shape.iter().map(extent).collect();
        let not_fixed = || ReplicateError::NotFixed { name: info.name.clone(), ty: info.ty.to_string() };
        Ok((info.ty.dtype, shape.ok_or_else(not_fixed)?))
    }

    fn meet(&mut self, v: Value, dtype: DType, shape: Vec<usize>, pieces: Vec<Piece>, stage: u32) -> Value {
        let ty = Type::new(dtype, &shape);
        let name = format!("{}.all", self.to.value(v).name);
        let parties = (0..self.parties).collect();
        let op = Exchange { meeting: self.meetings, party: self.party, parties, dtype, shape, pieces };
        self.meetings += 1;
        self.add(op.into(), vec![v], name, ty, stage)
    }

    /// The sum of a value over all devices.
    fn sum(&mut self, v: Value, stage: u32) -> Result<Value, ReplicateError> {
        let (dtype, shape) = self.fixed(v)?;
        let bytes = (shape.iter().product::<usize>() * dtype.size()) as u64;
        let widest = (0..shape.len()).rev().max_by_key(|&d| shape[d]);
        let cut = widest.filter(|&d| self.parties > 2 && bytes >= SMALL && shape[d] >= self.parties as usize);
        let whole: Vec<Range<usize>> = shape.iter().map(|&n| 0..n).collect();
        let (mut own, shares) = (whole.clone(), vec![1; self.parties as usize]);
        if let Some(d) = cut {
            own[d] = split(&whole[d], &shares, self.party as usize);
        }
        let extent: Vec<usize> = own.iter().map(Range::len).collect();
        let piece = |from| Piece {
            from,
            of: shape.clone(),
            source: own.iter().map(|r| r.start).collect(),
            target: vec![0; shape.len()],
            extent: extent.clone(),
            add: from > 0,
        };
        let pieces = (0..self.parties).map(piece).collect();
        let sum = self.meet(v, dtype, extent.clone(), pieces, stage);
        let Some(d) = cut else { return Ok(sum) };
        let piece = |from| {
            let (mut extent, mut target) = (shape.clone(), vec![0; shape.len()]);
            let part = split(&whole[d], &shares, from as usize);
            (extent[d], target[d]) = (part.len(), part.start);
            Piece { from, of: extent.clone(), source: vec![0; shape.len()], target, extent, add: false }
        };
        let pieces = (0..self.parties).map(piece).collect();
        Ok(self.meet(sum, dtype, shape, pieces, stage))
    }

    /// A value of every device, by device.
    fn gather(&mut self, v: Value, stage: u32) -> Result<Vec<Value>, ReplicateError> {
        let (dtype, shape) = self.fixed(v)?;
        let elements = shape.iter().product();
        // As a row, so that those of all devices lie one below the other.
        let row = vec![Dim::from(1), Dim::from(elements)];
        let name = self.to.value(v).name.clone();
        let flat = Reshape { shape: row.clone() };
        let flat = self.add(flat.into(), vec![v], name.clone(), Type { dtype, shape: row.clone() }, stage);
        let piece = |from| Piece {
            from,
            of: vec![1, elements],
            source: vec![0, 0],
            target: vec![from as usize, 0],
            extent: vec![1, elements],
            add: false,
        };
        let pieces = (0..self.parties).map(piece).collect();
        let all = self.meet(flat, dtype, vec![self.parties as usize, elements], pieces, stage);
        let shape: Vec<Dim> = shape.into_iter().map(Dim::from).collect();
        let mut parts = Vec::new();
        for start in 0..self.parties as usize {
            let op = Slice { axis: 0, start, len: 1.into(), step: 1 };
            let ty = Type { dtype, shape: row.clone() };
            let part = self.add(op.into(), vec![all], name.clone(), ty, stage);
            let op = Reshape { shape: shape.clone() };
            let ty = Type { dtype, shape: shape.clone() };
            parts.push(self.add(op.into(), vec![part], name.clone(), ty, stage));
        }
        Ok(parts)
    }

    /// Does, for all partials in order, what the forward pass does with the states it changes.
    fn catch_up(&mut self, late: &Late) -> Result<(), ReplicateError> {
        let from = self.from;
        let nodes = || from.nodes.iter().zip(&late.node).filter(|(_, late)| **late).map(|(node, _)| node);
        // What differs from device to device; the rest is everyone's.
        let mut gathered: Vec<Option<Vec<Value>>> = vec![None; from.values.len()];
        let mut made = vec![false; from.values.len()];
        for node in nodes() {
            for v in &node.ins {
                if from.repeats(*v) && !made[v.index()] && gathered[v.index()].is_none() {
                    gathered[v.index()] = Some(self.gather(*v, node.stage)?);
                }
            }
            node.outs.iter().for_each(|v| made[v.index()] = true);
        }
        let mut now: Vec<Value> = (0..from.values.len() as u32).map(Value).collect();
        for partial in 0..self.parties as usize {
            for node in nodes() {
                let seen = |v: &Value| match &gathered[v.index()] {
                    Some(parts) => parts[partial],
                    None => now[v.index()],
                };
                let ins: Vec<Value> = node.ins.iter().map(seen).collect();
                // The last partial makes the values there were.
                let outs = node.outs.iter().map(|&v| {
                    if partial + 1 == self.parties as usize {
                        return v;
                    }
                    let new = Value(self.to.values.len() as u32);
                    self.to.values.push(from.value(v).clone());
                    new
                });
                let outs: Vec<Value> = outs.collect();
                for (v, new) in node.outs.iter().zip(&outs) {
                    now[v.index()] = *new;
                }
                let node = Node { op: node.op.clone(), ins, outs, phase: Phase::Update, stage: node.stage };
                self.push(node);
            }
            for (state, next) in &late.carries {
                now[state.index()] = now[next.index()];
            }
        }
        Ok(())
    }
}
