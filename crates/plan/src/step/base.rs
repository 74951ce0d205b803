//! The script in which everything stays, with facts about its versions: which acts use them, which can be recomputed,
//! and which inputs are overwritten. Choices under a budget are made over the gaps between two uses.

use crate::step::script::{Script, ScriptOp, VersionId};
use gulliver_graph::graph::{Graph, Origin, Phase};

/// No act, no version.
pub const NEVER: u32 = u32::MAX;

/// What becomes of a version after a use, where the choice is to keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays: there are other uses, or it is read after the step.
    Stays,
    /// Nothing reads it any more.
    Ends,
    /// A weight or state returns to where it resides between steps.
    Leaves,
}

/// Facts about the versions of a script, for any sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionFacts {
    uses: Vec<u32>,
    first: Vec<u32>,
    at: Vec<u32>,
    fates: Vec<Fate>,
    producer: Vec<u32>,
    again: Vec<bool>,
    overwritten: Vec<u32>,
    output: Vec<bool>,
    persistent: Vec<bool>,
}

/// A script and what may be done with its versions.
#[derive(Clone, Copy)]
pub struct Base<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Everything stays where it is made.
    pub script: &'a Script,
    /// The acts that touch each version, one list after the other.
    pub uses: &'a [u32],
    /// Where the list of a version begins.
    pub first: &'a [u32],
    /// By index into [`Script::refs`]: the use it is, as an index into `uses`; [`NEVER`] if the act names the
    /// version a second time.
    pub at: &'a [u32],
    /// By index into `uses`: what becomes of the version then if it is kept.
    pub fates: &'a [Fate],
    /// The act that makes a version; [`NEVER`] for inputs.
    pub producer: &'a [u32],
    /// Whether it can be recomputed: no sum, and no result of an update or a collective.
    pub again: &'a [bool],
    /// The act that overwrites an input, or [`NEVER`].
    pub overwritten: &'a [u32],
    /// Is read after the step.
    pub output: &'a [bool],
    /// Weight or state.
    pub persistent: &'a [bool],
}

impl VersionFacts {
    /// In time linear in the script.
    pub fn of(graph: &Graph, script: &Script) -> VersionFacts {
        let count = script.versions.len();
        let persistent = script.versions.iter().map(|version| {
            let origin = graph.value(version.of.value).origin;
            version.input && matches!(origin, Origin::Input(role) if role.persists())
        });
        let mut facts = VersionFacts {
            uses: Vec::new(),
            first: vec![0; count + 1],
            at: vec![NEVER; script.refs.len()],
            fates: Vec::new(),
            producer: vec![NEVER; count],
            again: vec![false; count],
            overwritten: vec![NEVER; count],
            output: vec![false; count],
            persistent: persistent.collect(),
        };
        facts.find_uses(script);
        for (t, act) in script.acts.iter().enumerate() {
            let refs = script.refs(t);
            match act.what {
                ScriptOp::Run(id, _) => {
                    let node = &graph.nodes[id.index()];
                    let pure = node.phase != Phase::Update && !node.op.def().meets();
                    for &v in script.split(t).1 {
                        facts.producer[v as usize] = t as u32;
                        facts.again[v as usize] = pure;
                    }
                }
                ScriptOp::Add => {
                    facts.again[refs[1] as usize] = false;
                    // The sum overwrites the first partial's value.
                    let when = &mut facts.overwritten[refs[1] as usize];
                    *when = (*when).min(t as u32);
                }
                ScriptOp::Carry => {
                    let when = &mut facts.overwritten[refs[1] as usize];
                    *when = (*when).min(t as u32);
                }
                ScriptOp::Move => {}
            }
        }
        for &v in &script.outputs {
            facts.output[v as usize] = true;
        }
        facts.fates = vec![Fate::Stays; facts.uses.len()];
        for v in 0..count {
            let last = facts.first[v + 1] as usize;
            if last > facts.first[v] as usize {
                facts.fates[last - 1] = match (facts.persistent[v], facts.output[v]) {
                    (true, _) => Fate::Leaves,
                    (_, true) => Fate::Stays,
                    _ if script.versions[v].input => Fate::Stays,
                    _ => Fate::Ends,
                };
            }
        }
        facts
    }

    fn find_uses(&mut self, script: &Script) {
        let touched = |act: usize, visit: &mut dyn FnMut(usize, usize)| {
            let (refs, begin) = (script.refs(act), script.acts[act].refs as usize);
            for (i, v) in refs.iter().enumerate() {
                if !refs[..i].contains(v) {
                    visit(begin + i, *v as usize);
                }
            }
        };
        for act in 0..script.acts.len() {
            touched(act, &mut |_, v| self.first[v + 1] += 1);
        }
        for v in 0..script.versions.len() {
            self.first[v + 1] += self.first[v];
        }
        self.uses = vec![0; self.first[script.versions.len()] as usize];
        let mut next = self.first.clone();
        for act in 0..script.acts.len() {
            touched(act, &mut |position, v| {
                self.at[position] = next[v];
                self.uses[next[v] as usize] = act as u32;
                next[v] += 1;
            });
        }
    }

    /// The facts with their graph and script.
    pub fn base<'a>(&'a self, graph: &'a Graph, script: &'a Script) -> Base<'a> {
        Base {
            graph,
            script,
            uses: &self.uses,
            first: &self.first,
            at: &self.at,
            fates: &self.fates,
            producer: &self.producer,
            again: &self.again,
            overwritten: &self.overwritten,
            output: &self.output,
            persistent: &self.persistent,
        }
    }
}

impl Base<'_> {
    /// The acts that touch a version, in order.
    pub fn uses(&self, v: VersionId) -> &[u32] {
        &self.uses[self.first[v as usize] as usize..self.first[v as usize + 1] as usize]
    }

    /// Whether a version is used at or before an act, and at or after it.
    pub fn spans(&self, v: VersionId, act: u32) -> bool {
        let uses = self.uses(v);
        let after = || uses.last().is_some_and(|last| *last >= act);
        if self.script.versions[v as usize].input && after() || self.output[v as usize] {
            return true;
        }
        uses.first().is_some_and(|first| *first <= act) && after()
    }
}
