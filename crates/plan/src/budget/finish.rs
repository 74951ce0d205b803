//! From choices to plans: moves and collectives are put beside kernels as far as there is room, then everything is
//! laid out.

use crate::budget::choose::{Rewritten, Selection};
use crate::budget::overlap::{OverlapTerms, fetch_early, put_off, store_late};
use crate::budget::problem::{Effort, Problem};
use crate::document::error::PlanError;
use crate::document::plan::{Plan, Tier};
use crate::step::lay::{LayoutArena, lay_out};
use crate::step::lifetime::{Lifetimes, lifetimes, profile};
use crate::step::progress::Activity;
use crate::step::script::{Script, ScriptOp};
use crate::time::simulate::{Timing, per_byte, simulate};
use gulliver_graph::graph::NodeId;

/// Acts that may be put off at a time because they wait for collectives; fewer where there is no room for more.
const PUT_OFF: [usize; 3] = [64, 16, 4];

/// A plan, and the scripts it came from.
pub(crate) struct Finished {
    /// The plan.
    pub(crate) plan: Plan,
    /// The choices; none if everything stays.
    pub(crate) rewritten: Option<Rewritten>,
    /// The script with moves and collectives beside kernels, if any may be.
    pub(crate) overlapped: Option<(Script, Lifetimes)>,
}

/// The plan in which everything stays. Collectives are beside kernels if that needs no more than there is,
/// or, where nothing is limited, hardly more than is needed at least.
pub(crate) fn lay_resident(problem: &Problem) -> Result<Finished, PlanError> {
    let (script, life) = (&problem.outline.script, &problem.outline.life);
    let plan = lay(problem, (script, life), problem.options.memory, problem.effort)?;
    if !(0..problem.graph.nodes.len()).any(|node| problem.meets(node)) {
        return Ok(Finished { plan, rewritten: None, overlapped: None });
    }
    let device = Tier::Device as usize;
    let least = plan.spaces[device].bytes;
    let most = problem.options.memory.unwrap_or(least + least / 32);
    let (script, life) =
        beside_kernels(problem, (script, life), problem.options.memory.unwrap_or(problem.need()));
    // Layout tries harder where there is a limit.
    let beside = lay(problem, (&script, &life), Some(most), Effort::Thorough)?;
    let better = beside.spaces[device].bytes <= most
        && timing(problem, &beside).seconds < timing(problem, &plan).seconds;
    let (plan, overlapped) = if better { (beside, Some((script, life))) } else { (plan, None) };
    Ok(Finished { plan, rewritten: None, overlapped })
}

/// The plan of a script that was not chosen here.
pub(crate) fn finish_script(problem: &Problem, script: Script) -> Result<Plan, PlanError> {
    let life = lifetimes(&problem.outline.sharing, &script);
    let rewritten = Rewritten { script, life, ..Rewritten::default() };
    Ok(finish(problem, Selection { rewritten, ..Selection::default() }, 0, false)?.plan)
}

/// Puts moves beside kernels if `early`, as far as `target` bytes allow, and lays everything out.
pub(crate) fn finish(
    problem: &Problem,
    selection: Selection,
    target: u64,
    early: bool,
) -> Result<Finished, PlanError> {
    let Selection { rewritten, decisions, .. } = selection;
    let beside = |what: ScriptOp| match what {
        ScriptOp::Move => true,
        ScriptOp::Run(id, _) => problem.meets(id.index()),
        _ => false,
    };
    let chosen = (&rewritten.script, &rewritten.life);
    let overlaps = early && rewritten.script.acts.iter().any(|act| beside(act.what));
    let overlapped = overlaps.then(|| beside_kernels(problem, chosen, target));
    let (script, life) = overlapped.as_ref().map_or(chosen, |(script, life)| (script, life));
    let mut plan = lay(problem, (script, life), problem.options.memory, problem.effort)?;
    plan.decisions = decisions;
    Ok(Finished { plan, rewritten: Some(rewritten), overlapped })
}

/// Whether a plan keeps within a budget of the device and those of the other tiers.
pub(crate) fn fits(problem: &Problem, plan: &Plan, budget: u64) -> bool {
    let [host, disk] = problem.beside();
    let limits = [(Tier::Device, budget), (Tier::Host, host), (Tier::Disk, disk)];
    limits.into_iter().all(|(tier, limit)| plan.spaces[tier as usize].bytes <= limit)
}

/// Predicted timing of a plan.
pub(crate) fn timing(problem: &Problem, plan: &Plan) -> Timing {
    simulate(plan, |id: NodeId| problem.node_seconds(id.index()), &problem.options.links)
}

/// The plan of a script, within a limit of the device if that can be kept to.
pub(crate) fn lay(
    problem: &Problem,
    script: (&Script, &Lifetimes),
    limit: Option<u64>,
    effort: Effort,
) -> Result<Plan, PlanError> {
    problem.options.told(Activity::Layout, 0, 1)?;
    let arena = LayoutArena {
        residences: &problem.places,
        ends: problem.options.persistent.ends,
        limit,
        thorough: effort == Effort::Thorough,
    };
    lay_out(problem.outline, problem.graph, script, problem.sizes, &arena)
}

/// Fetches earlier and stores later, and puts off what waits for collectives, where there is room.
fn beside_kernels(
    problem: &Problem,
    (script, life): (&Script, &Lifetimes),
    target: u64,
) -> (Script, Lifetimes) {
    let links = problem.options.links;
    let room = OverlapTerms {
        bytes: &problem.bytes,
        scratch: &|node| problem.scratch(node),
        seconds: &|node| problem.node_seconds(node),
        meets: &|node| problem.meets(node),
        link: &|from, to| per_byte(&links, from, to),
        target,
    };
    let within = |script: Script| {
        let life = lifetimes(&problem.outline.sharing, &script);
        let used = profile(&script, &life, &problem.bytes, room.scratch);
        used.into_iter().all(|bytes| bytes <= target).then_some((script, life))
    };
    let meets = (0..problem.graph.nodes.len()).any(|node| problem.meets(node));
    let ways = PUT_OFF.iter().filter(|_| meets);
    let put_off = ways.map(|&most| put_off(problem.graph, (script, life), &room, most)).find_map(within);
    let (script, life) = put_off.as_ref().map_or((script, life), |(s, l)| (s, l));
    let early = within(fetch_early(script, life, &room));
    let (script, mut life) = early.unwrap_or_else(|| (script.clone(), life.clone()));
    store_late(&script, &mut life, &room);
    (script, life)
}
