//! The loop of a sweep: ask the search for trials, store them, train them, store the results, until the search asks for
//! none. Killed anywhere and started again, the loop goes on as if nothing had happened.

use super::events;
use super::file::{Goal, Sweep};
use super::run::{self, JobLengths, RungNews, RungRunner, TrialRung};
use super::search;
use super::store::{RungId, RungOutcome, StudyStore, TrialRecord, TrialState, history};
use super::trials::write_files;
use crate::error::Error;
use crate::event::{Event, EventHandler};
use gulliver_run::checkpoint;
use gulliver_run::files::atomic::write_atomic;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs a sweep to its end, or until `stop` is set, which `on_event` does too by a `Break`; whether it came to its end.
/// `dir` holds the store and all other files.
pub fn drive(
    sweep: &Sweep,
    dir: &Path,
    store: &mut StudyStore,
    runner: &mut dyn RungRunner,
    stop: &AtomicBool,
    on_event: &mut EventHandler<'_>,
) -> Result<bool, Error> {
    let mut records = store.records()?;
    if records.is_empty() {
        // A new sweep does not use runs that another sweep left here.
        remove(&trials_dir(dir))?;
    }
    let mut lengths = JobLengths::new();
    let mut copied = None;
    let mut tell = |event: Event| {
        if on_event(event).is_break() {
            stop.store(true, Ordering::Relaxed);
        }
    };
    tell(events::started(sweep, &records));
    loop {
        let pending = store.pending()?;
        if pending.is_empty() {
            keep_best(sweep, dir, &records, &mut copied)?;
            let asks = search::next(sweep, &history(&records, sweep.goal));
            if asks.is_empty() {
                break;
            }
            store.begin(&sweep.space, &asks)?;
            records = store.records()?;
            continue;
        }
        let wave = rungs(sweep, dir, &records, &pending, &mut lengths, store, &mut tell)?;
        runner.run(&wave, &mut |news| hear(sweep, &records, &wave, news, store, &mut tell))?;
        if stop.load(Ordering::Relaxed) {
            write_files(sweep, dir, store)?;
            return Ok(false);
        }
        if let Some(place) = store.pending()?.first() {
            let problem = format!("trial {} was handed over and came to no end", place.trial);
            return Err(Error::ForeignStudy { path: dir.to_path_buf(), problem });
        }
        records = store.records()?;
    }
    store.close()?;
    records = store.records()?;
    keep_best(sweep, dir, &records, &mut copied)?;
    write_files(sweep, dir, store)?;
    tell(events::finished(sweep, &records));
    Ok(true)
}

/// The best trial: the best metric among those trained longest; the first of equals.
pub fn best<'r>(sweep: &Sweep, records: &'r [TrialRecord]) -> Option<&'r TrialRecord> {
    ranked(sweep, records)
        .into_iter()
        .find(|record| record.state != TrialState::Failed && !record.rungs.is_empty())
}

/// All trials, sorted by length trained (longest first), metric and number; those without a result last.
pub fn ranked<'r>(sweep: &Sweep, records: &'r [TrialRecord]) -> Vec<&'r TrialRecord> {
    let sign = if sweep.goal == Goal::Minimize { 1.0 } else { -1.0 };
    let key = |record: &TrialRecord| {
        let failed = record.state == TrialState::Failed;
        let level = record.rungs.keys().next_back().copied().filter(|_| !failed);
        (level, record.value().map_or(f64::INFINITY, |value| sign * value))
    };
    let mut order: Vec<&TrialRecord> = records.iter().collect();
    order.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        b.0.cmp(&a.0).then(a.1.total_cmp(&b.1))
    });
    order
}

/// The directory of every trial's runs.
fn trials_dir(dir: &Path) -> PathBuf {
    dir.join("trials")
}

/// The run directory of one repeat of a trial.
pub fn run_dir(dir: &Path, trial: u64, repeat: u64) -> PathBuf {
    trials_dir(dir).join(format!("{trial:05}.{repeat}"))
}

/// Steps at the end of the rung of length `level`, of a job with `end` steps whose whole length is `top`.
pub fn steps_at(end: u64, level: u64, top: u64) -> u64 {
    let steps = u128::from(end) * u128::from(level);
    (steps.div_ceil(u128::from(top.max(1))) as u64).clamp(1, end.max(1))
}

/// The rungs of pending trials. A trial whose job cannot be read fails here.
fn rungs(
    sweep: &Sweep,
    dir: &Path,
    records: &[TrialRecord],
    pending: &[RungId],
    lengths: &mut JobLengths,
    store: &mut StudyStore,
    tell: &mut dyn FnMut(Event),
) -> Result<Vec<TrialRung>, Error> {
    let mut wave = Vec::new();
    for &place in pending {
        let Some(record) = records.get(place.trial as usize) else { continue };
        let made = sweep.job(&record.point, place.repeat).map_err(|e| e.to_string()).and_then(|job| {
            let end = run::length(&job, lengths).map_err(|e| e.to_string())?;
            let before =
                record.rungs.keys().next_back().map_or(0, |&level| steps_at(end, level, sweep.top()));
            let to = steps_at(end, place.level, sweep.top());
            let dir = run_dir(dir, place.trial, place.repeat);
            Ok(TrialRung { place, job, from: before.min(to), to, end, dir })
        });
        match made {
            Ok(rung) => wave.push(rung),
            Err(reason) => {
                let outcome = RungOutcome::Failed { reason };
                store.finish(place, &outcome)?;
                let work = place.level as f64 / sweep.top() as f64;
                tell(events::ended(sweep, place, &record.point, &outcome, work));
            }
        }
    }
    Ok(wave)
}

/// Stores news of a runner, then passes it on as an event.
fn hear(
    sweep: &Sweep,
    records: &[TrialRecord],
    wave: &[TrialRung],
    news: RungNews<'_>,
    store: &mut StudyStore,
    tell: &mut dyn FnMut(Event),
) -> Result<(), Error> {
    let event = match news {
        RungNews::Step { rung, step, samples_per_second } => {
            let TrialRung { place, to, .. } = wave[rung];
            Event::TrialStep { trial: place.trial, repeat: place.repeat, step, to, samples_per_second }
        }
        RungNews::Evaluated { rung, step, metrics } => {
            let place = wave[rung].place;
            store.evaluated(place, step, metrics)?;
            Event::TrialEval { trial: place.trial, repeat: place.repeat, step, metrics: metrics.clone() }
        }
        RungNews::Ended { rung, outcome } => {
            let TrialRung { place, from, to, end, .. } = wave[rung];
            store.finish(place, &outcome)?;
            let point =
                records.get(place.trial as usize).map(|record| record.point.clone()).unwrap_or_default();
            events::ended(sweep, place, &point, &outcome, (to - from) as f64 / end.max(1) as f64)
        }
    };
    tell(event);
    Ok(())
}

/// Copies the newest checkpoint and the job of the best trial into the sweep's directory, and removes runs of trials that
/// ended and are not the best.
fn keep_best(
    sweep: &Sweep,
    dir: &Path,
    records: &[TrialRecord],
    copied: &mut Option<(u64, u64, u64)>,
) -> Result<(), Error> {
    let best = best(sweep, records);
    if let Some((record, (step, values))) = best.and_then(|record| Some((record, record.last()?))) {
        let sign = if sweep.goal == Goal::Minimize { 1.0 } else { -1.0 };
        let better = |a: &usize, b: &usize| (sign * values[*a]).total_cmp(&(sign * values[*b]));
        let repeat = (0..values.len()).min_by(better).unwrap_or(0) as u64;
        let run = run_dir(dir, record.number, repeat);
        if *copied != Some((record.number, repeat, *step)) {
            let saved = checkpoint::list(&run.join("checkpoints")).unwrap_or_default();
            // There is no checkpoint of a step whose weights are not finite: take the one before.
            if let Some((_, checkpoint)) = saved.iter().rfind(|(saved, _)| saved <= step) {
                copy(checkpoint, &dir.join("best.safetensors"))?;
            }
            copy(&run.join("job.toml"), &dir.join("best.toml"))?;
            *copied = Some((record.number, repeat, *step));
        }
    }
    let kept = best.map(|record| record.number);
    for record in records.iter().filter(|r| r.state != TrialState::Running && Some(r.number) != kept) {
        (0..sweep.runs()).try_for_each(|repeat| remove(&run_dir(dir, record.number, repeat)))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let mut source = File::open(from).map_err(|source| Error::File { path: from.to_path_buf(), source })?;
    write_atomic(to, |file| io::copy(&mut source, file).map(|_| ()))
        .map_err(|source| Error::File { path: to.to_path_buf(), source })
}

fn remove(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::File { path: dir.to_path_buf(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
