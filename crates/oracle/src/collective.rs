//! Seconds of collectives over a group of devices. For each the library's choice is made: the protocol, and
//! ring or tree, that takes least.

use crate::cluster::{Cluster, Group};
use crate::network::Protocol;

/// How a collective runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Round all devices; every byte passes each link about twice.
    Ring,
    /// Up and down a tree: few hops.
    Tree,
    /// Within nodes, between them, within nodes; only software that knows nodes does so.
    Hierarchical,
}

/// Seconds of an all-reduce of so many bytes: the ring or the tree, whichever takes less, as NCCL chooses.
pub fn all_reduce(cluster: &Cluster, group: Group, bytes: f64) -> f64 {
    let ring = all_reduce_by(cluster, group, bytes, Algorithm::Ring);
    if group.local == group.size {
        return ring;
    }
    ring.min(all_reduce_by(cluster, group, bytes, Algorithm::Tree))
}

/// Seconds of an all-reduce by one algorithm.
pub fn all_reduce_by(cluster: &Cluster, group: Group, bytes: f64, algorithm: Algorithm) -> f64 {
    let p = group.size as f64;
    if group.size <= 1 || bytes <= 0.0 {
        return 0.0;
    }
    match algorithm {
        Algorithm::Ring => around(cluster, group, 2.0, bytes),
        Algorithm::Tree => {
            let nodes = group.size.div_ceil(group.local) as f64;
            let levels = nodes.log2().ceil().max(1.0);
            // Every byte goes up and comes down; within a node devices are a chain.
            let within = if group.local > 1 { group.local as f64 - 1.0 } else { 0.0 };
            quickest(&cluster.between.protocols, |way| {
                let start = way.start + 2.0 * levels * way.hop;
                start + 2.0 * bytes / (cluster.across(group) * way.share)
            }) + 2.0 * within * cluster.within.protocols[0].hop
        }
        Algorithm::Hierarchical => {
            let inner = Group { size: group.local, local: group.local, sharing: 1 };
            let nodes = (p / group.local as f64).ceil() as u32;
            // Every device of a node has its own part to exchange with its likes elsewhere.
            let outer = Group { size: nodes, local: 1, sharing: group.sharing * group.local };
            around(cluster, inner, 2.0, bytes) + around(cluster, outer, 2.0, bytes / group.local as f64)
        }
    }
}

/// Seconds of an all-gather that leaves so many bytes on every device, or of a reduce-scatter of them.
pub fn all_gather(cluster: &Cluster, group: Group, bytes: f64) -> f64 {
    if group.size <= 1 || bytes <= 0.0 { 0.0 } else { around(cluster, group, 1.0, bytes) }
}

/// Seconds in which every device sends each other one an equal part of so many bytes.
pub fn all_to_all(cluster: &Cluster, group: Group, bytes: f64) -> f64 {
    let p = group.size as f64;
    if group.size <= 1 || bytes <= 0.0 {
        return 0.0;
    }
    let away = bytes * (p - group.local as f64) / p;
    let near = bytes * (group.local as f64 - 1.0) / p;
    let share = cluster.within.ring_share(group.local, cluster.devices);
    let within = quickest(&cluster.within.protocols, |way| {
        way.start + (p - 1.0) * way.hop + near / (cluster.within.bandwidth * share * way.share)
    });
    if away <= 0.0 {
        return within;
    }
    let all = Group { sharing: group.sharing * group.local, ..group };
    within.max(quickest(&cluster.between.protocols, |way| {
        way.start + (p - 1.0) * way.hop + away / (cluster.across(all) * way.share)
    }))
}

/// Seconds in which one device sends so many bytes to another, which may be in another node; all pairs
/// of the group's kind do so at once.
pub fn send(cluster: &Cluster, group: Group, bytes: f64) -> f64 {
    if bytes <= 0.0 {
        return 0.0;
    }
    if group.local > 1 {
        let share = cluster.within.ring_share(2, cluster.devices);
        let bandwidth = cluster.within.bandwidth * share;
        return quickest(&cluster.within.protocols, |way| {
            way.start.max(0.5 * way.hop) + bytes / (bandwidth * way.share)
        });
    }
    let bandwidth = cluster.outward(group);
    quickest(&cluster.between.protocols, |way| way.start.max(0.5 * way.hop) + bytes / (bandwidth * way.share))
}

/// `rounds` times round a ring, each time passing on all but one part of the bytes.
fn around(cluster: &Cluster, group: Group, rounds: f64, bytes: f64) -> f64 {
    if group.size <= 1 {
        return 0.0;
    }
    let p = group.size as f64;
    let passed = rounds * (p - 1.0) / p * bytes;
    // Fitted starts are those of all-reduces, which go round twice.
    let part = rounds / 2.0;
    let within = quickest(&cluster.within.protocols, |way| {
        let share = cluster.within.ring_share(group.local, cluster.devices);
        way.start * part
            + rounds * (p - 1.0) * way.hop * 0.5
            + passed / (cluster.within.bandwidth * share * way.share)
    });
    if group.local == group.size {
        return within;
    }
    let nodes = (p / group.local as f64).ceil();
    let between = quickest(&cluster.between.protocols, |way| {
        let hops = rounds * 0.5 * ((nodes - 1.0) * way.hop + (p - nodes) * cluster.within.protocols[0].hop);
        way.start * part + hops + passed / (cluster.outward(group) * way.share)
    });
    if group.local == 1 { between } else { between.max(within) }
}

fn quickest(ways: &[Protocol; 2], seconds: impl Fn(&Protocol) -> f64) -> f64 {
    seconds(&ways[0]).min(seconds(&ways[1]))
}
