//! `zero-1`: every device has all weights and shards of the optimizer's states.

use super::{DevicePlanners, DeviceSet, JobGraphs, Strategy, sharded};
use crate::devices::replicate::ShardedValues;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "zero-1",
    help: "every device has all weights, takes partials of its own and keeps a share of every large optimizer state",
    divides_batch: true,
    divides_sums: false,
    plan: |graphs: &JobGraphs, set: &DeviceSet| {
        let (train, evaluation) = (&graphs.train, Some(&graphs.evaluation));
        Ok(DevicePlanners::same(sharded(train, evaluation, set, ShardedValues::States)?))
    },
};
