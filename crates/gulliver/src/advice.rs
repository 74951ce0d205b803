//! What to do when a job does not fit: how little could be enough, what takes most of the memory, and the change of
//! the job that costs least. A budget below the lower bound is answered at once, without a search.

use crate::command::CommandError;
use crate::report::units;
use crate::setup::Graphs;
use gulliver_graph::dim::BATCH;
use gulliver_graph::dim::Bindings;
use gulliver_plan::document::error::{Holders, PlanError};
use gulliver_run::planner::Planner;
use gulliver_run::session::{SessionError, SessionOptions};
use std::fmt;

/// How little device memory a job could be trained in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// No plan needs less; whether this would be enough is not known.
    AtLeast(u64),
    /// A plan was found that needs this, and none that needs less.
    Enough(u64),
    /// The best plan that was tried needs this; less may do.
    Tried(u64),
    /// No plan was found, whatever the budget.
    Unknown,
}

/// A change of one field of the job.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The field, such as `train.partials`.
    pub field: String,
    /// Its new value.
    pub value: String,
    /// Whether a plan was found with it; else only the lower bound is known to be within the budget.
    pub found: bool,
}

/// Why a job does not fit, and what to do about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Bytes of the device the job allows.
    pub budget: u64,
    /// How little could be enough.
    pub needed: Needed,
    /// The largest values when most bytes are in use.
    pub holders: Holders,
    /// The cheapest change that makes the job fit.
    pub change: Option<Proposal>,
}

impl Advice {
    /// What is known when a plan for one of several devices fails: nothing but that.
    pub fn bare(needed: u64, proven: bool, budget: u64, holders: Holders) -> Advice {
        let needed = if proven { Needed::AtLeast(needed) } else { Needed::Tried(needed) };
        Advice { budget, needed, holders, change: None }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = |n: u64| format!("{} ({n} bytes)", units::bytes(n));
        write!(f, "the device budget is {}", units::bytes(self.budget))?;
        match self.needed {
            Needed::AtLeast(least) => write!(f, ", and no plan of this job needs less than {}", both(least))?,
            Needed::Enough(least) => write!(f, ", the smallest that would do is {}", both(least))?,
            Needed::Tried(tried) => write!(f, ", and the best plan that was found needs {}", both(tried))?,
            Needed::Unknown => write!(f, ", and no budget was found that would do")?,
        }
        let holders = self.holders.0.iter().map(|(name, n)| format!("{name} {}", units::bytes(*n)));
        write!(f, "; largest at the peak: {}; ", holders.collect::<Vec<_>>().join(", "))?;
        match &self.change {
            Some(Proposal { field, value, found: true }) => {
                write!(f, "the cheapest change that fits is {field} = {value} (--set {field}={value})")
            }
            Some(Proposal { field, value, found: false }) => {
                write!(f, "raise devices.memory (--memory), or try {field} = {value} (--set {field}={value})")
            }
            None => write!(f, "raise devices.memory (--memory)"),
        }
    }
}

/// A change of the job: its field and value, and what it makes of the options and the batch.
struct Change {
    field: &'static str,
    value: String,
    options: SessionOptions,
    batch: usize,
}

impl Change {
    fn planner(&self, graphs: &Graphs) -> Result<(Planner, Bindings), PlanError> {
        let mut sizes = graphs.largest.clone();
        sizes.set(BATCH, self.batch);
        let options = SessionOptions { largest: Some(sizes.clone()), ..self.options.clone() };
        Ok((unsettled(graphs, options)?, sizes))
    }

    fn proposal(self, found: bool) -> Proposal {
        Proposal { field: self.field.to_string(), value: self.value, found }
    }
}

/// The error of a job for which no plan was found; other errors stay what they are. If a lower bound says so already,
/// only lower bounds are compared, unless `thorough`.
pub fn advise(graphs: &Graphs, options: SessionOptions, error: PlanError, thorough: bool) -> CommandError {
    let PlanError::DoesNotFit { needed, proven, budget, holders } = error else {
        return SessionError::from(error).into();
    };
    let found = match proven && !thorough {
        true => promising(graphs, &options, budget).map(|change| (Needed::AtLeast(needed), change)),
        false => searched(graphs, &options),
    };
    match found {
        Ok((needed, change)) => {
            CommandError::DoesNotFit(Box::new(Advice { budget, needed, holders, change }))
        }
        Err(e) => SessionError::from(e).into(),
    }
}

/// The first change whose lower bound is within the budget.
fn promising(graphs: &Graphs, options: &SessionOptions, budget: u64) -> Result<Option<Proposal>, PlanError> {
    let batch = graphs.largest.get(BATCH).unwrap_or(1);
    for change in changes(options, batch) {
        let (mut planner, sizes) = match change.planner(graphs) {
            Ok(made) => made,
            Err(PlanError::Interrupted) => return Err(PlanError::Interrupted),
            Err(_) => continue,
        };
        match planner.bound(&sizes) {
            // What is found usually needs little more than the bound.
            Ok(bound) if bound.bytes <= budget / 8 * 7 => return Ok(Some(change.proposal(false))),
            Err(PlanError::Interrupted) => return Err(PlanError::Interrupted),
            _ => {}
        }
    }
    Ok(None)
}

/// The smallest budget that was found to do, and the fastest of the changes that make the job fit.
fn searched(graphs: &Graphs, options: &SessionOptions) -> Result<(Needed, Option<Proposal>), PlanError> {
    let free = unsettled(graphs, SessionOptions { memory: None, ..options.clone() });
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

fn unsettled(graphs: &Graphs, options: SessionOptions) -> Result<Planner, PlanError> {
    Planner::unsettled(graphs.train.clone(), Some(graphs.evaluation.clone()), options)
}

/// The changes that are tried: other tiers, computing again, more partials, a smaller batch.
fn changes(options: &SessionOptions, batch: usize) -> Vec<Change> {
    let mut all = Vec::new();
    let mut add = |field, value: String, options: SessionOptions, batch| {
        all.push(Change { field, value, options, batch });
    };
    if !options.recompute {
        add("devices.recompute", "true".into(), SessionOptions { recompute: true, ..options.clone() }, batch);
    }
    for gibibytes in [1u64, 4, 16, 64] {
        let size = gibibytes << 30;
        let text = || format!("{gibibytes}GiB");
        if options.host_memory.is_some_and(|host| host < size) {
            let more = SessionOptions { host_memory: Some(size), ..options.clone() };
            add("devices.host_memory", text(), more, batch);
        }
        if options.host_memory.is_some() && options.disk.is_none_or(|disk| disk < size) {
            add("devices.disk", text(), SessionOptions { disk: Some(size), ..options.clone() }, batch);
        }
    }
    let mut partials = options.partials * 2;
    while batch.is_multiple_of(partials as usize) {
        let sliced = SessionOptions { partials, ..options.clone() };
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
