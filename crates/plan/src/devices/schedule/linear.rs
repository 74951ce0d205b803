//! A training graph as a chain of layers: forward nodes are divided where few values cross; backward and update nodes
//! belong to the layer of their forward nodes.

mod assign;
mod measure;

use super::ScheduleError;
use super::chain::LayerChain;
use crate::step::readers::Readers;
use crate::time::cost::Rates;
use gulliver_graph::dim::{BATCH, Bindings};
use gulliver_graph::graph::{Graph, Origin, Phase, Role, Value};
use gulliver_graph::kinds::Kinds;

/// A graph as a chain. Seconds and bytes of the chain are those of one partial.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LinearGraph {
    /// The layers.
    pub chain: LayerChain,
    /// By node of the graph, of any phase: its layer.
    pub layer_of: Vec<u32>,
}

/// Makes a chain of at most about twice `most` layers, for partials of these sizes.
pub(crate) fn linearise(
    graph: &Graph,
    sizes: &Bindings,
    rates: &Rates,
    most: usize,
) -> Result<LinearGraph, ScheduleError> {
    if graph.nodes.iter().any(|node| node.objective > 0) {
        return Err(ScheduleError::SeveralObjectives);
    }
    if !graph.nodes.iter().any(|node| node.phase == Phase::Backward) {
        return Err(ScheduleError::NotTrained);
    }
    let priced = PricedGraph::new(graph, sizes, rates)?;
    let forward = layers_of_forward(graph, &priced, most.max(1));
    let assigned = assign::assign(graph, &priced.readers.root, forward);
    let chain = measure::measure(graph, &priced, &assigned);
    Ok(LinearGraph { chain, layer_of: assigned.layer_of })
}

/// Bytes of values and seconds of nodes, for one partial.
struct PricedGraph {
    readers: Readers,
    /// By value.
    bytes: Vec<u64>,
    /// By value: whether its bytes grow with the batch.
    grows: Vec<bool>,
    /// By node.
    seconds: Vec<f64>,
}

impl PricedGraph {
    fn new(graph: &Graph, sizes: &Bindings, rates: &Rates) -> Result<PricedGraph, ScheduleError> {
        let kinds = Kinds::of(graph);
        let mut doubled = sizes.clone();
        if let Some(batch) = sizes.get(BATCH) {
            doubled.set(BATCH, batch.saturating_mul(2));
        }
        let mut of_type = Vec::with_capacity(kinds.types.len());
        for ty in &kinds.types {
            let bytes = ty.bytes();
            let one = bytes.bind(sizes)?;
            of_type.push((one as u64, bytes.bind(&doubled)? != one));
        }
        Ok(PricedGraph {
            readers: Readers::of(graph),
            bytes: kinds.type_of.iter().map(|&ty| of_type[ty as usize].0).collect(),
            grows: kinds.type_of.iter().map(|&ty| of_type[ty as usize].1).collect(),
            seconds: rates.of_nodes(graph, sizes),
        })
    }
}

/// The layer of every forward node, and the number of layers.
fn layers_of_forward(graph: &Graph, priced: &PricedGraph, most: usize) -> (Vec<Option<u32>>, u32) {
    let forward: Vec<usize> =
        (0..graph.nodes.len()).filter(|n| graph.nodes[*n].phase == Phase::Forward).collect();
    let crossing = crossing(graph, &priced.readers.root, &forward);
    let weight = |v: &Value| match graph.value(priced.readers.root[v.index()]).origin {
        Origin::Input(Role::Weight(_)) => priced.bytes[v.index()],
        _ => 0,
    };
    let bytes_of = |n: usize| graph.nodes[n].ins.iter().map(weight).sum::<u64>();
    let total: f64 = forward.iter().map(|n| priced.seconds[*n]).sum();
    let all_bytes: u64 = forward.iter().map(|n| bytes_of(*n)).sum();
    let mut layer_of = vec![None; graph.nodes.len()];
    let (mut layer, mut seconds, mut bytes) = (0, 0.0, 0);
    for (p, &n) in forward.iter().enumerate() {
        let large = seconds >= total / (2 * most) as f64 || bytes >= all_bytes / most as u64;
        if p > 0 && large && narrow(&crossing, p) {
            (layer, seconds, bytes) = (layer + 1, 0.0, 0);
        }
        layer_of[n] = Some(layer);
        seconds += priced.seconds[n];
        bytes += bytes_of(n);
    }
    (layer_of, layer + 1)
}

/// By position in the forward order: values made before it that are read at it or after it.
fn crossing(graph: &Graph, root: &[Value], forward: &[usize]) -> Vec<i64> {
    let mut made = vec![None; graph.values.len()];
    let mut last = vec![0; graph.values.len()];
    for (p, &n) in forward.iter().enumerate() {
        for v in &graph.nodes[n].ins {
            last[root[v.index()].index()] = p;
        }
        for v in graph.nodes[n].outs.iter().filter(|v| root[v.index()] == **v) {
            made[v.index()] = Some(p);
        }
    }
    let mut crossing = vec![0; forward.len() + 1];
    for (made, last) in made.into_iter().zip(last) {
        if let Some(made) = made.filter(|made| last > *made) {
            crossing[made + 1] += 1;
            crossing[last + 1] -= 1;
        }
    }
    for p in 1..crossing.len() {
        crossing[p] += crossing[p - 1];
    }
    crossing
}

/// Whether at most one value crosses, or fewer than on both sides.
fn narrow(crossing: &[i64], p: usize) -> bool {
    let here = crossing[p];
    let differs = |c: &&i64| **c != here;
    let before = crossing[..p].iter().rev().find(differs);
    let after = crossing[p..].iter().find(differs);
    here <= 1 || (before.is_none_or(|c| *c > here) && after.is_none_or(|c| *c > here))
}
