//! A pipeline: the nodes of a graph are in packs, each pack on one device, and a value that another device
//! needs is passed to it. Every device gets an ordinary graph; together they compute what the one did, to the
//! last bit, for inputs of any size.

mod follow;
mod packs;
mod turns;

pub use follow::{follow, spread};
pub use packs::scheduled;
pub use turns::{Style, turns};

use crate::step::order::Turn;
use gulliver_graph::graph::op::send_receive::SendReceive;
use gulliver_graph::graph::{
    Graph, GraphError, GraphOutput, Node, NodeId, ObjectivePhase, Origin, Phase, Role, Type, Value, ValueInfo,
};
use gulliver_graph::rewrite::Rewriter;
use gulliver_graph::role::OutputRole;
use std::collections::HashMap;

/// Where the nodes of a graph run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// How many devices there are.
    pub devices: u32,
    /// The device of each pack, in the order of the forward pass; those of an objective after those of the one before.
    pub packs: Vec<u32>,
    /// The pack of each node.
    pub pack_of: Vec<u32>,
    /// The device of weights and states by name, where that is not for the nodes to say.
    pub residences: HashMap<String, u32>,
}

impl Placement {
    /// The device of a node.
    pub fn device(&self, node: NodeId) -> u32 {
        self.packs[self.pack_of[node.index()] as usize]
    }
}

/// What one device does.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its graph.
    pub graph: Graph,
    /// The pack of each of its nodes; none for collectives.
    pub pack_of: Vec<Option<u32>>,
    /// Its collectives, in the order everyone comes to them.
    pub collectives: Vec<Handover>,
}

/// A value is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// Its number.
    pub number: u32,
    /// The node of this device's graph.
    pub node: NodeId,
    /// The pack and phase of what makes the value; none if it is a weight.
    pub made: Option<(u32, Phase)>,
    /// The pack and phase of who first reads it; none if it is an output.
    pub read: Option<(u32, Phase)>,
}

/// What each device does, with its turns.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduled {
    /// Its graph.
    pub graph: Graph,
    /// The turns of its nodes.
    pub turns: Vec<Turn>,
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
    /// A schedule in which somebody waits for ever.
    #[error("pack {pack} waits for a pack that comes after it")]
    Stuck {
        /// Which.
        pack: u32,
    },
    /// A device's graph breaks a rule of graphs.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The graphs of all devices. Outputs are where they are made; losses everywhere, so that
/// everyone knows before its first update whether they are finite.
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
    /// The device that has a value first.
    residence: Vec<Option<u32>>,
    /// By device, value, and whether it is the sum over the partials: what the device's graph calls it.
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

    /// Weights and states are where their next value is made; everything else is fed to whoever reads it.
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
            let devices: Vec<u32> = match role {
                Role::Weight(_) | Role::State(_) => {
                    let made = next.get(&v).and_then(|next| match graph.value(*next).origin {
                        Origin::Node { node, .. } => Some(placement.device(node)),
                        Origin::Input(_) => None,
                    });
                    let residence = placement.residences.get(&info.name).copied().or(made);
                    let residence = residence.or(read.first().copied()).unwrap_or(0);
                    self.residence[v.index()] = Some(residence);
                    vec![residence]
                }
                _ => (0..placement.devices).filter(|device| read.contains(device)).collect(),
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

    /// A value on a device for a node of that phase and objective, passed there if it must be.
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
        let from = self.residence[v.index()].expect("fed to everyone who reads it");
        let made = match self.graph.value(v).origin {
            Origin::Node { node, .. } => Some((node, &self.graph.nodes[node.index()])),
            Origin::Input(_) => None,
        };
        // What a partial makes is passed when it is made, all else when it is read.
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

    /// The value that the receiving device has after both have met.
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

    /// Carries next values and gives outputs out.
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
