//! Checks a plan against its graph without sharing code with the planner. What holds for a plan that
//! passes:
//!
//! 1. buffers in use at the same time on one device never overlap, and lie within its arena;
//! 2. every node runs exactly once per partial (once, for updates), views excepted;
//! 3. every operand is, at that moment, completely there: the right value, of the right partial, and a
//!    sum over all partials where one is due;
//! 4. a result shares bytes with an operand only where the operator allows it;
//! 5. partial results are added in order, each once;
//! 6. an input carried in the forward pass is, in a later partial, what the one before it left;
//! 7. at the end every output is there, and every carried input holds its next value.

use crate::plan::{BufferId, Place, Plan, Step};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Node, Origin, Phase, Role, Value, ValueInfo};
use std::collections::HashMap;

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
    live: Vec<BufferId>,
    /// What is where, by buffer.
    held: HashMap<BufferId, Vec<(Place, Held)>>,
    /// Bytes of one instance of every value.
    bytes: Vec<u64>,
    runs: Vec<u32>,
}

/// Checks everything listed at the top of this file.
pub fn verify(graph: &Graph, plan: &Plan) -> Result<(), Broken> {
    let broken = |step: usize, why: String| Broken { step, why };
    let bytes = sizes_in_bytes(graph, plan).map_err(|why| broken(0, why))?;
    let runs = vec![0; graph.nodes.len()];
    let mut c = Checker { graph, plan, live: Vec::new(), held: HashMap::new(), bytes, runs };
    c.sizes().map_err(|why| broken(0, why))?;
    let mut fed = false;
    for (i, step) in plan.steps.iter().enumerate() {
        if !fed && !matches!(step, Step::Alloc(_)) {
            c.feed().map_err(|why| broken(i, why))?;
            fed = true;
        }
        c.step(step).map_err(|why| broken(i, why))?;
    }
    if !fed {
        c.feed().map_err(|why| broken(plan.steps.len(), why))?;
    }
    c.end().map_err(|why| broken(plan.steps.len(), why))
}

impl Checker<'_> {
    fn per_partial(&self, v: Value) -> bool {
        match self.graph.value(v).origin {
            Origin::Input(role) => matches!(role, Role::Data | Role::Random),
            Origin::Node { node, .. } => self.graph.nodes[node.index()].phase != Phase::Update,
        }
    }

    /// The value whose bytes a chain of views shows.
    fn shown(&self, mut v: Value) -> Value {
        while let Origin::Node { node, .. } = self.graph.value(v).origin {
            let node = &self.graph.nodes[node.index()];
            if !node.op.def().is_view() {
                break;
            }
            v = node.ins[0];
        }
        v
    }

    fn sizes(&self) -> Result<(), String> {
        for (i, b) in self.plan.buffers.iter().enumerate() {
            let device =
                self.plan.devices.get(b.device as usize).ok_or(format!("buffer {i} has no device"))?;
            if b.offset.checked_add(b.bytes).is_none_or(|end| end > device.arena) {
                return Err(format!("buffer {i} ends beyond the arena of {}", device.name));
            }
        }
        for input in &self.plan.inputs {
            let copies = if self.per_partial(input.value) { u64::from(self.plan.partials) } else { 1 };
            if input.place.bytes != self.bytes[input.value.index()] * copies {
                return Err(format!("input %{} has the wrong number of bytes", input.value.0));
            }
        }
        Ok(())
    }

    fn feed(&mut self) -> Result<(), String> {
        for (v, _, info) in self.graph.inputs() {
            let input = self.plan.inputs.iter().find(|i| i.value == v);
            let place = input.ok_or_else(|| format!("input `{}` has no place", info.name))?.place;
            let copies = if self.per_partial(v) { self.plan.partials } else { 1 };
            let bytes = self.bytes[v.index()];
            for partial in 0..copies {
                let start = place.start + u64::from(partial) * bytes;
                self.write(
                    Place { buffer: place.buffer, start, bytes },
                    Held { value: v, partial, summed: 1 },
                )?;
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Alloc(b) => self.alloc(*b),
            Step::Free(b) => {
                let at = self.live.iter().position(|l| l == b);
                self.live.swap_remove(at.ok_or(format!("buffer {} is freed but not in use", b.0))?);
                self.held.remove(b);
                Ok(())
            }
            Step::Run { node, partial, ins, outs, scratch } => {
                let n =
                    self.graph.nodes.get(node.index()).ok_or(format!("node {} does not exist", node.0))?;
                self.run(n, node.index(), *partial, ins, outs, scratch.as_ref())
            }
            Step::Copy { from, to } => {
                let held = self.read(from)?;
                if from.bytes != to.bytes {
                    return Err("copies between places of different size".into());
                }
                self.write(*to, held)
            }
            Step::Add { from, into } => {
                let (part, sum) = (self.read(from)?, self.read(into)?);
                if part.value != sum.value || part.summed != 1 || part.partial != sum.partial + sum.summed {
                    return Err(format!("adds partial {} of %{} out of order", part.partial, part.value.0));
                }
                self.write(*into, Held { summed: sum.summed + 1, ..sum })
            }
        }
    }

    fn alloc(&mut self, b: BufferId) -> Result<(), String> {
        let new = self.plan.buffers.get(b.0 as usize).ok_or(format!("buffer {} does not exist", b.0))?;
        for l in &self.live {
            let old = self.plan.buffer(*l);
            let apart = old.offset + old.bytes <= new.offset || new.offset + new.bytes <= old.offset;
            if *l == b || (old.device == new.device && !apart && old.bytes > 0 && new.bytes > 0) {
                return Err(format!("buffers {} and {} overlap", l.0, b.0));
            }
        }
        self.live.push(b);
        Ok(())
    }

    fn run(
        &mut self,
        node: &Node,
        id: usize,
        partial: u32,
        ins: &[Place],
        outs: &[Place],
        scratch: Option<&Place>,
    ) -> Result<(), String> {
        let label = format!("node {id} ({})", node.op.def().name());
        if ins.len() != node.ins.len() || outs.len() != node.outs.len() {
            return Err(format!("{label} has the wrong number of operands"));
        }
        for (v, place) in node.ins.iter().zip(ins) {
            // A view of what exists once, such as a weight, exists once too.
            let root = self.shown(*v);
            let all = node.phase == Phase::Update && self.per_partial(root);
            let held = self.read(place).map_err(|why| format!("{label}: {why}"))?;
            let wanted = match self.carried_before(root, node.stage, partial) {
                Some(held) => held,
                None => Held {
                    value: root,
                    partial: if self.per_partial(root) && !all { partial } else { 0 },
                    summed: if all { self.plan.partials } else { 1 },
                },
            };
            if held != wanted || place.bytes != self.bytes[v.index()] {
                return Err(format!("{label} wants {wanted:?} and finds {held:?}"));
            }
        }
        for (o, out) in outs.iter().enumerate() {
            let shared = ins.iter().enumerate().filter(|(_, place)| overlap(place, out));
            for (i, place) in shared {
                if place != out || !node.op.def().in_place().contains(&(i, o)) {
                    return Err(format!("{label} writes output {o} over input {i}"));
                }
            }
            if outs[..o].iter().chain(scratch).any(|other| overlap(other, out)) {
                return Err(format!("{label} writes output {o} over another"));
            }
        }
        if scratch
            .is_some_and(|s| ins.iter().any(|place| overlap(place, s)) || !self.live.contains(&s.buffer))
        {
            return Err(format!("{label} has scratch space over an operand, or none"));
        }
        for (v, place) in node.outs.iter().zip(outs) {
            if place.bytes != self.bytes[v.index()] {
                return Err(format!("{label} writes %{} with the wrong number of bytes", v.0));
            }
            let partial = if node.phase == Phase::Update { 0 } else { partial };
            self.write(*place, Held { value: *v, partial, summed: 1 })?;
        }
        self.runs[id] += 1;
        Ok(())
    }

    /// What an input holds if an earlier partial of this objective, or an earlier objective, has carried
    /// it already in the forward pass.
    fn carried_before(&self, v: Value, stage: u32, partial: u32) -> Option<Held> {
        let next = self.graph.carries.iter().find(|(input, _)| *input == v)?.1;
        let Origin::Node { node, .. } = self.graph.value(next).origin else { return None };
        let carrier = self.graph.nodes[node.index()].stage;
        if !self.per_partial(next) || carrier > stage || (carrier == stage && partial == 0) {
            return None;
        }
        let last = if carrier == stage { partial - 1 } else { self.plan.partials - 1 };
        Some(Held { value: self.shown(next), partial: last, summed: 1 })
    }

    fn read(&self, place: &Place) -> Result<Held, String> {
        let found = self.held.get(&place.buffer).and_then(|all| all.iter().find(|(p, _)| p == place));
        found.map(|(_, h)| *h).ok_or_else(|| format!("nothing complete is at {place:?}"))
    }

    fn write(&mut self, place: Place, held: Held) -> Result<(), String> {
        let buffer = self.plan.buffers.get(place.buffer.0 as usize).ok_or("writes to no buffer")?;
        let inside = place.start.checked_add(place.bytes).is_some_and(|end| end <= buffer.bytes);
        if !inside || !self.live.contains(&place.buffer) {
            return Err(format!("writes outside a buffer in use: {place:?}"));
        }
        let all = self.held.entry(place.buffer).or_default();
        all.retain(|(p, _)| !overlap(p, &place) && *p != place);
        all.push((place, held));
        Ok(())
    }

    fn end(&self) -> Result<(), String> {
        for (id, node) in self.graph.nodes.iter().enumerate() {
            let expected = match node.phase {
                _ if node.op.def().is_view() => 0,
                Phase::Update => 1,
                _ => self.plan.partials,
            };
            if self.runs[id] != expected {
                return Err(format!("node {id} ran {} times, expected {expected}", self.runs[id]));
            }
        }
        for (name, v) in &self.graph.outputs {
            let out = self.plan.outputs.iter().find(|o| o.name == *name && o.value == *v);
            let held = self.read(&out.ok_or(format!("output `{name}` has no place"))?.place)?;
            let summed = if self.per_partial(*v) { self.plan.partials } else { 1 };
            if held != (Held { value: self.shown(*v), partial: 0, summed }) {
                return Err(format!("output `{name}` is {held:?}"));
            }
        }
        for (input, next) in &self.graph.carries {
            let place = self.plan.inputs.iter().find(|i| i.value == *input).map(|i| i.place);
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
    let mut sizes = Bindings::new();
    for (symbol, value) in &plan.sizes {
        sizes.set(symbol, *value);
    }
    let bytes = |info: &ValueInfo| -> Result<u64, String> {
        let shape = info.ty.bind(&sizes).map_err(|e| e.to_string())?;
        let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        elements.and_then(|n| n.checked_mul(info.ty.dtype.size() as u64)).ok_or("a value is too large".into())
    };
    graph.values.iter().map(bytes).collect()
}

fn overlap(a: &Place, b: &Place) -> bool {
    a.buffer == b.buffer && a.start < b.start + b.bytes && b.start < a.start + a.bytes
}
