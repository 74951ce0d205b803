//! What a cut means: the bytes it moves between which devices, and the seconds and memory of a step. Uses
//! nothing of the search; refuses what is not a cut of the graph.

use super::bound::Bound;
use super::part::{Choice, Need, Parts, parts_of, seconds};
use super::region::{Grid, area, held};
use super::traffic::fetches;
use super::{Cut, CutError, check_levels};
use crate::cost::Rates;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin};
use std::collections::HashMap;
use std::rc::Rc;

/// Bytes that devices receive in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// By receiver, then sender.
    pub pairs: Vec<Vec<u64>>,
    /// By value: bytes that all devices together receive of it.
    pub values: Vec<u64>,
}

impl Bytes {
    /// Received by all devices.
    pub fn total(&self) -> u64 {
        self.values.iter().sum()
    }

    /// Received by one device.
    pub fn received(&self, device: usize) -> u64 {
        self.pairs[device].iter().sum()
    }
}

/// Bytes, seconds and memory of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Bytes moved.
    pub bytes: Bytes,
    /// Seconds of the nodes, each on its slowest device.
    pub work: f64,
    /// Seconds of moving each value to the device that receives most of it, one value after another.
    pub moving: f64,
    /// On the fullest device: weights, states, forward results that the backward pass reads, and the operands
    /// and results of the largest node.
    pub memory: u64,
}

/// What a cut moves in one step. Outputs of the graph are the host's to collect and cost nothing. Graphs made by
/// [`deal`](super::deal()) exchange as much, or more where devices need boxes of one value that overlap in part, or
/// more of it for an update than they hold.
pub fn bytes(graph: &Graph, sizes: &Bindings, cut: &Cut) -> Result<Bytes, CutError> {
    Ok(judge(&Bound::new(graph, sizes)?, cut, &Rates::default())?.bytes)
}

/// What a cut means for a graph whose sizes are put in.
pub fn judge(bound: &Bound, cut: &Cut, rates: &Rates) -> Result<Judged, CutError> {
    check_levels(&cut.levels)?;
    let grid = Grid::new(&cut.levels);
    let (parts, work) = all_parts(bound, cut, &grid, rates)?;
    let homes: Vec<Need> = bound
        .graph
        .carries
        .iter()
        .map(|(input, _)| {
            let (shape, home) = (&bound.shapes[input.index()], &cut.values[input.index()]);
            let boxes = (0..grid.devices()).map(|d| held(shape, home, &grid, d)).collect();
            Need { boxes, unreduced: 0 }
        })
        .collect();
    let mut needs: Vec<Vec<&Need>> = vec![Vec::new(); bound.graph.values.len()];
    for (node, parts) in bound.graph.nodes.iter().zip(&parts) {
        node.ins.iter().zip(&parts.ins).for_each(|(v, need)| needs[v.index()].push(need));
    }
    for ((_, next), home) in bound.graph.carries.iter().zip(&homes) {
        needs[next.index()].push(home);
    }
    let (bytes, moving) = moved(bound, cut, &grid, &needs)?;
    Ok(Judged { bytes, work, moving, memory: memory(bound, cut, &grid, &parts) })
}

/// The parts of every node, and the seconds of all.
fn all_parts(
    bound: &Bound,
    cut: &Cut,
    grid: &Grid,
    rates: &Rates,
) -> Result<(Vec<Rc<Parts>>, f64), CutError> {
    let mut known: HashMap<(u32, Vec<Choice>), (Rc<Parts>, f64)> = HashMap::new();
    let (mut all, mut work) = (Vec::with_capacity(bound.graph.nodes.len()), 0.0);
    for (id, node) in bound.graph.nodes.iter().enumerate() {
        let illegal = |why: String| CutError::Illegal { node: id, why };
        let key = (bound.kinds.kind_of[id], cut.choices(bound.graph, id));
        let (parts, seconds) = match known.get(&key) {
            Some(known) => known.clone(),
            None => {
                let parts = Rc::new(parts_of(bound.kind(id), &key.1, grid).map_err(illegal)?);
                let new = (parts.clone(), seconds(bound.kind(id), &parts, rates, grid));
                known.insert(key, new.clone());
                new
            }
        };
        for (v, spreads) in node.outs.iter().zip(&parts.spreads) {
            if cut.values[v.index()] != *spreads {
                return Err(illegal(format!("it leaves a result {spreads:?}, not as the cut says")));
            }
        }
        all.push(parts);
        work += seconds;
    }
    Ok((all, work))
}

fn moved(bound: &Bound, cut: &Cut, grid: &Grid, needs: &[Vec<&Need>]) -> Result<(Bytes, f64), CutError> {
    let devices = grid.devices();
    let mut bytes = Bytes { pairs: vec![vec![0; devices]; devices], values: vec![0; needs.len()] };
    let mut moving = 0.0;
    for (v, needs) in needs.iter().enumerate() {
        let mut seconds = vec![0.0; devices];
        let mut add = |to: usize, from: usize, elements: u64| {
            let n = elements * bound.element[v];
            bytes.pairs[to][from] += n;
            bytes.values[v] += n;
            seconds[to] += n as f64 / grid.levels[grid.link(to, from)].bandwidth.max(1.0);
        };
        if fetches(&bound.shapes[v], &cut.values[v], needs, grid, &mut add).is_none() {
            let node = match bound.graph.values[v].origin {
                Origin::Node { node, .. } => node.index(),
                Origin::Input(_) => bound.readers[v].first().map_or(0, |(reader, _)| *reader),
            };
            let why = format!("value {v} is wanted as partial sums, which it is not");
            return Err(CutError::Illegal { node, why });
        }
        moving += seconds.iter().copied().fold(0.0, f64::max);
    }
    Ok((bytes, moving))
}

fn memory(bound: &Bound, cut: &Cut, grid: &Grid, parts: &[Rc<Parts>]) -> u64 {
    let on = |device: usize| {
        let stays = (0..cut.values.len()).filter(|&v| bound.has_home(v) || bound.kept[v]);
        let bytes = |v: usize| area(&held(&bound.shapes[v], &cut.values[v], grid, device)) * bound.element[v];
        let at_once = |(id, parts): (usize, &Rc<Parts>)| {
            let reads = parts.ins.iter().map(|n| area(&n.boxes[device]));
            let writes = parts.outs.iter().map(|boxes| area(&boxes[device]));
            reads.chain(writes).zip(&bound.kind(id).element).map(|(n, e)| n * e).sum::<u64>()
        };
        let largest = parts.iter().enumerate().map(at_once).max().unwrap_or(0);
        stays.map(bytes).sum::<u64>() + largest
    };
    (0..grid.devices()).map(on).max().unwrap_or(0)
}
