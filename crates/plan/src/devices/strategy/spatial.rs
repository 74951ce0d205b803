//! `spatial`: images divided along their first dimension in space; gradients of weights are sums of parts.

use super::cuts::by_rule;
use super::{DeviceSet, JobGraphs, Strategy};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "spatial",
    help: "images are divided along their first dimension in space",
    divides_batch: false,
    divides_sums: true,
    plan: |graphs: &JobGraphs, set: &DeviceSet| by_rule(graphs, set, "spatial"),
};
