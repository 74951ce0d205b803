//! What to do when a job does not fit: the smallest budget that would, what takes most of the memory, and
//! the one change of the job that costs least.

use crate::command::CommandError;
use crate::report::units;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_plan::make::BATCH;
use gulliver_run::planner::Planner;
use gulliver_run::session::{SessionOptions, Which};
use std::fmt;

/// See the top of this file.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Bytes of the device the job allows.
    pub budget: u64,
    /// Bytes that would be enough, as far as can be found.
    pub smallest: Option<u64>,
    /// The largest values when most bytes are in use.
    pub holders: String,
    /// The cheapest change that makes the job fit: field, value, and predicted samples a second.
    pub change: Option<(String, String, f64)>,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the device budget is {}", units::bytes(self.budget))?;
        match self.smallest {
            Some(least) => {
                write!(f, ", the smallest that would do is {} ({least} bytes)", units::bytes(least))?
            }
            None => write!(f, ", and no budget was found that would do")?,
        }
        write!(f, "; largest at the peak: {}", self.holders)?;
        match &self.change {
            Some((field, value, _)) => {
                write!(f, "; the cheapest change that fits is {field} = {value} (--set {field}={value})")
            }
            None => write!(f, "; raise devices.memory"),
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

/// The error of a job whose plan does not fit.
pub fn advise(
    graph: Graph,
    evaluation: Graph,
    options: SessionOptions,
    largest: &Bindings,
    budget: u64,
    holders: String,
) -> CommandError {
    let free = SessionOptions { memory: None, ..options.clone() };
    let smallest = Planner::new(graph.clone(), Some(evaluation.clone()), free)
        .and_then(|mut planner| planner.smallest(largest));
    let batch = largest.get(BATCH).unwrap_or(1);
    let mut best: Option<(String, String, f64)> = None;
    let mut enough = Vec::new();
    for change in changes(&options, batch) {
        // More than the least change that is enough only makes it slower, or nothing better.
        if enough.contains(&change.field) {
            continue;
        }
        let mut sizes = largest.clone();
        sizes.set(BATCH, change.batch);
        let changed = SessionOptions { largest: Some(sizes.clone()), ..change.options };
        let planner = Planner::new(graph.clone(), Some(evaluation.clone()), changed);
        let Ok(mut planner) = planner else { continue };
        let timed =
            planner.plan(Which::Train, &sizes).and_then(|plan| planner.timing(Which::Train, &sizes, &plan));
        let Ok(timing) = timed else { continue };
        enough.push(change.field);
        let rate = change.batch as f64 / timing.seconds.max(1e-12);
        if best.as_ref().is_none_or(|(.., known)| rate > *known) {
            best = Some((change.field.to_string(), change.value, rate));
        }
    }
    CommandError::DoesNotFit(Box::new(Advice { budget, smallest: smallest.ok(), holders, change: best }))
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
