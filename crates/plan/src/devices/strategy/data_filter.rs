//! `data+filter`: the batch between groups of devices, filters within them.

use super::cuts::by_rule;
use super::{DeviceSet, JobGraphs, Strategy};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "data+filter",
    help: "the batch between groups of devices, filters within them",
    divides_batch: false,
    divides_sums: true,
    plan: |graphs: &JobGraphs, set: &DeviceSet| by_rule(graphs, set, "data+filter"),
};
