//! How much memory a job needs: at least, at first, and as little as can be found.

use super::{Planner, timing};
use crate::budget::bound::Bound;
use crate::budget::residences::all_away;
use crate::document::error::PlanError;
use crate::document::job::Purpose;
use crate::document::plan::Tier;
use crate::document::residence::Persistent;
use crate::step::options::PlanOptions;
use gulliver_graph::dim::Bindings;

impl Planner {
    /// Fails if no plan can keep within the budget, which is seen without a search.
    pub(super) fn check_bound(&mut self, largest: &Bindings) -> Result<(), PlanError> {
        let Some(budget) = self.options.memory else { return Ok(()) };
        let bound = self.bound(largest)?;
        if bound.bytes > budget { Err(bound.exceeds(budget)) } else { Ok(()) }
    }

    /// Device memory that inputs of these sizes cannot be trained and evaluated without, whatever is planned.
    pub fn bound(&mut self, sizes: &Bindings) -> Result<Bound, PlanError> {
        let slice = self.evaluated_at(sizes);
        let mut most =
            self.with(Purpose::Train, sizes, |graph, steps, options| steps.bound(graph, sizes, options))?;
        if self.evaluate.is_some() {
            let other = self.with(Purpose::Evaluate, &slice, |graph, steps, options| {
                steps.bound(graph, &slice, options)
            })?;
            if other.bytes > most.bytes {
                most = other;
            }
        }
        Ok(most)
    }

    /// Device bytes to begin with: what the largest input needs if all of it stays, and some that layout may lose, as far
    /// as the budget allows. Only a plan that layout loses more for needs more than that. Where the largest input is not
    /// known, all of the budget.
    pub(super) fn first_bytes(&mut self) -> Result<u64, PlanError> {
        let state = self.persistent.ends[Tier::Device as usize];
        let Some(budget) = self.options.memory else { return Ok(state) };
        let Some(largest) = self.options.largest.clone() else { return Ok(budget) };
        let slice = self.evaluated_at(&largest);
        let mut most = self.with(Purpose::Train, &largest, |graph, steps, options| {
            steps.resident(graph, &largest, options)
        })?;
        if self.evaluate.is_some() {
            most = most.max(self.with(Purpose::Evaluate, &slice, |graph, steps, options| {
                steps.resident(graph, &slice, options)
            })?);
        }
        Ok(budget.min(with_slack(most)).max(state))
    }

    /// Seconds of a step with a plan that was found in a hurry, if there is one within the budget.
    pub fn try_out(&mut self, sizes: &Bindings) -> Result<f64, PlanError> {
        self.check_bound(sizes)?;
        let (seconds, persistent) = self.with(Purpose::Train, sizes, |graph, steps, options| {
            let (persistent, plan) = steps.place_weights_simply(graph, sizes, options)?;
            let options = PlanOptions { persistent: &persistent, ..*options };
            Ok((timing(graph, steps, &plan, sizes, &options)?.seconds, persistent))
        })?;
        if self.evaluate.is_some() {
            let slice = self.evaluated_at(sizes);
            self.with(Purpose::Evaluate, &slice, |graph, steps, options| {
                steps.plan(graph, &slice, &PlanOptions { persistent: &persistent, ..*options })
            })?;
        }
        Ok(seconds)
    }

    /// The smallest device memory that inputs of these sizes can be trained and evaluated in, weights and
    /// states leaving the device if other tiers allow.
    pub fn smallest(&mut self, sizes: &Bindings) -> Result<u64, PlanError> {
        let here = Persistent::of(self.graph(Purpose::Train))?;
        let away = self.with(Purpose::Train, sizes, |graph, _, options| all_away(graph, options))?;
        let slice = self.evaluated_at(sizes);
        let mut least: Option<u64> = None;
        for persistent in [away, Some(here)].into_iter().flatten() {
            // All that is resident on the device stays there.
            if least.is_some_and(|least| least <= persistent.ends[Tier::Device as usize]) {
                break;
            }
            let mut needed = self.with(Purpose::Train, sizes, |graph, steps, options| {
                let options = PlanOptions { memory: None, persistent: &persistent, ..*options };
                steps.smallest(graph, sizes, &options)
            })?;
            if self.evaluate.is_some() {
                needed = self.with(Purpose::Evaluate, &slice, |graph, steps, options| {
                    let limited = PlanOptions { memory: Some(needed), persistent: &persistent, ..*options };
                    match steps.plan(graph, &slice, &limited) {
                        Ok(_) => Ok(needed),
                        Err(PlanError::DoesNotFit { .. } | PlanError::TierFull { .. }) => {
                            let options = PlanOptions { memory: None, ..limited };
                            Ok(steps.smallest(graph, &slice, &options)?.max(needed))
                        }
                        Err(e) => Err(e),
                    }
                })?;
            }
            least = Some(least.map_or(needed, |least| least.min(needed)));
        }
        least.ok_or(PlanError::NoRoom)
    }
}

/// Bytes with some to spare, so that memory seldom has to grow; pages that are not touched cost nothing.
fn with_slack(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 4)
}
