//! Which layers go together on a device: [`search()`] on the job's chain of layers says, where nodes are placed by it.

use super::follow;
use crate::devices::schedule::{
    PackRotation, ScheduleError, ScheduleMachine, ScheduleMode, ScheduleOptions, UpdateOn, linearise, search,
};
use crate::time::cost::Rates;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;

/// Layers that the chain of a graph has at most, about.
const LAYERS: usize = 160;
/// Schedules that are simulated at most.
const SIMULATED: usize = 400;

/// The packs of the schedules that are thought to be fastest, fastest first and no two alike, at most so many: each
/// says the pack of every node. Sizes are those of one of the partials; packs go around all devices of the machine,
/// forward and backward of a layer are on one, and so are weights and updates.
pub fn scheduled(
    graph: &Graph,
    slice: &Bindings,
    machine: &ScheduleMachine,
    rates: &Rates,
    partials: u32,
    most: usize,
) -> Result<Vec<Vec<u32>>, ScheduleError> {
    let linear = linearise(graph, slice, rates, rates, LAYERS)?;
    let options = ScheduleOptions {
        modes: vec![ScheduleMode::Pipeline(PackRotation::SameDevice)],
        // One sample of the chain is one partial, and partials pass one by one.
        sizes: Some(vec![1]),
        updates: vec![UpdateOn::Device],
        least_devices: machine.devices.len(),
        top: usize::MAX,
        limit: SIMULATED,
        ..ScheduleOptions::new(partials.max(1))
    };
    let mut found: Vec<Vec<u32>> = Vec::new();
    for ranked in search(&linear.chain, machine, &options)? {
        if found.len() == most {
            break;
        }
        let packs = &ranked.schedule.backward;
        let mut pack_of_layer = vec![0; linear.chain.layers.len()];
        for (i, pack) in packs.iter().enumerate() {
            pack_of_layer[pack.layers.clone()].fill(i as u32);
        }
        let of_layers = linear.layer_of.iter().map(|layer| pack_of_layer[*layer as usize]).collect();
        let pack_of = follow(graph, of_layers);
        if !found.contains(&pack_of) {
            found.push(pack_of);
        }
    }
    Ok(found)
}
