//! `filter`: nodes divided along the outputs of their weights.

use super::cuts::by_rule;
use super::{DeviceSet, JobGraphs, Strategy};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "filter",
    help: "every node is divided along the outputs of its weights",
    divides_batch: false,
    divides_sums: false,
    plan: |graphs: &JobGraphs, set: &DeviceSet| by_rule(graphs, set, "filter"),
};
