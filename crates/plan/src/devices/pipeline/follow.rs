//! The pack of every node: forward nodes in runs of about equal time, divided where few bytes cross; backward and update
//! nodes in the pack of their weights or forward nodes.

use gulliver_graph::graph::{Graph, NodeId, Origin, Phase, Value};
use std::collections::HashMap;

/// The pack of every node, for packs of about equal seconds of each objective's forward pass with boundaries where few
/// bytes cross. There are fewer packs if there are fewer nodes.
pub fn spread(
    graph: &Graph,
    packs: usize,
    seconds: impl Fn(NodeId) -> f64,
    bytes: impl Fn(Value) -> f64,
) -> Vec<u32> {
    let mut pack_of = vec![0; graph.nodes.len()];
    let mut before = 0;
    for objective in 0..objectives(graph) {
        let forward = |id: &usize| {
            let node = &graph.nodes[*id];
            node.objective == objective && node.phase == Phase::Forward
        };
        let forward: Vec<usize> = (0..graph.nodes.len()).filter(forward).collect();
        let cuts = cuts(graph, &forward, packs.max(1), &seconds, &bytes);
        for (at, &id) in forward.iter().enumerate() {
            pack_of[id] = before + cuts.iter().filter(|&&cut| cut <= at).count() as u32;
        }
        before += cuts.len() as u32 + 1;
    }
    follow(graph, pack_of)
}

fn objectives(graph: &Graph) -> u32 {
    graph.nodes.iter().map(|node| node.objective + 1).max().unwrap_or(1)
}

/// The boundaries of packs, as indices into the forward nodes.
fn cuts(
    graph: &Graph,
    forward: &[usize],
    packs: usize,
    seconds: &impl Fn(NodeId) -> f64,
    bytes: &impl Fn(Value) -> f64,
) -> Vec<usize> {
    let mut last_read = vec![None; graph.values.len()];
    for (at, &id) in forward.iter().enumerate() {
        graph.nodes[id].ins.iter().for_each(|v| last_read[v.index()] = Some(at));
    }
    // Bytes that cross the boundary before each forward node.
    let mut change = vec![0.0; forward.len() + 1];
    for (at, &id) in forward.iter().enumerate() {
        for &v in &graph.nodes[id].outs {
            if let Some(last) = last_read[v.index()] {
                change[at + 1] += bytes(v);
                change[last + 1] -= bytes(v);
            }
        }
    }
    let mut crossing = change;
    for at in 1..crossing.len() {
        crossing[at] += crossing[at - 1];
    }
    let mut done = vec![0.0];
    forward.iter().for_each(|&id| done.push(done[done.len() - 1] + seconds(NodeId(id as u32))));
    let all = done[forward.len()];
    let mut cuts = Vec::new();
    for cut in 1..packs {
        let ideal = all * cut as f64 / packs as f64;
        // Boundaries may lie a third of a pack to either side.
        let near = |at: &usize| (done[*at] - ideal).abs() <= all / packs as f64 / 3.0;
        let after = cuts.last().map_or(1, |last| last + 1);
        let nearest = |a: &usize, b: &usize| (done[*a] - ideal).abs().total_cmp(&(done[*b] - ideal).abs());
        let least = |a: &usize, b: &usize| crossing[*a].total_cmp(&crossing[*b]).then(nearest(a, b));
        let best = (after..forward.len()).filter(near).min_by(least);
        cuts.extend(best.or((after..forward.len()).min_by(nearest)));
    }
    cuts
}

/// Puts backward and update nodes into the pack of their weights, or else of the forward results that they read; forward
/// nodes stay. Gradients never go to a later pack, and nodes stay in the packs of their objective.
pub fn follow(graph: &Graph, mut pack_of: Vec<u32>) -> Vec<u32> {
    (0..objectives(graph)).for_each(|objective| follow_one(graph, objective, &mut pack_of));
    pack_of
}

fn follow_one(graph: &Graph, objective: u32, pack_of: &mut [u32]) {
    let of_objective = || graph.nodes.iter().enumerate().filter(|(_, node)| node.objective == objective);
    // Results of other objectives count as inputs.
    let maker =
        |v: Value| graph.maker(v).map(NodeId::index).filter(|&m| graph.nodes[m].objective == objective);
    let weight = |v: Value| match graph.value(v).origin {
        Origin::Input(role) => role.persists(),
        Origin::Node { node, .. } => graph.nodes[node.index()].phase == Phase::Update,
    };
    // Weights are in the pack that reads them first.
    let mut residence: HashMap<Value, u32> = HashMap::new();
    let mut readers: HashMap<Value, Vec<u32>> = HashMap::new();
    for (id, node) in of_objective().filter(|(_, n)| n.phase == Phase::Forward) {
        for v in &node.ins {
            if weight(*v) {
                residence.entry(*v).or_insert(pack_of[id]);
                readers.entry(*v).or_default().push(pack_of[id]);
            }
        }
    }
    let weight = |id: usize| graph.nodes[id].ins.iter().filter_map(|v| residence.get(v)).max().copied();
    // Of several packs that read a weight, the last one that gradients may still reach.
    let read = |id: usize, most: u32| {
        let near = |v: &Value| readers.get(v)?.iter().copied().filter(|pack| *pack <= most).max();
        graph.nodes[id].ins.iter().filter_map(|v| near(v).or(residence.get(v).copied())).max()
    };
    let mut gradient_of: HashMap<Value, u32> = HashMap::new();
    for (id, node) in of_objective().filter(|(_, n)| n.phase == Phase::Update) {
        if let Some(pack) = weight(id) {
            node.ins.iter().filter(|v| maker(**v).is_some()).for_each(|v| {
                gradient_of.insert(*v, pack);
            });
        }
    }
    let last = of_objective()
        .filter(|(_, n)| n.phase == Phase::Forward)
        .map(|(id, _)| pack_of[id])
        .max()
        .unwrap_or(0);
    for (id, node) in of_objective() {
        let made = |phase: Phase| {
            let makers = node.ins.iter().filter_map(move |v| maker(*v));
            makers.filter(move |&m| graph.nodes[m].phase == phase)
        };
        let packs = &*pack_of;
        let of = |phase: Phase| made(phase).map(|m| packs[m]);
        pack_of[id] = match node.phase {
            Phase::Forward => continue,
            Phase::Backward => {
                let gradients = of(Phase::Backward).min();
                let own = node.outs.iter().find_map(|v| gradient_of.get(v)).copied();
                let own = own.or(read(id, gradients.unwrap_or(u32::MAX)));
                let own = own.or(of(Phase::Forward).max()).or(gradients);
                let own = own.unwrap_or(last);
                gradients.map_or(own, |least| own.min(least))
            }
            Phase::Update => {
                let read = of(Phase::Update).chain(of(Phase::Backward)).chain(of(Phase::Forward)).next();
                weight(id).or(read).unwrap_or(last)
            }
        };
    }
}
