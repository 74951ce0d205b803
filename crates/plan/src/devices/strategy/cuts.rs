//! Strategies that cut nodes: every device computes its part of every node.

use super::{DevicePlanners, DeviceSet, JobGraphs};
use crate::devices::cut::{CutDevice, CutMachine, CutRule, GraphCut, Sharding, cut_like, rule_cut};
use crate::devices::error::JobPlanError;
use crate::devices::options::DeviceOptions;
use crate::devices::planner::{Partitions, Planner, evaluated_sizes};
use crate::document::job::{Rank, WorkSharing};
use crate::step::outline::slice_of;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use std::sync::Arc;

/// The devices as the search for cuts sees them.
pub(super) fn machine(set: &DeviceSet) -> CutMachine {
    CutMachine {
        devices: (0..).zip(&set.devices).map(|(rank, device)| cut_device(rank, device)).collect(),
        bandwidth: set.first().links.from_peers,
        topology: set.first().topology.as_deref().cloned(),
    }
}

/// A device as the search for cuts sees it. Bytes beyond its memory are written to the host and read once a step.
fn cut_device(rank: u32, device: &DeviceOptions) -> CutDevice {
    let topology = device.topology.as_ref();
    let links = topology.map_or(device.links, |topology| topology.seen_by(rank, device.links));
    CutDevice {
        rates: device.rates,
        memory: device.memory,
        spill: 1.0 / links.to_host + 1.0 / links.to_device,
    }
}

/// Every node cut by rules, over all devices.
pub(super) fn by_rule(
    graphs: &JobGraphs,
    set: &DeviceSet,
    rules: &[CutRule],
) -> Result<DevicePlanners, JobPlanError> {
    let slice = slice_of(&graphs.largest, set.first().partials.max(1))?;
    as_cut(graphs, set, rule_cut(&graphs.train, &slice, &machine(set), rules)?)
}

/// Every node as a cut says, over the first devices, as many as the cut has.
pub(super) fn as_cut(
    graphs: &JobGraphs,
    set: &DeviceSet,
    cut: GraphCut,
) -> Result<DevicePlanners, JobPlanError> {
    let same_numbers = !cut.values.iter().flatten().any(|sharding| matches!(sharding, Sharding::Partial(_)));
    let set = set.limited_to(cut.devices());
    let planners = divided(&graphs.train, Some(&graphs.evaluation), &set, &graphs.largest, cut)?;
    Ok(DevicePlanners { planners, same_numbers })
}

/// The planners of devices that share nodes. The cut is one of the training graph, for inputs of about these sizes (of
/// the whole batch); it is fitted to other sizes when they are met. Every device takes part in all partials, and in
/// evaluation, for which weights lie as in training.
pub fn divided(
    train: &Graph,
    evaluate: Option<&Graph>,
    set: &DeviceSet,
    sizes: &Bindings,
    cut: GraphCut,
) -> Result<Vec<Planner>, JobPlanError> {
    let devices = set.devices.len();
    if devices == 0 || cut.devices() != devices {
        return Err(JobPlanError::CutDevices { parts: cut.devices(), devices });
    }
    let partials = set.first().partials.max(1);
    let slice = slice_of(sizes, partials)?;
    let evaluate = evaluate.map(|graph| -> Result<_, JobPlanError> {
        let at_once = evaluated_sizes(sizes, partials);
        let cut = cut_like(graph, &at_once, (train, &cut))?;
        Ok((Arc::new(Partitions::new(graph.clone(), cut)), at_once))
    });
    let evaluate = evaluate.transpose()?;
    let train = (Arc::new(Partitions::new(train.clone(), cut)), slice);
    let planner = |(rank, options): (u32, &DeviceOptions)| {
        let place = Rank { rank, ranks: devices as u32, sharing: WorkSharing::Nodes };
        let options = DeviceOptions { rank: Some(place), ..options.clone() };
        Ok(Planner::of_cut(train.clone(), evaluate.clone(), rank as usize, options)?)
    };
    (0..).zip(&set.devices).map(planner).collect()
}
