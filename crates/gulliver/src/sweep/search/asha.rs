//! ASHA (Li and others, MLSys 2020): a trial goes on to the next rung as soon as it is among the best known on its own;
//! if none is, a new one starts. Results count in waves of fixed width, so proposals do not depend on which trial of a
//! wave finished first.

use super::{Ask, Trial, best_at, random};
use crate::sweep::file::Sweep;

/// The lengths of the rungs.
pub fn levels(sweep: &Sweep) -> Vec<u64> {
    (0..sweep.rungs).map(|k| sweep.eta.saturating_pow(k)).collect()
}

/// See [`super::next`].
pub fn next(sweep: &Sweep, trials: &[Trial]) -> Vec<Ask> {
    let levels = levels(sweep);
    let known = trials.len() as u64;
    let mut asks = Vec::new();
    // The longest rung first: a trial near its end is worth more than a new one.
    for pair in levels.windows(2).rev() {
        let (here, above) = (pair[0], pair[1]);
        let reached = trials.iter().filter(|t| t.scores.contains_key(&here)).count() as u64;
        for trial in best_at(trials, 0..known, here, reached / sweep.eta) {
            let Trial { point, scores, .. } = &trials[trial as usize];
            if !scores.contains_key(&above) {
                asks.push(Ask { trial, point: point.clone(), level: above });
            }
        }
    }
    asks.truncate(sweep.width as usize);
    let free = sweep.width - asks.len() as u64;
    asks.extend(random::new(sweep, known..sweep.trials.min(known + free), levels[0]));
    asks
}

/// Total length trained if as many trials as possible are promoted.
pub fn work(sweep: &Sweep) -> f64 {
    let (mut sum, mut before, mut trials) = (0.0, 0, sweep.trials);
    for level in levels(sweep) {
        sum += trials as f64 * (level - before) as f64;
        (before, trials) = (level, trials / sweep.eta);
    }
    sum
}
