//! The predicted time of a sweep: the waves that the search would ask for, and the seconds of each array from the costs
//! of its parts. Nothing is measured here.

use super::file::Sweep;
use super::search::{self, Ask, Trial};
use gulliver_graph::random::RandomStream;
use serde::Serialize;
use std::collections::BTreeMap;

/// Seconds of the parts of training an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ArrayCosts {
    /// Opening data that no other member shares.
    pub open: f64,
    /// Building the graphs of a member and making its directory.
    pub member: f64,
    /// Planning, memory and the extra time of first steps; once for an array.
    pub start: f64,
    /// Making a batch, which members that share data do once.
    pub batch: f64,
    /// A step in a lane, while all lanes are at work.
    pub step: f64,
    /// Going through the validation data.
    pub evaluation: f64,
    /// Writing a checkpoint.
    pub checkpoint: f64,
}

impl ArrayCosts {
    /// The mean; zeros for an empty slice.
    pub fn mean(all: &[ArrayCosts]) -> ArrayCosts {
        let of = |part: fn(&ArrayCosts) -> f64| all.iter().map(part).sum::<f64>() / all.len().max(1) as f64;
        ArrayCosts {
            open: of(|c| c.open),
            member: of(|c| c.member),
            start: of(|c| c.start),
            batch: of(|c| c.batch),
            step: of(|c| c.step),
            evaluation: of(|c| c.evaluation),
            checkpoint: of(|c| c.checkpoint),
        }
    }
}

/// The work of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrayTask {
    /// Members; scaled, and perhaps a fraction, if only a part of the wave was examined.
    pub members: f64,
    /// Data sets that they do not share.
    pub data: f64,
    /// Members trained at once.
    pub lanes: usize,
    /// Steps done before, done after, and of the whole job.
    pub steps: [u64; 3],
    /// Steps between evaluations and between checkpoints; 0: at the end only.
    pub every: [u64; 2],
}

impl ArrayTask {
    /// Evaluations and checkpoints of each member, those at the end of the rung included.
    fn pauses(&self) -> [f64; 2] {
        let [from, to, end] = self.steps;
        let last = to.min(end.saturating_sub(1));
        let due = |every: u64| {
            let count = |step: u64| step.checked_div(every).unwrap_or(0);
            count(last.max(from)) - count(from)
        };
        let [evaluations, checkpoints] = self.every.map(due);
        // An evaluation that is due at the last step of a rung is the one at its end.
        let seen = to < end && to > from && self.every[0] > 0 && to.is_multiple_of(self.every[0]);
        [(evaluations + u64::from(!seen)) as f64, (checkpoints + 1) as f64]
    }

    /// Seconds until all members are done.
    pub fn seconds(&self, costs: &ArrayCosts) -> f64 {
        let [from, to, _] = self.steps;
        let [evaluations, checkpoints] = self.pauses();
        let steps = to.saturating_sub(from) as f64;
        let each = steps * costs.step + evaluations * costs.evaluation + checkpoints * costs.checkpoint;
        let rounds = |of: f64| (of / self.lanes.max(1) as f64).max(1.0);
        let once = self.data * costs.open + self.members * costs.member + costs.start;
        once + rounds(self.data) * steps * costs.batch + rounds(self.members) * each
    }
}

/// The waves of a sweep up to `most` trials, and whether these are all. Results of trials are random numbers: how many
/// trials go on does not depend on them.
pub fn waves(sweep: &Sweep, most: usize) -> (Vec<Vec<Ask>>, bool) {
    let (mut waves, mut trials): (Vec<Vec<Ask>>, Vec<Trial>) = (Vec::new(), Vec::new());
    let mut asked = 0;
    while asked < most {
        let asks = search::next(sweep, &trials);
        if asks.is_empty() {
            return (waves, true);
        }
        for Ask { trial, point, level } in &asks {
            if *trial as usize == trials.len() {
                trials.push(Trial { point: point.clone(), scores: BTreeMap::new(), failed: false });
            }
            let score = RandomStream::new(sweep.seed, *trial, 0).uniform_at(0);
            if let Some(trial) = trials.get_mut(*trial as usize) {
                trial.scores.insert(*level, f64::from(score));
            }
        }
        asked += asks.len();
        waves.push(asks);
    }
    (waves, search::next(sweep, &trials).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    const COSTS: ArrayCosts = ArrayCosts {
        open: 100.0,
        member: 10.0,
        start: 1000.0,
        batch: 3.0,
        step: 1.0,
        evaluation: 50.0,
        checkpoint: 7.0,
    };

    #[test]
    fn an_array_takes_what_its_parts_take() {
        let task = ArrayTask { members: 4.0, data: 1.0, lanes: 2, steps: [0, 20, 60], every: [0, 0] };
        // Data once, four members, one start, 20 batches, two rounds of 20 steps, an evaluation and a checkpoint.
        let once = 100.0 + 4.0 * 10.0 + 1000.0;
        assert_eq!(task.seconds(&COSTS), once + 20.0 * 3.0 + 2.0 * (20.0 + 50.0 + 7.0));
        let folds = ArrayTask { data: 4.0, ..task };
        assert_eq!(folds.seconds(&COSTS), task.seconds(&COSTS) + 300.0 + 20.0 * 3.0);
        let later = ArrayTask { steps: [20, 60, 60], ..task };
        assert_eq!(later.seconds(&COSTS), once + 40.0 * 3.0 + 2.0 * (40.0 + 50.0 + 7.0));
        let alone = ArrayTask { members: 1.0, ..task };
        assert_eq!(alone.seconds(&COSTS), 100.0 + 10.0 + 1000.0 + 60.0 + 77.0);
    }

    #[test]
    fn evaluations_and_checkpoints_on_the_way_are_counted() {
        let task = |steps, every| ArrayTask { members: 1.0, data: 1.0, lanes: 1, steps, every };
        for (steps, every, expected) in [
            ([0, 18, 18], [5, 4], [4.0, 5.0]), // 5, 10, 15 and the end; 4, 8, 12, 16 and the end
            ([0, 18, 18], [6, 9], [3.0, 2.0]), // 6, 12 and the end; 9 and the end
            ([0, 12, 36], [6, 6], [2.0, 3.0]), // 6 and 12, which is the end of the rung; 6, 12 and the end
            ([12, 36, 36], [6, 0], [4.0, 1.0]), // 18, 24, 30 and the end
            ([0, 1, 1], [1, 1], [1.0, 1.0]),
            ([7, 7, 9], [1, 1], [1.0, 1.0]),
            ([0, 5, 0], [0, 0], [1.0, 1.0]),
        ] {
            assert_eq!(task(steps, every).pauses(), expected, "{steps:?} {every:?}");
        }
    }

    #[test]
    fn waves_are_those_of_the_whole_sweep() {
        let dir = TestDir::new("forecast");
        let job = "[model]\nname = 'mlp-tiny'\n[data]\nkind = 'digits'\n";
        std::fs::write(dir.join("job.toml"), job).unwrap();
        let file = dir.join("sweep.toml").display().to_string();
        for (settings, trials) in [
            ("algorithm = 'grid'", 6),
            ("trials = 9", 9),
            ("algorithm = 'asha'\ntrials = 18\nrungs = 3", 18),
            ("algorithm = 'hyperband'\nrungs = 3", 17),
            ("algorithm = 'tpe'\ntrials = 12", 12),
        ] {
            let text = format!(
                "[sweep]\njob = 'job.toml'\n{settings}\n[space]\noptimizer.lr = [1, 2, 3, 4, 5, 6]\n"
            );
            let sweep = Sweep::parse(&text, &file, &[]).unwrap();
            let (all, ended) = waves(&sweep, 1000);
            let asked: BTreeMap<u64, u64> = all.iter().flatten().map(|ask| (ask.trial, ask.level)).collect();
            assert_eq!((asked.len(), ended), (trials, true), "{settings}");
            let reached = asked.values().sum::<u64>() as f64 / sweep.top() as f64;
            let thought = search::work(&sweep);
            assert!(reached > 0.5 * thought && reached < 2.0 * thought, "{settings}: {reached} {thought}");
            let (some, ended) = waves(&sweep, 1);
            assert_eq!((some.len(), &some[0]), (1, &all[0]), "{settings}");
            assert_eq!(ended, all.len() == 1, "{settings}");
        }
    }

    #[test]
    fn means_are_of_every_part() {
        let none = ArrayCosts::default();
        assert_eq!(ArrayCosts::mean(&[COSTS, none]).start, 500.0);
        assert_eq!(ArrayCosts::mean(&[]), none);
    }
}
