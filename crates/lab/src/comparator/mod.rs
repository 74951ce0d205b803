//! What others do when memory is short, on the same footing as the [planner](gulliver_plan::budget::choose): the same
//! script, the same bytes and seconds. Nothing here is used to train; it is what our plans are measured by.

pub mod dtr;
pub mod mimose;
pub mod paging;
pub mod segments;
pub mod static_greedy;
pub mod sublinear;
pub mod traffic;

use gulliver_graph::graph::Phase;
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::budget::rewrite::rewrite;
use gulliver_plan::document::plan::Choice;
use gulliver_plan::step::base::Base;
use gulliver_plan::step::layout::aligned;
use gulliver_plan::step::lifetime::profile;
use gulliver_plan::step::lifetime::{StorageSharing, lifetimes};
use gulliver_plan::step::outline::{BoundSizes, Outline};
use gulliver_plan::step::script::{Script, ScriptOp, VersionId};

/// A step for which memory is short.
pub struct ComparedStep<'a> {
    /// The script in which everything stays.
    pub base: &'a Base<'a>,
    /// What may share storage.
    pub sharing: &'a StorageSharing,
    /// Bytes of one instance of each value.
    pub bytes: Vec<u64>,
    /// Working memory by node.
    pub scratch: Vec<u64>,
    /// Seconds by node.
    pub node: Vec<f64>,
}

/// What carrying something out comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScriptCost {
    /// Seconds spent on computing what was computed before.
    pub again: f64,
    /// Device bytes of the act that needs most.
    pub peak: u64,
}

impl<'a> ComparedStep<'a> {
    /// The step of an outline for inputs of some sizes.
    pub fn new(outline: &'a Outline, base: &'a Base<'a>, sizes: &BoundSizes) -> ComparedStep<'a> {
        let kind = |node: usize| outline.kinds.kind_of[node] as usize;
        let nodes = 0..base.graph.nodes.len();
        ComparedStep {
            base,
            sharing: &outline.sharing,
            bytes: outline.kinds.type_of.iter().map(|&k| sizes.bytes[k as usize]).collect(),
            scratch: nodes.clone().map(|n| sizes.scratch[kind(n)]).collect(),
            node: nodes.map(|n| outline.seconds(sizes, n)).collect(),
        }
    }

    /// Bytes of a version, as they are laid out.
    pub fn size(&self, v: VersionId) -> u64 {
        aligned(self.bytes[self.base.script.versions[v as usize].of.value.index()])
    }

    /// Seconds of an act of the base, sums and carries left out.
    pub fn seconds(&self, act: u32) -> f64 {
        match self.base.script.acts[act as usize].what {
            ScriptOp::Run(id, _) => self.node[id.index()],
            _ => 0.0,
        }
    }

    /// The phase of an act; sums and carries belong to no forward pass.
    pub fn phase(&self, act: u32) -> Phase {
        match self.base.script.acts[act as usize].what {
            ScriptOp::Run(id, _) => self.base.graph.nodes[id.index()].phase,
            _ => Phase::Update,
        }
    }

    /// What a script comes to.
    pub fn outcome(&self, script: &Script) -> ScriptCost {
        let life = lifetimes(self.sharing, script);
        let needs = profile(script, &life, &self.bytes, |node| self.scratch[node]);
        let run = |acts: &[gulliver_plan::step::script::ScriptAct]| -> f64 {
            acts.iter()
                .map(|act| if let ScriptOp::Run(id, _) = act.what { self.node[id.index()] } else { 0.0 })
                .sum()
        };
        let again = run(&script.acts) - run(&self.base.script.acts);
        ScriptCost { again: again.max(0.0), peak: needs.into_iter().max().unwrap_or(0) }
    }

    /// Carries out choices; what cannot be computed again where it is needed, stays after all.
    pub fn settle(&self, choices: &mut Choices) -> Script {
        loop {
            match rewrite(self.base, choices) {
                Ok(script) => return script,
                Err(e) if choices.gaps[e.gap] == Choice::Recompute => choices.gaps[e.gap] = Choice::Keep,
                // What it is made of is missing: nothing is let go.
                Err(_) => {
                    let gaps = choices.gaps.iter_mut().filter(|c| **c == Choice::Recompute);
                    gaps.for_each(|c| *c = Choice::Keep);
                }
            }
        }
    }

    /// Lets go of every result of a forward act for which `drop` is true, from its last forward use to its
    /// first backward use, as checkpointing does.
    pub fn checkpoint(&self, start: &Choices, drop: impl Fn(VersionId) -> bool) -> Choices {
        let mut choices = start.clone();
        let base = self.base;
        for v in 0..base.script.versions.len() as u32 {
            if !base.again[v as usize] || !drop(v) {
                continue;
            }
            for (k, pair) in base.uses(v).windows(2).enumerate() {
                let turns = self.phase(pair[0]) == Phase::Forward && self.phase(pair[1]) != Phase::Forward;
                if turns && pair[1] - pair[0] > 1 {
                    choices.gaps[base.first[v as usize] as usize + k] = Choice::Recompute;
                }
            }
        }
        choices
    }

    /// The last forward act that touches a version, if a forward act makes it.
    pub fn last_forward(&self, v: VersionId) -> Option<u32> {
        let uses = self.base.uses(v);
        let made = self.base.producer[v as usize];
        let forward = made != gulliver_plan::step::base::NEVER && self.phase(made) == Phase::Forward;
        uses.iter().rev().copied().find(|&act| forward && self.phase(act) == Phase::Forward)
    }
}

/// The largest of the thresholds `low..=high` at which `run` gives what needs at most `budget`, by halving:
/// for those who keep count of memory in their own way. None if nothing fits.
fn highest<T>(low: u64, high: u64, budget: u64, run: impl Fn(u64) -> Option<(ScriptCost, T)>) -> Option<T> {
    let (mut low, mut high) = (low, high.max(low));
    let mut best: Option<(ScriptCost, T)> = None;
    for _ in 0..24 {
        let middle = low + (high - low) / 2;
        match run(middle).filter(|(outcome, _)| outcome.peak <= budget) {
            Some(found) => {
                if best.as_ref().is_none_or(|(known, _)| found.0.again <= known.again) {
                    best = Some(found);
                }
                low = middle + 1;
            }
            None => high = middle,
        }
        if low >= high {
            break;
        }
    }
    best.map(|(_, found)| found)
}
