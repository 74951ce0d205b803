//! The record of a plan's passes. Every pass is undone down to the one before: the script that held after it is laid out
//! and timed by itself, so that no pass is credited with what a later one did. The plan itself stands for the last.

use crate::budget::choices::Choices;
use crate::budget::evaluate::ScriptEvaluation;
use crate::budget::finish::{Finished, lay, timing};
use crate::budget::problem::{Effort, Problem};
use crate::document::collectives::inline_collectives;
use crate::document::error::PlanError;
use crate::document::ledger::Ledger;
use crate::document::pass::{PassChange, PlanPass};
use crate::document::plan::{Act, Choice, Plan, Tier};
use crate::document::residence::Persistent;
use crate::step::lifetime::{Lifetimes, lifetimes};
use crate::step::options::PlanOptions;
use crate::step::order::{OrderRule, tasks};
use crate::step::script::{Script, ScriptOp};

/// A script, where its versions live, and the pass it is the result of.
struct Stage {
    script: Script,
    life: Lifetimes,
    change: PassChange,
    /// Whether weights and states are where the problem has them, or all on the device.
    residing: bool,
}

/// The passes of a plan, in order.
pub(crate) fn record(problem: &Problem, found: &Finished) -> Result<Vec<PlanPass>, PlanError> {
    let here = Persistent::of(problem.graph)?;
    let options = PlanOptions { persistent: &here, memory: None, ..*problem.options };
    let mut resident = Problem::new(problem.outline, problem.graph, problem.sizes, &options)?;
    resident.effort = Effort::Quick;
    let mut stages = stages(problem, found);
    let last = stages.pop();
    let mut passes = Vec::new();
    for stage in stages {
        let at = if stage.residing { problem } else { &resident };
        let plan = lay(at, (&stage.script, &stage.life), None, Effort::Quick)?;
        passes.push(pass(problem, stage.change, &plan));
    }
    passes.extend(last.map(|stage| pass(problem, stage.change, &found.plan)));
    let arena = &found.plan.spaces[Tier::Device as usize];
    let seconds = passes.last().map_or(0.0, |pass| pass.seconds);
    let change = PassChange::Layout { gaps: arena.bytes - arena.live };
    passes.push(PlanPass { change, peak: arena.bytes, seconds });
    Ok(passes)
}

/// The figures of a plan, and of the change that made it.
fn pass(problem: &Problem, change: PassChange, plan: &Plan) -> PlanPass {
    let timing = timing(problem, plan);
    let change = match change {
        PassChange::Recompute { values, .. } => PassChange::Recompute { values, seconds: timing.again },
        PassChange::Swap { resident, .. } => PassChange::Swap { resident, moved: Ledger::of(plan) },
        PassChange::Overlap { fetches, stores, .. } => {
            let inline = inline_collectives(plan);
            let beside = plan.steps.iter().zip(inline);
            let beside = beside.filter(|(step, inline)| matches!(step.act, Act::Exchange { .. }) && !inline);
            PassChange::Overlap { fetches, stores, collectives: beside.count() }
        }
        change => change,
    };
    PlanPass { change, peak: plan.spaces[Tier::Device as usize].live, seconds: timing.seconds }
}

/// What held after every pass before the layout, those left out that changed nothing.
fn stages(problem: &Problem, found: &Finished) -> Vec<Stage> {
    let (graph, outline) = (problem.graph, problem.outline);
    let own = tasks(graph, &outline.readers, outline.partials, OrderRule::Plain, &problem.bytes);
    let own = Script::of(graph, &outline.readers, &own, outline.partials);
    let operators = graph.nodes.iter().filter(|node| !node.op.def().is_view()).count();
    let reordered = own != outline.script;
    let mut stages = vec![Stage {
        life: lifetimes(&outline.sharing, &own),
        script: own,
        change: PassChange::Graph { operators },
        residing: false,
    }];
    if reordered {
        let rule = match problem.options.turns {
            Some(_) => "as the schedule of all devices has it",
            None => outline.rule.words(),
        };
        let change = PassChange::Order { rule: rule.to_string() };
        let (script, life) = (outline.script.clone(), outline.life.clone());
        stages.push(Stage { script, life, change, residing: false });
    }
    if let Some(rewritten) = &found.rewritten {
        stages.extend(recomputed(problem, &rewritten.choices));
        let resident: u64 =
            problem.places.iter().flatten().filter(|r| r.tier != Tier::Device).map(|r| r.bytes).sum();
        let moves = rewritten.script.acts.iter().any(|act| act.what == ScriptOp::Move);
        if moves || resident > 0 {
            let change = PassChange::Swap { resident, moved: Ledger::default() };
            let (script, life) = (rewritten.script.clone(), rewritten.life.clone());
            stages.push(Stage { script, life, change, residing: true });
        }
    }
    if let (Some((script, life)), Some(before)) = (&found.overlapped, stages.last())
        && (*script != before.script || *life != before.life)
    {
        let change = PassChange::Overlap {
            fetches: earlier(&before.script, script),
            stores: kept_longer(script, life),
            collectives: 0,
        };
        stages.push(Stage { script: script.clone(), life: life.clone(), change, residing: true });
    }
    stages
}

/// The script with recompute alone: all other values stay on the device.
fn recomputed(problem: &Problem, choices: &Choices) -> Option<Stage> {
    let base = problem.base();
    let mut only = Choices { residences: vec![Tier::Device; choices.residences.len()], ..choices.clone() };
    only.gaps.iter_mut().filter(|gap| **gap != Choice::Recompute).for_each(|gap| *gap = Choice::Keep);
    let mut work = ScriptEvaluation::default();
    let (sharing, scratch) = (&problem.outline.sharing, |node| problem.scratch(node));
    // A value may have been recomputed from one that waited in another tier after its last use.
    while !work.of(&base, sharing, &only, &problem.bytes, &scratch) {
        work.writer.failed.iter().for_each(|failed| only.gaps[failed.gap] = Choice::Keep);
    }
    let values = only.gaps.iter().filter(|gap| **gap == Choice::Recompute).count();
    let change = PassChange::Recompute { values, seconds: 0.0 };
    let (script, life) = (work.writer.script, work.life);
    (values > 0).then_some(Stage { script, life, change, residing: false })
}

/// Fetches that come after fewer kernels than before.
fn earlier(before: &Script, after: &Script) -> usize {
    let kernels = |script: &Script| {
        let mut fetched = vec![0u32; script.versions.len()];
        let mut ran = 0;
        for (t, act) in script.acts.iter().enumerate() {
            match act.what {
                ScriptOp::Run(..) => ran += 1,
                ScriptOp::Move => fetched[script.refs(t)[1] as usize] = ran,
                ScriptOp::Add | ScriptOp::Carry => {}
            }
        }
        fetched
    };
    let (before, after) = (kernels(before), kernels(after));
    before.iter().zip(&after).filter(|(before, after)| after < before).count()
}

/// Stores whose source keeps its bytes beyond the act that stores it.
fn kept_longer(script: &Script, life: &Lifetimes) -> usize {
    let tier = |v: u32| script.versions[v as usize].tier;
    let stores = (0..script.acts.len()).filter(|&t| {
        let refs = script.refs(t);
        matches!(script.acts[t].what, ScriptOp::Move | ScriptOp::Carry)
            && tier(refs[0]) == Tier::Device
            && tier(refs[1]) != Tier::Device
    });
    let longer = |t: &usize| {
        let storage = life.slots[script.refs(*t)[0] as usize].storage as usize;
        !life.storages[storage].input && life.storages[storage].end > *t as u32
    };
    stores.filter(longer).count()
}
