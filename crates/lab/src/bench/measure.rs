//! Trains one workload on one fixed batch and measures it: as the peer's program does, two steps to
//! warm up and then as many as fit the time.

use crate::bench::parts::{self, BudgetParts};
use crate::error::LabError;
use crate::workload::{BenchWorkload, step_flops};
use gulliver::local::{LocalDevice, LocalError, device_set, planner, session, together};
use gulliver_graph::array::fuse;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::role::{DataRole, HyperRole};
use gulliver_plan::devices::strategy::{ALONE, job, replicated};
use gulliver_plan::document::job::Purpose;
use gulliver_run::data::Batch;
use gulliver_run::host::resident;
use gulliver_run::session::{Session, SessionError, StepKey, sizes_of};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Instant;

/// Steps before the clock runs.
pub const WARM_UP: u64 = 2;

/// What was measured of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchResult {
    /// Its name.
    pub workload: String,
    /// Devices that share every batch.
    pub devices: usize,
    /// Threads of each.
    pub threads: usize,
    /// Trained numbers.
    pub parameters: u64,
    /// Jobs trained together, each on such a batch.
    pub members: usize,
    /// Samples of a step of one job.
    pub batch: usize,
    /// Steps measured.
    pub steps: u64,
    /// Over all of them, of all jobs.
    pub samples_per_second: f64,
    /// Median time of a step.
    pub step_seconds: f64,
    /// A tenth of the steps were as fast as this.
    pub step_seconds_low: f64,
    /// A tenth of the steps were as slow as this.
    pub step_seconds_high: f64,
    /// Floating-point operations of a step by its graph.
    pub step_flops: u64,
    /// Those per second, at the median.
    pub flops_per_second: f64,
    /// Most bytes of device memory in use at once.
    pub peak_bytes: u64,
    /// Bytes of memory of a device that the plan lays out.
    pub arena_bytes: u64,
    /// Most physical memory the process held.
    pub resident_bytes: Option<u64>,
    /// From the command's start to the end of the first step.
    pub first_step_seconds: f64,
    /// The loss of the last step.
    pub loss: f64,
    /// What a step consists of, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<BudgetParts>,
}

/// A workload, perhaps changed, and where it runs.
#[derive(Clone, Debug)]
pub struct BenchVariant {
    /// The workload.
    pub workload: BenchWorkload,
    /// Settings of the model that are not the workload's.
    pub settings: Vec<(String, ParamValue)>,
    /// Threads and budgets.
    pub options: LocalDevice,
    /// Whether to measure what a step consists of.
    pub parts: bool,
    /// Jobs of a fused array, if it is one.
    pub members: Option<usize>,
    /// Devices that share every batch.
    pub devices: usize,
}

impl BenchVariant {
    /// The workload as it is, without budgets.
    pub fn plain(workload: &BenchWorkload, threads: usize) -> BenchVariant {
        let options = LocalDevice { threads, ..LocalDevice::default() };
        BenchVariant {
            workload: workload.clone(),
            settings: Vec::new(),
            options,
            parts: false,
            members: None,
            devices: 1,
        }
    }
}

/// A session of a fused array on one device; the seeds of its members count from 0.
fn array_session(graph: Graph, device: &LocalDevice, members: usize) -> Result<Session, LocalError> {
    let plan = job(ALONE, vec![planner(graph, None, device)?])?;
    Ok(Session::array(plan, device.open(0)?, &(0..members as u64).collect::<Vec<_>>())?)
}

/// A workload being trained.
pub struct BenchRunner {
    /// Which.
    pub workload: BenchWorkload,
    /// Its values.
    pub session: Session,
    /// What every step is fed with.
    pub batch: Batch,
    /// Steps so far.
    pub done: u64,
}

impl BenchRunner {
    /// Ready for the first step.
    pub fn new(variant: BenchVariant) -> Result<BenchRunner, LabError> {
        let BenchVariant { workload, settings, options, members, devices, .. } = variant;
        let graph = workload.graph_with(&settings)?;
        let batch = workload.data(&graph)?;
        let largest = Some(sizes_of(&graph, &batch).map_err(SessionError::from)?);
        let options = LocalDevice { largest, ..options };
        let session = match members {
            None if devices > 1 => {
                let each = LocalDevice { partials: devices as u32, ..options };
                let each = vec![each; devices];
                together("data", replicated(&graph, None, &device_set(&each))?, &each, 0)?
            }
            None => session(graph, None, &options, 0)?,
            Some(members) => {
                let fused = fuse(&graph, members, &|role| matches!(role, DataRole::Noise { .. }))?;
                array_session(fused.graph, &options, members)?
            }
        };
        Ok(BenchRunner { workload, session, batch, done: 0 })
    }

    /// One step; the loss of the first job.
    pub fn step(&mut self) -> Result<f64, LabError> {
        let (key, hyper) = self.next_step();
        let keys: Vec<StepKey> =
            (0..self.session.members() as u64).map(|m| StepKey { seed: m, ..key }).collect();
        let outcomes = match keys.as_slice() {
            [key] => vec![self.session.step(&self.batch, *key, &hyper)?],
            keys => self.session.step_together(&self.batch, keys, &|_, role, name| hyper(role, name))?,
        };
        if let Some(value) = outcomes.iter().find_map(|outcome| outcome.not_finite.as_ref()) {
            let problem = format!("step {}: `{value}` is not finite", self.done);
            return Err(LabError::Workload { workload: self.workload.name.into(), problem });
        }
        // Of several objectives the sum, as training reports it.
        Ok(outcomes[0].scalars.losses().map(|(_, loss)| loss).sum())
    }

    /// Counts a step; its key, and its hyper-parameters beyond the defaults.
    pub fn next_step(&mut self) -> (StepKey, impl Fn(HyperRole, &str) -> Option<f32> + use<>) {
        let key = StepKey { seed: 0, step: self.done };
        self.done += 1;
        (key, key.number())
    }

    /// Sizes of a step.
    pub fn sizes(&self) -> Result<Bindings, SessionError> {
        self.session.sizes(Purpose::Train, &self.batch)
    }
}

/// Measures a workload for `seconds`, at least one step. `first` is told when the first step is done, in
/// seconds since `start`.
pub fn measure(
    variant: BenchVariant,
    seconds: f64,
    start: Instant,
    first: &mut dyn FnMut(f64) -> io::Result<()>,
) -> Result<BenchResult, LabError> {
    let (threads, with_parts, devices) = (variant.options.threads, variant.parts, variant.devices);
    let mut runner = BenchRunner::new(variant)?;
    let members = runner.session.members();
    runner.step()?;
    let first_step_seconds = start.elapsed().as_secs_f64();
    first(first_step_seconds)?;
    for _ in 1..WARM_UP {
        runner.step()?;
    }
    let mut times = Vec::new();
    let begin = Instant::now();
    let (mut before, mut loss) = (0.0, f64::NAN);
    while times.is_empty() || before < seconds {
        loss = runner.step()?;
        let now = begin.elapsed().as_secs_f64();
        times.push(now - before);
        before = now;
    }
    times.sort_by(f64::total_cmp);

    let sizes = runner.sizes()?;
    let step_flops = step_flops(runner.session.graph(), &sizes)?;
    let step_seconds = quantile(&times, 0.5);
    let own = runner.session.share(sizes)?;
    let arena_bytes = runner.session.plan(Purpose::Train, &own)?.spaces.iter().map(|s| s.bytes).sum();
    let (peak_bytes, resident_bytes) = (runner.session.peak(), resident::peak());
    let parts = if with_parts { Some(parts::measure(&mut runner)?) } else { None };
    Ok(BenchResult {
        workload: runner.workload.name.into(),
        devices,
        threads,
        parameters: runner.session.graph().parameters().bind(&Bindings::new()).unwrap_or(0) as u64,
        members,
        batch: runner.workload.batch,
        steps: times.len() as u64,
        samples_per_second: (times.len() * members * runner.workload.batch) as f64 / before,
        step_seconds,
        step_seconds_low: quantile(&times, 0.1),
        step_seconds_high: quantile(&times, 0.9),
        step_flops,
        flops_per_second: step_flops as f64 / step_seconds,
        peak_bytes,
        arena_bytes,
        resident_bytes,
        first_step_seconds,
        loss,
        parts,
    })
}

/// The element of sorted numbers (not empty) that this share of them does not exceed.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_elements() {
        for (sorted, low, middle, high) in [
            (vec![3.0], 3.0, 3.0, 3.0),
            (vec![1.0, 2.0, 3.0], 1.0, 2.0, 3.0),
            ((0..=100).map(f64::from).collect(), 10.0, 50.0, 90.0),
        ] {
            let got = [0.1, 0.5, 0.9].map(|share| quantile(&sorted, share));
            assert_eq!(got, [low, middle, high], "{sorted:?}");
        }
    }
}
