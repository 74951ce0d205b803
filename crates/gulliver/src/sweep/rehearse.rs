//! Measures what training an array costs: a few steps, an evaluation and a checkpoint of one member for each lane, run as
//! in the sweep, in a temporary directory.

use super::array::{ArrayRunner, member, sessions};
use super::forecast::ArrayCosts;
use super::run::TrialRung;
use crate::error::Error;
use gulliver_run::train::{Lane, Member, Notice, train_array};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Steps of the first run; the first of them includes planning and first touches of memory.
const FIRST: u64 = 2;

/// Seconds for which steps are repeated, and the least and most repetitions.
const REPEATED: f64 = 0.2;
const REPEATS: (u64, u64) = (4, 100);

/// Longest predicted step, in seconds, that is run.
const LONGEST: f64 = 10.0;

/// Measures an array whose members are these rungs, one for each lane; none if training fails. An array with long steps,
/// or one that needs half of the free memory, is not run: its costs are the predicted time of a step, and the second
/// value is false.
pub fn rehearse(arrays: &mut ArrayRunner, rungs: &[TrialRung]) -> Result<Option<(ArrayCosts, bool)>, Error> {
    let place = Place::new()?;
    let rungs: Vec<TrialRung> = rungs
        .iter()
        .enumerate()
        .map(|(i, rung)| TrialRung { from: 0, dir: place.0.join(i.to_string()), ..rung.clone() })
        .collect();
    let Some(first) = rungs.first() else { return Ok(None) };
    let mut data = Vec::new();
    let began = Instant::now();
    let (_, graphs) = member(first, &mut data)?;
    let opened = began.elapsed().as_secs_f64();
    let began = Instant::now();
    member(first, &mut data)?;
    let known = began.elapsed().as_secs_f64();
    let mut members = || {
        let all = rungs.iter().map(|rung| Ok(member(rung, &mut data)?.0));
        all.collect::<Result<Vec<Member>, Error>>()
    };

    let batch = first.job.train.batch;
    let (all, began) = (members()?, Instant::now());
    let width = arrays.width(first, &graphs, rungs.len(), Some(&first.dir.join("checkpoints")))?;
    let chosen = width.ways.get(width.chosen).and_then(|way| Some((way.lanes, way.outcome?)));
    if let Some((lanes, outcome)) = chosen
        && is_too_much(lanes as u64 * outcome.bytes.iter().sum::<u64>(), outcome.step_seconds)
    {
        return Ok(Some((ArrayCosts { step: outcome.step_seconds, ..ArrayCosts::default() }, false)));
    }
    let (mut lanes, resident) = (sessions(width.lanes, first.job.train.seed)?, width.resident);
    let Some(cold) = timed(&mut lanes, all, resident, (FIRST.min(first.to), batch)) else { return Ok(None) };
    let start = began.elapsed().as_secs_f64();
    let mut warm = cold;
    let (whole, first_steps) = (cold.batch + cold.step, FIRST.min(first.to) as f64);
    let until = ((REPEATED / whole.max(1e-9)) as u64).clamp(REPEATS.0, REPEATS.1).min(first.to);
    if whole < REPEATED && until > FIRST {
        for rung in &rungs {
            fs::remove_dir_all(&rung.dir).map_err(|source| place.failed(source))?;
        }
        warm = timed(&mut lanes, members()?, resident, (until, batch)).unwrap_or(cold);
    }
    let usual = first_steps * (warm.batch + warm.step) + warm.evaluation + warm.checkpoint;
    let (open, start) = ((opened - known).max(0.0), (start - usual).max(0.0));
    Ok(Some((ArrayCosts { open, member: known, start, ..warm }, true)))
}

/// Whether an array of `bytes`, or one whose step is predicted to take `step_seconds`, is too large to rehearse.
fn is_too_much(bytes: u64, step_seconds: f64) -> bool {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"));
    let available = available.and_then(|kilobytes| kilobytes.trim().parse::<u64>().ok());
    step_seconds > LONGEST || available.is_some_and(|available| bytes > available.saturating_mul(512))
}

/// Mean times of a step, an evaluation and a checkpoint over some members. None if one of them failed.
fn timed(
    lanes: &mut [Lane],
    mut members: Vec<Member>,
    resident: usize,
    (until, batch): (u64, u64),
) -> Option<ArrayCosts> {
    for member in &mut members {
        (member.options.eval_every, member.options.checkpoint_every) = (until, 0);
    }
    let moments: Vec<Mutex<Moments>> = members.iter().map(|_| Mutex::default()).collect();
    let began = Instant::now();
    let note = |m: usize, notice: Notice| {
        let now = began.elapsed().as_secs_f64();
        let mut moments = moments[m].lock().unwrap_or_else(PoisonError::into_inner);
        match notice {
            Notice::Step { samples_per_second, .. } => {
                moments.steps.push((now, batch as f64 / samples_per_second));
            }
            Notice::Evaluation { .. } => moments.evaluated = Some(now),
            Notice::Checkpoint { .. } => moments.saved = Some(now),
            _ => {}
        }
    };
    let ended = train_array(lanes, members, resident, until, &AtomicBool::new(false), &note);
    if ended.iter().any(Result::is_err) {
        return None;
    }
    let each = moments.into_iter().map(|m| m.into_inner().unwrap_or_else(PoisonError::into_inner).costs());
    Some(ArrayCosts::mean(&each.collect::<Option<Vec<ArrayCosts>>>()?))
}

/// When things happened to a member, in seconds from the start.
#[derive(Default)]
struct Moments {
    /// The end of each step, and its time without making the batch.
    steps: Vec<(f64, f64)>,
    evaluated: Option<f64>,
    saved: Option<f64>,
}

impl Moments {
    /// The times between them. The first step counts only if there is no other.
    fn costs(&self) -> Option<ArrayCosts> {
        let ((first, alone), (last, _)) = (*self.steps.first()?, *self.steps.last()?);
        let (whole, step) = match &self.steps[1..] {
            [] => (last, alone),
            others => {
                let busy: f64 = others.iter().map(|(_, seconds)| seconds).sum();
                ((last - first) / others.len() as f64, busy / others.len() as f64)
            }
        };
        let step = step.min(whole);
        let evaluated = self.evaluated.unwrap_or(last);
        let checkpoint = self.saved.map_or(0.0, |saved| saved - evaluated);
        let evaluation = evaluated - last;
        Some(ArrayCosts { batch: whole - step, step, evaluation, checkpoint, ..ArrayCosts::default() })
    }
}

/// A temporary directory.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Place, Error> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gulliver-rehearsal-{}-{count}", std::process::id());
        let place = Place(std::env::temp_dir().join(name));
        fs::create_dir_all(&place.0).map_err(|source| place.failed(source))?;
        Ok(place)
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::File { path: self.0.clone(), source }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A leftover only costs space.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_lie_between_moments() {
        let steps = vec![(5.0, 4.0), (6.0, 0.5), (7.5, 1.25), (8.0, 0.5)];
        let costs = Moments { steps, evaluated: Some(10.0), saved: Some(10.5) }.costs().unwrap();
        assert_eq!([costs.batch, costs.step, costs.evaluation, costs.checkpoint], [0.25, 0.75, 2.0, 0.5]);
        let alone = Moments { steps: vec![(5.0, 4.5)], evaluated: None, saved: Some(6.0) }.costs().unwrap();
        assert_eq!([alone.batch, alone.step, alone.evaluation, alone.checkpoint], [0.5, 4.5, 0.0, 1.0]);
        assert!(Moments::default().costs().is_none());
    }
}
