//! `data+spatial`: the batch between groups of devices, space within them.

use super::cuts::by_rule;
use super::{DeviceSet, JobGraphs, Strategy};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "data+spatial",
    help: "the batch between groups of devices, space within them",
    divides_batch: false,
    divides_sums: true,
    plan: |graphs: &JobGraphs, set: &DeviceSet| by_rule(graphs, set, "data+spatial"),
};
