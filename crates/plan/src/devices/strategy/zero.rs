//! `zero`: every device has shards of weights, gradients and states.

use super::batch::shares;
use super::{DevicePlanners, DeviceSet, JobGraphs, Strategy, quickest, replicated};
use crate::devices::error::JobPlanError;
use crate::devices::options::DeviceOptions;
use crate::devices::planner::{DeviceGraph, Planner};
use crate::devices::predict::each;
use crate::devices::replicate::{Sharded, ShardedValues, evaluating, sharded as sharded_graph};
use crate::document::job::WorkSharing;
use crate::document::shard::Shard;
use gulliver_graph::graph::Graph;
use std::sync::Arc;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "zero",
    help: "every device takes partials of its own and has a share of every large weight, gradient and state",
    divides_batch: true,
    divides_sums: false,
    plan: |graphs: &JobGraphs, set: &DeviceSet| {
        // Weights gathered for the forward pass are kept for the backward pass, or gathered twice.
        let made = |keep| {
            let values = ShardedValues::WeightsAndStates { keep };
            Ok(DevicePlanners::same(sharded(&graphs.train, Some(&graphs.evaluation), set, values)?))
        };
        quickest([true, false].into_iter().map(made), graphs, set)
    },
};

/// The planners of devices with shards of some weights and states. The first device evaluates, and the others bring it
/// their shards of weights.
pub fn sharded(
    train: &Graph,
    evaluate: Option<&Graph>,
    set: &DeviceSet,
    values: ShardedValues,
) -> Result<Vec<Planner>, JobPlanError> {
    let ranks = set.devices.len() as u32;
    if ranks < 2 {
        return replicated(train, evaluate, set);
    }
    let whole = Arc::new(train.clone());
    let whole_evaluation = evaluate.map(|graph| Arc::new(graph.clone()));
    let planner = |(rank, options): (u32, DeviceOptions)| -> Result<Planner, JobPlanError> {
        let place = (rank, ranks);
        let Sharded { graph, boxes } = sharded_graph(train, place, options.partials, values)?;
        let part = |whole: &Arc<Graph>| -> Result<DeviceGraph, JobPlanError> {
            let graph = evaluating(whole, place, &boxes)?;
            Ok(DeviceGraph { graph, turns: None, whole: Arc::clone(whole) })
        };
        let evaluate = whole_evaluation.as_ref().map(part).transpose()?;
        let shard = |(name, region, whole): &(String, Vec<_>, Vec<usize>)| {
            (name.clone(), Shard::new(whole, region, size_of::<f32>()))
        };
        let shards = boxes.iter().map(shard).collect();
        let train = DeviceGraph { graph, turns: None, whole: Arc::clone(&whole) };
        Ok(Planner::of_graphs(train, evaluate, shards, options)?)
    };
    each(&*set.for_each, (0..).zip(shares(set, WorkSharing::Shards)?).collect(), planner)
}
