//! How much later than they could devices go on that have waited for a link: somebody else has one of their cores just
//! then, and a core that has computed nothing for a millisecond takes a while to come up to speed.

use super::trimmed_mean;
use crate::profile::roofline::little;
use crate::team::Team;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Seconds from the end of one wait to that of the next, and of each half of the work in between: about 4 ms are left to
/// wait for.
const EVERY: f64 = 6e-3;
const WORK: f64 = 1e-3;
/// Waits of a turn.
const WAITS: usize = 60;
/// Little pieces of work that say how many of them a millisecond has.
const TRIED: usize = 50;

/// Cores that wait and work in turns, and how late they were so far.
pub struct Resuming {
    team: Team,
    /// Of every turn, by how much the first half of the work after a wait took longer than the second, on average.
    late: Vec<f64>,
}

impl Resuming {
    /// Of so many cores.
    pub fn new(cores: usize) -> Resuming {
        Resuming { team: Team::new(cores), late: Vec::new() }
    }

    /// Forgets what was seen so far.
    pub fn forget(&mut self) {
        self.late.clear();
    }

    /// Has all cores wait for the same moments and work after each.
    pub fn turn(&mut self) {
        let (isa, threads) = (self.team.isa(), self.team.threads());
        let tried = (0..TRIED).map(|_| {
            let start = Instant::now();
            little(isa);
            start.elapsed().as_secs_f64()
        });
        let pieces = (WORK / tried.fold(f64::INFINITY, f64::min).max(1e-9)).max(1.0) as usize;
        // By thread and wait: seconds from its end until the first half of the work was done, and those of the second; none
        // if there was no time to wait.
        let done: Vec<Mutex<Vec<Option<[f64; 2]>>>> = (0..threads).map(|_| Mutex::default()).collect();
        let begin = Instant::now();
        self.team.run(threads, &|thread| {
            let mut done = done[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let now = || begin.elapsed().as_secs_f64();
            for wait in 1..=WAITS {
                let (came, until) = (now(), wait as f64 * EVERY);
                while now() < until {
                    thread::yield_now();
                }
                (0..pieces).for_each(|_| little(isa));
                let half = now();
                (0..pieces).for_each(|_| little(isa));
                done.push((until - came > EVERY / 4.0).then(|| [half - until, now() - half]));
            }
        });
        let done = done.into_iter().map(|done| done.into_inner().unwrap_or_else(PoisonError::into_inner));
        self.note(&done.collect::<Vec<_>>());
    }

    fn note(&mut self, done: &[Vec<Option<[f64; 2]>>]) {
        let slowest = |wait: usize| {
            let all: Option<Vec<[f64; 2]>> = done.iter().map(|thread| thread[wait]).collect();
            let halves = all?.into_iter().fold([0.0f64; 2], |[a, b], [c, d]| [a.max(c), b.max(d)]);
            Some(halves[0] - halves[1])
        };
        let late: Vec<f64> = (0..WAITS).filter_map(slowest).collect();
        if !late.is_empty() {
            self.late.push(late.iter().sum::<f64>() / late.len() as f64);
        }
    }

    /// Seconds by which all cores are at work later than they could be, as a rule; none if nothing was seen.
    pub fn seconds(&self) -> Option<f64> {
        trimmed_mean(&self.late).map(|late| late.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_core_says_how_late_all_are() {
        let mut resuming = Resuming::new(1);
        assert_eq!(resuming.seconds(), None);
        let even = vec![Some([1e-3, 1e-3]); WAITS];
        resuming.note(&[even.clone(), even.clone()]);
        assert_eq!(resuming.seconds(), Some(0.0));
        resuming.forget();
        // One or the other is late after every second wait, and one of them did not come to wait once.
        let mut late = [even.clone(), even];
        (0..WAITS).step_by(2).for_each(|wait| late[wait % 4 / 2][wait] = Some([3e-3, 1e-3]));
        late[1][1] = None;
        resuming.note(&late);
        let expected = 2e-3 * (WAITS / 2) as f64 / (WAITS - 1) as f64;
        assert!((resuming.seconds().unwrap() / expected - 1.0).abs() < 1e-9, "{:?}", resuming.late);
    }

    #[test]
    fn turns_are_seen() {
        let mut resuming = Resuming::new(2);
        // A machine that stands still for as long as a turn would leave nothing to see.
        while resuming.seconds().is_none() {
            resuming.turn();
        }
        assert!(resuming.late.iter().all(|late| late.is_finite()), "{:?}", resuming.late);
        resuming.forget();
        assert_eq!(resuming.seconds(), None);
    }
}
