//! Which layers go together on a device: the search on the job's chain of layers, as packs of nodes.

use super::follow;
use crate::devices::schedule::{ScheduleError, ScheduleMachine, linearise, search};
use crate::time::cost::Rates;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;

/// About the most layers of a chain.
const LAYERS: usize = 160;
/// The most schedules that are simulated.
const SIMULATED: usize = 400;

/// At most `most` different packings, predicted fastest first: the pack of every node. Sizes are those of one partial.
/// Packs go around all devices of the machine; the forward and backward pass of a layer, its weights and its updates are
/// on one device.
pub(crate) fn scheduled(
    graph: &Graph,
    slice: &Bindings,
    machine: &ScheduleMachine,
    rates: &Rates,
    partials: u32,
    most: usize,
) -> Result<Vec<Vec<u32>>, ScheduleError> {
    let linear = linearise(graph, slice, rates, LAYERS)?;
    let mut found: Vec<Vec<u32>> = Vec::new();
    for ranked in search(&linear.chain, machine, partials.max(1), SIMULATED)? {
        if found.len() == most {
            break;
        }
        let mut pack_of_layer = vec![0; linear.chain.layers.len()];
        for (i, pack) in ranked.packs.into_iter().enumerate() {
            pack_of_layer[pack].fill(i as u32);
        }
        let of_layers = linear.layer_of.iter().map(|layer| pack_of_layer[*layer as usize]).collect();
        let pack_of = follow(graph, of_layers);
        if !found.contains(&pack_of) {
            found.push(pack_of);
        }
    }
    Ok(found)
}
