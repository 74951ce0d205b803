//! Whether slower cores stay slower: runs arithmetic on all cores at once and compares their progress in windows of
//! several lengths. If another process occupies half of a core for seconds, long work is as uneven as short work; if the
//! system only interrupts briefly, long work is more even.

use crate::profile::roofline::short_work;
use crate::team::Team;
use std::time::Instant;

/// Lengths of the windows in seconds.
const WINDOWS: [f64; 5] = [3e-3, 1e-2, 3e-2, 1e-1, 3e-1];

/// Measures the unevenness of cores.
pub struct Evenness {
    team: Team,
    /// For each length: number of windows, and the sum over windows of the relative deficit of the slowest core against
    /// the mean.
    seen: [(usize, f64); WINDOWS.len()],
}

impl Evenness {
    /// For this many cores.
    pub fn new(cores: usize) -> Evenness {
        Evenness { team: Team::new(cores), seen: Default::default() }
    }

    /// Discards all measurements.
    pub fn forget(&mut self) {
        self.seen = Default::default();
    }

    /// Measures once, for the length of the longest window.
    pub fn turn(&mut self) {
        let seconds = WINDOWS[WINDOWS.len() - 1];
        let (begin, isa, threads) = (Instant::now(), self.team.isa(), self.team.threads());
        // For each thread, the end times of short pieces of work.
        let done = self.team.map(threads, |_| {
            let mut done: Vec<f64> = Vec::new();
            while done.last().is_none_or(|last| *last < seconds) {
                short_work(isa);
                done.push(begin.elapsed().as_secs_f64());
            }
            done
        });
        self.note(&done);
    }

    fn note(&mut self, done: &[Vec<f64>]) {
        let seconds = WINDOWS[WINDOWS.len() - 1];
        for ((count, sum), window) in self.seen.iter_mut().zip(WINDOWS) {
            let windows = (seconds / window + 1e-9) as usize;
            for at in 0..windows {
                let before = |thread: &Vec<f64>, time: f64| thread.partition_point(|done| *done < time);
                let [from, to] = [at, at + 1].map(|at| at as f64 * window);
                let did = done.iter().map(|thread| (before(thread, to) - before(thread, from)) as f64);
                let (least, all) = did.fold((f64::INFINITY, 0.0), |(least, all), n| (n.min(least), all + n));
                if all > 0.0 {
                    *count += 1;
                    *sum += 1.0 - least * done.len() as f64 / all;
                }
            }
        }
    }

    /// Exponent with which the unevenness of work falls with its length, from a log-log fit. `None` if the cores were even
    /// or nothing was measured.
    pub fn fades(&self) -> Option<f64> {
        let shares = self.seen.iter().zip(WINDOWS).filter(|((count, sum), _)| *count > 0 && *sum > 0.0);
        let points: Vec<[f64; 2]> =
            shares.map(|((count, sum), window)| [window.ln(), (sum / *count as f64).ln()]).collect();
        if points.len() < WINDOWS.len() {
            return None;
        }
        let mean = |of: usize| points.iter().map(|point| point[of]).sum::<f64>() / points.len() as f64;
        let (x, y) = (mean(0), mean(1));
        let rises: f64 = points.iter().map(|point| (point[0] - x) * (point[1] - y)).sum();
        let runs: f64 = points.iter().map(|point| (point[0] - x).powi(2)).sum();
        Some((-rises / runs).clamp(0.0, 0.5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver_graph::random::RandomStream;

    /// The measurement of two cores whose pieces of work take `piece(core, n)` seconds each.
    fn seen(piece: impl Fn(usize, usize) -> f64) -> Evenness {
        let mut evenness = Evenness::new(1);
        let core = |core: usize| {
            let (mut time, mut done) = (0.0, Vec::new());
            while time < 0.3 {
                time += piece(core, done.len());
                done.push(time);
            }
            done
        };
        evenness.note(&[core(0), core(1)]);
        evenness
    }

    #[test]
    fn a_core_that_stays_slow_differs_from_cores_that_are_slow_in_turns() {
        assert_eq!(seen(|_, _| 1e-5).fades(), None, "as fast as each other");
        let stays = seen(|core, _| [1e-5, 1.3e-5][core]).fades().unwrap();
        assert!(stays < 0.01, "{stays}");
        // Each core is slow at random, for half a millisecond.
        let turns = |core: usize, n: usize| {
            let slow = RandomStream::new(7, core as u64, 0).below(n as u64 / 50, 3) == 0;
            if slow { 2e-5 } else { 1e-5 }
        };
        let turns = seen(turns).fades().unwrap();
        assert!(turns > 0.3, "{turns}");
    }

    #[test]
    fn windows_without_progress_do_not_count() {
        let counts = |evenness: Evenness| evenness.seen.map(|(count, _)| count);
        assert_eq!(counts(seen(|_, _| 1e-5)), [100, 30, 10, 3, 1]);
        // The whole machine stalls once, for two windows of the shortest length.
        assert_eq!(counts(seen(|_, n| if n == 1000 { 8.5e-3 } else { 1e-5 })), [98, 30, 10, 3, 1]);
    }

    #[test]
    fn turns_see_windows_of_every_length() {
        let mut evenness = Evenness::new(2);
        // One turn measures all lengths, unless the machine stalls.
        while evenness.seen.iter().any(|(count, _)| *count == 0) {
            evenness.turn();
        }
        assert!(evenness.seen.iter().all(|(count, sum)| (0.0..=*count as f64).contains(sum)));
        evenness.forget();
        assert_eq!(evenness.fades(), None);
    }
}
