//! Sweeps: one job trained many times with different settings.
//!
//! `file` reads the sweep file and `space` holds its parameters. `search` proposes the next trials, `run` and `array`
//! train them, `width` chooses how many at once, `store` keeps the results, and `drive` is the loop around them.
//! `events` and `trials` report. `plan` predicts a sweep, with `rehearse` to measure costs and `forecast` to add them up;
//! `metric` checks that jobs report the metric that trials are compared by.

pub mod array;
pub mod drive;
pub mod events;
pub mod file;
pub mod forecast;
pub mod metric;
pub mod plan;
mod rehearse;
pub mod run;
pub mod search;
pub mod space;
pub mod store;
pub mod trials;
pub mod width;

use crate::error::Error;
use crate::event::{BestTrial, EventHandler};
use array::ArrayRunner;
use file::Sweep;
use metric::check_metric;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use store::{StudyStore, TrialState};

/// The result of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepResult {
    /// Trials that need no more training.
    pub ended: u64,
    /// Trials in all.
    pub trials: u64,
    /// The best trial so far.
    pub best: Option<BestTrial>,
    /// Whether it was stopped before its end; the same call goes on with it.
    pub interrupted: bool,
}

/// Trains the trials of a sweep in the directory `dir`, going on with what an earlier call left there. Stops at the
/// next safe point when `stop` is set or `on_event` says `Break`.
pub fn sweep(
    sweep: &Sweep,
    dir: &Path,
    stop: &Arc<AtomicBool>,
    on_event: &mut EventHandler<'_>,
) -> Result<SweepResult, Error> {
    check_metric(sweep)?;
    let mut store = StudyStore::open(dir, sweep)?;
    let mut runner = ArrayRunner::new(Arc::clone(stop));
    let completed = drive::drive(sweep, dir, &mut store, &mut runner, stop, on_event)?;
    let records = store.records()?;
    if let (true, Some(error)) = (completed, trials::all_failed(&records)) {
        return Err(error);
    }
    Ok(SweepResult {
        ended: records.iter().filter(|record| record.state != TrialState::Running).count() as u64,
        trials: sweep.trials,
        best: events::best_of(sweep, &records),
        interrupted: !completed,
    })
}
