//! Hyperband (Li and others, JMLR 2018, algorithm 1): brackets of random trials, from many trained briefly to
//! few trained long; after every round of a bracket only the best of it go on.

use super::{Ask, Trial, best_at, random};
use crate::sweep::file::Sweep;

/// One bracket: trials and length of each of its rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bracket {
    /// At least one; the last length is that of a whole job.
    pub rounds: Vec<(u64, u64)>,
}

/// At most `count` brackets, those with most trials first. The shortest round has length 1, the longest
/// `eta` to the power of `rungs - 1`.
pub fn brackets(rungs: u32, eta: u64, count: u32) -> Vec<Bracket> {
    let most = u64::from(rungs.max(1)) - 1;
    let power = |n: u64| eta.saturating_pow(n as u32);
    let bracket = |s: u64| {
        let trials = (most + 1).saturating_mul(power(s)).div_ceil(s + 1);
        Bracket { rounds: (0..=s).map(|i| (trials / power(i), power(most - s + i))).collect() }
    };
    (0..=most).rev().take(count as usize).map(bracket).collect()
}

/// See [`super::next`]: one bracket after the other, a round at a time.
pub fn next(sweep: &Sweep, trials: &[Trial]) -> Vec<Ask> {
    let mut first = 0;
    for Bracket { rounds } in brackets(sweep.rungs, sweep.eta, sweep.brackets) {
        let (count, shortest) = rounds[0];
        if trials.len() as u64 == first {
            return random::new(sweep, first..first + count, shortest);
        }
        let members = first..first + count;
        for pair in rounds.windows(2) {
            let [(_, before), (kept, level)] = pair else { continue };
            let promoted = best_at(trials, members.clone(), *before, *kept);
            let waiting = |n: &u64| !trials[*n as usize].scores.contains_key(level);
            let asks: Vec<Ask> = promoted
                .into_iter()
                .filter(waiting)
                .map(|trial| Ask { trial, point: trials[trial as usize].point.clone(), level: *level })
                .collect();
            if !asks.is_empty() {
                return asks;
            }
        }
        first += count;
    }
    Vec::new()
}

/// Total length trained if no trial fails.
pub fn work(sweep: &Sweep) -> f64 {
    let mut sum = 0.0;
    for Bracket { rounds } in brackets(sweep.rungs, sweep.eta, sweep.brackets) {
        let mut before = 0;
        for (trials, level) in rounds {
            sum += trials as f64 * (level - before) as f64;
            before = level;
        }
    }
    sum
}
