//! Real trainings of a very small job: rung by rung as at once, and which jobs go together.

use super::super::array::ArrayRunner;
use super::*;
use crate::test_dir::TestDir;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const JOB: &str = "[model]\nname = 'pointnet'\nwidth = 4\n[data]\nkind = 'points'\nlength = 16\nexamples = 32\n\
    [train]\nsteps = 9\nbatch = 8\neval_every = 2\n[optimizer]\nlr = 0.05\n\
    [schedule]\nname = 'one-cycle'\n[devices]\nthreads = 1\n";

fn job(sets: &[&str]) -> Job {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    Job::parse(JOB, "job.toml", &sets).unwrap_or_else(|e| panic!("{e}"))
}

fn rung(trial: u64, sets: &[&str], from: u64, to: u64, dir: &Path) -> TrialRung {
    let place = RungId { trial, repeat: 0, level: 1 };
    TrialRung { place, job: job(sets), from, to, end: 9, dir: dir.join(trial.to_string()) }
}

/// Ends of rungs, and steps at which evaluations were told.
fn run(wave: &[TrialRung]) -> (Vec<RungOutcome>, Vec<u64>) {
    let (mut ends, mut steps) = (Vec::new(), Vec::new());
    let stop = Arc::new(AtomicBool::new(false));
    let mut listener = |news: RungNews<'_>| {
        match news {
            RungNews::Ended { outcome, .. } => ends.push(outcome),
            RungNews::Evaluated { step, .. } => steps.push(step),
            RungNews::Step { .. } => {}
        }
        Ok(())
    };
    ArrayRunner::new(stop).run(wave, &mut listener).unwrap();
    (ends, steps)
}

fn metrics(outcome: &RungOutcome) -> (u64, BTreeMap<String, f64>) {
    match outcome {
        RungOutcome::Done { step, metrics, .. } => (*step, metrics.clone()),
        RungOutcome::Failed { reason } => panic!("{reason}"),
    }
}

#[test]
fn rung_by_rung_is_as_at_once() {
    let dir = TestDir::new("run-rungs");
    let (whole, evaluated) = run(&[rung(0, &[], 0, 9, &dir)]);
    assert_eq!(evaluated, [2, 4, 6, 8]);
    let mut ends = Vec::new();
    for (from, to) in [(0, 1), (1, 4), (4, 9)] {
        ends.extend(run(&[rung(1, &[], from, to, &dir)]).0);
    }
    assert_eq!(metrics(&ends[2]), metrics(&whole[0]));
    let bytes =
        |trial: &str| fs::read(checkpoint::step_path(&dir.join(trial).join("checkpoints"), 9)).unwrap();
    assert!(bytes("0") == bytes("1"));
    // Trained already, it is only looked at.
    let again = run(&[rung(1, &[], 4, 9, &dir)]).0;
    assert_eq!(metrics(&again[0]), metrics(&whole[0]));
}

#[test]
fn members_with_clipping_limits_of_their_own_end_as_alone() {
    let dir = TestDir::new("run-clipped");
    let limits = ["train.clip_norm=0.01", "train.clip_norm=0.1", "train.clip_norm=5"];
    let all: Vec<TrialRung> = (0..3).map(|i| rung(i, &[limits[i as usize]], 0, 9, &dir)).collect();
    let together = run(&all).0;
    let saved = |trial: u64| {
        fs::read(checkpoint::step_path(&dir.join(trial.to_string()).join("checkpoints"), 9)).unwrap()
    };
    for i in 0..3 {
        let alone = run(&[rung(3 + i, &[limits[i as usize]], 0, 9, &dir)]).0;
        assert!(together.iter().any(|end| metrics(end) == metrics(&alone[0])), "{}", limits[i as usize]);
        assert!(saved(i) == saved(3 + i), "{}", limits[i as usize]);
    }
    assert!(saved(0) != saved(1) && saved(1) != saved(2));
}

#[test]
fn members_with_class_weights_of_their_own_end_as_alone() {
    let dir = TestDir::new("run-weighted");
    let weights = [
        "train.class_weights=[1, 1, 1, 1, 1, 1, 1, 9]",
        "train.class_weights=[9, 1, 1, 1, 1, 1, 1, 1]",
        "train.seed=0",
    ];
    let all: Vec<TrialRung> = (0..3).map(|i| rung(i, &[weights[i as usize]], 0, 9, &dir)).collect();
    run(&all);
    let saved = |trial: u64| {
        let path = checkpoint::step_path(&dir.join(trial.to_string()).join("checkpoints"), 9);
        fs::read(path).unwrap()
    };
    for i in 0..3 {
        run(&[rung(3 + i, &[weights[i as usize]], 0, 9, &dir)]);
        assert!(saved(i) == saved(3 + i), "{}", weights[i as usize]);
    }
}

#[test]
fn what_cannot_be_trained_says_why() {
    let dir = TestDir::new("run-failures");
    let wave = [
        rung(0, &["data.examples=4"], 0, 3, &dir),
        rung(1, &["devices.memory=1KiB", "devices.host_memory=0"], 0, 3, &dir),
        rung(2, &["optimizer.lr=1e30"], 0, 9, &dir),
        rung(3, &[], 0, 3, &dir),
    ];
    let ends = run(&wave).0;
    for (outcome, expected) in ends.iter().zip(["train.batch: ", "does not fit: ", "is not finite"]) {
        let RungOutcome::Failed { reason } = outcome else { panic!("{outcome:?}") };
        assert!(reason.contains(expected), "{reason}");
    }
    assert_eq!(metrics(&ends[3]).0, 3);
}

#[test]
fn asked_to_stop_it_ends_nothing() {
    let dir = TestDir::new("run-stop");
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let mut ended = 0;
    let mut listener = |news: RungNews<'_>| {
        match news {
            RungNews::Step { step: 2, .. } => flag.store(true, Ordering::Relaxed),
            RungNews::Ended { .. } => ended += 1,
            _ => {}
        }
        Ok(())
    };
    let wave = [rung(0, &[], 0, 9, &dir), rung(1, &[], 0, 9, &dir)];
    ArrayRunner::new(stop).run(&wave, &mut listener).unwrap();
    assert_eq!(ended, 0);
    let saved = checkpoint::list(&dir.join("0").join("checkpoints")).unwrap();
    assert!(matches!(saved[..], [(1..=3, _)]), "{saved:?}");
}

#[test]
fn jobs_that_differ_in_fed_numbers_are_built_once() {
    let mut shapes = JobShapes::default();
    let mut built = Vec::new();
    for sets in [
        &[][..],
        &["optimizer.lr=0.5", "optimizer.weight_decay=0.1", "schedule.name=constant"],
        &["train.clip_norm=1"],
        &["train.clip_norm=2", "train.on_nan=skip"],
        &["optimizer.name=sgd"],
        &["optimizer.name=sgd", "optimizer.momentum=0.5"],
        &["optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.5"],
        &["train.seed=1"],
        &["train.class_weights=[1, 2, 3, 4, 5, 6, 7, 8]"],
        &["train.class_weights=[8, 7, 6, 5, 4, 3, 2, 1]"],
    ] {
        assert_eq!(shapes.of(&job(sets)).unwrap(), shape(&job(sets)).unwrap(), "{sets:?}");
        built.push(shapes.known.len());
    }
    assert_eq!(built, [1, 1, 2, 2, 3, 4, 4, 5, 6, 6]);
}

#[test]
fn jobs_with_one_graph_and_shapes_go_together() {
    let dir = TestDir::new("run-groups");
    let wave = [
        rung(0, &[], 0, 9, &dir),
        rung(1, &["optimizer.lr=0.5", "optimizer.beta2=0.9", "train.seed=7"], 0, 9, &dir),
        rung(2, &["model.width=8"], 0, 9, &dir),
        rung(3, &["schedule.name=constant", "optimizer.weight_decay=0.1"], 0, 9, &dir),
        rung(4, &["train.batch=4"], 0, 9, &dir),
        rung(5, &["optimizer.name=sgd", "optimizer.lr=0.1"], 0, 9, &dir),
        rung(6, &[], 0, 3, &dir),
        rung(7, &["model.width=8", "optimizer.lr=0.5"], 0, 9, &dir),
        rung(8, &["data.examples=4"], 0, 9, &dir),
        rung(9, &["train.clip_norm=0.1"], 0, 9, &dir),
        rung(10, &["train.clip_value=0.1"], 0, 9, &dir),
        rung(11, &["train.clip_norm=3"], 0, 9, &dir),
    ];
    let groups = groups(&wave, &mut JobShapes::default());
    let members: Vec<&[usize]> = groups.iter().map(|g| &g.rungs[..]).collect();
    assert_eq!(members, [&[0, 1, 3][..], &[2, 7], &[4], &[5], &[6], &[8], &[9, 11], &[10]]);
    assert!(groups.iter().enumerate().all(|(i, group)| group.problem.is_some() == (i == 5)));
}
