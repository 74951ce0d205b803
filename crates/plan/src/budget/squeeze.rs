//! Plans that keep within a budget. What is needed is compared with what there is; if it is too much, the
//! [budget](crate::budget::choose) says what does not stay, [moves](crate::budget::overlap) are put beside kernels, and the
//! result is laid out. Layout loses some bytes; if they break the budget, less is aimed at.

use crate::budget::base::{Base, Choices};
use crate::budget::choose::{Chosen, Known, Short, is_polished};
use crate::budget::rewrite::rewrite;
use crate::budget::view::View;
use crate::document::error::PlanError;
use crate::document::plan::{Act, Plan, Tier};
use crate::step::make::{Options, holders};
use crate::step::outline::{Outline, Sizes};
use crate::step::script::{Script, What};
use crate::time::simulate::simulate;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, NodeId};

/// Moves that start early need room; where it is scarce they start when they must. What is chosen for less
/// than the budget, in hundredths, may fit where what was chosen for all of it does not.
const WAYS: [(bool, u64); 7] =
    [(true, 100), (false, 100), (false, 97), (false, 93), (false, 87), (false, 80), (false, 70)];
/// What is kept on the device may leave room for moves that start early: shares of the budget that are filled
/// with what is kept, and with moves too, in hundredths.
const ROOMY: [(u64, u64); 4] = [(88, 100), (88, 94), (75, 100), (75, 90)];
/// So many of the ways in a hurry.
const HURRIED: usize = 3;
/// Attempts to lay a script out in less than it needs at least, in a hurry and at leisure.
const ATTEMPTS: [usize; 2] = [4, 12];
/// In the first way, so many of them take their time.
const POLISHED: usize = 3;

/// How long to look for a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As long as one of many that are compared is worth.
    Hurried,
    /// As long as the plan of many steps is worth.
    AtLeisure,
}

impl Outline {
    /// The plan for inputs of these sizes (of the whole batch), within the budgets. Graph and partials must
    /// be those the outline was made for.
    pub fn plan(&self, graph: &Graph, sizes: &Bindings, options: &Options) -> Result<Plan, PlanError> {
        let sizes = self.sizes(graph, sizes, options)?;
        let mut view = View::new(self, graph, &sizes, options)?;
        view.at_leisure = false;
        let budget = options.memory.unwrap_or(u64::MAX);
        if view.places.iter().flatten().all(|residence| residence.tier == Tier::Device)
            && view.need() <= budget
        {
            let plan = view.lay()?;
            if plan.spaces[Tier::Device as usize].bytes <= budget {
                return Ok(plan);
            }
        }
        let base = view.base();
        if let Some(plan) = self.recall(&mut view, budget)? {
            let room = view.beside();
            return self.roomier(&view, budget, plan, |kept| {
                let Some(rung) = self.rungs_for(&view, kept).next() else { return Ok(None) };
                view.refine(&base, &rung.known, kept, room).map(Result::ok)
            });
        }
        let (plan, _) = self.squeeze(graph, &sizes, options, budget)?;
        let start = view.away_at_first(&base);
        self.roomier(&view, budget, plan, |kept| {
            Ok(view.fit(&base, &start, kept, view.beside(), false)?.ok())
        })
    }

    /// The plan, or if it moves something, one that keeps less so that moves can start earlier, if it takes
    /// less time; `choose` is given the bytes to keep within.
    fn roomier(
        &self,
        view: &View,
        budget: u64,
        plan: Plan,
        choose: impl Fn(u64) -> Result<Option<Chosen>, PlanError>,
    ) -> Result<Plan, PlanError> {
        if !plan.steps.iter().any(|step| matches!(step.act, Act::Move { .. })) {
            return Ok(plan);
        }
        let seconds = |plan: &Plan| {
            simulate(plan, |id: NodeId| view.node_seconds(id.index()), &view.options.links).seconds
        };
        let mut best = (seconds(&plan), plan);
        for (kept, used) in ROOMY {
            let share = |hundredths: u64| (u128::from(budget) * u128::from(hundredths) / 100) as u64;
            let Some(chosen) = choose(share(kept))? else { continue };
            let (plan, _) = view.finish(chosen, share(used), true)?;
            let taken = seconds(&plan);
            if view.fits(&plan, budget) && taken < best.0 {
                best = (taken, plan);
            }
        }
        Ok(best.1)
    }

    /// The plan that carries out choices made elsewhere, whatever it needs: `choose` is given the script
    /// in which everything stays, with all that is resident elsewhere away while it is not used.
    pub fn plan_with(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &Options,
        choose: impl FnOnce(&Base, Choices) -> Choices,
    ) -> Result<Plan, PlanError> {
        let sizes = self.sizes(graph, sizes, options)?;
        let view = View::new(self, graph, &sizes, options)?;
        let base = view.base();
        let start = view.away_at_first(&base);
        let choices = choose(&base, start);
        let script =
            rewrite(&base, &choices).map_err(|e| PlanError::Impossible(view.name(&base, e.wanted)))?;
        view.finish_script(script, options.memory.unwrap_or(u64::MAX), true)
    }

    /// The plan of a script written elsewhere from the one in which everything stays, whatever it needs; none
    /// if there is no such script.
    pub fn plan_script(
        &self,
        graph: &Graph,
        sizes: &Bindings,
        options: &Options,
        write: impl FnOnce(&Base) -> Option<Script>,
    ) -> Result<Option<Plan>, PlanError> {
        let sizes = self.sizes(graph, sizes, options)?;
        let view = View::new(self, graph, &sizes, options)?;
        let script = write(&view.base());
        script.map(|script| view.finish_script(script, 0, false)).transpose()
    }

    /// Whether a budget will do must not depend on how fast a machine was measured to be: where the prices
    /// at hand lead nowhere, ordinary ones are tried.
    pub(crate) fn squeeze(
        &self,
        graph: &Graph,
        sizes: &Sizes,
        options: &Options,
        budget: u64,
    ) -> Result<(Plan, Known), PlanError> {
        let failed = match self.squeeze_at(graph, sizes, options, budget, Pace::AtLeisure) {
            Err(e @ (PlanError::DoesNotFit { .. } | PlanError::TierFull { .. })) => e,
            made => return made,
        };
        if matches!(failed, PlanError::DoesNotFit { proven: true, .. }) {
            return Err(failed);
        }
        let ordinary = options.at_ordinary_prices();
        let sizes = &self.priced(sizes, &ordinary);
        // What is polished may be harder to lay out; all that `smallest` found must be found again.
        let paces = [Some(Pace::AtLeisure), is_polished(self.script.acts.len()).then_some(Pace::Hurried)];
        for pace in paces.into_iter().flatten() {
            match self.squeeze_at(graph, sizes, &ordinary, budget, pace) {
                Err(PlanError::DoesNotFit { .. } | PlanError::TierFull { .. }) => {}
                made => return made,
            }
        }
        Err(failed)
    }

    pub(crate) fn squeeze_at(
        &self,
        graph: &Graph,
        sizes: &Sizes,
        options: &Options,
        budget: u64,
        pace: Pace,
    ) -> Result<(Plan, Known), PlanError> {
        let options = &Options { memory: Some(budget).filter(|b| *b < u64::MAX), ..*options };
        let mut view = View::new(self, graph, sizes, options)?;
        view.at_leisure = pace == Pace::AtLeisure;
        let bound = view.bound();
        if budget < bound.bytes {
            return Err(bound.exceeds(budget));
        }
        let base = view.base();
        let start = view.away_at_first(&base);
        let Missed { least, full } = match view.try_ways(&base, &start, budget)? {
            Ok(found) => return Ok(found),
            Err(missed) => missed,
        };
        // What needs least may do where what was chosen for the budget does not.
        let (plan, known) = view.finish(view.least(&base, &start)?, 0, false)?;
        if view.fits(&plan, budget) {
            return Ok((plan, known));
        }
        if let Some(full) = full.filter(|_| least == u64::MAX) {
            return Err(full);
        }
        let least = least.min(plan.spaces[Tier::Device as usize].bytes.max(budget + 1));
        Err(PlanError::DoesNotFit { needed: least, proven: false, budget, holders: holders(graph, &plan) })
    }

    /// The smallest budget of the device that will do for these sizes, with weights and states where they
    /// are; found by trying in a hurry, to within a hundredth.
    pub fn smallest(&self, graph: &Graph, sizes: &Bindings, options: &Options) -> Result<u64, PlanError> {
        let options = &options.at_ordinary_prices();
        let sizes = self.sizes(graph, sizes, options)?;
        let view = View::new(self, graph, &sizes, options)?;
        let base = view.base();
        let start = view.away_at_first(&base);
        let chosen = view.least(&base, &start)?;
        // Little less than what was found to be least can be hoped for.
        let mut low = view.bound().bytes.max(chosen.peak / 4 * 3).saturating_sub(1);
        let (plan, _) = view.finish(chosen, 0, false)?;
        let mut high = plan.spaces[Tier::Device as usize].bytes;
        let will_do = |budget: u64| -> Result<bool, PlanError> {
            let options = Options { memory: Some(budget), ..*options };
            let mut view = View::new(self, graph, &sizes, &options)?;
            view.at_leisure = false;
            Ok(view.try_ways(&base, &start, budget)?.is_ok())
        };
        // Other tiers may be too small for what needs least.
        let mut fits = view.fits(&plan, high);
        while !fits {
            if high >= u64::MAX / 2 {
                return Err(PlanError::NoRoom);
            }
            (low, high) = (high, high + high / 8 + 64);
            fits = will_do(high)?;
        }
        while high.saturating_sub(low) > (high / 200).max(64) {
            let middle = low + (high - low) / 2;
            *(if will_do(middle)? { &mut high } else { &mut low }) = middle;
        }
        Ok(high)
    }
}

/// What came of trying for a budget in vain.
struct Missed {
    /// Device bytes that would have been enough.
    least: u64,
    /// Another tier that was over its budget.
    full: Option<PlanError>,
}

impl View<'_> {
    /// Whether a plan keeps within a budget of the device and those of the other tiers.
    fn fits(&self, plan: &Plan, budget: u64) -> bool {
        let [host, disk] = self.beside();
        let limits = [(Tier::Device, budget), (Tier::Host, host), (Tier::Disk, disk)];
        limits.into_iter().all(|(tier, limit)| plan.spaces[tier as usize].bytes <= limit)
    }

    /// Chooses and lays out in one way after the other until something keeps within the budgets.
    fn try_ways(
        &self,
        base: &Base,
        start: &Choices,
        budget: u64,
    ) -> Result<Result<(Plan, Known), Missed>, PlanError> {
        let beside = self.beside();
        let mut missed = Missed { least: u64::MAX, full: None };
        let mut moves = true;
        let ways = if self.at_leisure { WAYS.len() } else { HURRIED };
        let bound = self.bound().bytes;
        for (way, (early, share)) in WAYS.into_iter().take(ways).enumerate() {
            // Without moves none can start early, and all has been tried.
            if !moves && share == 100 {
                continue;
            }
            let (mut target, mut room) = (budget / 100 * share + budget % 100 * share / 100, beside);
            for attempt in 0..ATTEMPTS[usize::from(self.at_leisure)] {
                if target < bound {
                    break;
                }
                let polished = self.at_leisure && way == 0 && attempt < POLISHED;
                let chosen = match self.fit(base, start, target, room, polished)? {
                    Ok(chosen) => chosen,
                    Err(Short { enough }) => {
                        missed.least = missed.least.min(enough.max(budget + 1));
                        // What is asked for otherwise is the same, or harder.
                        if way == 0 && attempt == 0 {
                            return Ok(Err(missed));
                        }
                        break;
                    }
                };
                moves = chosen.known.script.acts.iter().any(|act| act.what == What::Move);
                let live = chosen.peak;
                let (plan, known) = self.finish(chosen, target, early)?;
                if self.fits(&plan, budget) {
                    return Ok(Ok((plan, known)));
                }
                let needed = plan.spaces[Tier::Device as usize].bytes;
                if needed > budget {
                    missed.least = missed.least.min(needed);
                    // Less than what it came to, or the same would be chosen again.
                    target = target.min(live).saturating_sub((needed - budget).max(64));
                }
                for (place, space) in plan.spaces[1..].iter().enumerate() {
                    let over = space.bytes.saturating_sub(beside[place]);
                    if over > 0 {
                        let (tier, needed) = (space.name.clone(), space.bytes);
                        missed.full = Some(PlanError::TierFull { tier, needed, budget: beside[place] });
                        room[place] = room[place].saturating_sub(over.max(64));
                    }
                }
            }
        }
        Ok(Err(missed))
    }
}
