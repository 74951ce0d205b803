//! Finds out what would make a job fit: the smallest budget, or the cheapest change of the job. A budget below the
//! lower bound is answered at once, without a search.

use crate::error::{Advice, Error, Needed, Proposal};
use crate::local::LocalDevice;
use gulliver_graph::dim::{BATCH, Bindings};
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::strategy::JobGraphs;
use gulliver_plan::document::error::PlanError;

/// A change of the job: its field and value, and what it makes of the options and the batch.
struct Change {
    field: &'static str,
    value: String,
    options: LocalDevice,
    batch: usize,
}

impl Change {
    fn planner(&self, graphs: &JobGraphs) -> Result<(Planner, Bindings), PlanError> {
        let mut sizes = graphs.largest.clone();
        sizes.set(BATCH, self.batch);
        let options = LocalDevice { largest: Some(sizes.clone()), ..self.options.clone() };
        Ok((unsettled(graphs, options)?, sizes))
    }

    fn proposal(self, found: bool) -> Proposal {
        Proposal { field: self.field.to_string(), value: self.value, found }
    }
}

/// The error of a job for which no plan was found; other errors stay what they are. If a lower bound says so already,
/// only lower bounds are compared, unless `thorough`.
pub fn advise(graphs: &JobGraphs, options: LocalDevice, error: PlanError, thorough: bool) -> Error {
    let PlanError::DoesNotFit { needed, proven, budget, holders } = error else {
        return error.into();
    };
    let found = match proven && !thorough {
        true => promising(graphs, &options, budget).map(|change| (Needed::AtLeast(needed), change)),
        false => searched(graphs, &options),
    };
    match found {
        Ok((needed, change)) => Error::DoesNotFit(Box::new(Advice { budget, needed, holders, change })),
        Err(e) => e.into(),
    }
}

/// The first change whose lower bound is within the budget.
fn promising(graphs: &JobGraphs, options: &LocalDevice, budget: u64) -> Result<Option<Proposal>, PlanError> {
    let batch = graphs.largest.get(BATCH).unwrap_or(1);
    for change in changes(options, batch) {
        let (mut planner, sizes) = match change.planner(graphs) {
            Ok(made) => made,
            Err(PlanError::Interrupted) => return Err(PlanError::Interrupted),
            Err(_) => continue,
        };
        match planner.bound(&sizes) {
            // Plans usually need little more than the bound.
            Ok(bound) if bound.bytes <= budget / 8 * 7 => return Ok(Some(change.proposal(false))),
            Err(PlanError::Interrupted) => return Err(PlanError::Interrupted),
            _ => {}
        }
    }
    Ok(None)
}

/// The smallest budget that was found to do, and the fastest of the changes that make the job fit.
fn searched(graphs: &JobGraphs, options: &LocalDevice) -> Result<(Needed, Option<Proposal>), PlanError> {
    let free = unsettled(graphs, LocalDevice { memory: None, ..options.clone() });
    let needed = match free.and_then(|mut planner| planner.smallest(&graphs.largest)) {
        Ok(least) => Needed::Enough(least),
        Err(PlanError::Interrupted) => return Err(PlanError::Interrupted),
        Err(_) => Needed::Unknown,
    };
    let mut best: Option<(f64, Proposal)> = None;
    let mut enough = Vec::new();
    for change in changes(options, graphs.largest.get(BATCH).unwrap_or(1)) {
        // More than the least change that is enough only makes it slower, or nothing better.
        if enough.contains(&change.field) {
            continue;
        }
        let tried = change.planner(graphs).and_then(|(mut planner, sizes)| planner.try_out(&sizes));
        let seconds = match tried {
            Ok(seconds) => seconds,
            Err(PlanError::Interrupted) => return Err(PlanError::Interrupted),
            Err(_) => continue,
        };
        enough.push(change.field);
        let rate = change.batch as f64 / seconds.max(1e-12);
        if best.as_ref().is_none_or(|(known, _)| rate > *known) {
            best = Some((rate, change.proposal(true)));
        }
    }
    Ok((needed, best.map(|(_, proposal)| proposal)))
}

fn unsettled(graphs: &JobGraphs, options: LocalDevice) -> Result<Planner, PlanError> {
    Planner::unsettled(graphs.train.clone(), Some(graphs.evaluation.clone()), options.options())
}

/// The changes that are tried: other tiers, computing again, more partials, a smaller batch.
fn changes(options: &LocalDevice, batch: usize) -> Vec<Change> {
    let mut all = Vec::new();
    let mut add = |field, value: String, options: LocalDevice, batch| {
        all.push(Change { field, value, options, batch });
    };
    if !options.recompute {
        add("devices.recompute", "true".into(), LocalDevice { recompute: true, ..options.clone() }, batch);
    }
    for gibibytes in [1u64, 4, 16, 64] {
        let size = gibibytes << 30;
        let text = || format!("{gibibytes}GiB");
        if options.host_memory.is_some_and(|host| host < size) {
            let more = LocalDevice { host_memory: Some(size), ..options.clone() };
            add("devices.host_memory", text(), more, batch);
        }
        if options.host_memory.is_some() && options.disk.is_none_or(|disk| disk < size) {
            add("devices.disk", text(), LocalDevice { disk: Some(size), ..options.clone() }, batch);
        }
    }
    let mut partials = options.partials * 2;
    while batch.is_multiple_of(partials as usize) {
        let sliced = LocalDevice { partials, ..options.clone() };
        add("train.partials", partials.to_string(), sliced, batch);
        partials *= 2;
    }
    let mut less = batch / 2;
    while less > 0 && less.is_multiple_of(options.partials as usize) {
        add("train.batch", less.to_string(), options.clone(), less);
        less /= 2;
    }
    all
}
