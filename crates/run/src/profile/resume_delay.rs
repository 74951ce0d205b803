//! Delay of devices after a wait for a link: another process may have taken one of their cores, and a core that was idle
//! for a millisecond takes a while to reach full speed.

use super::trimmed_mean;
use crate::profile::roofline::short_work;
use crate::team::Team;
use std::thread;
use std::time::Instant;

/// Seconds from the end of one wait to the end of the next.
const EVERY: f64 = 6e-3;
/// Seconds of each half of the work between two waits.
const WORK: f64 = 1e-3;
/// Waits of a turn.
const WAITS: usize = 60;
/// Pieces of work that are timed to calibrate `WORK`.
const TRIED: usize = 50;

/// Measures the delay of cores that wait and work in turn.
pub struct ResumeDelay {
    team: Team,
    /// For every turn, the mean excess of the first half of the work after a wait over the second half.
    late: Vec<f64>,
}

impl ResumeDelay {
    /// For this many cores.
    pub fn new(cores: usize) -> ResumeDelay {
        ResumeDelay { team: Team::new(cores), late: Vec::new() }
    }

    /// Discards all measurements.
    pub fn forget(&mut self) {
        self.late.clear();
    }

    /// Measures once: all cores wait for the same times and work after each.
    pub fn turn(&mut self) {
        let (isa, threads) = (self.team.isa(), self.team.threads());
        let tried = (0..TRIED).map(|_| {
            let start = Instant::now();
            short_work(isa);
            start.elapsed().as_secs_f64()
        });
        let pieces = (WORK / tried.fold(f64::INFINITY, f64::min).max(1e-9)).max(1.0) as usize;
        // For each thread and wait: seconds from its end to the end of the first half of the work, and those of the second
        // half; `None` if the thread was too late to wait.
        let begin = Instant::now();
        let done = self.team.map(threads, |_| {
            let now = || begin.elapsed().as_secs_f64();
            let wait_and_work = |wait: usize| {
                let (came, until) = (now(), wait as f64 * EVERY);
                while now() < until {
                    thread::yield_now();
                }
                (0..pieces).for_each(|_| short_work(isa));
                let half = now();
                (0..pieces).for_each(|_| short_work(isa));
                (until - came > EVERY / 4.0).then(|| [half - until, now() - half])
            };
            (1..=WAITS).map(wait_and_work).collect::<Vec<Option<[f64; 2]>>>()
        });
        self.note(&done);
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

    /// Trimmed mean of the delay in seconds; `None` if nothing was measured.
    pub fn seconds(&self) -> Option<f64> {
        trimmed_mean(&self.late).map(|late| late.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_core_determines_the_delay() {
        let mut resuming = ResumeDelay::new(1);
        assert_eq!(resuming.seconds(), None);
        let even = vec![Some([1e-3, 1e-3]); WAITS];
        resuming.note(&[even.clone(), even.clone()]);
        assert_eq!(resuming.seconds(), Some(0.0));
        resuming.forget();
        // One of the two is late after every second wait, and one was once too late to wait.
        let mut late = [even.clone(), even];
        (0..WAITS).step_by(2).for_each(|wait| late[wait % 4 / 2][wait] = Some([3e-3, 1e-3]));
        late[1][1] = None;
        resuming.note(&late);
        let expected = 2e-3 * (WAITS / 2) as f64 / (WAITS - 1) as f64;
        assert!((resuming.seconds().unwrap() / expected - 1.0).abs() < 1e-9, "{:?}", resuming.late);
    }

    #[test]
    fn turns_are_seen() {
        let mut resuming = ResumeDelay::new(2);
        // Repeats, because a machine that stalls for a whole turn measures nothing.
        while resuming.seconds().is_none() {
            resuming.turn();
        }
        assert!(resuming.late.iter().all(|late| late.is_finite()), "{:?}", resuming.late);
        resuming.forget();
        assert_eq!(resuming.seconds(), None);
    }
}
