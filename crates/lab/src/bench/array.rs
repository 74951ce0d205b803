//! Trains an array of jobs of one workload on lanes and measures how many samples all of them together get
//! through.

use crate::error::LabError;
use crate::workload::BenchWorkload;
use gulliver::local::{LocalDevice, session};
use gulliver_graph::dim::Bindings;
use gulliver_graph::lr::LrSchedule;
use gulliver_run::data::{Batch, DataError, DataInfo, Dataset, Sampler};
use gulliver_run::device::RunError;
use gulliver_run::session::SessionError;
use gulliver_run::team::start_scoped;
use gulliver_run::train::{Member, Notice, Sources, TrainOptions, train_array};
use serde::Serialize;
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

    fn info(&self) -> DataInfo {
        self.info.clone()
    }

    fn batch(&self, _indices: &[usize]) -> Result<Batch, DataError> {
        Ok(self.batch.clone())
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArrayResult {
    /// The workload's name.
    pub workload: &'static str,
    /// Threads used.
    pub threads: usize,
    /// Trained numbers of one job.
    pub parameters: u64,
    /// Jobs trained together.
    pub members: usize,
    /// Samples of a step of one job.
    pub batch: usize,
    /// Sessions that members took turns in.
    pub lanes: usize,
    /// Of all jobs together.
    pub samples_per_second: f64,
    /// Most bytes of device memory in use at once, of all lanes, and of members that wait.
    pub bytes: u64,
    /// Steps of every job, those to warm up included.
    pub steps: Vec<u64>,
    /// The loss of the last step of every job.
    pub loss: Vec<f64>,
}

/// Trains `members` jobs on `threads` threads for about `seconds`.
pub fn measure(
    workload: &BenchWorkload,
    threads: usize,
    members: usize,
    seconds: f64,
) -> Result<ArrayResult, LabError> {
    let count = threads.min(members);
    let mut lanes = Vec::new();
    for lane in 0..count {
        let threads = threads / count + usize::from(lane < threads % count);
        let options = LocalDevice { threads, ..LocalDevice::default() };
        lanes.push(session(workload.graph()?, None, &options, 0)?);
    }
    let batch = workload.data(lanes[0].graph())?;
    let info = DataInfo { examples: workload.batch, ..DataInfo::default() };
    let sampler = Sampler::new(workload.batch, workload.batch, 0, false, true, None)?;
    let train: Arc<dyn Dataset> = Arc::new(Fixed { batch, info });
    let sources = Arc::new(Sources::from_parts(train, sampler, None));
    let options = |seed| TrainOptions {
        steps: u64::MAX,
        seed,
        log_every: 1,
        base_lr: f64::from(workload.optimizer.lr()),
        ..TrainOptions::default()
    };
    let jobs = (0..members as u64).map(|m| Member::new(LrSchedule::constant(), sources.clone(), options(m)));
    let stop = AtomicBool::new(false);
    let steps: Vec<AtomicU64> = (0..members).map(|_| AtomicU64::new(0)).collect();
    let tell = |member: usize, notice| {
        if matches!(notice, Notice::Step { .. }) {
            steps[member].fetch_add(1, Ordering::Relaxed);
        }
    };
    let total = || steps.iter().map(|n| n.load(Ordering::Relaxed)).sum::<u64>();
    let (mut ended, mut rate) = (Vec::new(), 0.0);
    thread::scope(|scope| -> Result<(), SessionError> {
        let clock = start_scoped(scope, "clock", || {
            let wait = |until: &dyn Fn() -> bool| {
                while !until() && !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
            };
            wait(&|| steps.iter().all(|n| n.load(Ordering::Relaxed) >= WARM_UP));
            let (began, before) = (Instant::now(), total());
            wait(&|| began.elapsed().as_secs_f64() >= seconds && total() > before);
            let done = total() - before;
            stop.store(true, Ordering::Relaxed);
            done as f64 / began.elapsed().as_secs_f64()
        });
        let clock = clock.map_err(RunError::from)?;
        ended = train_array(&mut lanes, jobs.collect(), members, u64::MAX, &stop, &tell);
        stop.store(true, Ordering::Relaxed);
        rate = clock.join().unwrap_or(0.0);
        Ok(())
    })?;
    let ended = ended.into_iter().collect::<Result<Vec<_>, _>>()?;
    let peaks: u64 = lanes.iter().map(|lane| lane.peak()).sum();
    let layout = lanes[0].layout();
    let sizes = layout.iter().map(|(_, dtype, shape)| dtype.size() * shape.iter().product::<usize>());
    let state = sizes.sum::<usize>() as u64;
    let bytes = peaks + state * (members - count) as u64;
    let parameters = lanes[0].graph().parameters().bind(&Bindings::new()).unwrap_or(0) as u64;
    Ok(ArrayResult {
        workload: workload.name,
        threads,
        parameters,
        members,
        batch: workload.batch,
        lanes: count,
        samples_per_second: rate * workload.batch as f64,
        bytes,
        steps: ended.iter().map(|job| job.steps).collect(),
        loss: ended.iter().map(|job| job.loss).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::{BenchRunner, BenchVariant};
    use crate::workload::{BenchOptimizer, workloads};

    #[test]
    fn members_learn_as_jobs_do_alone() {
        let tiny = workloads().find(|w| w.name == "mlp-tiny").unwrap();
        for optimizer in [BenchOptimizer::Adam, BenchOptimizer::AdamOfDcgan, BenchOptimizer::Momentum] {
            let workload = BenchWorkload { optimizer, ..tiny.clone() };
            let array = measure(&workload, 2, 3, 0.0).unwrap();
            assert_eq!((array.parameters, array.lanes), (workload.parameters, 2), "{optimizer:?}");
            assert!(array.samples_per_second > 0.0, "{optimizer:?}");
            assert_eq!((array.steps.len(), array.loss.len()), (3, 3), "{optimizer:?}");
            assert!(array.steps.iter().all(|n| *n >= WARM_UP), "{optimizer:?}: {:?}", array.steps);
            // The first has the seed of a job alone.
            let mut alone = BenchRunner::new(BenchVariant::plain(&workload, 1)).unwrap();
            let losses: Vec<f64> = (0..array.steps[0]).map(|_| alone.step().unwrap()).collect();
            assert_eq!(losses.last(), Some(&array.loss[0]), "{optimizer:?}");
            assert!(array.loss[1] != array.loss[0], "{optimizer:?}: {:?}", array.loss);
        }
    }
}
