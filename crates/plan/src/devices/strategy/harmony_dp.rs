//! `harmony-dp`: data parallel with weights fetched once for all partials.

use super::{DevicePlanners, DeviceSet, JobGraphs, Strategy, replicated};
use crate::devices::options::DeviceOptions;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "harmony-dp",
    help: "as data, all partials of some layers before those of the next: weights are fetched once for all",
    divides_batch: true,
    divides_sums: false,
    plan: |graphs: &JobGraphs, set: &DeviceSet| {
        let grouped = |options: &DeviceOptions| DeviceOptions { grouped: true, ..options.clone() };
        let set = DeviceSet { devices: set.devices.iter().map(grouped).collect(), ..set.clone() };
        Ok(DevicePlanners::same(replicated(&graphs.train, Some(&graphs.evaluation), &set)?))
    },
};
