//! Measures what training an array costs: a few steps, an evaluation and a checkpoint of as many members as there are
//! lanes, done as the sweep would do them, in a directory that is gone afterwards.

use super::array::{Arrays, member};
use super::forecast::Costs;
use super::run::Rung;
use crate::command::CommandError;
use crate::setup::Graphs;
use gulliver_run::train::{Lane, Member, Notice, train_array};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Steps of the first try, of which the first finds nothing prepared.
const FIRST: u64 = 2;

/// Steps are repeated for about so many seconds, at least and at most so often.
const REPEATED: f64 = 0.2;
const REPEATS: (u64, u64) = (4, 100);

/// Measures an array whose members are these rungs, one for each lane; none if it does not train, as with a
/// learning rate at which it diverges at once.
pub fn rehearse(arrays: &mut Arrays, rungs: &[Rung]) -> Result<Option<Costs>, CommandError> {
    let place = Place::new()?;
    let rungs: Vec<Rung> = rungs
        .iter()
        .enumerate()
        .map(|(i, rung)| Rung { from: 0, dir: place.0.join(i.to_string()), ..rung.clone() })
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
        all.collect::<Result<Vec<Member>, CommandError>>()
    };

    let (all, began) = (members()?, Instant::now());
    let (mut lanes, resident) = arrays.lanes(first, &graphs, rungs.len())?;
    drop::<Graphs>(graphs);
    let Some(cold) = timed(&mut lanes, all, resident, FIRST.min(first.to)) else { return Ok(None) };
    let start = began.elapsed().as_secs_f64();
    let mut warm = cold;
    let until = ((REPEATED / cold.step.max(1e-9)) as u64).clamp(REPEATS.0, REPEATS.1).min(first.to);
    if cold.step < REPEATED && until > FIRST {
        for rung in &rungs {
            fs::remove_dir_all(&rung.dir).map_err(|source| place.failed(source))?;
        }
        warm = timed(&mut lanes, members()?, resident, until).unwrap_or(cold);
    }
    let usual = FIRST.min(first.to) as f64 * warm.step + warm.evaluation + warm.checkpoint;
    Ok(Some(Costs {
        open: (opened - known).max(0.0),
        member: known,
        start: (start - usual).max(0.0),
        ..warm
    }))
}

/// Steps, evaluation and checkpoint of some members, a mean over them. None if one of them failed.
fn timed(lanes: &mut [Lane], mut members: Vec<Member>, resident: usize, until: u64) -> Option<Costs> {
    for member in &mut members {
        (member.options.eval_every, member.options.checkpoint_every) = (until, 0);
    }
    let moments: Vec<Mutex<Moments>> = members.iter().map(|_| Mutex::default()).collect();
    let began = Instant::now();
    let note = |m: usize, notice: Notice| {
        let now = began.elapsed().as_secs_f64();
        let mut moments = moments[m].lock().unwrap_or_else(PoisonError::into_inner);
        match notice {
            Notice::Step { .. } => moments.steps.push(now),
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
    Some(Costs::mean(&each.collect::<Option<Vec<Costs>>>()?))
}

/// When things happened to a member, in seconds from the start.
#[derive(Default)]
struct Moments {
    steps: Vec<f64>,
    evaluated: Option<f64>,
    saved: Option<f64>,
}

impl Moments {
    /// What lies between them. The first step counts only if there is no other.
    fn costs(&self) -> Option<Costs> {
        let (first, last) = (*self.steps.first()?, *self.steps.last()?);
        let step = match self.steps.len() {
            1 => last,
            n => (last - first) / (n - 1) as f64,
        };
        let evaluated = self.evaluated.unwrap_or(last);
        let checkpoint = self.saved.map_or(0.0, |saved| saved - evaluated);
        Some(Costs { step, evaluation: evaluated - last, checkpoint, ..Costs::default() })
    }
}

/// A directory for a rehearsal, gone afterwards.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Place, CommandError> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gulliver-rehearsal-{}-{count}", std::process::id());
        let place = Place(std::env::temp_dir().join(name));
        fs::create_dir_all(&place.0).map_err(|source| place.failed(source))?;
        Ok(place)
    }

    fn failed(&self, source: std::io::Error) -> CommandError {
        CommandError::File { path: self.0.clone(), source }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed only costs space.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_lie_between_moments() {
        let moments = Moments { steps: vec![5.0, 6.0, 7.5, 8.0], evaluated: Some(10.0), saved: Some(10.5) };
        let costs = moments.costs().unwrap();
        assert_eq!((costs.step, costs.evaluation, costs.checkpoint), (1.0, 2.0, 0.5));
        let alone = Moments { steps: vec![5.0], evaluated: None, saved: Some(6.0) }.costs().unwrap();
        assert_eq!((alone.step, alone.evaluation, alone.checkpoint), (5.0, 0.0, 1.0));
        assert!(Moments::default().costs().is_none());
    }
}
