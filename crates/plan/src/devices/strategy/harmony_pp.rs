//! `harmony-pp`: a pipeline whose packs of layers go around the devices.

use super::{
    DevicePlanners, DeviceSet, JobGraphs, Pipelined, Strategy, packs, pipelined, pipelined_as, quickest,
};
use crate::devices::pipeline::Style;

/// Schedules that are planned in full.
const SCHEDULES: usize = 2;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "harmony-pp",
    help: "layers go around the devices in packs, all partials of a pack before those of the next",
    divides_batch: false,
    divides_sums: false,
    plan: |graphs: &JobGraphs, set: &DeviceSet| {
        let (train, evaluation, sizes) = (&graphs.train, Some(&graphs.evaluation), &graphs.largest);
        // One more than goes around evenly puts the first and the last pack, which may share weights, on one device.
        let even = Pipelined { packs: 2 * set.devices.len() + 1, style: Style::Grouped };
        let found = packs(train, set, sizes, SCHEDULES).unwrap_or_default();
        let made = |packs| match packs {
            Some(packs) => pipelined_as(train, evaluation, set, sizes, (packs, Style::Grouped)),
            None => pipelined(train, evaluation, set, sizes, even),
        };
        let all = found.into_iter().map(Some).chain([None]);
        quickest(all.map(|packs| Ok(DevicePlanners::same(made(packs)?))), graphs, set)
    },
};
