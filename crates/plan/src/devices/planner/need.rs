//! The memory that a job needs: a lower bound, the first allocation, and the smallest that is found.

use super::{Planner, timing};
use crate::budget::bound::MemoryBound;
use crate::budget::planner::StepPlanner;
use crate::budget::residences::all_away;
use crate::document::error::PlanError;
use crate::document::job::Purpose;
use crate::document::plan::Tier;
use crate::document::residence::Persistent;
use crate::step::options::PlanOptions;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;

impl Planner {
    /// Fails if the lower bound exceeds the budget.
    pub(super) fn check_bound(&mut self, largest: &Bindings) -> Result<(), PlanError> {
        let Some(budget) = self.options.memory else { return Ok(()) };
        let bound = self.bound(largest)?;
        if bound.bytes > budget { Err(bound.exceeds(budget)) } else { Ok(()) }
    }

    /// A lower bound of the device memory for training and evaluating inputs of these sizes.
    pub fn bound(&mut self, sizes: &Bindings) -> Result<MemoryBound, PlanError> {
        let [train, evaluate] = self.both(sizes, StepPlanner::bound)?;
        Ok(evaluate.into_iter().fold(train.unwrap_or_default(), |a, b| if b.bytes > a.bytes { b } else { a }))
    }

    /// Calls `of` for training and, if there is a graph for it, for evaluation.
    fn both<T>(
        &mut self,
        sizes: &Bindings,
        of: fn(&StepPlanner, &Graph, &Bindings, &PlanOptions) -> Result<T, PlanError>,
    ) -> Result<[Option<T>; 2], PlanError> {
        let slice = self.evaluated_at(sizes);
        let train =
            self.with(Purpose::Train, sizes, |graph, steps, options| of(steps, graph, sizes, options))?;
        let evaluate = self.evaluate.is_some().then(|| {
            self.with(Purpose::Evaluate, &slice, |graph, steps, options| of(steps, graph, &slice, options))
        });
        Ok([Some(train), evaluate.transpose()?])
    }

    /// Device bytes to allocate first: those of the largest input if everything stays, with a quarter for gaps, within
    /// the budget. All of the budget if the largest input is not known.
    pub(super) fn first_bytes(&mut self) -> Result<u64, PlanError> {
        let state = self.persistent.ends[Tier::Device as usize];
        let Some(budget) = self.options.memory else { return Ok(state) };
        let Some(largest) = self.options.largest.clone() else { return Ok(budget) };
        let most = self.both(&largest, StepPlanner::resident)?.into_iter().flatten().max().unwrap_or(0);
        // A quarter more, so that memory seldom has to grow; untouched pages cost nothing.
        Ok(budget.min(most.saturating_add(most / 4)).max(state))
    }

    /// Seconds of a step by a quick plan within the budget.
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

    /// The smallest device memory found for training and evaluating inputs of these sizes, where weights and states leave
    /// the device if other tiers allow.
    pub fn smallest(&mut self, sizes: &Bindings) -> Result<u64, PlanError> {
        let here = Persistent::of(self.graph(Purpose::Train))?;
        let away = self.with(Purpose::Train, sizes, |graph, _, options| all_away(graph, options))?;
        let slice = self.evaluated_at(sizes);
        let mut least: Option<u64> = None;
        for persistent in [away, Some(here)].into_iter().flatten() {
            // Resident weights and states stay on the device.
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
