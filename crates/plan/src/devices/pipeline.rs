//! A pipeline: the nodes of a graph are in packs, each pack is on one device, and values that another device needs are
//! sent to it. Every device gets an ordinary graph for inputs of any size. Together they compute the same bits.

mod follow;
mod packs;
mod turns;

pub use follow::{follow, spread};
pub(crate) use packs::scheduled;
pub use turns::{Style, turns};

use gulliver_graph::graph::op::send_receive::SendReceive;
use gulliver_graph::graph::{
    Graph, GraphError, GraphOutput, Node, NodeId, ObjectivePhase, Phase, Type, Value, ValueInfo,
};
use gulliver_graph::rewrite::Rewriter;
use gulliver_graph::role::OutputRole;
use std::collections::HashMap;

/// Where the nodes of a graph run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The number of devices.
    pub devices: u32,
    /// The device of each pack, in the order of the forward pass, objective after objective.
    pub packs: Vec<u32>,
    /// The pack of each node.
    pub pack_of: Vec<u32>,
    /// The device of weights and states by name, where nodes do not determine it.
    pub residences: HashMap<String, u32>,
}

impl Placement {
    /// The device of a node.
    pub fn device(&self, node: NodeId) -> u32 {
        self.packs[self.pack_of[node.index()] as usize]
    }
}

/// The part of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its graph.
    pub graph: Graph,
    /// The pack of each of its nodes; none for collectives.
    pub pack_of: Vec<Option<u32>>,
    /// Its sends and receives, in an order that is the same for all devices.
    pub collectives: Vec<Handover>,
}

/// A value is sent from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// Its number.
    pub number: u32,
    /// The node of this device's graph.
    pub node: NodeId,
    /// The pack and phase of the node that makes the value; none if it is a weight.
    pub made: Option<(u32, Phase)>,
    /// The pack and phase of its first reader; none if it is an output.
    pub read: Option<(u32, Phase)>,
}

/// Why there is no pipeline.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PipelineError {
    /// Numbers that do not fit the graph.
    #[error(
        "{packs} packs on {devices} devices: give at least one of each, and a pack and device for every node"
    )]
    Placement {
        /// Packs given.
        packs: usize,
        /// Devices given.
        devices: u32,
    },
    /// A schedule with a deadlock.
    #[error("pack {pack} waits for a pack that comes after it")]
    Stuck {
        /// The pack that waits.
        pack: u32,
    },
    /// A device's graph breaks a rule of graphs.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The graphs of all devices. Outputs are on the device that makes them. Losses are on all devices, so that each knows
/// before its first update whether they are finite.
pub fn pipeline(graph: &Graph, placement: &Placement) -> Result<Vec<Line>, PipelineError> {
    let Placement { devices, packs, pack_of, .. } = placement;
    let fits = pack_of.len() == graph.nodes.len()
        && pack_of.iter().all(|&pack| (pack as usize) < packs.len())
        && packs.iter().all(|device| device < devices);
    if !fits || packs.is_empty() {
        return Err(PipelineError::Placement { packs: packs.len(), devices: *devices });
    }
    let losses = graph.outputs.iter().filter(|output| output.role == OutputRole::Loss);
    let losses: Vec<Value> = losses.map(|output| output.value).collect();
    let mut layer = Layer::new(graph, placement, losses);
    layer.inputs();
    for id in 0..graph.nodes.len() {
        layer.node(NodeId(id as u32));
    }
    layer.ends();
    layer.lines.into_iter().map(Lining::finish).collect()
}

/// A line as it is written.
#[derive(Clone, Default)]
struct Lining {
    to: Rewriter,
    pack_of: Vec<Option<u32>>,
    collectives: Vec<Handover>,
}

impl Lining {
    fn finish(self) -> Result<Line, PipelineError> {
        let Lining { to, pack_of, collectives } = self;
        Ok(Line { graph: to.finish()?, pack_of, collectives })
    }
}

/// Divides a graph over lines.
struct Layer<'a> {
    graph: &'a Graph,
    placement: &'a Placement,
    lines: Vec<Lining>,
    /// By value: the device that makes or holds it.
    residence: Vec<Option<u32>>,
    /// By device, value, and whether it is the sum over the partials: the value of the device's graph.
    local: HashMap<(u32, Value, bool), Value>,
    losses: Vec<Value>,
    collectives: u32,
}

impl<'a> Layer<'a> {
    fn new(graph: &'a Graph, placement: &'a Placement, losses: Vec<Value>) -> Layer<'a> {
        let lines = vec![Lining::default(); placement.devices as usize];
        let residence = vec![None; graph.values.len()];
        Layer { graph, placement, lines, residence, local: HashMap::new(), losses, collectives: 0 }
    }

    /// Adds inputs: weights and states where their next value is made, others on every device that reads them.
    fn inputs(&mut self) {
        let (graph, placement) = (self.graph, self.placement);
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); graph.values.len()];
        for (id, node) in graph.nodes.iter().enumerate() {
            let device = placement.device(NodeId(id as u32));
            for v in &node.ins {
                if !readers[v.index()].contains(&device) {
                    readers[v.index()].push(device);
                }
            }
        }
        let next: HashMap<Value, Value> = graph.carries.iter().copied().collect();
        for (v, role, info) in graph.inputs() {
            let read = &readers[v.index()];
            let devices: Vec<u32> = if role.persists() {
                let maker = next.get(&v).and_then(|next| graph.maker(*next));
                let made = maker.map(|node| placement.device(node));
                let residence = placement.residences.get(&info.name).copied().or(made);
                let residence = residence.or(read.first().copied()).unwrap_or(0);
                self.residence[v.index()] = Some(residence);
                vec![residence]
            } else {
                (0..placement.devices).filter(|device| read.contains(device)).collect()
            };
            for device in devices {
                let local = self.value(device, info.clone());
                self.local.insert((device, v, false), local);
            }
        }
    }

    fn value(&mut self, device: u32, info: ValueInfo) -> Value {
        self.lines[device as usize].to.value(info)
    }

    fn node(&mut self, id: NodeId) {
        let (graph, device) = (self.graph, self.placement.device(id));
        let (node, pack) = (&graph.nodes[id.index()], self.placement.pack_of[id.index()]);
        let read = Some((pack, node.phase));
        let when = node.objective_phase();
        let ins = node.ins.iter().map(|&v| self.at(device, v, when, read)).collect();
        let new = |layer: &mut Layer, &v: &Value| {
            let local = layer.value(device, graph.value(v).clone());
            layer.residence[v.index()] = Some(device);
            layer.local.insert((device, v, false), local);
            local
        };
        let outs = node.outs.iter().map(|v| new(self, v)).collect();
        let line = &mut self.lines[device as usize];
        line.to.push(Node { op: node.op.clone(), ins, outs, ..*node });
        line.pack_of.push(Some(pack));
        for v in node.outs.iter().filter(|v| self.losses.contains(v)).copied().collect::<Vec<Value>>() {
            for device in 0..self.placement.devices {
                self.at(device, v, when, None);
            }
        }
    }

    /// The value on a device, for a node of that phase and objective; sent there if it must be.
    fn at(
        &mut self,
        device: u32,
        v: Value,
        (phase, objective): ObjectivePhase,
        read: Option<(u32, Phase)>,
    ) -> Value {
        // An update reads the sum over the partials, which is another value.
        let sum = phase == Phase::Update && self.graph.repeats(v);
        let here = self.residence[v.index()].is_none_or(|residence| residence == device);
        if let Some(&local) = self.local.get(&(device, v, sum && !here)) {
            return local;
        }
        let from = self.residence[v.index()].expect("other inputs are on every device that reads them");
        let made = self.graph.maker(v).map(|id| (id, &self.graph.nodes[id.index()]));
        // A result of a partial is sent when it is made, other values when they are read.
        let early = made.filter(|(_, node)| node.phase != Phase::Update && phase != Phase::Update);
        let objective = early.map_or(objective, |(_, node)| node.objective);
        let made = made.map(|(id, node)| (self.placement.pack_of[id.index()], node.phase));
        let number = self.collectives;
        self.collectives += 1;
        let collective = Handover { number, node: NodeId(0), made, read };
        let local = self.pass(v, [from, device], (phase, objective), collective);
        self.local.insert((device, v, sum), local);
        local
    }

    /// Adds a send and a receive. Returns the value on the receiving device.
    fn pass(&mut self, v: Value, [from, to]: [u32; 2], when: ObjectivePhase, collective: Handover) -> Value {
        let info = self.graph.value(v);
        let mut received = Value(0);
        for rank in [from, to] {
            let Type { dtype, shape } = info.ty.clone();
            let op = SendReceive { collective: collective.number, rank, from, to, dtype, shape };
            let own = (rank == from).then(|| self.local[&(from, v, false)]);
            let line = &mut self.lines[rank as usize];
            let node = NodeId(line.to.graph().nodes.len() as u32);
            received = line.to.add(op, own.into_iter().collect(), info.name.clone(), when);
            line.pack_of.push(None);
            line.collectives.push(Handover { node, ..collective });
        }
        received
    }

    /// Adds next values of inputs, and outputs.
    fn ends(&mut self) {
        let graph = self.graph;
        for &(input, next) in &graph.carries {
            let residence = self.residence[input.index()].expect("states have a residence");
            let local = self.at(residence, next, graph.made_in(next), None);
            let input = self.local[&(residence, input, false)];
            self.lines[residence as usize].to.carry(input, local);
        }
        for output in &graph.outputs {
            let v = output.value;
            let own = self.residence[v.index()].unwrap_or(0);
            let loss = self.losses.contains(&v);
            for device in (0..self.placement.devices).filter(|&device| loss || device == own) {
                let value = self.at(device, v, graph.made_in(v), None);
                self.lines[device as usize].to.output(GraphOutput { value, ..output.clone() });
            }
        }
    }
}
