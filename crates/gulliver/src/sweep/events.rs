//! The events of a sweep, from what its store holds.

use super::drive::best;
use super::file::Sweep;
use super::search;
use super::space::TrialPoint;
use super::store::{RungId, RungOutcome, TrialRecord, TrialState};
use super::trials::{table, values};
use crate::event::{BestTrial, Event};

/// Trials of the last table.
const SHOWN: usize = 10;

/// The sweep begins or goes on.
pub fn started(sweep: &Sweep, records: &[TrialRecord]) -> Event {
    let top = sweep.top() as f64;
    let level = |record: &TrialRecord| record.rungs.keys().next_back().map_or(0.0, |&level| level as f64);
    Event::SweepStart {
        sweep: sweep.name.clone(),
        algorithm: sweep.algorithm.name().into(),
        metric: sweep.metric.clone(),
        goal: sweep.goal.name(),
        trials: sweep.trials,
        ended: records.iter().filter(|r| r.state != TrialState::Running).count() as u64,
        work: search::work(sweep) * sweep.runs() as f64,
        done: records.iter().map(|r| level(r) / top).sum::<f64>() * sweep.runs() as f64,
        best: best_of(sweep, records),
    }
}

/// A rung ended; `work` is how much training it was, in jobs trained to their end.
pub fn ended(sweep: &Sweep, place: RungId, point: &TrialPoint, outcome: &RungOutcome, work: f64) -> Event {
    let (step, value, reason) = match outcome {
        RungOutcome::Done { step, metrics, .. } => {
            (*step, metrics.get(&sweep.metric).copied().unwrap_or(f64::NAN), None)
        }
        RungOutcome::Failed { reason } => (0, f64::NAN, Some(reason.clone())),
    };
    let RungId { trial, repeat, level } = place;
    Event::Rung { trial, repeat, level, step, value, reason, values: values(sweep, point), work }
}

/// The sweep is over.
pub fn finished(sweep: &Sweep, records: &[TrialRecord]) -> Event {
    let count = |state: TrialState| records.iter().filter(|r| r.state == state).count() as u64;
    Event::SweepDone {
        complete: count(TrialState::Complete),
        pruned: count(TrialState::Pruned),
        failed: count(TrialState::Failed),
        best: best_of(sweep, records),
        table: table(sweep, records, SHOWN),
    }
}

/// The best trial, if one reached the end of a rung.
pub fn best_of(sweep: &Sweep, records: &[TrialRecord]) -> Option<BestTrial> {
    let record = best(sweep, records)?;
    Some(BestTrial { trial: record.number, level: *record.rungs.keys().next_back()?, value: record.value()? })
}
