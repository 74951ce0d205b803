//! From a training graph to a chain: the forward nodes in their order, divided where few values pass from one side
//! to the other; every backward and update node goes to the layer whose forward nodes it belongs to.

mod assign;
mod measure;

use super::{LayerChain, ScheduleError};
use crate::step::readers::Readers;
use crate::time::cost::Rates;
use gulliver_graph::dim::BATCH;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::graph::{Graph, Origin, Phase, Role, Value};
use gulliver_graph::kinds::Kinds;

/// A graph as a chain. A sample of the chain is the input the sizes describe: one partial of a job's batch.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearGraph {
    /// The layers.
    pub chain: LayerChain,
    /// By node of the graph, of any phase: its layer.
    pub layer_of: Vec<u32>,
    /// By value of the graph: for a weight, the layer that updates it, which is the first to read it; for other
    /// inputs, the first layer that reads them; for results, the layer of their node.
    pub home_of: Vec<u32>,
}

/// Makes a chain of at most about twice `most` layers. Sizes are those of one partial, which becomes one sample;
/// two samples are the same with twice the batch. `device` and `host` say how fast kernels and updates on the
/// host are.
pub fn linearise(
    graph: &Graph,
    sizes: &Bindings,
    device: &Rates,
    host: &Rates,
    most: usize,
) -> Result<LinearGraph, ScheduleError> {
    if graph.nodes.iter().any(|node| node.objective > 0) {
        return Err(ScheduleError::SeveralObjectives);
    }
    if !graph.nodes.iter().any(|node| node.phase == Phase::Backward) {
        return Err(ScheduleError::NotTrained);
    }
    let sized = Sized::new(graph, sizes, device, host)?;
    let forward = layers_of_forward(graph, &sized, most.max(1));
    let assigned = assign::assign(graph, &sized.readers.root, forward);
    let chain = measure::measure(graph, &sized, &assigned);
    Ok(LinearGraph { chain, layer_of: assigned.layer_of, home_of: assigned.home_of })
}

/// What nodes and values take, for one sample and for two.
struct Sized {
    readers: Readers,
    /// By value.
    bytes: [Vec<u64>; 2],
    /// By node.
    seconds: [Vec<f64>; 2],
    /// By node, on the host.
    on_host: Vec<f64>,
}

impl Sized {
    fn new(graph: &Graph, sizes: &Bindings, device: &Rates, host: &Rates) -> Result<Sized, ScheduleError> {
        let kinds = Kinds::of(graph);
        let mut doubled = sizes.clone();
        if let Some(batch) = sizes.get(BATCH) {
            doubled.set(BATCH, batch.saturating_mul(2));
        }
        let works = kinds.nodes.iter().map(|id| {
            let node = &graph.nodes[id.index()];
            // An operator that will not say how much it computes is judged by its bytes.
            (graph.flops(node).unwrap_or(Dim::from(0)), graph.bytes(node))
        });
        let works: Vec<(Dim, Dim)> = works.collect();
        let views = |kind: usize| graph.nodes[kinds.nodes[kind].index()].op.def().is_view();
        let by_type = |sizes: &Bindings| -> Result<Vec<u64>, ScheduleError> {
            let each = kinds.types.iter().map(|ty| Ok(ty.bytes().bind(sizes)? as u64));
            let each: Vec<u64> = each.collect::<Result<_, ScheduleError>>()?;
            Ok(kinds.type_of.iter().map(|&kind| each[kind as usize]).collect())
        };
        let by_node = |sizes: &Bindings, rates: &Rates| -> Vec<f64> {
            let amount = |dim: &Dim| dim.bind(sizes).unwrap_or(0) as f64;
            let each = works.iter().enumerate().map(|(kind, (flops, bytes))| {
                if views(kind) { 0.0 } else { rates.seconds(amount(flops), amount(bytes)) }
            });
            let each: Vec<f64> = each.collect();
            kinds.kind_of.iter().map(|&kind| each[kind as usize]).collect()
        };
        Ok(Sized {
            readers: Readers::of(graph),
            bytes: [by_type(sizes)?, by_type(&doubled)?],
            seconds: [by_node(sizes, device), by_node(&doubled, device)],
            on_host: by_node(sizes, host),
        })
    }
}

/// The layer of every forward node, and how many there are.
fn layers_of_forward(graph: &Graph, sized: &Sized, most: usize) -> (Vec<Option<u32>>, u32) {
    let forward: Vec<usize> =
        (0..graph.nodes.len()).filter(|n| graph.nodes[*n].phase == Phase::Forward).collect();
    let crossing = crossing(graph, &sized.readers.root, &forward);
    let weight = |v: &Value| match graph.value(sized.readers.root[v.index()]).origin {
        Origin::Input(Role::Weight(_)) => sized.bytes[0][v.index()],
        _ => 0,
    };
    let bytes_of = |n: usize| graph.nodes[n].ins.iter().map(weight).sum::<u64>();
    let total: f64 = forward.iter().map(|n| sized.seconds[0][*n]).sum();
    let all_bytes: u64 = forward.iter().map(|n| bytes_of(*n)).sum();
    let mut layer_of = vec![None; graph.nodes.len()];
    let (mut layer, mut seconds, mut bytes) = (0, 0.0, 0);
    for (p, &n) in forward.iter().enumerate() {
        let large = seconds >= total / (2 * most) as f64 || bytes >= all_bytes / most as u64;
        if p > 0 && large && narrow(&crossing, p) {
            (layer, seconds, bytes) = (layer + 1, 0.0, 0);
        }
        layer_of[n] = Some(layer);
        seconds += sized.seconds[0][n];
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

/// Whether one value alone passes, or fewer than on both sides.
fn narrow(crossing: &[i64], p: usize) -> bool {
    let here = crossing[p];
    let differs = |c: &&i64| **c != here;
    let before = crossing[..p].iter().rev().find(differs);
    let after = crossing[p..].iter().find(differs);
    here <= 1 || (before.is_none_or(|c| *c > here) && after.is_none_or(|c| *c > here))
}
