//! Evaluation of a cut: bytes moved between devices, seconds and memory of a step. Independent of the search; refuses
//! illegal cuts.

use super::mesh::{DeviceMesh, area, held_box};
use super::parts::{NeededBoxes, NodeCut, NodeParts, node_parts, seconds};
use super::sized::SizedGraph;
use super::traffic::HeldBoxes;
use super::{CutDevice, CutError, CutObjective, GraphCut, Sharding, check_levels};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, NodeId, Value};
use std::collections::HashMap;
use std::rc::Rc;

/// Bytes that devices receive in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTraffic {
    /// Bytes, by receiver, then sender.
    pub pairs: Vec<Vec<u64>>,
    /// Bytes that all devices together receive, by value.
    pub values: Vec<u64>,
}

impl CutTraffic {
    /// Bytes that all devices receive.
    pub fn total(&self) -> u64 {
        self.values.iter().sum()
    }
}

/// Bytes, seconds and memory of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct CutCost {
    /// Bytes moved between devices.
    pub bytes: CutTraffic,
    /// Sum over nodes of the seconds on the slowest device.
    pub work: f64,
    /// Sum over values of the seconds of the device that receives most.
    pub moving: f64,
    /// Seconds of a step in which values move while nodes compute that do not wait for them.
    pub beside: f64,
    /// Bytes by device: weights, states, forward results that the backward pass reads, and the operands and results of
    /// the largest node.
    pub memory: Vec<u64>,
}

impl CutCost {
    /// Seconds of a step in which nothing moves while nodes compute.
    pub fn seconds(&self) -> f64 {
        self.work + self.moving
    }

    /// The cost that the search minimises.
    pub(crate) fn of(&self, objective: CutObjective) -> f64 {
        match objective {
            CutObjective::Seconds => self.seconds(),
            CutObjective::Bytes => self.bytes.total() as f64,
        }
    }
}

/// The bytes that a cut moves in one step, without the outputs of the graph. The graphs of
/// [`partition`](super::partition()) exchange as many, or more where needed boxes of one value overlap in part or an
/// update needs more of a value than its device holds.
pub fn cut_traffic(graph: &Graph, sizes: &Bindings, cut: &GraphCut) -> Result<CutTraffic, CutError> {
    Ok(cut_cost(&SizedGraph::new(graph, sizes)?, cut, &[])?.bytes)
}

/// The cost of a cut on these devices, of which the last stands for all after it.
pub fn cut_cost(sized: &SizedGraph, cut: &GraphCut, devices: &[CutDevice]) -> Result<CutCost, CutError> {
    check_levels(&cut.levels)?;
    CutEvaluator::new(sized, &DeviceMesh::new(&cut.levels), devices).cost(cut)
}

/// Evaluates cuts over one mesh. Equal parts of graphs and of cuts are computed once.
pub(crate) struct CutEvaluator<'a> {
    sized: &'a SizedGraph<'a>,
    mesh: &'a DeviceMesh<'a>,
    devices: &'a [CutDevice],
    /// By kind of node, then choices.
    nodes: Vec<HashMap<Vec<NodeCut>, Rc<DividedNode>>>,
    /// By type of value, then shardings: the boxes that devices hold.
    held: Vec<HashMap<Vec<Sharding>, Rc<NeededBoxes>>>,
    moved: HashMap<MovedKey, Rc<Moved>>,
}

/// A cut node.
pub(crate) struct DividedNode {
    pub parts: NodeParts,
    /// Seconds of the slowest device.
    seconds: f64,
    /// Bytes of operands and results, by device.
    bytes: Vec<u64>,
}

/// Type, shardings and readers of a value: addresses of entries of the [`CutEvaluator`], and operands.
type MovedKey = (u32, Vec<Sharding>, Vec<(usize, usize)>);

/// The traffic of one value.
struct Moved {
    /// By receiver, then sender: bytes.
    pairs: Vec<u64>,
    bytes: u64,
    /// Of the device that receives most.
    seconds: f64,
}

impl<'a> CutEvaluator<'a> {
    /// Nothing is evaluated yet.
    pub fn new(
        sized: &'a SizedGraph<'a>,
        mesh: &'a DeviceMesh<'a>,
        devices: &'a [CutDevice],
    ) -> CutEvaluator<'a> {
        let (nodes, held) =
            (vec![HashMap::new(); sized.nodes.len()], vec![HashMap::new(); sized.kinds.types.len()]);
        CutEvaluator { sized, mesh, devices, nodes, held, moved: HashMap::new() }
    }

    /// The parts of a node with these choices.
    pub fn divided(&mut self, node: usize, choices: &[NodeCut]) -> Result<Rc<DividedNode>, CutError> {
        let (kind, known) = (self.sized.kind(node), &mut self.nodes[self.sized.kinds.kind_of[node] as usize]);
        if let Some(known) = known.get(choices) {
            return Ok(known.clone());
        }
        let parts = node_parts(kind, choices, self.mesh).map_err(|why| CutError::Illegal { node, why })?;
        let bytes = (0..self.mesh.devices()).map(|device| parts.bytes(kind, device)).collect();
        let seconds = seconds(kind, &parts, self.devices, self.mesh);
        let new = Rc::new(DividedNode { parts, seconds, bytes });
        known.insert(choices.to_vec(), new.clone());
        Ok(new)
    }

    /// The boxes of a value that devices hold.
    fn holds(&mut self, v: usize, shardings: &[Sharding]) -> Rc<NeededBoxes> {
        let known = &mut self.held[self.sized.kinds.type_of[v] as usize];
        if let Some(known) = known.get(shardings) {
            return known.clone();
        }
        let boxes = |d: usize| held_box(&self.sized.shapes[v], shardings, self.mesh, d);
        let new = Rc::new(NeededBoxes { boxes: (0..self.mesh.devices()).map(boxes).collect(), unreduced: 0 });
        known.insert(shardings.to_vec(), new.clone());
        new
    }

    /// The cost of a cut.
    pub fn cost(&mut self, cut: &GraphCut) -> Result<CutCost, CutError> {
        let (sized, devices) = (self.sized, self.mesh.devices());
        let mut nodes = Vec::with_capacity(sized.graph.nodes.len());
        let mut work = Vec::with_capacity(sized.graph.nodes.len());
        let mut largest = vec![0; devices];
        for (id, node) in sized.graph.nodes.iter().enumerate() {
            let divided = self.divided(id, &cut.choices(sized.graph, id))?;
            for (v, shardings) in node.outs.iter().zip(&divided.parts.shardings) {
                if cut.values[v.index()] != *shardings {
                    let why = format!("it leaves a result {shardings:?}, not as the cut says");
                    return Err(CutError::Illegal { node: id, why });
                }
            }
            largest.iter_mut().zip(&divided.bytes).for_each(|(most, bytes)| *most = (*most).max(*bytes));
            work.push(divided.seconds);
            nodes.push(divided);
        }
        let mut bytes = CutTraffic { pairs: vec![vec![0; devices]; devices], values: Vec::new() };
        let mut moving = Vec::with_capacity(sized.graph.values.len());
        let mut memory = largest;
        for v in 0..sized.graph.values.len() {
            let moved = self.moved(v, cut, &nodes)?;
            moving.push(moved.seconds);
            bytes.values.push(moved.bytes);
            if moved.bytes > 0 {
                let pairs = bytes.pairs.iter_mut().flatten();
                pairs.zip(&moved.pairs).for_each(|(all, bytes)| *all += bytes);
            }
            if sized.persists(v) || sized.kept[v] {
                let held = self.holds(v, &cut.values[v]);
                let each = memory.iter_mut().zip(&held.boxes);
                each.for_each(|(all, region)| *all += area(region) * sized.element[v]);
            }
        }
        let beside = walked(sized, &work, &moving);
        Ok(CutCost { bytes, work: work.iter().sum(), moving: moving.iter().sum(), beside, memory })
    }

    fn moved(&mut self, v: usize, cut: &GraphCut, nodes: &[Rc<DividedNode>]) -> Result<Rc<Moved>, CutError> {
        let sized = self.sized;
        let next: Vec<Rc<NeededBoxes>> =
            sized.carried_by[v].iter().map(|&input| self.holds(input, &cut.values[input])).collect();
        let mut needed: Vec<(usize, usize)> = Vec::new();
        for (node, operands) in &sized.readers[v] {
            needed.extend(operands.iter().map(|&i| (Rc::as_ptr(&nodes[*node]) as usize, i)));
        }
        needed.extend(next.iter().map(|need| (Rc::as_ptr(need) as usize, usize::MAX)));
        let key = (sized.kinds.type_of[v], cut.values[v].clone(), needed);
        if let Some(known) = self.moved.get(&key) {
            return Ok(known.clone());
        }
        let read = sized.readers[v].iter().flat_map(|(n, operands)| operands.iter().map(|&i| (*n, i)));
        let read = read.map(|(node, operand)| &nodes[node].parts.ins[operand]);
        let needs: Vec<&NeededBoxes> = read.chain(next.iter().map(Rc::as_ref)).collect();
        let (mesh, devices) = (self.mesh, self.mesh.devices());
        let mut moved = Moved { pairs: vec![0; devices * devices], bytes: 0, seconds: 0.0 };
        let mut seconds = vec![0.0; devices];
        let mut add = |to: usize, from: usize, elements: u64| {
            let n = elements * sized.element[v];
            moved.pairs[to * devices + from] += n;
            moved.bytes += n;
            seconds[to] += n as f64 / mesh.levels[mesh.link(to, from)].bandwidth.max(1.0);
        };
        let held = HeldBoxes::new(&sized.shapes[v], &cut.values[v], mesh);
        if held.fetches(&needs, &mut add).is_none() {
            let reader = || sized.readers[v].first().map_or(0, |(reader, _)| *reader);
            let node = sized.graph.maker(Value(v as u32)).map_or_else(reader, NodeId::index);
            let why = format!("value {v} is wanted as partial sums, which it is not");
            return Err(CutError::Illegal { node, why });
        }
        moved.seconds = seconds.into_iter().fold(0.0, f64::max);
        let moved = Rc::new(moved);
        self.moved.insert(key, moved.clone());
        Ok(moved)
    }
}

/// Seconds of a step in which nodes are computed in order while values move one after another: results when they are
/// computed, inputs when they are first read.
fn walked(sized: &SizedGraph, work: &[f64], moving: &[f64]) -> f64 {
    let (mut computed, mut carried) = (0.0f64, 0.0f64);
    let mut there = vec![f64::NAN; moving.len()];
    for (node, seconds) in sized.graph.nodes.iter().zip(work) {
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
