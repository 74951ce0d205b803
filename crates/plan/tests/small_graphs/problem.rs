//! A training step as those see it who look for the least that must be computed again: which act reads and
//! makes which values, with bytes and seconds, and nothing of how we plan. No act is charged more bytes than
//! our plans need for it.

use gulliver_graph::graph::{Origin, Phase, Role};
use gulliver_lab::comparator::ComparedStep;
use gulliver_plan::step::base::Base;
use gulliver_plan::step::script::{ScriptOp, VersionId};

/// One act. Values are numbers of what is not an input.
pub struct Move {
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    /// Bytes it needs beside what is there: results and working memory.
    pub bytes: u64,
    pub seconds: f64,
    pub forward: bool,
    /// Whether it may run again.
    pub again: bool,
    /// Operands whose place a result may take.
    pub in_place: Vec<usize>,
}

/// See the top of this file.
pub struct Problem {
    pub moves: Vec<Move>,
    /// Bytes by value. The next value of a weight takes the place of the last, and counts as nothing.
    pub sizes: Vec<u64>,
    /// Values that are read after the step.
    pub outputs: Vec<usize>,
    /// Bytes of the inputs by act: data until the step has read it for the last time, all others throughout.
    pub inputs: Vec<u64>,
}

impl Problem {
    /// The step of a case.
    pub fn new(case: &ComparedStep) -> Problem {
        let script = case.base.script;
        let tracked: Vec<VersionId> =
            (0..script.versions.len() as u32).filter(|&v| !script.versions[v as usize].input).collect();
        let numbers = |all: &[VersionId]| -> Vec<usize> {
            let mut known: Vec<usize> = all.iter().filter_map(|v| tracked.binary_search(v).ok()).collect();
            known.sort_unstable();
            known.dedup();
            known
        };
        let size = |&v: &VersionId| {
            let value = script.versions[v as usize].of.value;
            let carried = case.base.graph.carries.iter().any(|(_, next)| *next == value);
            if carried { 0 } else { case.size(v) }
        };
        let acts = 0..script.acts.len();
        let input_bytes = |t: usize| {
            let there = |v: &VersionId| {
                let version = script.versions[*v as usize];
                let origin = case.base.graph.value(version.of.value).origin;
                let goes = matches!(origin, Origin::Input(Role::Data(_) | Role::Random));
                let read = || case.base.uses(*v).last().is_some_and(|last| *last as usize >= t);
                version.input && (!goes || read())
            };
            (0..script.versions.len() as u32).filter(there).map(|v| case.size(v)).sum()
        };
        Problem {
            moves: acts.clone().map(|t| one(case, t, &numbers, &size)).collect(),
            sizes: tracked.iter().map(size).collect(),
            outputs: numbers(&script.outputs),
            inputs: acts.map(input_bytes).collect(),
        }
    }
}

fn one(
    case: &ComparedStep,
    t: usize,
    numbers: &dyn Fn(&[VersionId]) -> Vec<usize>,
    size: &dyn Fn(&VersionId) -> u64,
) -> Move {
    let base: &Base = case.base;
    let (reads, writes) = base.script.split(t);
    let mut act = Move {
        reads: numbers(reads),
        writes: numbers(writes),
        bytes: writes.iter().map(size).sum(),
        seconds: case.seconds(t as u32),
        forward: case.phase(t as u32) == Phase::Forward,
        again: writes.iter().any(|&w| base.again[w as usize] && !base.output[w as usize]),
        in_place: Vec::new(),
    };
    if let ScriptOp::Run(id, _) = base.script.acts[t].what {
        let node = &base.graph.nodes[id.index()];
        let may = |&(i, o): &(usize, usize)| {
            let alone = reads.iter().filter(|&&r| r == reads[i]).count() == 1;
            alone && base.graph.ty(node.ins[i]) == base.graph.ty(node.outs[o])
        };
        let pairs = node.op.def().in_place();
        act.bytes += case.scratch[id.index()];
        act.in_place =
            numbers(&pairs.iter().filter(|p| may(p)).map(|p| reads[p.0]).collect::<Vec<VersionId>>());
    }
    act
}
