//! Bytes over links, counted from plans alone: simulated and measured bytes are compared with them.

use gulliver_graph::graph::Graph;
use gulliver_plan::document::collectives::collective_of;
use gulliver_plan::document::plan::{Act, BufferRange, Plan, Tier};
use gulliver_plan::document::topology::{Site, Topology};

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
