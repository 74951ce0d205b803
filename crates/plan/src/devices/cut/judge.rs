//! What a cut means: the bytes it moves between which devices, and the seconds and memory of a step. Uses
//! nothing of the search; refuses what is not a cut of the graph.

use super::bound::Bound;
use super::part::{Choice, Need, Parts, parts_of, seconds};
use super::region::{Grid, area, held};
use super::traffic::fetches;
use super::{Cut, CutError, Spread, Unit, check_levels};
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
    /// Seconds of a step in which values move beside nodes that do not wait for them.
    pub beside: f64,
    /// By device: weights, states, forward results that the backward pass reads, and the operands and results of
    /// the largest node.
    pub memory: Vec<u64>,
}

/// What a cut moves in one step. Outputs of the graph are the host's to collect and cost nothing. Graphs made by
/// [`deal`](super::deal()) exchange as much, or more where devices need boxes of one value that overlap in part, or
/// more of it for an update than they hold.
pub fn bytes(graph: &Graph, sizes: &Bindings, cut: &Cut) -> Result<Bytes, CutError> {
    Ok(judge(&Bound::new(graph, sizes)?, cut, &[])?.bytes)
}

/// What a cut means for a graph whose sizes are put in, on these devices; the last stands for all that follow.
pub fn judge(bound: &Bound, cut: &Cut, units: &[Unit]) -> Result<Judged, CutError> {
    check_levels(&cut.levels)?;
    Judge::new(bound, &Grid::new(&cut.levels), units).judge(cut)
}

/// Judges cuts over one grid of devices. What repeats, in a graph and from cut to cut, is worked out once.
pub(crate) struct Judge<'a> {
    bound: &'a Bound<'a>,
    grid: &'a Grid<'a>,
    units: &'a [Unit],
    /// By kind of node, then choices.
    nodes: Vec<HashMap<Vec<Choice>, Rc<Divided>>>,
    /// By type of value, then spreads: what devices hold.
    held: Vec<HashMap<Vec<Spread>, Rc<Need>>>,
    moved: HashMap<MovedKey, Rc<Moved>>,
}

/// A node that is cut.
pub(crate) struct Divided {
    pub parts: Parts,
    /// Seconds of the slowest device.
    seconds: f64,
    /// By device, bytes of operands and results.
    bytes: Vec<u64>,
}

/// Type, spreads, and who needs a value: addresses of what is kept in a [`Judge`], and operands.
type MovedKey = (u32, Vec<Spread>, Vec<(usize, usize)>);

/// A value that is moved.
struct Moved {
    /// By receiver, then sender: bytes.
    pairs: Vec<u64>,
    bytes: u64,
    /// Of the device that receives most.
    seconds: f64,
}

impl<'a> Judge<'a> {
    /// Knows nothing yet.
    pub fn new(bound: &'a Bound<'a>, grid: &'a Grid<'a>, units: &'a [Unit]) -> Judge<'a> {
        let (nodes, held) =
            (vec![HashMap::new(); bound.nodes.len()], vec![HashMap::new(); bound.kinds.types.len()]);
        Judge { bound, grid, units, nodes, held, moved: HashMap::new() }
    }

    /// What the devices do of a node.
    pub fn divided(&mut self, node: usize, choices: &[Choice]) -> Result<Rc<Divided>, CutError> {
        let (kind, known) = (self.bound.kind(node), &mut self.nodes[self.bound.kinds.kind_of[node] as usize]);
        if let Some(known) = known.get(choices) {
            return Ok(known.clone());
        }
        let parts = parts_of(kind, choices, self.grid).map_err(|why| CutError::Illegal { node, why })?;
        let on = |device: usize| {
            let reads = parts.ins.iter().map(|n| area(&n.boxes[device]));
            let writes = parts.outs.iter().map(|boxes| area(&boxes[device]));
            reads.chain(writes).zip(&kind.element).map(|(n, e)| n * e).sum()
        };
        let bytes = (0..self.grid.devices()).map(on).collect();
        let seconds = seconds(kind, &parts, self.units, self.grid);
        let new = Rc::new(Divided { parts, seconds, bytes });
        known.insert(choices.to_vec(), new.clone());
        Ok(new)
    }

    /// What the devices hold of a value.
    fn holds(&mut self, v: usize, spreads: &[Spread]) -> Rc<Need> {
        let known = &mut self.held[self.bound.kinds.type_of[v] as usize];
        if let Some(known) = known.get(spreads) {
            return known.clone();
        }
        let boxes = |d: usize| held(&self.bound.shapes[v], spreads, self.grid, d);
        let new = Rc::new(Need { boxes: (0..self.grid.devices()).map(boxes).collect(), unreduced: 0 });
        known.insert(spreads.to_vec(), new.clone());
        new
    }

    /// What a cut means.
    pub fn judge(&mut self, cut: &Cut) -> Result<Judged, CutError> {
        let (bound, devices) = (self.bound, self.grid.devices());
        let mut nodes = Vec::with_capacity(bound.graph.nodes.len());
        let mut work = Vec::with_capacity(bound.graph.nodes.len());
        let mut largest = vec![0; devices];
        for (id, node) in bound.graph.nodes.iter().enumerate() {
            let divided = self.divided(id, &cut.choices(bound.graph, id))?;
            for (v, spreads) in node.outs.iter().zip(&divided.parts.spreads) {
                if cut.values[v.index()] != *spreads {
                    let why = format!("it leaves a result {spreads:?}, not as the cut says");
                    return Err(CutError::Illegal { node: id, why });
                }
            }
            largest.iter_mut().zip(&divided.bytes).for_each(|(most, bytes)| *most = (*most).max(*bytes));
            work.push(divided.seconds);
            nodes.push(divided);
        }
        let mut bytes = Bytes { pairs: vec![vec![0; devices]; devices], values: Vec::new() };
        let mut moving = Vec::with_capacity(bound.graph.values.len());
        let mut memory = largest;
        for v in 0..bound.graph.values.len() {
            let moved = self.moved(v, cut, &nodes)?;
            moving.push(moved.seconds);
            bytes.values.push(moved.bytes);
            if moved.bytes > 0 {
                let pairs = bytes.pairs.iter_mut().flatten();
                pairs.zip(&moved.pairs).for_each(|(all, bytes)| *all += bytes);
            }
            if bound.has_home(v) || bound.kept[v] {
                let held = self.holds(v, &cut.values[v]);
                let each = memory.iter_mut().zip(&held.boxes);
                each.for_each(|(all, region)| *all += area(region) * bound.element[v]);
            }
        }
        let beside = walked(bound, &work, &moving);
        Ok(Judged { bytes, work: work.iter().sum(), moving: moving.iter().sum(), beside, memory })
    }

    fn moved(&mut self, v: usize, cut: &Cut, nodes: &[Rc<Divided>]) -> Result<Rc<Moved>, CutError> {
        let bound = self.bound;
        let next: Vec<Rc<Need>> =
            bound.carried_by[v].iter().map(|&input| self.holds(input, &cut.values[input])).collect();
        let mut needed: Vec<(usize, usize)> = Vec::new();
        for (node, operands) in &bound.readers[v] {
            needed.extend(operands.iter().map(|&i| (Rc::as_ptr(&nodes[*node]) as usize, i)));
        }
        needed.extend(next.iter().map(|need| (Rc::as_ptr(need) as usize, usize::MAX)));
        let key = (bound.kinds.type_of[v], cut.values[v].clone(), needed);
        if let Some(known) = self.moved.get(&key) {
            return Ok(known.clone());
        }
        let read = bound.readers[v].iter().flat_map(|(n, operands)| operands.iter().map(|&i| (*n, i)));
        let read = read.map(|(node, operand)| &nodes[node].parts.ins[operand]);
        let needs: Vec<&Need> = read.chain(next.iter().map(Rc::as_ref)).collect();
        let (grid, devices) = (self.grid, self.grid.devices());
        let mut moved = Moved { pairs: vec![0; devices * devices], bytes: 0, seconds: 0.0 };
        let mut seconds = vec![0.0; devices];
        let mut add = |to: usize, from: usize, elements: u64| {
            let n = elements * bound.element[v];
            moved.pairs[to * devices + from] += n;
            moved.bytes += n;
            seconds[to] += n as f64 / grid.levels[grid.link(to, from)].bandwidth.max(1.0);
        };
        if fetches(&bound.shapes[v], &cut.values[v], &needs, grid, &mut add).is_none() {
            let node = match bound.graph.values[v].origin {
                Origin::Node { node, .. } => node.index(),
                Origin::Input(_) => bound.readers[v].first().map_or(0, |(reader, _)| *reader),
            };
            let why = format!("value {v} is wanted as partial sums, which it is not");
            return Err(CutError::Illegal { node, why });
        }
        moved.seconds = seconds.into_iter().fold(0.0, f64::max);
        let moved = Rc::new(moved);
        self.moved.insert(key, moved.clone());
        Ok(moved)
    }
}

/// Seconds of a step whose nodes are computed in order while values move, one after another in the order in which
/// they are made, or first read if they are inputs.
fn walked(bound: &Bound, work: &[f64], moving: &[f64]) -> f64 {
    let (mut computed, mut carried) = (0.0f64, 0.0f64);
    let mut there = vec![f64::NAN; moving.len()];
    for (node, seconds) in bound.graph.nodes.iter().zip(work) {
        for v in node.ins.iter().map(|v| v.index()).filter(|v| moving[*v] > 0.0) {
            if there[v].is_nan() {
                carried += moving[v];
                there[v] = carried;
            }
            computed = computed.max(there[v]);
        }
        computed += seconds;
        for v in node.outs.iter().map(|v| v.index()).filter(|v| moving[*v] > 0.0) {
            carried = carried.max(computed) + moving[v];
            there[v] = carried;
        }
    }
    computed.max(carried)
}
