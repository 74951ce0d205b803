//! Whole sweeps with a runner that only pretends, killed between any two things it does.

use super::super::run::NewsListener;
use super::*;
use crate::sweep::search::tests::sweep;
use crate::sweep::trials::csv;
use crate::test_dir::TestDir;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Comes to a loss that the learning rate, seed and fold decide, and dies after so many news.
struct Pretender {
    left: u64,
    /// Every rung it ended.
    ended: Vec<RungId>,
}

impl RungRunner for Pretender {
    fn run(&mut self, wave: &[TrialRung], news: &mut NewsListener<'_>) -> Result<(), Error> {
        for (rung, TrialRung { place, job, from, to, dir, .. }) in wave.iter().enumerate() {
            for step in (from + 1).min(*to)..=*to {
                if self.left == 0 {
                    return Err(Error::Output(io::Error::other("killed")));
                }
                self.left -= 1;
                let run = job.train.seed as f64 + 0.1 * job.data.options.fold as f64;
                let loss = (job.optimizer.lr - 0.3).abs() + run / step as f64;
                let metrics = BTreeMap::from([("loss".to_string(), loss)]);
                if step < *to {
                    news(RungNews::Evaluated { rung, step, metrics: &metrics })?;
                    continue;
                }
                let checkpoints = dir.join("checkpoints");
                fs::create_dir_all(&checkpoints).unwrap();
                fs::write(checkpoint::step_path(&checkpoints, step), format!("{place:?}")).unwrap();
                fs::write(dir.join("job.toml"), job.to_toml()).unwrap();
                let fails = job.optimizer.lr > 0.8;
                let outcome = match fails {
                    true => RungOutcome::Failed { reason: "too fast".into() },
                    false => RungOutcome::Done { step, metrics, seconds: 0.0 },
                };
                self.ended.push(*place);
                news(RungNews::Ended { rung, outcome })?;
            }
        }
        Ok(())
    }
}

fn drive_on(sweep: &Sweep, dir: &Path, left: u64) -> (Result<bool, Error>, Vec<RungId>) {
    let mut store = StudyStore::open(dir, sweep).unwrap();
    let mut runner = Pretender { left, ended: Vec::new() };
    let stop = AtomicBool::new(false);
    let result = drive(sweep, dir, &mut store, &mut runner, &stop, &mut |_| ControlFlow::Continue(()));
    (result, runner.ended)
}

/// Everything that a sweep leaves for people.
fn left_by(dir: &Path) -> Vec<String> {
    let files = ["trials.csv", "curves.csv", "best.safetensors", "best.toml"];
    files.iter().map(|file| fs::read_to_string(dir.join(file)).unwrap()).collect()
}

#[test]
fn killed_anywhere_a_sweep_comes_to_the_same_and_trains_nothing_twice() {
    let space = "optimizer.lr = { uniform = [0.001, 1], points = 7 }\ntrain.batch = [8, 0]";
    for (algorithm, more) in [
        ("grid", ""),
        ("random", "trials = 8"),
        ("hyperband", "rungs = 2"),
        ("asha", "trials = 9"),
        ("tpe", "trials = 14"),
        ("random", "trials = 6\nfolds = 3"),
    ] {
        let settings = format!("algorithm = '{algorithm}'\nrepeats = 2\nset = ['train.steps=3']\n{more}");
        let sweep = sweep(&format!("drive-{algorithm}"), &settings, space);
        let whole = TestDir::new(&format!("drive-whole-{algorithm}"));
        let (result, mut expected) = drive_on(&sweep, &whole, u64::MAX);
        assert!(result.unwrap());
        expected.sort();
        let table = left_by(&whole);
        assert!(table[0].contains("train.batch: must be"), "{}", table[0]);
        assert!(table[0].contains("too fast") || algorithm != "grid", "{}", table[0]);
        for lives in [1, 8] {
            let dir = TestDir::new(&format!("drive-{algorithm}-{lives}"));
            let mut ended = Vec::new();
            for life in 0.. {
                let (result, more) = drive_on(&sweep, &dir, lives + life % 4);
                ended.extend(more);
                if result.is_ok() {
                    break;
                }
            }
            ended.sort();
            assert_eq!(ended, expected, "{algorithm}");
            assert_eq!(left_by(&dir), table, "{algorithm}");
            let (again, more) = drive_on(&sweep, &dir, 0);
            assert!(again.unwrap() && more.is_empty());
            assert_eq!(left_by(&dir), table, "{algorithm}");
        }
    }
}

#[test]
fn a_trial_is_worth_the_mean_of_its_folds() {
    let space = "optimizer.lr = [0.1, 0.3]";
    let sweep = sweep("drive-folds", "algorithm = 'grid'\nfolds = 3\nset = ['train.steps=1']", space);
    let dir = TestDir::new("drive-folds");
    drive_on(&sweep, &dir, u64::MAX).0.unwrap();
    let records = StudyStore::open(&dir, &sweep).unwrap().records().unwrap();
    let values: Vec<&Vec<f64>> = records.iter().map(|record| &record.last().unwrap().1).collect();
    assert_eq!(values[1], &[0.0, 0.1, 0.2]);
    assert_eq!((best(&sweep, &records).unwrap().number, values[0].len()), (1, 3));
    let table = crate::sweep::trials::table(&sweep, &records, 10);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..5], ["trial", "state", "steps", "loss", "spread"]);
    assert_eq!(rows[1][..5], ["1", "complete", "1", "0.1000", "0.1000"]);
    assert!(csv(&sweep, &records).lines().nth(2).unwrap().starts_with("1,complete,1,0.1"));
}

#[test]
fn runs_that_nobody_needs_are_removed() {
    let sweep =
        sweep("drive-remove", "trials = 12\nset = ['train.steps=3']", "optimizer.lr = { uniform = [0, 1] }");
    let dir = TestDir::new("drive-remove");
    let leftover = run_dir(&dir, 3, 0).join("checkpoints");
    fs::create_dir_all(&leftover).unwrap();
    drive_on(&sweep, &dir, u64::MAX).0.unwrap();
    let runs: Vec<PathBuf> = fs::read_dir(dir.join("trials")).unwrap().map(|e| e.unwrap().path()).collect();
    let store = StudyStore::open(&dir, &sweep).unwrap();
    let records = store.records().unwrap();
    let best = best(&sweep, &records).unwrap();
    assert_eq!(runs, [run_dir(&dir, best.number, 0)]);
    assert_eq!(csv(&sweep, &records).lines().count(), 13);
    let nearest = records
        .iter()
        .filter(|r| r.state == TrialState::Complete)
        .map(|r| (r.point["optimizer.lr"] - 0.3).abs());
    assert_eq!((best.point["optimizer.lr"] - 0.3).abs(), nearest.fold(f64::INFINITY, f64::min));
}

#[test]
fn steps_of_rungs() {
    for (end, level, top, expected) in
        [(100, 1, 1, 100), (81, 1, 81, 1), (100, 1, 27, 4), (100, 9, 27, 34), (5, 1, 27, 1)]
    {
        assert_eq!(steps_at(end, level, top), expected);
    }
    assert_eq!(steps_at(u64::MAX, 27, 27), u64::MAX);
}
