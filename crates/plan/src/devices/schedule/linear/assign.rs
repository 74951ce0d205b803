//! The layer of every node, given those of the forward nodes. Gradients pass from later to earlier layers only.

use gulliver_graph::graph::{Graph, NodeId, Origin, Phase, Role, Value};

/// The layers of nodes and values.
pub(super) struct Assigned {
    pub(super) layers: u32,
    /// By node.
    pub(super) layer_of: Vec<u32>,
    /// Whether some update needs gradients of several layers.
    pub(super) joint: bool,
}

pub(super) fn assign(graph: &Graph, root: &[Value], forward: (Vec<Option<u32>>, u32)) -> Assigned {
    let (forward, layers) = forward;
    let mut layer_of: Vec<u32> = forward.iter().map(|layer| layer.unwrap_or(layers - 1)).collect();
    // By value: the layers whose forward nodes read it, and for results the layer that makes it.
    let mut near: Vec<Vec<u32>> = vec![Vec::new(); graph.values.len()];
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.phase == Phase::Forward) {
        for v in node.ins.iter().chain(&node.outs).map(|v| root[v.index()]) {
            if near[v.index()].last() != Some(&layer_of[n]) {
                near[v.index()].push(layer_of[n]);
            }
        }
    }
    let first = |v: Value| near[v.index()].iter().min().copied().unwrap_or(0);
    let maker = |v: Value| graph.maker(v).map(NodeId::index);
    let made_in = |v: Value, phase: Phase| maker(v).is_some_and(|m| graph.nodes[m].phase == phase);
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.phase == Phase::Backward) {
        let operands = || node.ins.iter().map(|v| root[v.index()]);
        let gradients = operands().filter(|v| made_in(*v, Phase::Backward)).filter_map(maker);
        let above = gradients.map(|m| layer_of[m]).min().unwrap_or(layers - 1);
        let mut layer = above;
        for v in operands().filter(|v| is_weight(graph, *v) || made_in(*v, Phase::Forward)) {
            // The latest layer that has it.
            let has = near[v.index()].iter().copied().filter(|l| *l <= above).max();
            layer = layer.min(has.unwrap_or(above));
        }
        layer_of[n] = layer;
    }
    lower(graph, root, &mut layer_of, &near, &first);
    let joint = updates(graph, root, &mut layer_of, &first);
    Assigned { layers, layer_of, joint }
}

fn is_weight(graph: &Graph, v: Value) -> bool {
    matches!(graph.value(v).origin, Origin::Input(Role::Weight(_)))
}

/// Moves nodes whose results only earlier layers need to these, if they have the operands: sums for the gradient of a
/// bias.
fn lower(
    graph: &Graph,
    root: &[Value],
    layer_of: &mut [u32],
    near: &[Vec<u32>],
    first: &dyn Fn(Value) -> u32,
) {
    let mut wanted: Vec<Option<u32>> = vec![None; graph.nodes.len()];
    let raise = |wanted: &mut Vec<Option<u32>>, v: Value, layer: u32| {
        if let Some(node) = graph.maker(v) {
            let wanted = &mut wanted[node.index()];
            *wanted = Some(wanted.map_or(layer, |w| w.max(layer)));
        }
    };
    for (n, node) in graph.nodes.iter().enumerate().rev() {
        match node.phase {
            Phase::Forward => continue,
            Phase::Update => {
                let mut operands = node.ins.iter().map(|v| root[v.index()]);
                let layer = operands.find(|v| is_weight(graph, *v)).map_or(u32::MAX, first);
                node.ins.iter().for_each(|v| raise(&mut wanted, root[v.index()], layer));
            }
            Phase::Backward => {
                let has = |v: &Value| {
                    let v = root[v.index()];
                    match graph.value(v).origin {
                        Origin::Node { node, .. } if graph.nodes[node.index()].phase == Phase::Forward => {
                            first(v) <= wanted[n].unwrap_or(0)
                        }
                        Origin::Input(Role::Weight(_)) => near[v.index()].contains(&wanted[n].unwrap_or(0)),
                        _ => true,
                    }
                };
                if let Some(wanted) = wanted[n].filter(|w| *w < layer_of[n] && node.ins.iter().all(has)) {
                    layer_of[n] = wanted;
                }
                node.ins.iter().for_each(|v| raise(&mut wanted, root[v.index()], layer_of[n]));
            }
        }
    }
}

/// Puts updates into the layer of their weight, or into the first layer if they read several. Whether there are such.
fn updates(graph: &Graph, root: &[Value], layer_of: &mut [u32], first: &dyn Fn(Value) -> u32) -> bool {
    let mut joint = false;
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.phase == Phase::Update) {
        let operands = || node.ins.iter().map(|v| root[v.index()]);
        if let Some(weight) = operands().find(|v| is_weight(graph, *v)) {
            layer_of[n] = first(weight);
            continue;
        }
        let mut layers: Vec<u32> =
            operands().filter_map(|v| Some(layer_of[graph.maker(v)?.index()])).collect();
        layers.sort_unstable();
        layers.dedup();
        joint |= layers.len() > 1;
        layer_of[n] = if layers.len() == 1 { layers[0] } else { 0 };
    }
    joint
}
