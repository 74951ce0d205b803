//! Sorts groups into an order in which they can run. Where members run the same nodes in different orders, there is
//! none; the groups in the way are then split, and each member runs its node alone.

use super::matching::Matched;
use crate::graph::{Graph, NodeId, Origin, Phase, Value};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Objectives and phases in turn, within them about as in the members' graphs.
type Key = (u32, Phase, NodeId, usize);

/// The groups, each after those whose results it reads, in n log n time. Splits groups that cannot run.
pub(super) fn order(matched: &mut Matched) -> Vec<usize> {
    let readers = readers(matched);
    let mut done: Vec<Vec<bool>> = matched.graphs.iter().map(|g| vec![false; g.nodes.len()]).collect();
    let mut missing: Vec<usize> = Vec::with_capacity(matched.groups.len());
    for group in &matched.groups {
        missing.push(group.iter().map(|&(member, id)| missing_for(matched, member, id, &done)).sum());
    }
    let key = |matched: &Matched, group: usize| -> Reverse<(Key, usize)> {
        let (node, (member, id)) = (matched.first(group), matched.groups[group][0]);
        Reverse(((node.objective, node.phase, id, member), group))
    };
    let ready = (0..matched.groups.len()).filter(|&g| missing[g] == 0);
    let mut heap: BinaryHeap<_> = ready.map(|g| key(matched, g)).collect();
    let (mut order, mut stuck, grouped) = (Vec::with_capacity(missing.len()), 0, matched.groups.len());
    loop {
        while let Some(Reverse((_, group))) = heap.pop() {
            order.push(group);
            for &(member, id) in &matched.groups[group] {
                done[member][id.index()] = true;
                for reader in &readers[member][id.index()] {
                    let reader = matched.group_of(member, *reader);
                    missing[reader] -= 1;
                    if missing[reader] == 0 {
                        heap.push(key(matched, reader));
                    }
                }
            }
        }
        // Nothing can run: something that waits for several members must not.
        let waits = |g: &usize| missing[*g] > 0 && matched.groups[*g].len() > 1;
        let Some(group) = (stuck..grouped).find(waits) else { return order };
        stuck = group + 1;
        for alone in matched.split(group) {
            let (member, id) = matched.groups[alone][0];
            missing.push(missing_for(matched, member, id, &done));
            if missing[alone] == 0 {
                heap.push(key(matched, alone));
            }
        }
        missing[group] = 0;
    }
}

/// Operands of a member's node that are still to be made.
fn missing_for(matched: &Matched, member: usize, id: NodeId, done: &[Vec<bool>]) -> usize {
    let missing = |v: &&Value| match matched.graphs[member].value(**v).origin {
        Origin::Node { node, .. } => !done[member][node.index()],
        Origin::Input(_) => false,
    };
    matched.node(member, id).ins.iter().filter(missing).count()
}

/// By member and node, the nodes that read its results, once for each operand.
fn readers(matched: &Matched) -> Vec<Vec<Vec<NodeId>>> {
    let of = |graph: &&Graph| {
        let mut readers = vec![Vec::new(); graph.nodes.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            for v in &node.ins {
                if let Origin::Node { node: maker, .. } = graph.value(*v).origin {
                    readers[maker.index()].push(NodeId(id as u32));
                }
            }
        }
        readers
    };
    matched.graphs.iter().map(of).collect()
}
