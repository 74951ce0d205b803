//! Strategies: how several devices share a job. Each is one file and one row of [`STRATEGIES`]. All that divide no sum
//! give the numbers of one device.

mod batch;
mod channel;
mod cut;
mod cuts;
mod data;
mod data_filter;
mod data_spatial;
mod filter;
mod harmony_dp;
mod harmony_pp;
mod pipeline;
mod pipelines;
mod spatial;
mod zero;
mod zero_1;

pub use cuts::divided;
pub use data::replicated;
pub use pipelines::{Pipelined, packs, pipelined, pipelined_as};
pub use zero::sharded;

use crate::devices::cut::WORTH;
use crate::devices::error::JobPlanError;
use crate::devices::options::{DeviceOptions, ForEach};
use crate::devices::planner::Planner;
use crate::devices::predict::{PredictedStep, predict};
use crate::document::job::{JobPlan, Purpose};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use std::sync::Arc;

/// The name that leaves the choice to the planner.
pub const AUTO: &str = "auto";

/// The strategy of a job on one device.
pub const ALONE: &str = "alone";

/// Every strategy.
pub static STRATEGIES: [&Strategy; 12] = [
    &data::STRATEGY,
    &harmony_dp::STRATEGY,
    &zero::STRATEGY,
    &zero_1::STRATEGY,
    &pipeline::STRATEGY,
    &harmony_pp::STRATEGY,
    &filter::STRATEGY,
    &channel::STRATEGY,
    &spatial::STRATEGY,
    &data_filter::STRATEGY,
    &data_spatial::STRATEGY,
    &cut::STRATEGY,
];

/// A way for several devices to share a job.
pub struct Strategy {
    /// Its name, for job files and the command line.
    pub name: &'static str,
    /// What the devices do, in one line.
    pub help: &'static str,
    /// Whether every device takes partials of its own.
    pub divides_batch: bool,
    /// Whether it may divide a sum between devices, so that results are rounded differently.
    pub divides_sums: bool,
    /// Makes the planners of all devices.
    pub plan: fn(&JobGraphs, &DeviceSet) -> Result<DevicePlanners, JobPlanError>,
}

impl Strategy {
    /// The strategy of that name.
    pub fn named(name: &str) -> Option<&'static Strategy> {
        STRATEGIES.into_iter().find(|strategy| strategy.name == name)
    }
}

/// The names a job may ask for, [`AUTO`] first.
pub fn names() -> Vec<&'static str> {
    std::iter::once(AUTO).chain(STRATEGIES.map(|strategy| strategy.name)).collect()
}

/// The graphs of a job.
pub struct JobGraphs {
    /// A training step.
    pub train: Graph,
    /// The evaluation of a batch.
    pub evaluation: Graph,
    /// The largest input.
    pub largest: Bindings,
}

/// The devices of a job.
#[derive(Clone)]
pub struct DeviceSet {
    /// By rank, at least one; batch and partials are those of the whole job.
    pub devices: Vec<DeviceOptions>,
    /// Plans devices side by side.
    pub for_each: Arc<ForEach>,
}

impl DeviceSet {
    /// These devices, planned one after the other.
    pub fn new(devices: Vec<DeviceOptions>) -> DeviceSet {
        DeviceSet { devices, for_each: Arc::new(|count, f| (0..count).for_each(f)) }
    }

    /// Options that all devices have in common.
    fn first(&self) -> &DeviceOptions {
        &self.devices[0]
    }

    /// The first of the devices.
    fn limited_to(&self, count: usize) -> DeviceSet {
        DeviceSet { devices: self.devices[..count].to_vec(), for_each: Arc::clone(&self.for_each) }
    }
}

/// The planners of devices that share a job.
pub struct DevicePlanners {
    /// By rank.
    pub planners: Vec<Planner>,
    /// Whether the numbers are those of one device.
    pub same_numbers: bool,
}

impl DevicePlanners {
    /// Planners that divide no sum.
    fn same(planners: Vec<Planner>) -> DevicePlanners {
        DevicePlanners { planners, same_numbers: true }
    }
}

/// A strategy applied to a job: its plans, simulated.
pub struct Candidate {
    /// The strategy's name.
    pub name: &'static str,
    /// The planners of its devices.
    pub planners: Vec<Planner>,
    /// The number of devices it could use.
    pub of: usize,
    /// The plans for the largest inputs, and how long they take together.
    pub prediction: PredictedStep,
    /// Whether the numbers are those of one device.
    pub same_numbers: bool,
}

impl Candidate {
    /// Applies a strategy.
    pub fn new(strategy: &Strategy, graphs: &JobGraphs, set: &DeviceSet) -> Result<Candidate, JobPlanError> {
        let DevicePlanners { mut planners, same_numbers } = (strategy.plan)(graphs, set)?;
        let sizes = largest(&planners, graphs);
        let prediction = predict(&*set.for_each, &mut planners, &sizes)?;
        Ok(Candidate { name: strategy.name, planners, of: set.devices.len(), prediction, same_numbers })
    }

    /// The planners of all devices. The plans that were simulated are the ones that will run.
    pub fn into_planners(self, graphs: &JobGraphs) -> Result<Vec<Planner>, JobPlanError> {
        let sizes = largest(&self.planners, graphs);
        let mut planners = self.planners;
        for (planner, plan) in planners.iter_mut().zip(self.prediction.plans) {
            planner.keep(Purpose::Train, &sizes, plan)?;
        }
        Ok(planners)
    }
}

/// The plan of a job from the planners of its devices. Plans made later are not watched: training is interrupted, not
/// planning.
pub fn job(strategy: &str, planners: Vec<Planner>) -> Result<JobPlan, JobPlanError> {
    let first = &planners[0];
    let train = Arc::new(first.whole(Purpose::Train).clone());
    let evaluate = first.evaluates().then(|| Arc::new(first.whole(Purpose::Evaluate).clone()));
    let device = |mut planner: Planner| {
        planner.set_watch(None);
        planner.into_device_plan()
    };
    let devices = planners.into_iter().map(device).collect::<Result<_, _>>()?;
    Ok(JobPlan { strategy: strategy.to_string(), train, evaluate, devices })
}

/// The sizes of the largest inputs of a device.
pub fn largest(planners: &[Planner], graphs: &JobGraphs) -> Bindings {
    planners[0].options().largest.clone().unwrap_or_else(|| graphs.largest.clone())
}

/// Strategies that cannot be used for a job, with the reason.
pub type Unable = Vec<(&'static str, JobPlanError)>;

/// Every strategy: fastest first, then those that cannot be used, with the reason. Fails only if planning is
/// interrupted.
pub fn ranking(graphs: &JobGraphs, set: &DeviceSet) -> Result<(Vec<Candidate>, Unable), JobPlanError> {
    let (mut able, mut unable) = (Vec::new(), Vec::new());
    for strategy in STRATEGIES {
        match Candidate::new(strategy, graphs, set) {
            Ok(candidate) => able.push(candidate),
            Err(e) if e.is_interrupted() => return Err(e),
            Err(e) => unable.push((strategy.name, e)),
        }
    }
    able.sort_by(|a, b| a.prediction.together.seconds.total_cmp(&b.prediction.together.seconds));
    Ok((able, unable))
}

/// The fastest strategy that leaves the numbers as they are.
pub fn fastest(graphs: &JobGraphs, set: &DeviceSet) -> Result<Candidate, JobPlanError> {
    let (able, mut unable) = ranking(graphs, set)?;
    let first = able.into_iter().find(|candidate| candidate.same_numbers);
    first.ok_or_else(|| unable.swap_remove(0).1)
}

/// Of several variants the one with the shortest step. More devices than the best before uses must be [worth](WORTH) it.
fn quickest(
    variants: impl Iterator<Item = Result<DevicePlanners, JobPlanError>>,
    graphs: &JobGraphs,
    set: &DeviceSet,
) -> Result<DevicePlanners, JobPlanError> {
    let mut best: Option<(f64, DevicePlanners)> = None;
    let mut failed = None;
    for variant in variants {
        let timed = variant.and_then(|mut shared| {
            let sizes = largest(&shared.planners, graphs);
            Ok((predict(&*set.for_each, &mut shared.planners, &sizes)?.together.seconds, shared))
        });
        match timed {
            Ok(new) => {
                let worth = |devices: usize| if new.1.planners.len() > devices { WORTH } else { 1.0 };
                let faster =
                    |(least, best): &(f64, DevicePlanners)| new.0 * worth(best.planners.len()) < *least;
                if best.as_ref().is_none_or(faster) {
                    best = Some(new);
                }
            }
            Err(e) if e.is_interrupted() => return Err(e),
            Err(e) => failed = Some(e),
        }
    }
    best.map(|(_, shared)| shared).ok_or_else(|| failed.expect("several were tried"))
}
