//! The next trials to train, as a pure function of the sweep and of all results so far: the same history gives the same
//! proposals.

pub mod asha;
pub mod grid;
pub mod hyperband;
pub mod random;
pub mod tpe;

use super::file::{SearchAlgorithm, Sweep};
use super::space::TrialPoint;
use std::collections::BTreeMap;

/// Trials of a wave of the algorithms that need no results.
pub const WAVE: u64 = 256;

/// A trial as the search sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Its point in the search space.
    pub point: TrialPoint,
    /// Its score by length trained; lower is better. [`Sweep::top`] is the whole length.
    pub scores: BTreeMap<u64, f64>,
    /// Whether it failed.
    pub failed: bool,
}

/// A trial to be trained up to a length.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Its number; new if it is the number of trials known.
    pub trial: u64,
    /// Its point in the search space.
    pub point: TrialPoint,
    /// The length to train it to; [`Sweep::top`] is the whole length.
    pub level: u64,
}

/// The next wave; none when the sweep is done. `trials` are all there are, by number, and everything that
/// was asked for is finished or has failed.
pub fn next(sweep: &Sweep, trials: &[Trial]) -> Vec<Ask> {
    match sweep.algorithm {
        SearchAlgorithm::Grid => grid::next(sweep, trials),
        SearchAlgorithm::Random => random::next(sweep, trials),
        SearchAlgorithm::Hyperband => hyperband::next(sweep, trials),
        SearchAlgorithm::Asha => asha::next(sweep, trials),
        SearchAlgorithm::Tpe => tpe::next(sweep, trials),
    }
}

/// Expected training of the whole sweep, in jobs trained to their end.
pub fn work(sweep: &Sweep) -> f64 {
    let top = sweep.top() as f64;
    match sweep.algorithm {
        SearchAlgorithm::Hyperband => hyperband::work(sweep) / top,
        SearchAlgorithm::Asha => asha::work(sweep) / top,
        _ => sweep.trials as f64,
    }
}

/// The `count` best of these trials that have a score at `level`, best first; of equals the first.
fn best_at(trials: &[Trial], among: impl Iterator<Item = u64>, level: u64, count: u64) -> Vec<u64> {
    let score = |n: u64| {
        let trial = trials.get(n as usize).filter(|trial| !trial.failed)?;
        trial.scores.get(&level).map(|score| (*score, n))
    };
    let mut known: Vec<(f64, u64)> = among.filter_map(score).collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    known.into_iter().take(count as usize).map(|(_, n)| n).collect()
}

#[cfg(test)]
pub mod tests;
