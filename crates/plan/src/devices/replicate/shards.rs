//! Sharded data parallel (ZeRO, stage 3): a device keeps its share of every large weight, gradient and state. A weight is
//! gathered before a pass needs it, and freed after. Each device takes its share of a sum of gradients, and updates its
//! share of the weight. Updates that are not element-wise gather their operands: no sum is divided.

use super::{Adding, Replica, ReplicateError, made, share, widest};
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::exchange::{Exchange, Piece};
use gulliver_graph::graph::op::slice::Slice;
use gulliver_graph::graph::{Graph, GraphOutput, Node, Phase, Role, Type, Value};
use gulliver_graph::rewrite::Rewriter;
use gulliver_graph::role::{OutputRole, OutputScope};
use gulliver_graph::spec::{Index, Region, Spec};
use std::collections::HashMap;
use std::ops::Range;

/// Weights and states of fewer bytes are replicated: a collective would cost more.
const LARGE: usize = 4 << 10;

/// The graph of one device, and its boxes of weights and states.
pub struct Sharded {
    /// The graph.
    pub graph: Graph,
    /// Name, box and whole extents of every sharded weight and state.
    pub boxes: Vec<(String, Region, Vec<usize>)>,
}

/// The shards of a replica.
pub(super) struct Shards {
    /// Whether weights gathered for the forward pass stay for the backward pass.
    keep: bool,
    /// Values of which this device has a share, with their whole extents.
    parts: HashMap<Value, Vec<usize>>,
    /// Gathered values, by value, objective and phase.
    wholes: HashMap<(Value, u32, Phase), Value>,
    /// By objective, the last node of the forward pass.
    forward_ends: Vec<usize>,
}

/// Which values a device keeps only a shard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardedValues {
    /// Weights and states. With `keep`, weights gathered for the forward pass stay for the backward pass; otherwise
    /// they are gathered twice.
    WeightsAndStates {
        /// Whether gathered weights stay.
        keep: bool,
    },
    /// States of the optimizer; weights are whole everywhere, and gathered after each update.
    States,
}

impl ShardedValues {
    fn has(self, role: Role) -> bool {
        match role {
            Role::Weight(_) => self != ShardedValues::States,
            Role::State(_) => true,
            _ => false,
        }
    }
}

/// As [`super::replica`], with shards of some weights and states.
pub fn sharded(
    graph: &Graph,
    (rank, ranks): (u32, u32),
    partials: u32,
    values: ShardedValues,
) -> Result<Sharded, ReplicateError> {
    if ranks < 2 {
        return Ok(Sharded { graph: graph.clone(), boxes: Vec::new() });
    }
    let mut r = Replica::new(graph, rank, ranks, partials);
    let objectives = graph.nodes.iter().map(|node| node.objective as usize + 1).max().unwrap_or(0);
    let mut forward_ends = vec![0; objectives];
    let forward = graph.nodes.iter().enumerate().filter(|(_, node)| node.phase == Phase::Forward);
    forward.for_each(|(id, node)| forward_ends[node.objective as usize] = id);
    let keep = values == ShardedValues::WeightsAndStates { keep: true };
    r.shards = Some(Shards { keep, parts: HashMap::new(), wholes: HashMap::new(), forward_ends });
    let passing = |v: Value| graph.carries.iter().any(|(input, next)| *input == v && graph.repeats(*next));
    let mut boxes = Vec::new();
    for (v, role, info) in graph.inputs() {
        if !values.has(role) || passing(v) {
            continue;
        }
        let (_, shape) = r.fixed(v)?;
        if let Some(region) = r.kept(&shape) {
            boxes.push((info.name.clone(), region, shape.clone()));
            r.in_part(v, shape);
        }
    }
    r.all_nodes()?;
    r.ends();
    Ok(Sharded { graph: r.to.finish()?, boxes })
}

/// The evaluation graph of one device: the first device computes all of it, the others send it their shares of weights.
/// `boxes` are those of any device's [`Sharded`].
pub fn evaluating(
    graph: &Graph,
    (rank, ranks): (u32, u32),
    boxes: &[(String, Region, Vec<usize>)],
) -> Result<Graph, ReplicateError> {
    let mut r = Replica::new(graph, rank, ranks, 1);
    r.shards =
        Some(Shards { keep: true, parts: HashMap::new(), wholes: HashMap::new(), forward_ends: Vec::new() });
    let weights: Vec<Value> = boxes.iter().filter_map(|(name, ..)| graph.input(name)).collect();
    for v in weights {
        let (_, shape) = r.fixed(v)?;
        r.in_part(v, shape);
    }
    if rank == 0 {
        for mut node in graph.nodes.iter().cloned() {
            // Gathered once for all objectives.
            for v in &mut node.ins {
                *v = r.whole(*v, Phase::Forward, 0);
            }
            r.to.push(node);
        }
        return Ok(r.to.finish()?);
    }
    // In the order in which the first device gathers them.
    let parts = r.shards.take().map(|shards| shards.parts).unwrap_or_default();
    let mut brought: Vec<Value> = Vec::new();
    for v in graph.nodes.iter().flat_map(|node| &node.ins).filter(|v| parts.contains_key(v)) {
        if !brought.contains(v) {
            brought.push(*v);
        }
    }
    let mut others = Rewriter::new();
    for (collective, v) in brought.into_iter().enumerate() {
        let info = r.to.graph().value(v);
        let (dtype, name) = (info.ty.dtype, format!("{}.all", info.name));
        let own = others.value(info.clone());
        let (collective, ranks, shape, pieces) =
            (collective as u32, (0..ranks).collect(), vec![0], Vec::new());
        let op = Exchange { collective, rank, ranks, dtype, shape, pieces };
        others.add(op, vec![own], name, (Phase::Forward, 0));
    }
    Ok(others.finish()?)
}

impl Replica<'_> {
    /// The box that this device keeps of a value with these extents, unless it is replicated. It is the same for a weight,
    /// its gradient and its states.
    pub(super) fn kept(&self, shape: &[usize]) -> Option<Region> {
        self.shards.as_ref()?;
        let large = shape.iter().product::<usize>() * size_of::<f32>() >= LARGE;
        let d = widest(shape).filter(|&d| large && shape[d] >= self.ranks as usize)?;
        Some(share(shape, d, self.rank, self.ranks))
    }

    /// Notes that this device has only its share of a value with these extents.
    pub(super) fn in_part(&mut self, v: Value, shape: Vec<usize>) {
        let own = self.kept(&shape).expect("only such values are divided");
        self.to.reshape(v, own.iter().map(|range| Dim::from(range.len())).collect());
        self.shards.as_mut().expect("there are shards").parts.insert(v, shape);
    }

    fn part_of(&self, v: Value) -> Option<&Vec<usize>> {
        self.shards.as_ref().and_then(|shards| shards.parts.get(&v))
    }

    /// Adds a node of the job's graph, with the sums and losses that can follow it.
    pub(super) fn in_shards(
        &mut self,
        id: usize,
        node: Node,
        adding: &mut Adding,
    ) -> Result<(), ReplicateError> {
        let (phase, objective, outs) = (node.phase, node.objective as usize, node.outs.clone());
        if phase == Phase::Update {
            return self.update(node);
        }
        self.with_wholes(node);
        outs.into_iter().for_each(|v| self.tell(v));
        // A gradient is summed as soon as it is made.
        let ended = self.shards.as_ref().is_some_and(|shards| id > shards.forward_ends[objective]);
        if ended {
            let there = |v: &&Value| made(self.from, **v).0 as usize <= id + 1;
            let there = adding.values.iter().take_while(there).count();
            self.add_up(adding, there)?;
        }
        Ok(())
    }

    /// Adds a node with whole operands.
    fn with_wholes(&mut self, mut node: Node) {
        for v in &mut node.ins {
            *v = self.whole(*v, node.phase, node.objective);
        }
        self.to.push(node);
    }

    /// The whole value, gathered in this phase unless it was before.
    fn whole(&mut self, v: Value, phase: Phase, objective: u32) -> Value {
        let Some(shape) = self.part_of(v).cloned() else { return v };
        let shards = self.shards.as_ref().expect("there are parts");
        // A value gathered for a partial cannot serve the update.
        let kept = shards
            .wholes
            .get(&(v, objective, Phase::Forward))
            .filter(|_| shards.keep && phase == Phase::Backward);
        if let Some(known) = kept.or(shards.wholes.get(&(v, objective, phase))) {
            return *known;
        }
        let (dtype, d) = (self.to.graph().ty(v).dtype, widest(&shape).expect("it is divided"));
        let all = self.put_together(v, dtype, &shape, d, (phase, objective));
        self.shards.as_mut().expect("there are parts").wholes.insert((v, objective, phase), all);
        all
    }

    /// This device's share of a value.
    fn part(&mut self, v: Value, own: &[Range<usize>], objective: u32) -> Value {
        if self.part_of(v).is_some() {
            return v;
        }
        let ty = self.to.graph().ty(v);
        let cut = |d: &usize| Dim::from(own[*d].len()) != ty.shape[*d];
        let Some(axis) = (0..own.len()).find(cut) else { return v };
        let (start, len) = (own[axis].start, Dim::from(own[axis].len()));
        let op = Slice { axis, start, len, step: 1 };
        self.to.add(op, vec![v], self.name(v), (Phase::Update, objective))
    }

    /// Adds an update, of this device's share if it is element-wise.
    fn update(&mut self, mut node: Node) -> Result<(), ReplicateError> {
        let Some((op, shape)) = self.by_element(&node)? else {
            self.with_wholes(node);
            return Ok(());
        };
        let own = self.kept(&shape).expect("it is divided");
        for v in &mut node.ins {
            if self.to.graph().ty(*v).rank() > 0 {
                *v = self.part(*v, &own, node.objective);
            }
        }
        node.op = op;
        for v in &node.outs {
            self.in_part(*v, shape.clone());
        }
        self.to.push(node);
        Ok(())
    }

    /// If a node is element-wise, apart from single numbers: the operator for this device's share, and the whole extents.
    fn by_element(&self, node: &Node) -> Result<Option<(Op, Vec<usize>)>, ReplicateError> {
        let extents = |v: Value| -> Result<Vec<usize>, ReplicateError> {
            self.part_of(v).map_or_else(|| self.fixed(v).map(|(_, shape)| shape), |shape| Ok(shape.clone()))
        };
        let shape = extents(node.outs[0])?;
        let Some(own) = self.kept(&shape) else { return Ok(None) };
        let (ins, outs) = (node.ins.iter(), node.outs.iter());
        let ins = ins.map(|v| extents(*v)).collect::<Result<Vec<_>, ReplicateError>>()?;
        let outs = outs.map(|v| extents(*v)).collect::<Result<Vec<_>, ReplicateError>>()?;
        if outs.iter().any(|other| *other != shape)
            || ins.iter().any(|other| !other.is_empty() && *other != shape)
        {
            return Ok(None);
        }
        let types: Vec<Type> = node
            .ins
            .iter()
            .zip(&ins)
            .map(|(v, shape)| Type::new(self.to.graph().ty(*v).dtype, shape))
            .collect();
        let Some(spec) = node.op.def().spec(&types).ok().filter(is_plain) else { return Ok(None) };
        let d = widest(&shape).expect("it is divided");
        let Index::Axis(axis) = spec.outputs[0][d] else { return Ok(None) };
        let dims: Vec<&[Dim]> = types.iter().map(|ty| ty.shape.as_slice()).collect();
        let bound = spec.extents(&dims).ok();
        let bound = bound
            .and_then(|all| all.iter().map(|n| n.bind(&Bindings::new()).ok()).collect::<Option<Vec<_>>>());
        let Some(bound) = bound.filter(|_| spec.cut(axis).is_some_and(|cut| cut.keeps_bits())) else {
            return Ok(None);
        };
        let ins: Vec<&[usize]> = ins.iter().map(Vec::as_slice).collect();
        let outs: Vec<&[usize]> = outs.iter().map(Vec::as_slice).collect();
        let part = spec.part(axis, own[d].clone(), &bound, &ins, &outs);
        Ok(Some((node.op.def().part(&part).unwrap_or_else(|| node.op.clone()), shape)))
    }

    /// Sends a loss to all devices, so that each knows it before the updates.
    fn tell(&mut self, v: Value) {
        let (ty, when) = (self.from.ty(v), self.from.made_in(v));
        let is_loss = |o: &&GraphOutput| o.value == v && o.role == OutputRole::Loss;
        let losses: Vec<GraphOutput> = self.from.outputs.iter().filter(is_loss).cloned().collect();
        if losses.is_empty() || ty.rank() > 0 {
            return;
        }
        let piece = |from| Piece { add: from > 0, ..Piece::all(from, &[]) };
        let pieces = (0..self.ranks).map(piece).collect();
        let all = self.meet(v, ty.dtype, Vec::new(), pieces, when);
        let agreed = |loss| GraphOutput { scope: OutputScope::Agreed, value: all, ..loss };
        self.to.outputs_mut().extend(losses.into_iter().map(agreed));
    }

    /// Makes outputs whole, and next values as large as the inputs they replace.
    fn ends(&mut self) {
        let objective = |r: &Self, v: Value| r.to.graph().made_in(v).1;
        for i in 0..self.to.outputs_mut().len() {
            let v = self.to.outputs_mut()[i].value;
            self.to.outputs_mut()[i].value = self.whole(v, Phase::Update, objective(self, v));
        }
        for i in 0..self.to.carries_mut().len() {
            let (input, next) = self.to.carries_mut()[i];
            self.to.carries_mut()[i].1 = match self.part_of(input).cloned() {
                Some(shape) => {
                    let own = self.kept(&shape).expect("it is divided");
                    self.part(next, &own, objective(self, next))
                }
                None => self.whole(next, Phase::Update, objective(self, next)),
            };
        }
    }
}

/// Whether a spec is element-wise, apart from operands that are single numbers.
fn is_plain(spec: &Spec) -> bool {
    let first = &spec.outputs[0];
    let axes = first.iter().all(|index| matches!(index, Index::Axis(_)));
    !spec.opaque
        && axes
        && spec.axes.len() == first.len()
        && spec.outputs.iter().all(|other| other == first)
        && spec.inputs.iter().all(|other| other.is_empty() || other == first)
}
