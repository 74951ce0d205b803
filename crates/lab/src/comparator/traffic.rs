//! Bytes over links, counted from plans alone, which simulated and measured bytes are compared with; and a usual box.

use gulliver_graph::graph::Graph;
use gulliver_plan::document::collectives::collective_of;
use gulliver_plan::document::plan::{Act, BufferRange, Plan, Tier};
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Site, Topology, TopologyError};

/// Equal devices behind one uplink, evenly on some sockets. Uplinks of sockets, links between sockets and lanes of devices
/// have one rate.
pub fn pcie(devices: u32, rate: f64, latency: f64, sockets: u32) -> Result<Topology, TopologyError> {
    let device = |d: u32| DeviceSpec { socket: d * sockets.clamp(1, devices.max(1)) / devices.max(1) };
    let (host, lane, between) = (Some(rate), Some(rate), (sockets > 1).then_some(rate));
    let wiring = BoxWiring { host, lane, sockets: between, latency, ..BoxWiring::default() };
    Topology::wired((0..devices).map(device).collect(), &wiring)
}

/// Bytes that one step of every plan moves over each link of the topology.
pub fn over_links(plans: &[(&Graph, &Plan)], topology: &Topology) -> Vec<u64> {
    let mut bytes = vec![0; topology.links().len()];
    for (device, (graph, plan)) in plans.iter().enumerate() {
        let own = Site::Device(device as u32);
        let mut count = |from, to, n: u64| {
            topology.route(from, to).iter().for_each(|&link| bytes[link as usize] += n);
        };
        let site = |place: &BufferRange| match plan.tier(place) {
            Tier::Device => own,
            Tier::Host => Site::Host,
            Tier::Disk => Site::Disk,
        };
        for step in &plan.steps {
            match &step.act {
                Act::Move { from, to } => count(site(from), site(to), from.bytes),
                Act::Exchange { node, .. } => {
                    let collective = collective_of(&graph.nodes[node.index()], &plan.bindings());
                    for (other, n) in collective.into_iter().flat_map(|what| what.by_rank()) {
                        count(Site::Device(other), own, n);
                    }
                }
                _ => {}
            }
        }
    }
    bytes
}
