//! Data parallel: every device has all weights and takes one or more neighbouring partials of the batch. Its graph is the
//! job's own, except that gradients are summed over all devices before the update, in the order of the partials, so that
//! the bits are those of one device. Instead of all weights a device may have shards of them ([`sharded`]).

mod shards;

pub use shards::{Sharded, ShardedValues, evaluating, sharded};

use crate::devices::cut::{split_range, whole_box};
use gulliver_graph::dim::Dim;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::collect::Collect;
use gulliver_graph::graph::op::exchange::{Exchange, Piece};
use gulliver_graph::graph::op::expand::Expand;
use gulliver_graph::graph::op::reshape::Reshape;
use gulliver_graph::graph::op::send_receive::SendReceive;
use gulliver_graph::graph::op::slice::Slice;
use gulliver_graph::graph::op::sum_onto::SumOnto;
use gulliver_graph::graph::{Graph, GraphError, GraphOutput, Node, ObjectivePhase, Origin, Phase, Value};
use gulliver_graph::rewrite::Rewriter;
use gulliver_graph::role::OutputScope;
use gulliver_graph::spec::Region;
use shards::Shards;
use std::collections::HashMap;
use std::ops::Range;

/// Why a graph cannot be replicated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplicateError {
    /// A gradient whose size depends on the input.
    #[error("`{name}` is {ty}: values that devices exchange for an update must have a fixed size")]
    NotFixed {
        /// The value.
        name: String,
        /// Its type.
        ty: String,
    },
    /// A state that the forward pass changes and also computes with.
    #[error("`{0}` is changed by the forward pass, and more than its next value depends on it")]
    Entangled(String),
    /// The device's graph breaks a rule of graphs.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Smaller sums are computed whole by every device: one collective instead of two.
const SMALL: u64 = 64 << 10;

/// The graph of one of several devices, each with `partials` partials. Outputs of the forward pass are sums over the
/// partials of this device; if there are several partials, the sums over all devices are outputs too, with the scope
/// [`OutputScope::AllDevices`].
pub fn replica(graph: &Graph, rank: u32, ranks: u32, partials: u32) -> Result<Graph, ReplicateError> {
    if ranks < 2 {
        return Ok(graph.clone());
    }
    let mut r = Replica::new(graph, rank, ranks, partials);
    r.all_nodes()?;
    Ok(r.to.finish()?)
}

/// Values that updates of one objective read summed over all partials, in the order in which they are made.
struct Adding {
    objective: u32,
    values: Vec<Value>,
    /// By value: the sum so far on this device.
    own: Vec<Value>,
    /// How many are summed; with several partials, how many waves are done.
    done: usize,
    /// Whether the first update was written; all sums come before it.
    updating: bool,
}

/// Forward nodes that compute the states which the forward pass changes (running statistics). They run after the
/// backward pass of their objective, for all partials in order.
struct Late {
    /// By node.
    node: Vec<bool>,
    /// (state, next value, the objective that makes it).
    carries: Vec<(Value, Value, u32)>,
    /// The present value of each state.
    states: HashMap<Value, Value>,
    /// By partial: their results, which a later objective may read.
    made: Vec<HashMap<Value, Value>>,
    /// Objectives that are done.
    done: u32,
}

impl Late {
    fn of(graph: &Graph, partials: usize) -> Result<Late, ReplicateError> {
        let carries = graph.carries.iter().filter(|(_, next)| graph.repeats(*next));
        let carries = carries.filter(|(_, next)| graph.maker(*next).is_some());
        let carries: Vec<(Value, Value, u32)> =
            carries.map(|&(state, next)| (state, next, graph.made_in(next).1)).collect();
        let mut depends = vec![false; graph.values.len()];
        carries.iter().for_each(|(state, ..)| depends[state.index()] = true);
        let mut late = vec![false; graph.nodes.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            late[id] = node.ins.iter().any(|v| depends[v.index()]);
            if late[id] {
                node.outs.iter().for_each(|v| depends[v.index()] = true);
            }
        }
        // No backward node, update or output may need them.
        let entangled = |v: Value| Err(ReplicateError::Entangled(graph.value(v).name.clone()));
        for (node, _) in graph.nodes.iter().zip(&late).filter(|(_, late)| **late) {
            if node.phase != Phase::Forward {
                return entangled(node.ins[0]);
            }
        }
        if let Some(v) = graph.outputs.iter().map(|output| output.value).find(|v| depends[v.index()]) {
            return entangled(v);
        }
        let states = carries.iter().map(|(state, ..)| (*state, *state)).collect();
        Ok(Late { node: late, carries, states, made: vec![HashMap::new(); partials], done: 0 })
    }
}

struct Replica<'a> {
    from: &'a Graph,
    rank: u32,
    ranks: u32,
    partials: u32,
    to: Rewriter,
    /// Outputs that are single numbers, as each partial makes them.
    numbers: HashMap<Value, Value>,
    /// Sums over all devices.
    sums: HashMap<Value, Value>,
    collectives: u32,
    /// The shards of weights, if devices have shards.
    shards: Option<Shards>,
}

impl<'a> Replica<'a> {
    fn new(from: &'a Graph, rank: u32, ranks: u32, partials: u32) -> Replica<'a> {
        let (to, numbers, sums) = (Rewriter::of(from), HashMap::new(), HashMap::new());
        Replica { from, rank, ranks, partials, to, numbers, sums, collectives: 0, shards: None }
    }

    /// Every node of the job's graph, with the collectives that it needs.
    fn all_nodes(&mut self) -> Result<(), ReplicateError> {
        let graph = self.from;
        let mut late = Late::of(graph, (self.ranks * self.partials) as usize)?;
        let mut adding = self.added_up();
        for (id, node) in graph.nodes.iter().enumerate() {
            if late.node[id] {
                continue;
            }
            let mut node = node.clone();
            let (phase, objective) = (node.phase, node.objective);
            if phase == Phase::Update {
                self.catch_up(&mut late, objective)?;
                let adding = &mut adding[objective as usize];
                if !std::mem::replace(&mut adding.updating, true) {
                    self.add_up(adding, usize::MAX)?;
                    self.total_numbers(objective);
                }
                for v in node.ins.iter_mut().filter(|v| graph.repeats(**v)) {
                    *v = self.sums[v];
                }
            }
            let made: Vec<Value> = node.outs.iter().copied().filter(|v| self.totalled(phase, *v)).collect();
            match self.shards {
                Some(_) => self.in_shards(id, node, &mut adding[objective as usize])?,
                None => {
                    self.to.push(node);
                }
            }
            made.into_iter().for_each(|v| self.set_apart(v));
        }
        self.catch_up(&mut late, (adding.len() as u32).saturating_sub(1))
    }

    fn name(&self, v: Value) -> String {
        self.to.graph().value(v).name.clone()
    }

    /// The values to be summed for the updates of every objective, each once.
    fn added_up(&self) -> Vec<Adding> {
        let from = self.from;
        let objectives = from.nodes.iter().map(|node| node.objective + 1).max().unwrap_or(0);
        let mut known = vec![false; from.values.len()];
        let of = |objective| {
            let updates = from.nodes.iter().filter(|n| n.phase == Phase::Update && n.objective == objective);
            let read = updates.flat_map(|n| &n.ins).copied().filter(|v| from.repeats(*v));
            let mut values: Vec<Value> =
                read.filter(|v| !std::mem::replace(&mut known[v.index()], true)).collect();
            values.sort_unstable_by_key(|v| made(from, *v));
            Adding { objective, own: values.clone(), values, done: 0, updating: false }
        };
        (0..objectives).map(of).collect()
    }

    /// Sums over all devices the values that can be summed once the first `made` of them are there.
    fn add_up(&mut self, adding: &mut Adding, made: usize) -> Result<(), ReplicateError> {
        let values = adding.values.len();
        // A sum passes all devices.
        let all = if self.partials == 1 || values == 0 { values } else { values + self.ranks as usize - 1 };
        let until = if made < values { made } else { all };
        while adding.done < until {
            if self.partials == 1 {
                let v = adding.values[adding.done];
                let sum = self.sum(v, adding.objective)?;
                self.sums.insert(v, sum);
            } else {
                self.wave(adding)?;
            }
            adding.done += 1;
        }
        Ok(())
    }

    /// Adds the sums over all devices of single numbers that are outputs of an objective.
    fn total_numbers(&mut self, objective: u32) {
        for output in &self.from.outputs {
            let made_here =
                self.from.maker(output.value).is_some() && self.from.made_in(output.value).1 == objective;
            if let Some(&number) = self.numbers.get(&output.value).filter(|_| made_here) {
                let value = self.total(number, objective);
                self.to.output(GraphOutput { scope: OutputScope::AllDevices, value, ..output.clone() });
            }
        }
    }

    /// One more wave of sums over all partials of all devices: each device adds its own partials to the sum of the one
    /// before, and the last broadcasts the result. There is a wave for each value, one after another.
    fn wave(&mut self, adding: &mut Adding) -> Result<(), ReplicateError> {
        let (rank, last, objective) = (self.rank, self.ranks - 1, adding.objective);
        let wave = adding.done as u32 + 1;
        for (i, v) in adding.values.iter().copied().enumerate().rev() {
            let Some(hop) = wave.checked_sub(i as u32).filter(|hop| (1..=self.ranks).contains(hop)) else {
                continue;
            };
            let (dtype, shape) = self.fixed(v)?;
            let (name, when) = (format!("{}.sum", self.name(v)), (Phase::Update, objective));
            let collective = self.collectives;
            self.collectives += 1;
            if hop < self.ranks {
                let (from, to) = (hop - 1, hop);
                if rank != from && rank != to {
                    continue;
                }
                let shape = shape.iter().copied().map(Dim::from).collect();
                let op = SendReceive { collective, rank, from, to, dtype, shape };
                let ins = if rank == from { vec![adding.own[i]] } else { Vec::new() };
                let passed = self.to.add(op, ins, name.clone(), when);
                if rank == to {
                    adding.own[i] = self.to.add(SumOnto {}, vec![passed, v], name, when);
                }
                continue;
            }
            // The last device sends all of it, or a shard, to every other one.
            let region = self.kept(&shape);
            let takes = rank != last || region.is_some();
            let ins = if rank == last { vec![adding.own[i]] } else { Vec::new() };
            let own = region.clone().unwrap_or_else(|| whole_box(&shape));
            let result = if takes { own.iter().map(Range::len).collect() } else { vec![0] };
            let pieces = if takes { vec![Piece::of(last, &shape, &own)] } else { Vec::new() };
            let ranks = (0..self.ranks).collect();
            let op = Exchange { collective, rank, ranks, dtype, shape: result, pieces };
            let given = self.to.add(op, ins, name, when);
            if region.is_some() {
                self.in_part(given, shape);
            }
            self.sums.insert(v, if takes { given } else { adding.own[i] });
        }
        Ok(())
    }

    /// Whether the sum over all devices of a result of this phase is an output of its own.
    fn totalled(&self, phase: Phase, v: Value) -> bool {
        let ty = self.from.ty(v);
        let single = ty.rank() == 0 && ty.dtype == DType::F32;
        self.partials > 1
            && phase != Phase::Update
            && single
            && self.from.outputs.iter().any(|output| output.value == v)
    }

    /// Copies a number as soon as it is made, since outputs are summed in place.
    fn set_apart(&mut self, v: Value) {
        let when = self.to.graph().made_in(v);
        let op = Expand { shape: vec![1.into(), 1.into()] };
        let number = self.to.add(op, vec![v], self.name(v), when);
        self.numbers.insert(v, number);
    }

    /// The sum of a number over all partials of all devices.
    fn total(&mut self, number: Value, objective: u32) -> Value {
        let own = self.collected(number, objective);
        let each = (0..self.ranks).flat_map(|from| (0..self.partials as usize).map(move |p| (from, p)));
        let pieces = each.map(|(from, p)| Piece {
            from,
            of: vec![self.partials as usize, 1],
            source: vec![p, 0],
            target: vec![0, 0],
            extent: vec![1, 1],
            add: (from, p) != (0, 0),
        });
        let pieces = pieces.collect();
        let sum = self.meet(own, DType::F32, vec![1, 1], pieces, (Phase::Update, objective));
        self.to.add(Reshape { shape: Vec::new() }, vec![sum], self.name(number), (Phase::Update, objective))
    }

    /// The rows of all partials of this device.
    fn collected(&mut self, row: Value, objective: u32) -> Value {
        let op = Collect { partials: self.partials as usize };
        self.to.add(op, vec![row], self.name(row), (Phase::Update, objective))
    }

    fn fixed(&self, v: Value) -> Result<(DType, Vec<usize>), ReplicateError> {
        let info = self.to.graph().value(v);
        let extent = |d: &Dim| d.as_const().and_then(|n| usize::try_from(n).ok());
        let shape: Option<Vec<usize>> = info.ty.shape.iter().map(extent).collect();
        let not_fixed = || ReplicateError::NotFixed { name: info.name.clone(), ty: info.ty.to_string() };
        Ok((info.ty.dtype, shape.ok_or_else(not_fixed)?))
    }

    /// A collective of all devices in a phase of an objective.
    fn meet(
        &mut self,
        v: Value,
        dtype: DType,
        shape: Vec<usize>,
        pieces: Vec<Piece>,
        when: ObjectivePhase,
    ) -> Value {
        let name = format!("{}.all", self.name(v));
        let ranks = (0..self.ranks).collect();
        let op = Exchange { collective: self.collectives, rank: self.rank, ranks, dtype, shape, pieces };
        self.collectives += 1;
        self.to.add(op, vec![v], name, when)
    }

    /// The sum of a value over all devices, or this one's shard of it.
    fn sum(&mut self, v: Value, objective: u32) -> Result<Value, ReplicateError> {
        let (dtype, shape) = self.fixed(v)?;
        let bytes = (shape.iter().product::<usize>() * dtype.size()) as u64;
        let cut =
            widest(&shape).filter(|&d| self.ranks > 2 && bytes >= SMALL && shape[d] >= self.ranks as usize);
        let kept = self.kept(&shape);
        let shared = cut.map(|d| share(&shape, d, self.rank, self.ranks));
        let own = kept.clone().or(shared).unwrap_or_else(|| whole_box(&shape));
        let piece = |from| Piece { add: from > 0, ..Piece::of(from, &shape, &own) };
        let pieces = (0..self.ranks).map(piece).collect();
        let sum =
            self.meet(v, dtype, own.iter().map(Range::len).collect(), pieces, (Phase::Update, objective));
        match (kept, cut) {
            (Some(_), _) => self.in_part(sum, shape),
            (None, Some(d)) => {
                return Ok(self.put_together(sum, dtype, &shape, d, (Phase::Update, objective)));
            }
            (None, None) => {}
        }
        Ok(sum)
    }

    /// All of a value of which every device has a share along a dimension.
    fn put_together(
        &mut self,
        own: Value,
        dtype: DType,
        shape: &[usize],
        d: usize,
        when: ObjectivePhase,
    ) -> Value {
        let pieces = (0..self.ranks).map(|from| gathered(from, shape, d, self.ranks)).collect();
        self.meet(own, dtype, shape.to_vec(), pieces, when)
    }

    /// A value of every partial of every device, in order.
    fn gather(&mut self, v: Value, objective: u32) -> Result<Vec<Value>, ReplicateError> {
        let (dtype, shape) = self.fixed(v)?;
        let elements = shape.iter().product();
        // As a row, so that the collective concatenates those of all devices.
        let row = Reshape { shape: vec![Dim::from(1), Dim::from(elements)] };
        let (name, when) = (self.name(v), (Phase::Update, objective));
        let flat = self.to.add(row, vec![v], name.clone(), (Phase::Forward, objective));
        let own = self.collected(flat, objective);
        let each = self.partials as usize;
        let piece = |from| Piece {
            from,
            of: vec![each, elements],
            source: vec![0, 0],
            target: vec![from as usize * each, 0],
            extent: vec![each, elements],
            add: false,
        };
        let pieces = (0..self.ranks).map(piece).collect();
        let rows = vec![self.ranks as usize * each, elements];
        let all = self.meet(own, dtype, rows, pieces, when);
        let shape: Vec<Dim> = shape.into_iter().map(Dim::from).collect();
        let mut parts = Vec::new();
        for start in 0..self.ranks as usize * each {
            let row = Slice { axis: 0, start, len: 1.into(), step: 1 };
            let row = self.to.add(row, vec![all], name.clone(), when);
            let op = Reshape { shape: shape.clone() };
            parts.push(self.to.add(op, vec![row], name.clone(), when));
        }
        Ok(parts)
    }

    /// Adds the late nodes of all objectives up to this one, for all partials in order.
    fn catch_up(&mut self, late: &mut Late, until: u32) -> Result<(), ReplicateError> {
        while late.done <= until {
            self.catch_up_with(late, late.done)?;
            late.done += 1;
        }
        Ok(())
    }

    fn catch_up_with(&mut self, late: &mut Late, objective: u32) -> Result<(), ReplicateError> {
        let from = self.from;
        let nodes =
            from.nodes.iter().zip(&late.node).filter(|(node, late)| **late && node.objective == objective);
        let nodes: Vec<&Node> = nodes.map(|(node, _)| node).collect();
        // Operands that differ from device to device are gathered.
        let mut gathered: HashMap<Value, Vec<Value>> = HashMap::new();
        let makes_late = |v: Value| from.maker(v).is_some_and(|id| late.node[id.index()]);
        for v in nodes.iter().flat_map(|node| &node.ins).filter(|v| from.repeats(**v) && !makes_late(**v)) {
            if !gathered.contains_key(v) {
                gathered.insert(*v, self.gather(*v, objective)?);
            }
        }
        let partials = late.made.len();
        for partial in 0..partials {
            for node in &nodes {
                let seen = |v: &Value| {
                    let parts = gathered.get(v).map(|parts| &parts[partial]);
                    *parts.or(late.made[partial].get(v)).or(late.states.get(v)).unwrap_or(v)
                };
                let ins: Vec<Value> = node.ins.iter().map(seen).collect();
                // The last partial makes the original values.
                let outs = node.outs.iter().map(|&v| {
                    if partial + 1 == partials {
                        return v;
                    }
                    self.to.value(from.value(v).clone())
                });
                let outs: Vec<Value> = outs.collect();
                late.made[partial].extend(node.outs.iter().copied().zip(outs.iter().copied()));
                self.to.push(Node { op: node.op.clone(), ins, outs, phase: Phase::Update, objective });
            }
            for (state, next, _) in late.carries.iter().filter(|(.., of)| *of == objective) {
                late.states.insert(*state, *late.made[partial].get(next).unwrap_or(next));
            }
        }
        Ok(())
    }
}

/// Sorts values by when they are made: node, then result.
fn made(graph: &Graph, v: Value) -> (u32, usize) {
    match graph.value(v).origin {
        Origin::Node { node, output } => (node.0 + 1, output),
        Origin::Input(_) => (0, 0),
    }
}

/// The widest dimension, which is divided.
fn widest(shape: &[usize]) -> Option<usize> {
    (0..shape.len()).rev().max_by_key(|&d| shape[d])
}

/// A device's share of a value that is divided evenly along a dimension.
fn share(shape: &[usize], d: usize, rank: u32, ranks: u32) -> Region {
    let mut region = whole_box(shape);
    region[d] = split_range(&region[d], &vec![1; ranks as usize], rank as usize);
    region
}

/// The piece of a value divided along a dimension that a device contributes to the whole value.
fn gathered(from: u32, shape: &[usize], d: usize, ranks: u32) -> Piece {
    let part = share(shape, d, from, ranks);
    let extent: Vec<usize> = part.iter().map(Range::len).collect();
    let target = part.iter().map(|range| range.start).collect();
    Piece { from, of: extent.clone(), source: vec![0; shape.len()], target, extent, add: false }
}
