//! Seconds of collectives over a group of devices, with the protocol, and ring or tree, that takes least.

use crate::cluster::{Cluster, Group};
use crate::network::Protocol;

/// Seconds of an all-reduce of `bytes`: the ring or the tree, whichever takes less, as NCCL chooses.
pub fn all_reduce(cluster: &Cluster, group: Group, bytes: f64) -> f64 {
    if group.size <= 1 || bytes <= 0.0 {
        return 0.0;
    }
    let ring = around(cluster, group, 2.0, bytes);
    if group.local == group.size { ring } else { ring.min(tree(cluster, group, bytes)) }
}

/// Seconds of an all-reduce up and down a tree of nodes; within a node devices are a chain.
fn tree(cluster: &Cluster, group: Group, bytes: f64) -> f64 {
    let nodes = group.size.div_ceil(group.local) as f64;
    let levels = nodes.log2().ceil().max(1.0);
    let within = if group.local > 1 { group.local as f64 - 1.0 } else { 0.0 };
    quickest(&cluster.between.protocols, |way| {
        let start = way.start + 2.0 * levels * way.hop;
        start + 2.0 * bytes / (cluster.across(group) * way.share)
    }) + 2.0 * within * cluster.within.protocols[0].hop
}

/// Seconds of an all-gather that leaves `bytes` on every device, or of a reduce-scatter of them.
pub fn all_gather(cluster: &Cluster, group: Group, bytes: f64) -> f64 {
    if group.size <= 1 || bytes <= 0.0 { 0.0 } else { around(cluster, group, 1.0, bytes) }
}

/// Seconds of an all-to-all: every device sends an equal part of `bytes` to each other one.
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

/// Seconds of a send of `bytes` from one device to another, while all pairs of the group's kind send too.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_groups_choose_the_quickest_algorithm() {
        let cluster = Cluster::named("dgx1-16").unwrap();
        let group = cluster.group(64, 1, 64);
        assert_eq!(group, Group { size: 64, local: 8, sharing: 1 });
        for bytes in [1e3, 1e6, 1e8, 1e10] {
            let (ring, tree) = (around(&cluster, group, 2.0, bytes), tree(&cluster, group, bytes));
            assert_eq!(all_reduce(&cluster, group, bytes), ring.min(tree), "{bytes}");
        }
        assert!(tree(&cluster, group, 1e3) < around(&cluster, group, 2.0, 1e3), "few hops for few bytes");
        let spread = cluster.group(8, 8, 64);
        assert_eq!(spread, Group { size: 8, local: 1, sharing: 8 });
        assert!(cluster.outward(spread) < cluster.outward(group), "eight groups share the adapters");
    }
}
