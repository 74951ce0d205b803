//! Trains an array of jobs of one workload on lanes and measures how many samples all of them together get
//! through.

use crate::command::CommandError;
use crate::workload::Workload;
use gulliver_graph::schedule::Schedule;
use gulliver_run::data::{Batch, DataError, DataInfo, Dataset, Sampler};
use gulliver_run::session::{Session, SessionOptions};
use gulliver_run::train::{Lane, Member, Notice, Sources, TrainOptions, train_array};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Steps of every member before the clock runs.
const WARM_UP: u64 = 2;

/// One batch, again and again.
struct Fixed {
    batch: Batch,
    info: DataInfo,
}

impl Dataset for Fixed {
    fn len(&self) -> usize {
        self.info.examples
    }

    fn length(&self, _: usize) -> Option<usize> {
        None
    }

    fn info(&self) -> DataInfo {
        self.info.clone()
    }

    fn batch(&self, _indices: &[usize]) -> Result<Batch, DataError> {
        Ok(self.batch.clone())
    }
}

/// What was measured.
pub struct Measured {
    /// Of all jobs together.
    pub samples_per_second: f64,
    /// Sessions that members took turns in.
    pub lanes: usize,
    /// Most bytes of device memory in use at once, of all lanes, and of members that wait.
    pub bytes: u64,
}

/// Trains `members` jobs on `threads` threads for about `seconds`.
pub fn measure(
    workload: &'static Workload,
    threads: usize,
    members: usize,
    seconds: f64,
) -> Result<Measured, CommandError> {
    let count = threads.min(members);
    let mut lanes = Vec::new();
    for lane in 0..count {
        let threads = threads / count + usize::from(lane < threads % count);
        let options = SessionOptions { threads, ..SessionOptions::default() };
        lanes.push(Lane { session: Session::new(workload.graph()?, None, options, 0)? });
    }
    let batch = workload.data(lanes[0].session.graph())?;
    let info = DataInfo { examples: workload.batch, ..DataInfo::default() };
    let sampler = Sampler::new(workload.batch, workload.batch, 0, false, true, None)?;
    let train: Arc<dyn Dataset> = Arc::new(Fixed { batch, info });
    let sources = Arc::new(Sources { train, sampler: Arc::new(sampler), validation: None });
    let options = |seed| TrainOptions { steps: u64::MAX, seed, log_every: 1, ..TrainOptions::default() };
    let jobs = (0..members as u64).map(|m| Member::new(Schedule::constant(), sources.clone(), options(m)));
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let tell = |_, notice| {
        if matches!(notice, Notice::Step { .. }) {
            steps.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (mut ended, mut rate) = (Vec::new(), 0.0);
    thread::scope(|scope| {
        let clock = scope.spawn(|| {
            let wait = |until: &dyn Fn() -> bool| {
                while !until() && !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
            };
            wait(&|| steps.load(Ordering::Relaxed) >= WARM_UP * members as u64);
            let (began, before) = (Instant::now(), steps.load(Ordering::Relaxed));
            wait(&|| began.elapsed().as_secs_f64() >= seconds && steps.load(Ordering::Relaxed) > before);
            let done = steps.load(Ordering::Relaxed) - before;
            stop.store(true, Ordering::Relaxed);
            done as f64 / began.elapsed().as_secs_f64()
        });
        ended = train_array(&mut lanes, jobs.collect(), members, u64::MAX, &stop, &tell);
        stop.store(true, Ordering::Relaxed);
        rate = clock.join().unwrap_or(0.0);
    });
    for result in ended {
        result?;
    }
    let peaks: u64 = lanes.iter().map(|lane| lane.session.peak()).sum();
    let layout = lanes[0].session.layout();
    let sizes = layout.iter().map(|(_, dtype, shape)| dtype.size() * shape.iter().product::<usize>());
    let state = sizes.sum::<usize>() as u64;
    let bytes = peaks + state * (members - count) as u64;
    Ok(Measured { samples_per_second: rate * workload.batch as f64, lanes: count, bytes })
}
