//! `data`: every device has all weights.

use super::batch::shares;
use super::{DevicePlanners, DeviceSet, JobGraphs, Strategy};
use crate::devices::error::JobPlanError;
use crate::devices::options::DeviceOptions;
use crate::devices::planner::Planner;
use crate::devices::predict::each;
use crate::devices::replicate::replica;
use crate::document::job::WorkSharing;
use gulliver_graph::graph::Graph;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "data",
    help: "every device has all weights and takes partials of its own",
    divides_batch: true,
    divides_sums: false,
    plan: |graphs: &JobGraphs, set: &DeviceSet| {
        Ok(DevicePlanners::same(replicated(&graphs.train, Some(&graphs.evaluation), set)?))
    },
};

/// The planners of devices with all weights each. There must be as many partials for each device. The first device
/// evaluates.
pub fn replicated(
    train: &Graph,
    evaluate: Option<&Graph>,
    set: &DeviceSet,
) -> Result<Vec<Planner>, JobPlanError> {
    let ranks = set.devices.len() as u32;
    let planner = |(rank, options): (u32, DeviceOptions)| {
        let evaluate = evaluate.filter(|_| rank == 0).cloned();
        Ok(Planner::new(replica(train, rank, ranks, options.partials)?, evaluate, options)?)
    };
    each(&*set.for_each, (0..).zip(shares(set, WorkSharing::Batch)?).collect(), planner)
}
