//! A run that was stopped during an evaluation resumes as if it had not been stopped: the pending evaluation comes first,
//! and schedule and best evaluation observe every evaluation exactly once.

use gulliver::local::{LocalDevice, session};
use gulliver_graph::lr::LrSchedule;
use gulliver_graph::model::model;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{evaluation_graph, training_graph};
use gulliver_run::checkpoint;
use gulliver_run::data::{self, Batch, DataError, DataInfo, DataOptions, Dataset};
use gulliver_run::session::Session;
use gulliver_run::train::{Notice, Resumed, Sources, TrainError, TrainOptions, restore, train};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

/// Validation examples that count batches and stop the run, or fail, at a given batch.
struct Watched {
    inner: Arc<dyn Dataset>,
    left: AtomicI64,
    stop: Arc<AtomicBool>,
    fails: bool,
    /// Time of a batch.
    takes: Duration,
}

impl Dataset for Watched {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn length(&self, i: usize) -> Option<usize> {
        self.inner.length(i)
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            if self.fails {
                return Err(DataError::Index { index: 0, examples: 0 });
            }
            self.stop.store(true, Ordering::Relaxed);
        }
        std::thread::sleep(self.takes);
        self.inner.batch(indices)
    }

    fn info(&self) -> DataInfo {
        self.inner.info()
    }
}

const STEPS: u64 = 12;

fn options(checkpoints: Option<&Path>) -> TrainOptions {
    TrainOptions {
        steps: STEPS,
        eval_every: 3,
        log_every: 1,
        base_lr: 0.3,
        keep_checkpoints: 9,
        checkpoints: checkpoints.map(Path::to_path_buf),
        ..TrainOptions::default()
    }
}

fn started() -> Session {
    let model = model("mlp-tiny", &[]).unwrap();
    let sgd = Optimizer::new("sgd", &[]).unwrap();
    let (graph, evaluation) = (training_graph(&*model, &[sgd], None), evaluation_graph(&*model));
    let one = LocalDevice { threads: 1, ..LocalDevice::default() };
    session(graph.unwrap(), Some(evaluation.unwrap()), &one, 3).unwrap()
}

fn schedule() -> LrSchedule {
    // Drops the rate whenever an evaluation is not much better than the best, so that each one matters.
    LrSchedule::new("reduce-on-plateau", &[("patience", 0.0), ("threshold", 0.5)], &[], 0).unwrap()
}

/// Data whose validation part stops the run, or fails, at its `left`-th batch.
fn sources(left: i64, stop: &Arc<AtomicBool>, fails: bool) -> Sources {
    slow_sources(left, stop, fails, Duration::ZERO)
}

fn slow_sources(left: i64, stop: &Arc<AtomicBool>, fails: bool, takes: Duration) -> Sources {
    let noise = DataOptions {
        kind: "noise".into(),
        shape: vec![64],
        examples: Some(64),
        validation: 0.5,
        ..DataOptions::default()
    };
    let (train, validation) = data::open(&noise).unwrap();
    let watch = |inner| {
        Arc::new(Watched { inner, left: left.into(), stop: stop.clone(), fails, takes }) as Arc<dyn Dataset>
    };
    Sources::new((train, validation.map(watch)), 8, 1).unwrap()
}

/// Trains; returns the fingerprint, the reported rates and evaluations, and whether it was interrupted.
fn run(
    session: &mut Session,
    schedule: &mut LrSchedule,
    sources: &Sources,
    options: &TrainOptions,
    from: &Resumed,
    stop: &AtomicBool,
) -> Result<(String, Vec<String>, bool), TrainError> {
    let mut told = Vec::new();
    let mut notify = |notice: Notice| match notice {
        Notice::Step { step, lr, .. } => told.push(format!("step {step} {lr}")),
        Notice::Evaluation { step, metrics } => told.push(format!("eval {step} {metrics:?}")),
        _ => {}
    };
    let done = train(session, schedule, sources, options, from, stop, &mut notify)?;
    Ok((done.fingerprint, told, done.interrupted))
}

#[test]
fn an_evaluation_that_was_cut_short_is_made_first_when_the_run_goes_on() {
    let never = Arc::new(AtomicBool::new(false));
    let whole = sources(-1, &never, false);
    let whole = run(&mut started(), &mut schedule(), &whole, &options(None), &Resumed::default(), &never);
    let (fingerprint, all, _) = whole.unwrap();
    assert!(all.iter().filter(|line| line.starts_with("eval")).count() == 4, "{all:?}");
    // Four evaluations of four batches: at the start, in the middle and at the end of each.
    for left in 1..=16 {
        let dir = std::env::temp_dir().join(format!("gulliver-evaluations-{}-{left}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let options = options(Some(&dir));
        let first = sources(left, &stop, false);
        let first =
            run(&mut started(), &mut schedule(), &first, &options, &Resumed::default(), &stop).unwrap();
        // A stop during the last batch of the last evaluation has no effect.
        assert_eq!(first.2, left < 16, "{left}");
        let (mut session, mut schedule) = (started(), schedule());
        let (_, mut stored) = checkpoint::latest(&dir).unwrap().found.unwrap();
        let from = restore(&mut session, &mut schedule, &mut stored, &options).unwrap();
        let rest =
            run(&mut session, &mut schedule, &sources(-1, &never, false), &options, &from, &never).unwrap();
        assert_eq!(rest.0, fingerprint, "{left}");
        assert_eq!([first.1, rest.1].concat(), all, "{left}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn validation_data_that_cannot_be_read_costs_no_step() {
    let dir = std::env::temp_dir().join(format!("gulliver-unreadable-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let never = Arc::new(AtomicBool::new(false));
    let (options, data) = (options(Some(&dir)), sources(6, &never, true));
    let failed = run(&mut started(), &mut schedule(), &data, &options, &Resumed::default(), &never);
    assert!(matches!(failed, Err(TrainError::Data(_))));
    let (step, stored) = checkpoint::latest(&dir).unwrap().found.unwrap();
    assert_eq!((step, stored.metadata.contains_key("evaluation_due")), (6, true));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn long_evaluations_tell_how_far_they_are() {
    let never = Arc::new(AtomicBool::new(false));
    let data = slow_sources(-1, &never, false, Duration::from_millis(60));
    let options = TrainOptions { steps: 3, eval_every: 0, log_every: 100, eval_batches: 3, ..options(None) };
    let mut told = Vec::new();
    let mut notify = |notice: Notice| {
        if let Notice::Progress { step, evaluated: Some((done, of)) } = notice {
            told.push((step, done, of));
        }
    };
    let (mut session, mut schedule) = (started(), schedule());
    train(&mut session, &mut schedule, &data, &options, &Resumed::default(), &never, &mut notify).unwrap();
    // Two batches take longer than the time between notices, and at most three are evaluated.
    assert!(
        !told.is_empty() && told.iter().all(|(step, done, of)| *step == 3 && done < of && *of == 3),
        "{told:?}"
    );
}

#[test]
fn a_batch_made_ahead_is_not_made_again() {
    let stop = Arc::new(AtomicBool::new(false));
    let options = TrainOptions { steps: 5, ..options(None) };
    let mut runs = Vec::new();
    for ahead in [vec![], vec![0], vec![0, 1], vec![3, 0]] {
        let (inner, stop_at) = (sources(0, &stop, false).train, stop.clone());
        let (left, takes) = (AtomicI64::new(0), Duration::ZERO);
        let counted = Arc::new(Watched { inner, left, stop: stop_at, fails: false, takes });
        let sources = Sources::new((Arc::clone(&counted) as Arc<dyn Dataset>, None), 8, 1).unwrap();
        for step in &ahead {
            sources.batch_ahead(*step).unwrap();
        }
        let (fingerprint, ..) =
            run(&mut started(), &mut schedule(), &sources, &options, &Resumed::default(), &stop).unwrap();
        let unused = ahead.len() - ahead.ends_with(&[0]) as usize;
        assert_eq!(-counted.left.load(Ordering::Relaxed), 5 + unused as i64, "{ahead:?}");
        runs.push(fingerprint);
    }
    assert!(runs.iter().all(|fingerprint| *fingerprint == runs[0]));
}
