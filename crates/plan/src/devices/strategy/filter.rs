//! `filter`: nodes divided along the outputs of their weights; the backward pass divides sums over outputs.

use super::cuts::by_rule;
use super::{DeviceSet, JobGraphs, Strategy};
use crate::devices::cut::CutRule;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "filter",
    help: "every node is divided along the outputs of its weights",
    divides_batch: false,
    divides_sums: true,
    plan: |graphs: &JobGraphs, set: &DeviceSet| by_rule(graphs, set, &[CutRule::Filter]),
};
