//! Random points, each a function of the seed and the number of the trial.

use super::{Ask, Trial, WAVE};
use crate::sweep::file::Sweep;

/// See [`super::next`].
pub fn next(sweep: &Sweep, trials: &[Trial]) -> Vec<Ask> {
    let known = trials.len() as u64;
    new(sweep, known..sweep.trials.min(known + WAVE), sweep.top())
}

/// New trials at random points, to be trained to `level`.
pub fn new(sweep: &Sweep, numbers: std::ops::Range<u64>, level: u64) -> Vec<Ask> {
    let ask = |trial| Ask { trial, point: sweep.space.random(sweep.seed, trial), level };
    numbers.map(ask).collect()
}
