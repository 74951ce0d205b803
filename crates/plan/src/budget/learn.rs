//! Choices made before, as first guesses for inputs of other sizes. The best choices hardly depend on the sizes, only on
//! the share of the needed memory that the budget has: choices are searched for several shares before the first step,
//! and adapted to every new size.

use crate::budget::choose::Rewritten;
use crate::budget::finish::{Finished, finish, fits};
use crate::budget::problem::{Effort, Problem};
use crate::budget::squeeze::squeeze_at;
use crate::document::error::PlanError;
use crate::document::plan::Tier;
use crate::step::options::PlanOptions;
use crate::step::outline::Outline;
use crate::step::progress::Activity;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;

/// Shares of the needed memory, in hundredths, for which choices are searched.
const SHARES: [u64; 16] = [96, 92, 87, 82, 77, 71, 65, 59, 53, 47, 41, 36, 31, 26, 21, 16];
/// Other sizes may need a little less than the share of the tightest budget.
const TIGHTER: f64 = 0.96;
/// A share is met by choices for one that is larger by at most this factor.
const CLOSE: f64 = 1.002;
/// Learned choices that are tried, and attempts to lay out what each is adapted to.
const CLOSEST: usize = 3;
const ATTEMPTS: usize = 3;

/// Choices, and the share of the needed memory beyond weights and states that they fit into.
#[derive(Clone)]
pub(crate) struct Learned {
    share: f64,
    pub(crate) rewritten: Rewritten,
}

/// Searches choices for inputs of these sizes under a budget and larger ones, from which those for smaller inputs are
/// found in a moment.
pub(crate) fn learn(
    outline: &Outline,
    graph: &Graph,
    sizes: &Bindings,
    options: &PlanOptions,
    budget: u64,
) -> Result<Vec<Learned>, PlanError> {
    let sizes = outline.sizes(graph, sizes, options)?;
    let mut all: Vec<Learned> = Vec::new();
    let need = Problem::new(outline, graph, &sizes, options)?.need();
    let state = options.persistent.ends[Tier::Device as usize];
    let beyond = need.saturating_sub(state);
    let least = share(budget, need, state);
    let shares =
        SHARES.iter().map(|s| *s as f64 / 100.0).filter(|s| *s > least).chain([least, least * TIGHTER]);
    for (done, share) in shares.enumerate() {
        options.told(Activity::Prepare, done, SHARES.len() + 2)?;
        let memory = state + (beyond as f64 * share) as u64;
        let effort = if share > least { Effort::Quick } else { Effort::Thorough };
        match squeeze_at(outline, graph, &sizes, options, memory, effort) {
            Ok(found) => all.extend(found.rewritten.map(|rewritten| Learned { share, rewritten })),
            Err(PlanError::DoesNotFit { .. } | PlanError::TierFull { .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// The plan of adapted choices, if it fits.
pub(crate) fn recall(
    learned: &[Learned],
    problem: &mut Problem,
    budget: u64,
) -> Result<Option<Finished>, PlanError> {
    if learned.is_empty() {
        return Ok(None);
    }
    let close: Vec<&Learned> = closest(learned, problem, budget).take(CLOSEST).collect();
    // Quickly first; a layout that takes longer to find still takes less time than a search.
    for effort in [Effort::Quick, Effort::Thorough] {
        problem.effort = effort;
        for one in &close {
            if let Some(found) = adapt(problem, one, budget)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Choices for budgets that are no larger than this one for these sizes, the largest first.
pub(crate) fn closest<'a>(
    learned: &'a [Learned],
    problem: &Problem,
    budget: u64,
) -> impl Iterator<Item = &'a Learned> + use<'a> {
    let residences = problem.residences();
    let share = share(budget, problem.need(), problem.options.persistent.ends[Tier::Device as usize]);
    let alike = learned.iter().filter(move |one| one.rewritten.choices.residences == residences);
    alike.filter(move |one| one.share <= share * CLOSE)
}

/// The plan of learned choices for other sizes, if it fits.
fn adapt(problem: &Problem, learned: &Learned, budget: u64) -> Result<Option<Finished>, PlanError> {
    let (base, room) = (problem.base(), problem.beside());
    let mut target = budget;
    for _ in 0..ATTEMPTS {
        let Ok(chosen) = problem.refine(&base, &learned.rewritten, target, room)? else { break };
        let live = chosen.peak;
        let finished = finish(problem, chosen, target, true)?;
        if fits(problem, &finished.plan, budget) {
            return Ok(Some(finished));
        }
        let over = finished.plan.spaces[Tier::Device as usize].bytes.saturating_sub(budget);
        // Below the present peak, or the same would be chosen again.
        target = target.min(live).saturating_sub((over + over / 4).max(64));
    }
    Ok(None)
}

/// The share of the needed memory beyond weights and states that a budget has.
fn share(budget: u64, need: u64, state: u64) -> f64 {
    budget.saturating_sub(state) as f64 / (need.saturating_sub(state)).max(1) as f64
}
