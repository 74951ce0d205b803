//! Choices that served before, as first guesses for inputs of other sizes. What is best to compute again
//! hardly depends on the sizes, only on the share of what is needed that there is room for: choices are
//! searched at leisure for several shares, before the first step, and adapted to every new size in a moment.

use crate::budget::choose::Known;
use crate::budget::squeeze::Pace;
use crate::budget::view::View;
use crate::document::error::PlanError;
use crate::document::plan::{Plan, Tier};
use crate::step::make::Options;
use crate::step::outline::Outline;
use crate::step::progress::Activity;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;

/// Shares of what is needed, in hundredths, for which choices are searched.
const SHARES: [u64; 16] = [96, 92, 87, 82, 77, 71, 65, 59, 53, 47, 41, 36, 31, 26, 21, 16];
/// Other sizes may need a little less than the share of the tightest budget.
const TIGHTER: f64 = 0.96;
/// A share is met by choices for one that is larger by so little.
const CLOSE: f64 = 1.002;
/// Rungs that are tried, and attempts to lay out the adapted choices of each.
const RUNGS: usize = 3;
const ATTEMPTS: usize = 3;

/// Choices, and the share of what is needed beyond weights and states that they fit into.
#[derive(Clone)]
pub(crate) struct Rung {
    share: f64,
    pub(crate) known: Known,
}

impl Outline {
    /// Searches choices for inputs of these sizes under their budget and larger ones, from which those for
    /// smaller inputs are found in a moment. Plans do not depend on whether this was done in what they
    /// compute, only in how soon they are there.
    pub fn learn(&mut self, graph: &Graph, sizes: &Bindings, options: &Options) -> Result<(), PlanError> {
        let Some(budget) = options.memory else { return Ok(()) };
        let sizes = self.sizes(graph, sizes, options)?;
        let mut rungs: Vec<Rung> = Vec::new();
        let view = View::new(self, graph, &sizes, options)?;
        let (need, state) = (view.need(), options.persistent.ends[Tier::Device as usize]);
        let beyond = need.saturating_sub(state);
        let least = share(budget, need, state);
        let shares =
            SHARES.iter().map(|s| *s as f64 / 100.0).filter(|s| *s > least).chain([least, least * TIGHTER]);
        for (done, share) in shares.enumerate() {
            options.told(Activity::Prepare, done, SHARES.len() + 2)?;
            let memory = state + (beyond as f64 * share) as u64;
            let pace = if share > least { Pace::Hurried } else { Pace::AtLeisure };
            match self.squeeze_at(graph, &sizes, options, memory, pace) {
                Ok((_, known)) => rungs.push(Rung { share, known }),
                Err(PlanError::DoesNotFit { .. } | PlanError::TierFull { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        self.rungs = rungs;
        Ok(())
    }

    /// The plan adapted from what was learned, if that fits.
    pub(crate) fn recall(&self, view: &mut View, budget: u64) -> Result<Option<Plan>, PlanError> {
        if self.rungs.is_empty() {
            return Ok(None);
        }
        let close: Vec<&Rung> = self.rungs_for(view, budget).take(RUNGS).collect();
        // In a hurry first; what is dearer to lay out still takes less time than a search.
        for at_leisure in [false, true] {
            view.at_leisure = at_leisure;
            for rung in &close {
                if let Some(plan) = adapt(view, rung, budget)? {
                    return Ok(Some(plan));
                }
            }
        }
        Ok(None)
    }

    /// What was learned for budgets that are no larger than this one for these sizes, the largest first.
    pub(crate) fn rungs_for(&self, view: &View, budget: u64) -> impl Iterator<Item = &Rung> {
        let residences = view.residences();
        let share = share(budget, view.need(), view.options.persistent.ends[Tier::Device as usize]);
        let alike = self.rungs.iter().filter(move |rung| rung.known.choices.residences == residences);
        alike.filter(move |rung| rung.share <= share * CLOSE)
    }
}

/// The plan of a rung's choices for other sizes, if it fits.
fn adapt(view: &View, rung: &Rung, budget: u64) -> Result<Option<Plan>, PlanError> {
    let (base, room) = (view.base(), view.beside());
    let mut target = budget;
    for _ in 0..ATTEMPTS {
        let Ok(chosen) = view.refine(&base, &rung.known, target, room)? else { break };
        let live = chosen.peak;
        let (plan, _) = view.finish(chosen, target, true)?;
        let over = plan.spaces[Tier::Device as usize].bytes.saturating_sub(budget);
        let fits = |tier: Tier| plan.spaces[tier as usize].bytes <= room[tier as usize - 1];
        if over == 0 && fits(Tier::Host) && fits(Tier::Disk) {
            return Ok(Some(plan));
        }
        // Less than what it came to, or the same would be chosen again.
        target = target.min(live).saturating_sub((over + over / 4).max(64));
    }
    Ok(None)
}

/// The share of what is needed beyond weights and states that a budget has room for.
fn share(budget: u64, need: u64, state: u64) -> f64 {
    budget.saturating_sub(state) as f64 / (need.saturating_sub(state)).max(1) as f64
}
