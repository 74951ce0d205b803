//! Plans within a budget: a [search](crate::budget::choose) makes choices, [moves](crate::budget::overlap) are put beside
//! kernels, and the result is laid out. If the gaps of the layout exceed the budget, the search gets a smaller target.

use crate::budget::bound::bound;
use crate::budget::choices::Choices;
use crate::budget::choose::{Selection, Shortfall, is_polished};
use crate::budget::finish::{Finished, finish, fits, timing};
use crate::budget::planner::StepPlanner;
use crate::budget::problem::{Effort, Problem};
use crate::document::error::PlanError;
use crate::document::plan::{Act, Tier};
use crate::step::base::Base;
use crate::step::lay::holders;
use crate::step::options::PlanOptions;
use crate::step::outline::{BoundSizes, Outline};
use crate::step::script::ScriptOp;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;

/// Variants that are tried: whether moves start early, which needs memory, and the target of the search in hundredths of
/// the budget.
const WAYS: [(bool, u64); 7] =
    [(true, 100), (false, 100), (false, 97), (false, 93), (false, 87), (false, 80), (false, 70)];
/// Variants that leave memory for early moves: hundredths of the budget for kept values, and for these and moves.
const ROOMY: [(u64, u64); 4] = [(88, 100), (88, 94), (75, 100), (75, 90)];
/// How many of the ways a quick search tries.
const QUICK: usize = 3;
/// Attempts to lay a script out in less than it needs at least, by a quick and by a thorough search.
const ATTEMPTS: [usize; 2] = [4, 12];
/// How many attempts of the first way are polished.
const POLISHED: usize = 3;

/// A plan within the budget. Whether there is one must not depend on how fast a machine was measured to be: where the
/// prices at hand lead nowhere, ordinary ones are tried.
pub(crate) fn squeeze(
    outline: &Outline,
    graph: &Graph,
    sizes: &BoundSizes,
    options: &PlanOptions,
    budget: u64,
) -> Result<Finished, PlanError> {
    let failed = match squeeze_at(outline, graph, sizes, options, budget, Effort::Thorough) {
        Err(e @ (PlanError::DoesNotFit { .. } | PlanError::TierFull { .. })) => e,
        made => return made,
    };
    if matches!(failed, PlanError::DoesNotFit { proven: true, .. }) {
        return Err(failed);
    }
    let ordinary = options.at_ordinary_prices();
    let sizes = &outline.priced(sizes, &ordinary);
    // Polished choices may be harder to lay out; every budget that `smallest` found must be met.
    let polished = is_polished(outline.script.acts.len());
    for effort in [Some(Effort::Thorough), polished.then_some(Effort::Quick)].into_iter().flatten() {
        match squeeze_at(outline, graph, sizes, &ordinary, budget, effort) {
            Err(PlanError::DoesNotFit { .. } | PlanError::TierFull { .. }) => {}
            made => return made,
        }
    }
    Err(failed)
}

/// [`squeeze`] at the prices at hand.
pub(crate) fn squeeze_at(
    outline: &Outline,
    graph: &Graph,
    sizes: &BoundSizes,
    options: &PlanOptions,
    budget: u64,
    effort: Effort,
) -> Result<Finished, PlanError> {
    let options = &PlanOptions { memory: Some(budget).filter(|b| *b < u64::MAX), ..*options };
    let mut problem = Problem::new(outline, graph, sizes, options)?;
    problem.effort = effort;
    let bound = bound(&problem);
    if budget < bound.bytes {
        return Err(bound.exceeds(budget));
    }
    let base = problem.base();
    let start = problem.away_at_first(&base);
    let Missed { least, full } = match try_ways(&problem, &base, &start, budget)? {
        Ok(found) => return Ok(found),
        Err(missed) => missed,
    };
    // Fall back to the choices that need least.
    let finished = finish(&problem, problem.least(&base, &start)?, 0, false)?;
    if fits(&problem, &finished.plan, budget) {
        return Ok(finished);
    }
    if let Some(full) = full.filter(|_| least == u64::MAX) {
        return Err(full);
    }
    let least = least.min(finished.plan.spaces[Tier::Device as usize].bytes.max(budget + 1));
    let holders = holders(graph, &finished.plan);
    Err(PlanError::DoesNotFit { needed: least, proven: false, budget, holders })
}

impl StepPlanner {
    /// The smallest budget of the device that will do for these sizes, with weights and states where they
    /// are; found by quick searches, to within a hundredth.
    pub fn smallest(&self, graph: &Graph, sizes: &Bindings, options: &PlanOptions) -> Result<u64, PlanError> {
        let outline = &self.outline;
        let options = &options.at_ordinary_prices();
        let sizes = outline.sizes(graph, sizes, options)?;
        let problem = Problem::new(outline, graph, &sizes, options)?;
        let base = problem.base();
        let start = problem.away_at_first(&base);
        let chosen = problem.least(&base, &start)?;
        // The smallest budget is hardly below the least peak found.
        let mut low = bound(&problem).bytes.max(chosen.peak / 4 * 3).saturating_sub(1);
        let plan = finish(&problem, chosen, 0, false)?.plan;
        let mut high = plan.spaces[Tier::Device as usize].bytes;
        let will_do = |budget: u64| -> Result<bool, PlanError> {
            let options = PlanOptions { memory: Some(budget), ..*options };
            let mut problem = Problem::new(outline, graph, &sizes, &options)?;
            problem.effort = Effort::Quick;
            Ok(try_ways(&problem, &base, &start, budget)?.is_ok())
        };
        // Other tiers may be too small for what needs least.
        let mut will = fits(&problem, &plan, high);
        while !will {
            if high >= u64::MAX / 2 {
                return Err(PlanError::NoRoom);
            }
            (low, high) = (high, high + high / 8 + 64);
            will = will_do(high)?;
        }
        while high.saturating_sub(low) > (high / 200).max(64) {
            let middle = low + (high - low) / 2;
            *(if will_do(middle)? { &mut high } else { &mut low }) = middle;
        }
        Ok(high)
    }
}

/// The plan, or if it moves something, one that keeps less so that moves can start earlier, if it takes
/// less time; `choose` is given the bytes to keep within.
pub(crate) fn roomier(
    problem: &Problem,
    budget: u64,
    found: Finished,
    choose: impl Fn(u64) -> Result<Option<Selection>, PlanError>,
) -> Result<Finished, PlanError> {
    if !found.plan.steps.iter().any(|step| matches!(step.act, Act::Move { .. })) {
        return Ok(found);
    }
    let mut best = (timing(problem, &found.plan).seconds, found);
    for (kept, used) in ROOMY {
        let share = |hundredths: u64| (u128::from(budget) * u128::from(hundredths) / 100) as u64;
        let Some(chosen) = choose(share(kept))? else { continue };
        let other = finish(problem, chosen, share(used), true)?;
        let taken = timing(problem, &other.plan).seconds;
        if fits(problem, &other.plan, budget) && taken < best.0 {
            best = (taken, other);
        }
    }
    Ok(best.1)
}

/// What came of trying for a budget in vain.
struct Missed {
    /// Device bytes that would have been enough.
    least: u64,
    /// Another tier that was over its budget.
    full: Option<PlanError>,
}

/// Chooses and lays out in one way after the other until something keeps within the budgets.
fn try_ways(
    problem: &Problem,
    base: &Base,
    start: &Choices,
    budget: u64,
) -> Result<Result<Finished, Missed>, PlanError> {
    let (beside, thorough) = (problem.beside(), problem.effort == Effort::Thorough);
    let mut missed = Missed { least: u64::MAX, full: None };
    let mut moves = true;
    let ways = if thorough { WAYS.len() } else { QUICK };
    let bound = bound(problem).bytes;
    for (way, (early, share)) in WAYS.into_iter().take(ways).enumerate() {
        // Without moves none can start early, and all has been tried.
        if !moves && share == 100 {
            continue;
        }
        let (mut target, mut room) = (budget / 100 * share + budget % 100 * share / 100, beside);
        for attempt in 0..ATTEMPTS[usize::from(thorough)] {
            if target < bound {
                break;
            }
            let polished = thorough && way == 0 && attempt < POLISHED;
            let chosen = match problem.fit(base, start, target, room, polished)? {
                Ok(chosen) => chosen,
                Err(Shortfall { enough }) => {
                    missed.least = missed.least.min(enough.max(budget + 1));
                    // The other variants have the same target, or a smaller one.
                    if way == 0 && attempt == 0 {
                        return Ok(Err(missed));
                    }
                    break;
                }
            };
            moves = chosen.rewritten.script.acts.iter().any(|act| act.what == ScriptOp::Move);
            let live = chosen.peak;
            let finished = finish(problem, chosen, target, early)?;
            if fits(problem, &finished.plan, budget) {
                return Ok(Ok(finished));
            }
            let spaces = &finished.plan.spaces;
            let needed = spaces[Tier::Device as usize].bytes;
            if needed > budget {
                missed.least = missed.least.min(needed);
                // Below the present peak, or the same would be chosen again.
                target = target.min(live).saturating_sub((needed - budget).max(64));
            }
            for (place, space) in spaces[1..].iter().enumerate() {
                let over = space.bytes.saturating_sub(beside[place]);
                if over > 0 {
                    let (tier, needed) = (space.tier, space.bytes);
                    missed.full = Some(PlanError::TierFull { tier, needed, budget: beside[place] });
                    room[place] = room[place].saturating_sub(over.max(64));
                }
            }
        }
    }
    Ok(Err(missed))
}
