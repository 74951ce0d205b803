//! `pipeline`: every device has some neighbouring layers (1F1B).

use super::{DevicePlanners, DeviceSet, JobGraphs, Pipelined, Strategy, pipelined};
use crate::devices::pipeline::Style;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "pipeline",
    help: "every device has some neighbouring layers; one partial goes forward, one back",
    divides_batch: false,
    divides_sums: false,
    plan: |graphs: &JobGraphs, set: &DeviceSet| {
        let how = Pipelined { packs: set.devices.len(), style: Style::OneByOne };
        let (train, evaluation) = (&graphs.train, Some(&graphs.evaluation));
        Ok(DevicePlanners::same(pipelined(train, evaluation, set, &graphs.largest, how)?))
    },
};
