//! What happens in a step, and to which copy of what: a list of acts over versions. A version is a value
//! of one partial in one place for one stretch of time; a value that is moved or recomputed has several.
//! Sizes and offsets play no part.

use crate::document::plan::Tier;
use crate::step::order::OrderedTask;
use crate::step::readers::{Instance, Readers};
use gulliver_graph::graph::{Graph, NodeId, Phase, Role, Value};

/// A version, by its number in [`Script::versions`].
pub type VersionId = u32;

/// A value of one partial, in memory of one kind, from the act that makes it to the last that touches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Of what.
    pub of: Instance,
    /// Where.
    pub tier: Tier,
    /// Holds an input from the start; weights and states stay to the end.
    pub input: bool,
}

/// What an act does to the versions it names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScriptOp {
    /// A node runs for one partial: operands, then results.
    Run(NodeId, u32),
    /// The first is added to the second.
    Add,
    /// The first becomes the next value of the input, the second.
    Carry,
    /// The first is copied to the second, in another tier.
    Move,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScriptAct {
    /// What.
    pub what: ScriptOp,
    /// Where its versions begin in [`Script::refs`]; they end where those of the next act begin.
    pub refs: u32,
    /// How many of them it reads; a sum counts as read, and an input that is carried neither as read nor made.
    pub reads: u32,
    /// The act of the script it was written for; itself, in the first.
    pub base: u32,
}

/// The acts of a step in order, over versions of values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// All versions; inputs first, in the graph's order, one for each partial that has its own.
    pub versions: Vec<Version>,
    /// What happens, in order.
    pub acts: Vec<ScriptAct>,
    /// The versions of all acts, one after the other.
    pub refs: Vec<VersionId>,
    /// What holds each output of the graph after the last act.
    pub outputs: Vec<VersionId>,
}

impl Script {
    /// Everything stays where it is made.
    pub fn of(graph: &Graph, readers: &Readers, tasks: &[OrderedTask], partials: u32) -> Script {
        let mut script = Script::default();
        let mut known: Vec<Option<VersionId>> = vec![None; graph.values.len() * partials as usize];
        let at = |i: Instance| i.value.index() * partials as usize + i.partial as usize;
        for (value, role, _) in graph.inputs() {
            for partial in 0..copies(role, partials) {
                let of = Instance { value, partial };
                known[at(of)] = Some(script.version(Version { of, tier: Tier::Device, input: true }));
            }
        }
        for (t, task) in tasks.iter().enumerate() {
            match *task {
                OrderedTask::Run(id, partial) => {
                    let node = &graph.nodes[id.index()];
                    let partial = if node.phase == Phase::Update { 0 } else { partial };
                    let start = script.refs.len();
                    script.act(ScriptOp::Run(id, partial), 0, t as u32);
                    for (i, v) in node.ins.iter().enumerate() {
                        let each = node.phase == Phase::Update && node.op.def().each_partial(i);
                        let seen = if each { 0..partials } else { partial..partial + 1 };
                        for partial in seen {
                            let made = known[at(readers.seen(*v, partial))];
                            script.refs.push(made.expect("tasks come after those that make their operands"));
                        }
                    }
                    let reads = (script.refs.len() - start) as u32;
                    script.acts.last_mut().expect("just written").reads = reads;
                    for v in &node.outs {
                        let of = readers.seen(*v, partial);
                        let new = script.version(Version { of, tier: Tier::Device, input: false });
                        known[at(of)] = Some(new);
                        script.refs.push(new);
                    }
                }
                OrderedTask::Accumulate(value, partial) => {
                    script.act(ScriptOp::Add, 2, t as u32);
                    let both = [partial, 0].map(|partial| known[at(Instance { value, partial })]);
                    script.refs.extend(both.into_iter().flatten());
                }
                OrderedTask::Carry(input, next) => {
                    script.act(ScriptOp::Carry, 1, t as u32);
                    let both = [known[at(next)], known[at(Instance { value: input, partial: 0 })]];
                    script.refs.extend(both.into_iter().flatten());
                }
            }
        }
        let output = |v: &Value| known[at(readers.seen(*v, 0))].expect("outputs are made");
        script.outputs = graph.outputs.iter().map(|o| output(&o.value)).collect();
        script
    }

    /// Adds a version.
    pub fn version(&mut self, version: Version) -> VersionId {
        self.versions.push(version);
        self.versions.len() as u32 - 1
    }

    /// Adds an act that reads `reads` versions, for the act `base` of another script. The caller pushes its versions to
    /// `refs`.
    #[inline]
    pub fn act(&mut self, what: ScriptOp, reads: usize, base: u32) {
        self.acts.push(ScriptAct { what, refs: self.refs.len() as u32, reads: reads as u32, base });
    }

    /// The same acts in another order.
    pub fn reordered(&self, order: impl Iterator<Item = usize>) -> Script {
        let (versions, outputs) = (self.versions.clone(), self.outputs.clone());
        let mut script = Script { versions, outputs, ..Script::default() };
        for t in order {
            script.acts.push(ScriptAct { refs: script.refs.len() as u32, ..self.acts[t] });
            script.refs.extend(self.refs(t));
        }
        script
    }

    /// The versions of an act.
    #[inline]
    pub fn refs(&self, act: usize) -> &[VersionId] {
        let end = self.acts.get(act + 1).map_or(self.refs.len(), |next| next.refs as usize);
        &self.refs[self.acts[act].refs as usize..end]
    }

    /// The versions an act reads and those it makes; a sum counts as read, and an input that is carried as
    /// neither.
    #[inline]
    pub fn split(&self, act: usize) -> (&[VersionId], &[VersionId]) {
        let (reads, rest) = self.refs(act).split_at(self.acts[act].reads as usize);
        let made = matches!(self.acts[act].what, ScriptOp::Run(..) | ScriptOp::Move);
        (reads, if made { rest } else { &[] })
    }
}

/// How many instances of an input there are.
pub fn copies(role: Role, partials: u32) -> u32 {
    if role.repeats() { partials } else { 1 }
}
