//! `channel`: nodes divided along the inputs of their weights.

use super::cuts::by_rule;
use super::{DeviceSet, JobGraphs, Strategy};
use crate::devices::cut::CutRule;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "channel",
    help: "every node is divided along the inputs of its weights",
    divides_batch: false,
    divides_sums: true,
    plan: |graphs: &JobGraphs, set: &DeviceSet| by_rule(graphs, set, &[CutRule::Channel]),
};
