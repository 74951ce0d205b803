//! Seconds and bytes of the layers of a graph whose nodes have been assigned.

use super::super::{ChainLayer, DistantGradient, LayerChain, SizeCurve};
use super::Sized;
use super::assign::Assigned;
use gulliver_graph::graph::{Graph, Origin, Phase, Role, Value};
use std::collections::{HashMap, HashSet};

pub(super) fn measure(graph: &Graph, sized: &Sized, assigned: &Assigned) -> LayerChain {
    let count = assigned.layers as usize;
    let mut layers = vec![ChainLayer::default(); count];
    let both = |amounts: [f64; 2]| SizeCurve::new(vec![(1, amounts[0]), (2, amounts[1])]);
    let mut seconds = vec![[[0.0; 2]; 2]; count];
    for (n, node) in graph.nodes.iter().enumerate() {
        let l = assigned.layer_of[n] as usize;
        if layers[l].name.is_empty() && node.phase == Phase::Forward {
            layers[l].name = graph.value(node.outs[0]).name.clone();
        }
        for (size, by_node) in sized.seconds.iter().enumerate() {
            match node.phase {
                Phase::Forward => seconds[l][0][size] += by_node[n],
                Phase::Backward => seconds[l][1][size] += by_node[n],
                Phase::Update => {}
            }
        }
        if node.phase == Phase::Update {
            layers[l].update += sized.seconds[0][n];
            layers[l].update_on_host += sized.on_host[n];
        }
    }
    for (layer, seconds) in layers.iter_mut().zip(seconds) {
        layer.forward = both(seconds[0]);
        layer.backward = both(seconds[1]);
    }
    inputs(graph, sized, assigned, &mut layers);
    let far = passing(graph, sized, assigned, &mut layers);
    let memory = [memory(graph, sized, assigned, 0), memory(graph, sized, assigned, 1)];
    for (l, layer) in layers.iter_mut().enumerate() {
        let curve = |of: fn(&Memory) -> u64| both([of(&memory[0][l]) as f64, of(&memory[1][l]) as f64]);
        layer.forward_working = curve(|m| m.forward_peak);
        layer.backward_kept = curve(|m| m.kept);
        layer.backward_working = curve(|m| m.forward_peak.max(m.backward_peak));
    }
    LayerChain { layers, joint_update: assigned.joint, far }
}

/// Weights, buffers, states and data.
fn inputs(graph: &Graph, sized: &Sized, assigned: &Assigned, layers: &mut [ChainLayer]) {
    let root = &sized.readers.root;
    let mut seen: HashSet<(Value, u32, bool)> = HashSet::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        let l = assigned.layer_of[n];
        let update = node.phase == Phase::Update;
        for v in node.ins.iter().map(|v| root[v.index()]) {
            let Origin::Input(role) = graph.value(v).origin else { continue };
            if !seen.insert((v, l, update)) {
                continue;
            }
            let bytes = sized.bytes[0][v.index()];
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

/// Bytes that pass from layer to layer; what does not grow with the batch and has far to go goes there directly.
fn passing(
    graph: &Graph,
    sized: &Sized,
    assigned: &Assigned,
    layers: &mut [ChainLayer],
) -> Vec<DistantGradient> {
    let root = &sized.readers.root;
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
    for node in graph.nodes.iter().filter(|n| n.phase != Phase::Update) {
        for v in node.outs.iter().filter(|v| root[v.index()] == **v).map(|v| v.index()) {
            let Origin::Node { node: maker, .. } = graph.values[v].origin else { continue };
            let made = assigned.layer_of[maker.index()];
            let bytes = sized.bytes[0][v];
            for l in made + 1..=after[v] {
                layers[l as usize].input += bytes;
            }
            if before[v] < made {
                let fixed = sized.bytes[1][v] == bytes && bytes > 4096;
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

#[derive(Clone, Default)]
struct Memory {
    forward_peak: u64,
    backward_peak: u64,
    kept: u64,
}

/// By layer: most bytes of results at once in each pass, and those of the forward that the backward pass reads.
fn memory(graph: &Graph, sized: &Sized, assigned: &Assigned, size: usize) -> Vec<Memory> {
    let root = &sized.readers.root;
    let bytes = |v: usize| sized.bytes[size][v];
    let mut out = vec![Memory::default(); assigned.layers as usize];
    // By value: the last node of its own layer and phase that reads it.
    let mut last = vec![usize::MAX; graph.values.len()];
    let mut kept = vec![false; graph.values.len()];
    let made_by = |v: Value| match graph.value(v).origin {
        Origin::Node { node, .. } => Some(node.index()),
        Origin::Input(_) => None,
    };
    for (n, node) in graph.nodes.iter().enumerate() {
        for v in node.ins.iter().map(|v| root[v.index()]) {
            let Some(maker) = made_by(v) else { continue };
            let same_phase = graph.nodes[maker].phase == node.phase;
            let same_layer = assigned.layer_of[maker] == assigned.layer_of[n];
            if same_phase && same_layer {
                last[v.index()] = n;
            } else if node.phase == Phase::Backward && same_layer && !kept[v.index()] {
                kept[v.index()] = true;
                out[assigned.layer_of[n] as usize].kept += bytes(v.index());
            }
        }
    }
    let mut live = vec![[0u64; 2]; assigned.layers as usize];
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.phase != Phase::Update) {
        let l = assigned.layer_of[n] as usize;
        let phase = usize::from(node.phase == Phase::Backward);
        let made = || node.outs.iter().map(|v| v.index()).filter(|v| root[*v].index() == *v);
        live[l][phase] += made().map(bytes).sum::<u64>();
        let peak = if phase == 0 { &mut out[l].forward_peak } else { &mut out[l].backward_peak };
        *peak = (*peak).max(live[l][phase]);
        // What nobody here reads leaves at once: it is handed on, or added to a sum.
        live[l][phase] -= made().filter(|v| last[*v] == usize::MAX).map(bytes).sum::<u64>();
        let mut read: Vec<usize> = node.ins.iter().map(|v| root[v.index()].index()).collect();
        read.sort_unstable();
        read.dedup();
        live[l][phase] -= read.into_iter().filter(|v| last[*v] == n).map(bytes).sum::<u64>();
    }
    out
}
