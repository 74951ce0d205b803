//! Seconds and bytes of the layers of a graph whose nodes have been assigned.

use super::PricedGraph;
use super::assign::Assigned;
use crate::devices::schedule::chain::{ChainLayer, DistantGradient, LayerChain};
use gulliver_graph::graph::{Graph, NodeId, Origin, Phase, Role, Value};
use std::collections::{HashMap, HashSet};

pub(super) fn measure(graph: &Graph, priced: &PricedGraph, assigned: &Assigned) -> LayerChain {
    let mut layers = vec![ChainLayer::default(); assigned.layers as usize];
    for (n, node) in graph.nodes.iter().enumerate() {
        let layer = &mut layers[assigned.layer_of[n] as usize];
        if layer.name.is_empty() && node.phase == Phase::Forward {
            layer.name = graph.value(node.outs[0]).name.clone();
        }
        match node.phase {
            Phase::Forward => layer.forward += priced.seconds[n],
            Phase::Backward => layer.backward += priced.seconds[n],
            Phase::Update => layer.update += priced.seconds[n],
        }
    }
    inputs(graph, priced, assigned, &mut layers);
    let far = passing(graph, priced, assigned, &mut layers);
    memory(graph, priced, assigned, &mut layers);
    LayerChain { layers, joint_update: assigned.joint, far }
}

/// Weights, buffers, states and data.
fn inputs(graph: &Graph, priced: &PricedGraph, assigned: &Assigned, layers: &mut [ChainLayer]) {
    let root = &priced.readers.root;
    let mut seen: HashSet<(Value, u32, bool)> = HashSet::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        let l = assigned.layer_of[n];
        let update = node.phase == Phase::Update;
        for v in node.ins.iter().map(|v| root[v.index()]) {
            let Origin::Input(role) = graph.value(v).origin else { continue };
            if !seen.insert((v, l, update)) {
                continue;
            }
            let bytes = priced.bytes[v.index()];
            let layer = &mut layers[l as usize];
            match role {
                Role::Weight(_) if update => layer.gradients += bytes,
                Role::Weight(_) => layer.weights += bytes,
                Role::State(_) if update => layer.state += bytes,
                Role::State(_) => layer.buffers += bytes,
                Role::Data(_) if l == 0 && node.phase == Phase::Forward => layer.input += bytes,
                _ => {}
            }
        }
    }
}

/// Counts bytes that pass from layer to layer. Gradients that do not grow with the batch go to distant layers directly;
/// these are returned.
fn passing(
    graph: &Graph,
    priced: &PricedGraph,
    assigned: &Assigned,
    layers: &mut [ChainLayer],
) -> Vec<DistantGradient> {
    let root = &priced.readers.root;
    let mut far: HashMap<(usize, usize), u64> = HashMap::new();
    // By value: the furthest layer in each direction that needs it.
    let mut after: Vec<u32> = vec![0; graph.values.len()];
    let mut before: Vec<u32> = vec![u32::MAX; graph.values.len()];
    let mut used_by_update: Vec<Option<u32>> = vec![None; graph.values.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        let l = assigned.layer_of[n];
        for v in node.ins.iter().map(|v| root[v.index()].index()) {
            match node.phase {
                Phase::Forward => after[v] = after[v].max(l),
                Phase::Backward => before[v] = before[v].min(l),
                Phase::Update => used_by_update[v] = Some(l),
            }
        }
    }
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.phase != Phase::Update) {
        for v in node.outs.iter().filter(|v| root[v.index()] == **v).map(|v| v.index()) {
            let made = assigned.layer_of[n];
            let bytes = priced.bytes[v];
            for l in made + 1..=after[v] {
                layers[l as usize].input += bytes;
            }
            if before[v] < made {
                let fixed = !priced.grows[v] && bytes > 4096;
                if fixed && made - before[v] > 1 {
                    *far.entry((made as usize, before[v] as usize)).or_default() += bytes;
                } else {
                    (before[v] + 1..=made).for_each(|l| layers[l as usize].input_gradient += bytes);
                }
            }
            if let Some(residence) = used_by_update[v].filter(|residence| *residence < made) {
                *far.entry((made as usize, residence as usize)).or_default() += bytes;
            }
        }
    }
    let mut far: Vec<DistantGradient> =
        far.into_iter().map(|((from, to), bytes)| DistantGradient { from, to, bytes }).collect();
    far.sort_by_key(|far| (far.from, far.to));
    far
}

/// Most bytes of results at once in each pass, and bytes of forward results that the backward pass reads.
fn memory(graph: &Graph, priced: &PricedGraph, assigned: &Assigned, layers: &mut [ChainLayer]) {
    let root = &priced.readers.root;
    let bytes = |v: usize| priced.bytes[v];
    // By value: the last node of its own layer and phase that reads it.
    let mut last = vec![usize::MAX; graph.values.len()];
    let mut kept = vec![false; graph.values.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        for v in node.ins.iter().map(|v| root[v.index()]) {
            let Some(maker) = graph.maker(v).map(NodeId::index) else { continue };
            let same_phase = graph.nodes[maker].phase == node.phase;
            let same_layer = assigned.layer_of[maker] == assigned.layer_of[n];
            if same_phase && same_layer {
                last[v.index()] = n;
            } else if node.phase == Phase::Backward && same_layer && !kept[v.index()] {
                kept[v.index()] = true;
                layers[assigned.layer_of[n] as usize].backward_kept += bytes(v.index());
            }
        }
    }
    let mut live = vec![[0u64; 2]; assigned.layers as usize];
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.phase != Phase::Update) {
        let l = assigned.layer_of[n] as usize;
        let phase = usize::from(node.phase == Phase::Backward);
        let made = || node.outs.iter().map(|v| v.index()).filter(|v| root[*v].index() == *v);
        live[l][phase] += made().map(bytes).sum::<u64>();
        let layer = &mut layers[l];
        let peak = if phase == 0 { &mut layer.forward_working } else { &mut layer.backward_working };
        *peak = (*peak).max(live[l][phase]);
        // A result that no node here reads leaves at once.
        live[l][phase] -= made().filter(|v| last[*v] == usize::MAX).map(bytes).sum::<u64>();
        let mut read: Vec<usize> = node.ins.iter().map(|v| root[v.index()].index()).collect();
        read.sort_unstable();
        read.dedup();
        live[l][phase] -= read.into_iter().filter(|v| last[*v] == n).map(bytes).sum::<u64>();
    }
    // The backward pass may recompute the forward pass.
    for layer in layers {
        layer.backward_working = layer.backward_working.max(layer.forward_working);
    }
}
