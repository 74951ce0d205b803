//! Checks a plan against its graph without sharing code with the planner. What holds for a plan that
//! passes:
//!
//! 1. buffers in use at the same time in one space never overlap, and lie within it;
//! 2. every node runs at least once per partial, collectives exactly once and in the graph's order, updates
//!    exactly once, views never;
//! 3. every operand is, at that moment, completely there: the right value, of the right partial, and a
//!    sum over all partials where one is due;
//! 4. a result shares bytes with an operand only where the operator allows it;
//! 5. partial results are added in order, each once;
//! 6. an input carried in the forward pass is, in a later partial, what the one before it left;
//! 7. at the end every output is there, and every carried input holds its next value;
//! 8. no update of an objective runs before its losses are known, so that nothing is changed by a step
//!    that has failed;
//! 9. the most bytes in use at once are what the plan says they are;
//! 10. kernels and collectives work on device memory only, and moves lead from one space to another; what meets
//!     others does so on the stream of collectives, one after the other;
//! 11. all this is so whenever streams do their steps, as long as a step waits for what it names: of two
//!     steps that touch the same bytes, one of them to write, the later one waits for the earlier.
//!
//! The time it takes grows with the number of steps alone.

mod race;

use crate::document::plan::{Act, BufferId, BufferRange, OutputPlace, Plan, Step, Tier};
use gulliver_graph::graph::{Graph, GraphOutput, Node, Origin, Phase, Value, ValueInfo};
use race::Race;
use std::collections::BTreeMap;

/// What some bytes hold.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    value: Value,
    /// The slice, for a value computed once per partial.
    partial: u32,
    /// How many partials are added up in it, starting with that slice.
    summed: u32,
}

/// The first thing wrong with a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("step {step}: {why}")]
pub struct Broken {
    /// Index of the step; the number of steps if the end state is wrong.
    pub step: usize,
    /// What is wrong.
    pub why: String,
}

struct Checker<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    facts: Facts,
    /// Which buffers are in use.
    live: Vec<bool>,
    /// First byte to (end, buffer) of those in use that have bytes, by space.
    occupied: Vec<BTreeMap<u64, (u64, BufferId)>>,
    /// Bytes in use, and most of them so far, by space.
    used: Vec<(u64, u64)>,
    /// What is where, by buffer.
    held: Vec<Vec<(BufferRange, Held)>>,
    /// How often each node ran for each partial.
    runs: Vec<u32>,
    race: Race,
}

/// What the graph says, by value.
struct Facts {
    /// Bytes of one instance.
    bytes: Vec<u64>,
    /// The value whose bytes a chain of views shows.
    shown: Vec<Value>,
    /// Computed or fed once per partial.
    per_partial: Vec<bool>,
    /// The next value of a carried input.
    next: Vec<Option<Value>>,
    /// Where an input is.
    input: Vec<Option<BufferRange>>,
    /// Places of the losses of each objective.
    losses: Vec<Vec<(BufferRange, Held)>>,
}

impl Facts {
    fn of(graph: &Graph, plan: &Plan) -> Result<Facts, String> {
        let count = graph.values.len();
        let mut shown: Vec<Value> = (0..count as u32).map(Value).collect();
        for node in graph.nodes.iter().filter(|n| n.op.def().is_view()) {
            shown[node.outs[0].index()] = shown[node.ins[0].index()];
        }
        let mut facts = Facts {
            bytes: sizes_in_bytes(graph, plan)?,
            shown,
            per_partial: (0..count as u32).map(|v| graph.repeats(Value(v))).collect(),
            next: vec![None; count],
            input: vec![None; count],
            losses: Vec::new(),
        };
        for (input, next) in &graph.carries {
            facts.next[input.index()] = Some(*next);
        }
        for input in &plan.inputs {
            let known = facts.input.get_mut(input.value.index());
            *known.ok_or("an input that the graph does not have")? = Some(input.place);
        }
        for out in &plan.outputs {
            let info = graph.values.get(out.value.index()).ok_or("an output that the graph does not have")?;
            let Origin::Node { node, .. } = info.origin else { continue };
            if !out.is_early_loss() {
                continue;
            }
            let objective = graph.nodes[node.index()].objective as usize;
            if facts.losses.len() <= objective {
                facts.losses.resize(objective + 1, Vec::new());
            }
            let root = facts.shown[out.value.index()];
            let summed = if facts.per_partial[root.index()] { plan.partials } else { 1 };
            facts.losses[objective].push((out.place, Held { value: root, partial: 0, summed }));
        }
        Ok(facts)
    }
}

/// Checks everything listed at the top of this file.
pub fn verify(graph: &Graph, plan: &Plan) -> Result<(), Broken> {
    let broken = |step: usize, why: String| Broken { step, why };
    let mut c = Checker {
        graph,
        plan,
        facts: Facts::of(graph, plan).map_err(|why| broken(0, why))?,
        live: vec![false; plan.buffers.len()],
        occupied: vec![BTreeMap::new(); plan.spaces.len()],
        used: vec![(0, 0); plan.spaces.len()],
        held: vec![Vec::new(); plan.buffers.len()],
        runs: vec![0; graph.nodes.len() * plan.partials as usize],
        race: Race::new(plan),
    };
    c.sizes().map_err(|why| broken(0, why))?;
    let mut fed = false;
    for (i, step) in plan.steps.iter().enumerate() {
        if !fed && !matches!(step.act, Act::Alloc(_)) {
            c.feed().map_err(|why| broken(i, why))?;
            fed = true;
        }
        c.step(&step.act).and_then(|()| c.order(i, step)).map_err(|why| broken(i, why))?;
    }
    if !fed {
        c.feed().map_err(|why| broken(plan.steps.len(), why))?;
    }
    c.end().map_err(|why| broken(plan.steps.len(), why))
}

impl Checker<'_> {
    fn per_partial(&self, v: Value) -> bool {
        self.facts.per_partial[v.index()]
    }

    fn shown(&self, v: Value) -> Value {
        self.facts.shown[v.index()]
    }

    fn sizes(&self) -> Result<(), String> {
        for (i, b) in self.plan.buffers.iter().enumerate() {
            let space = self.plan.spaces.get(b.space as usize).ok_or(format!("buffer {i} is in no space"))?;
            if b.offset.checked_add(b.bytes).is_none_or(|end| end > space.bytes) {
                return Err(format!("buffer {i} ends beyond {}", space.tier));
            }
        }
        for input in &self.plan.inputs {
            let copies = if self.per_partial(input.value) { u64::from(self.plan.partials) } else { 1 };
            if Some(input.place.bytes) != self.facts.bytes[input.value.index()].checked_mul(copies) {
                return Err(format!("input %{} has the wrong number of bytes", input.value.0));
            }
        }
        Ok(())
    }

    fn feed(&mut self) -> Result<(), String> {
        for (v, _, info) in self.graph.inputs() {
            let place = self.facts.input[v.index()];
            let place = place.ok_or_else(|| format!("input `{}` has no place", info.name))?;
            let copies = if self.per_partial(v) { self.plan.partials } else { 1 };
            let bytes = self.facts.bytes[v.index()];
            for partial in 0..copies {
                let start = place.start + u64::from(partial) * bytes;
                self.write(
                    BufferRange { buffer: place.buffer, start, bytes },
                    Held { value: v, partial, summed: 1 },
                )?;
            }
        }
        Ok(())
    }

    fn step(&mut self, act: &Act) -> Result<(), String> {
        match act {
            Act::Alloc(b) => self.alloc(*b),
            Act::Free(b) => self.free(*b),
            Act::Run { node, partial, ins, outs, scratch } => {
                let n =
                    self.graph.nodes.get(node.index()).ok_or(format!("node {} does not exist", node.0))?;
                if n.op.def().meets() {
                    return Err(format!("node {} meets others while it computes", node.0));
                }
                self.run(n, node.index(), *partial, ins, outs, scratch.as_ref())
            }
            Act::Exchange { node, partial, own, result } => {
                let n =
                    self.graph.nodes.get(node.index()).ok_or(format!("node {} does not exist", node.0))?;
                if !n.op.def().meets() {
                    return Err(format!("node {} meets nobody", node.0));
                }
                self.run(n, node.index(), *partial, own.as_slice(), std::slice::from_ref(result), None)
            }
            Act::Copy { from, to } | Act::Move { from, to } => {
                let held = self.read(from)?;
                if from.bytes != to.bytes {
                    return Err("copies between places of different size".into());
                }
                self.write(*to, held)
            }
            Act::Add { from, into } => {
                let (part, sum) = (self.read(from)?, self.read(into)?);
                if part.value != sum.value || part.summed != 1 || part.partial != sum.partial + sum.summed {
                    return Err(format!("adds partial {} of %{} out of order", part.partial, part.value.0));
                }
                self.write(*into, Held { summed: sum.summed + 1, ..sum })
            }
        }
    }

    /// Rules 10 and 11 for a step that has passed the others, so that its buffers exist and are in use.
    fn order(&mut self, index: usize, step: &Step) -> Result<(), String> {
        let plan = self.plan;
        let space = |p: &BufferRange| plan.buffer(p.buffer).space;
        let tier = |p: &BufferRange| plan.spaces[space(p) as usize].tier;
        let (reads, writes): (Vec<&BufferRange>, Vec<&BufferRange>) = match &step.act {
            Act::Alloc(_) | Act::Free(_) if step.after.is_empty() => return Ok(()),
            Act::Alloc(_) | Act::Free(_) => return Err("a mark waits for a step".into()),
            Act::Run { ins, outs, scratch, .. } => {
                (ins.iter().collect(), outs.iter().chain(scratch).collect())
            }
            Act::Exchange { own, result, .. } => (own.iter().collect(), vec![result]),
            Act::Copy { from, to } | Act::Move { from, to } => (vec![from], vec![to]),
            Act::Add { from, into } => (vec![from, into], vec![into]),
        };
        match &step.act {
            Act::Move { from, to } if space(from) == space(to) => {
                return Err("moves within one space".into());
            }
            Act::Move { .. } => {}
            _ if reads.iter().chain(&writes).any(|p| tier(p) != Tier::Device) => {
                return Err("works on bytes that are not on the device".into());
            }
            _ => {}
        }
        let stream = plan.stream(&step.act).ok_or("no stream")?;
        self.race.start(index, stream, &step.after)?;
        for place in reads {
            self.race.touch(index, stream, place.buffer, false)?;
        }
        for place in writes {
            self.race.touch(index, stream, place.buffer, true)?;
        }
        Ok(())
    }

    fn in_use(&self, b: BufferId) -> bool {
        self.live.get(b.0 as usize).copied().unwrap_or(false)
    }

    fn alloc(&mut self, b: BufferId) -> Result<(), String> {
        let new = self.plan.buffers.get(b.0 as usize).ok_or(format!("buffer {} does not exist", b.0))?;
        if self.in_use(b) {
            return Err(format!("buffer {} is taken twice", b.0));
        }
        // `sizes` has checked space and end of every buffer.
        let (space, end) = (new.space as usize, new.offset + new.bytes);
        if new.bytes > 0 {
            let below = self.occupied[space].range(..end).next_back();
            if let Some((_, (_, old))) = below.filter(|(_, (old_end, _))| *old_end > new.offset) {
                return Err(format!("buffers {} and {} overlap", old.0, b.0));
            }
            self.occupied[space].insert(new.offset, (end, b));
            self.race.take(space, new.offset..end, b);
        }
        let (now, most) = &mut self.used[space];
        *now += new.bytes;
        *most = (*most).max(*now);
        self.live[b.0 as usize] = true;
        Ok(())
    }

    fn free(&mut self, b: BufferId) -> Result<(), String> {
        if !self.in_use(b) {
            return Err(format!("buffer {} is freed but not in use", b.0));
        }
        let old = self.plan.buffer(b);
        if old.bytes > 0 {
            self.occupied[old.space as usize].remove(&old.offset);
            self.race.leave(old.space as usize, old.offset..old.offset + old.bytes, b);
        }
        self.used[old.space as usize].0 -= old.bytes;
        self.live[b.0 as usize] = false;
        self.held[b.0 as usize].clear();
        Ok(())
    }

    fn run(
        &mut self,
        node: &Node,
        id: usize,
        partial: u32,
        ins: &[BufferRange],
        outs: &[BufferRange],
        scratch: Option<&BufferRange>,
    ) -> Result<(), String> {
        let label = || format!("node {id} ({})", node.op.def().name());
        if node.phase == Phase::Update {
            for (place, wanted) in self.facts.losses.get(node.objective as usize).into_iter().flatten() {
                if self.read(place).ok() != Some(*wanted) {
                    return Err(format!("{} updates before the loss is known", label()));
                }
            }
        }
        let mut wanted = Vec::with_capacity(ins.len());
        for (i, v) in node.ins.iter().enumerate() {
            // A view of what exists once, such as a weight, exists once too.
            let root = self.shown(*v);
            let all = node.phase == Phase::Update && self.per_partial(root);
            if let Some(held) = self.carried_before(root, node.objective, partial) {
                wanted.push((v, held));
            } else if all && node.op.def().each_partial(i) {
                let each = |partial| (v, Held { value: root, partial, summed: 1 });
                wanted.extend((0..self.plan.partials).map(each));
            } else {
                let held = Held {
                    value: root,
                    partial: if self.per_partial(root) && !all { partial } else { 0 },
                    summed: if all { self.plan.partials } else { 1 },
                };
                wanted.push((v, held));
            }
        }
        if ins.len() != wanted.len() || outs.len() != node.outs.len() {
            return Err(format!("{} has the wrong number of operands", label()));
        }
        for ((v, wanted), place) in wanted.into_iter().zip(ins) {
            let held = self.read(place).map_err(|why| format!("{}: {why}", label()))?;
            if held != wanted || place.bytes != self.facts.bytes[v.index()] {
                return Err(format!("{} wants {wanted:?} and finds {held:?}", label()));
            }
        }
        for (o, out) in outs.iter().enumerate() {
            let shared = ins.iter().enumerate().filter(|(_, place)| overlap(place, out));
            for (i, place) in shared {
                if place != out || !node.op.def().in_place().contains(&(i, o)) {
                    return Err(format!("{} writes output {o} over input {i}", label()));
                }
            }
            if outs[..o].iter().chain(scratch).any(|other| overlap(other, out)) {
                return Err(format!("{} writes output {o} over another", label()));
            }
        }
        if scratch.is_some_and(|s| ins.iter().any(|place| overlap(place, s)) || !self.in_use(s.buffer)) {
            return Err(format!("{} has scratch space over an operand, or none", label()));
        }
        for (v, place) in node.outs.iter().zip(outs) {
            if place.bytes != self.facts.bytes[v.index()] {
                return Err(format!("{} writes %{} with the wrong number of bytes", label(), v.0));
            }
            let partial = if node.phase == Phase::Update { 0 } else { partial };
            self.write(*place, Held { value: *v, partial, summed: 1 })?;
        }
        let slot =
            id * self.plan.partials as usize + if node.phase == Phase::Update { 0 } else { partial as usize };
        *self.runs.get_mut(slot).ok_or_else(|| format!("{} runs for partial {partial}", label()))? += 1;
        Ok(())
    }

    /// What an input holds if an earlier partial of this objective, or an earlier objective, has carried
    /// it already in the forward pass.
    fn carried_before(&self, v: Value, objective: u32, partial: u32) -> Option<Held> {
        let next = self.facts.next[v.index()]?;
        let Origin::Node { node, .. } = self.graph.value(next).origin else { return None };
        let carrier = self.graph.nodes[node.index()].objective;
        if !self.per_partial(next) || carrier > objective || (carrier == objective && partial == 0) {
            return None;
        }
        let last = if carrier == objective { partial - 1 } else { self.plan.partials - 1 };
        Some(Held { value: self.shown(next), partial: last, summed: 1 })
    }

    fn read(&self, place: &BufferRange) -> Result<Held, String> {
        let all = self.held.get(place.buffer.0 as usize);
        let found = all.and_then(|all| all.iter().find(|(p, _)| p == place));
        found.map(|(_, h)| *h).ok_or_else(|| format!("nothing complete is at {place:?}"))
    }

    fn write(&mut self, place: BufferRange, held: Held) -> Result<(), String> {
        let buffer = self.plan.buffers.get(place.buffer.0 as usize).ok_or("writes to no buffer")?;
        let inside = place.start.checked_add(place.bytes).is_some_and(|end| end <= buffer.bytes);
        if !inside || !self.in_use(place.buffer) {
            return Err(format!("writes outside a buffer in use: {place:?}"));
        }
        let all = &mut self.held[place.buffer.0 as usize];
        all.retain(|(p, _)| !overlap(p, &place) && *p != place);
        all.push((place, held));
        Ok(())
    }

    fn end(&self) -> Result<(), String> {
        for (id, node) in self.graph.nodes.iter().enumerate() {
            let partials = self.plan.partials as usize;
            let runs = &self.runs[id * partials..][..partials];
            let right = match node.phase {
                _ if node.op.def().is_view() => runs.iter().all(|&n| n == 0),
                Phase::Update => runs[0] == 1,
                _ if node.op.def().meets() => runs.iter().all(|&n| n == 1),
                _ => runs.iter().all(|&n| n > 0),
            };
            if !right {
                return Err(format!("node {id} ran {runs:?} times"));
            }
        }
        for (space, (_, most)) in self.plan.spaces.iter().zip(&self.used) {
            if space.live != *most {
                return Err(format!("{} uses {most} bytes at once, not {}", space.tier, space.live));
            }
        }
        for GraphOutput { name, role, scope, value } in &self.graph.outputs {
            let same =
                |o: &&OutputPlace| (&o.name, o.role, o.scope, o.value) == (name, *role, *scope, *value);
            let out = self.plan.outputs.iter().find(same);
            let held = self.read(&out.ok_or(format!("output `{name}` has no place"))?.place)?;
            let root = self.shown(*value);
            let summed = if self.per_partial(root) { self.plan.partials } else { 1 };
            if held != (Held { value: root, partial: 0, summed }) {
                return Err(format!("output `{name}` is {held:?}"));
            }
        }
        for (input, next) in &self.graph.carries {
            let place = self.facts.input[input.index()];
            let held = self.read(&place.ok_or("a carried input has no place")?)?;
            let last = if self.per_partial(*next) { self.plan.partials - 1 } else { 0 };
            if held != (Held { value: self.shown(*next), partial: last, summed: 1 }) {
                return Err(format!("%{} ends as {held:?}, not as its next value", input.0));
            }
        }
        Ok(())
    }
}

fn sizes_in_bytes(graph: &Graph, plan: &Plan) -> Result<Vec<u64>, String> {
    let sizes = plan.bindings();
    let bytes = |info: &ValueInfo| -> Result<u64, String> {
        info.ty.shape.iter().try_fold(info.ty.dtype.size() as u64, |bytes, dim| {
            let extent = dim.bind(&sizes).map_err(|e| e.to_string())?;
            bytes.checked_mul(extent as u64).ok_or_else(|| "a value is too large".to_string())
        })
    };
    graph.values.iter().map(bytes).collect()
}

fn overlap(a: &BufferRange, b: &BufferRange) -> bool {
    a.buffer == b.buffer && a.start < b.start + b.bytes && b.start < a.start + a.bytes
}
