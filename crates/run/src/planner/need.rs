//! How much memory a job needs: at least, at first, and as little as can be found.

use super::{Planner, timing};
use crate::session::Which;
use gulliver_graph::dim::Bindings;
use gulliver_plan::budget::bound::Bound;
use gulliver_plan::budget::residences::all_away;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::plan::Tier;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::step::options::PlanOptions;

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
            self.with(Which::Train, sizes, |graph, outline, options| outline.bound(graph, sizes, options))?;
        if self.evaluate.is_some() {
            let other = self.with(Which::Evaluate, &slice, |graph, outline, options| {
                outline.bound(graph, &slice, options)
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
    pub(crate) fn first_bytes(&mut self) -> Result<u64, PlanError> {
        let state = self.persistent.ends[Tier::Device as usize];
        let Some(budget) = self.options.memory else { return Ok(state) };
        let Some(largest) = self.options.largest.clone() else { return Ok(budget) };
        let slice = self.evaluated_at(&largest);
        let mut most = self.with(Which::Train, &largest, |graph, outline, options| {
            outline.resident(graph, &largest, options)
        })?;
        if self.evaluate.is_some() {
            most = most.max(self.with(Which::Evaluate, &slice, |graph, outline, options| {
                outline.resident(graph, &slice, options)
            })?);
        }
        Ok(budget.min(with_slack(most)).max(state))
    }

    /// Seconds of a step with a plan that was found in a hurry, if there is one within the budget.
    pub fn try_out(&mut self, sizes: &Bindings) -> Result<f64, PlanError> {
        self.check_bound(sizes)?;
        let (seconds, persistent) = self.with(Which::Train, sizes, |graph, outline, options| {
            let (persistent, plan) = outline.place_weights_simply(graph, sizes, options)?;
            let options = PlanOptions { persistent: &persistent, ..*options };
            Ok((timing(graph, outline, &plan, sizes, &options)?.seconds, persistent))
        })?;
        if self.evaluate.is_some() {
            let slice = self.evaluated_at(sizes);
            self.with(Which::Evaluate, &slice, |graph, outline, options| {
                outline.plan(graph, &slice, &PlanOptions { persistent: &persistent, ..*options })
            })?;
        }
        Ok(seconds)
    }

    /// The smallest device memory that inputs of these sizes can be trained and evaluated in, weights and
    /// states leaving the device if other tiers allow.
    pub fn smallest(&mut self, sizes: &Bindings) -> Result<u64, PlanError> {
        let here = Persistent::of(self.graph(Which::Train))?;
        let away = self.with(Which::Train, sizes, |graph, _, options| all_away(graph, options))?;
        let slice = self.evaluated_at(sizes);
        let mut least: Option<u64> = None;
        for persistent in [away, Some(here)].into_iter().flatten() {
            // All that is resident on the device stays there.
            if least.is_some_and(|least| least <= persistent.ends[Tier::Device as usize]) {
                break;
            }
            let mut needed = self.with(Which::Train, sizes, |graph, outline, options| {
                let options = PlanOptions { memory: None, persistent: &persistent, ..*options };
                outline.smallest(graph, sizes, &options)
            })?;
            if self.evaluate.is_some() {
                needed = self.with(Which::Evaluate, &slice, |graph, outline, options| {
                    let limited = PlanOptions { memory: Some(needed), persistent: &persistent, ..*options };
                    match outline.plan(graph, &slice, &limited) {
                        Ok(_) => Ok(needed),
                        Err(PlanError::DoesNotFit { .. } | PlanError::TierFull { .. }) => {
                            let options = PlanOptions { memory: None, ..limited };
                            Ok(outline.smallest(graph, &slice, &options)?.max(needed))
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
pub(crate) fn with_slack(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 4)
}
