//! A cut graph as one ordinary graph per device: its part of every node, and exchanges where it needs boxes that other
//! devices hold. One fetch serves all readers of the same box or of boxes within it.

mod fetch;

use super::mesh::{DeviceMesh, area, held_box, whole_box};
use super::parts::{NeededBoxes, NodeParts, node_parts, ranges, same_axis};
use super::sized::SizedGraph;
use super::{CutError, GraphCut, NodeCut, check_levels};
use fetch::Holding;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::{Graph, GraphOutput, Node, Origin, Type, Value, ValueInfo};
use gulliver_graph::rewrite::Rewriter;
use gulliver_graph::spec::Region;
use std::collections::HashMap;
use std::ops::Range;

/// The part of a graph on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePart {
    /// A graph without symbols, for one input size.
    pub graph: Graph,
    /// The inputs of that graph, in its order.
    pub inputs: Vec<InputBox>,
}

/// The box that a device has of an input.
#[derive(Clone, Debug, PartialEq)]
pub struct InputBox {
    /// The input of the device's graph.
    pub value: Value,
    /// Its box of the job's input.
    pub region: Region,
    /// Extents of the job's input.
    pub whole: Vec<usize>,
}

/// The graphs of all devices, for inputs of these sizes (of one partial). All devices have the same collectives in the
/// same order.
pub fn partition(graph: &Graph, sizes: &Bindings, cut: &GraphCut) -> Result<Vec<DevicePart>, CutError> {
    check_levels(&cut.levels)?;
    let sized = SizedGraph::new(graph, sizes)?;
    let mesh = DeviceMesh::new(&cut.levels);
    let mut partitioner = Partitioner::new(&sized, sizes, cut, &mesh);
    let needs = partitioner.needs()?;
    partitioner.note(&needs);
    partitioner.inputs();
    let (inputs, of_node) = due(graph, &needs.ends);
    inputs.into_iter().try_for_each(|end| partitioner.end(end))?;
    for (id, ends) in of_node.into_iter().enumerate() {
        partitioner.node(id, &needs.of_node[id])?;
        ends.into_iter().try_for_each(|end| partitioner.end(end))?;
    }
    let devices = partitioner.devices.into_iter();
    devices.map(|device| Ok(DevicePart { graph: device.to.finish()?, inputs: device.inputs })).collect()
}

/// The needs of all nodes and of the end of the step.
struct Needs {
    /// By node.
    of_node: Vec<NodeParts>,
    ends: Vec<End>,
}

/// A value that is an output or replaces an input.
struct End {
    value: Value,
    need: NeededBoxes,
    becomes: Becomes,
}

enum Becomes {
    /// The next value of an input, with the sharding of that input.
    Next(Value),
    /// This output, whole on every device.
    Output(GraphOutput),
}

/// The ends whose value is an input, and the others by the node that makes it.
fn due<'n>(graph: &Graph, ends: &'n [End]) -> (Vec<&'n End>, Vec<Vec<&'n End>>) {
    let (mut inputs, mut of_node) = (Vec::new(), vec![Vec::new(); graph.nodes.len()]);
    for end in ends {
        match graph.value(end.value).origin {
            Origin::Input(_) => inputs.push(end),
            Origin::Node { node, .. } => of_node[node.index()].push(end),
        }
    }
    (inputs, of_node)
}

struct Device {
    to: Rewriter,
    /// By value of the job's graph: the value of this graph that holds its box.
    local: Vec<Option<Value>>,
    inputs: Vec<InputBox>,
}

struct Partitioner<'a> {
    sized: &'a SizedGraph<'a>,
    sizes: &'a Bindings,
    cut: &'a GraphCut,
    mesh: &'a DeviceMesh<'a>,
    devices: Vec<Device>,
    /// By value: the box that each device is fed, for data.
    fed: Vec<Option<Vec<Region>>>,
    /// By value: all needs, largest first.
    needs_of: Vec<Vec<NeededBoxes>>,
    /// Fetched values, by value, need, and whether for an update.
    fetched: HashMap<(Value, NeededBoxes, bool), Vec<Value>>,
    /// All-reduced values, by value, levels left partial, and whether for an update.
    reduced: HashMap<(Value, u64, bool), Holding>,
    collectives: u32,
}

/// The least box that contains both.
fn hull(a: Region, b: Region) -> Region {
    let both = |(a, b): (Range<usize>, Range<usize>)| match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => a.start.min(b.start)..a.end.max(b.end),
    };
    a.into_iter().zip(b).map(both).collect()
}

fn slices(shapes: &[Vec<usize>]) -> Vec<&[usize]> {
    shapes.iter().map(Vec::as_slice).collect()
}

fn extents(region: &[Range<usize>]) -> Vec<usize> {
    region.iter().map(Range::len).collect()
}

fn fixed(dtype: DType, region: &[Range<usize>]) -> Type {
    Type::new(dtype, &extents(region))
}

impl<'a> Partitioner<'a> {
    fn new(
        sized: &'a SizedGraph<'a>,
        sizes: &'a Bindings,
        cut: &'a GraphCut,
        mesh: &'a DeviceMesh<'a>,
    ) -> Partitioner<'a> {
        let device = || Device {
            to: Rewriter::new(),
            local: vec![None; sized.graph.values.len()],
            inputs: Vec::new(),
        };
        let devices = (0..mesh.devices()).map(|_| device()).collect();
        let needs_of = vec![Vec::new(); sized.graph.values.len()];
        let (fetched, reduced) = (HashMap::new(), HashMap::new());
        let fed = vec![None; sized.graph.values.len()];
        Partitioner { sized, sizes, cut, mesh, devices, fed, needs_of, fetched, reduced, collectives: 0 }
    }

    fn held_box(&self, v: Value, device: usize) -> Region {
        if let Some(fed) = &self.fed[v.index()] {
            return fed[device].clone();
        }
        held_box(&self.sized.shapes[v.index()], &self.cut.values[v.index()], self.mesh, device)
    }

    /// Adds the inputs: weights and states with the sharding of the cut, data as far as the device needs it.
    fn inputs(&mut self) {
        for (v, role, info) in self.sized.graph.inputs() {
            if !self.sized.persists(v.index()) {
                let hull = |d: usize| {
                    let boxes = self.needs_of[v.index()].iter().map(|need| need.boxes[d].clone());
                    boxes.reduce(hull).unwrap_or_else(|| whole_box(&self.sized.shapes[v.index()]))
                };
                self.fed[v.index()] = Some((0..self.devices.len()).map(hull).collect());
            }
            for d in 0..self.devices.len() {
                let region = self.held_box(v, d);
                let ty = fixed(info.ty.dtype, &region);
                let device = &mut self.devices[d];
                let local =
                    device.to.value(ValueInfo { name: info.name.clone(), ty, origin: Origin::Input(role) });
                device.local[v.index()] = Some(local);
                let whole = self.sized.shapes[v.index()].clone();
                device.inputs.push(InputBox { value: local, region, whole });
            }
        }
    }

    fn needs(&self) -> Result<Needs, CutError> {
        let graph = self.sized.graph;
        let complete = |boxes| NeededBoxes { boxes, unreduced: 0 };
        let everywhere = |v: &Value| vec![whole_box(&self.sized.shapes[v.index()]); self.devices.len()];
        let of_node = (0..graph.nodes.len()).map(|id| {
            let parts = node_parts(self.sized.kind(id), &self.cut.choices(graph, id), self.mesh);
            parts.map_err(|why| CutError::Illegal { node: id, why })
        });
        let residence = |input: &Value| (0..self.devices.len()).map(|d| self.held_box(*input, d)).collect();
        let carries = graph.carries.iter().map(|(input, next)| End {
            value: *next,
            need: complete(residence(input)),
            becomes: Becomes::Next(*input),
        });
        let outputs = graph.outputs.iter().map(|output| End {
            value: output.value,
            need: complete(everywhere(&output.value)),
            becomes: Becomes::Output(output.clone()),
        });
        let ends = carries.chain(outputs).collect();
        Ok(Needs { of_node: of_node.collect::<Result<_, CutError>>()?, ends })
    }

    /// Collects the needs by value.
    fn note(&mut self, needs: &Needs) {
        let graph = self.sized.graph;
        let of_nodes =
            graph.nodes.iter().zip(&needs.of_node).flat_map(|(n, parts)| n.ins.iter().zip(&parts.ins));
        let of_ends = needs.ends.iter().map(|end| (&end.value, &end.need));
        for (v, need) in of_nodes.chain(of_ends) {
            let list = &mut self.needs_of[v.index()];
            if !list.contains(need) {
                list.push(need.clone());
            }
        }
        let total = |need: &NeededBoxes| need.boxes.iter().map(|b| area(b)).sum::<u64>();
        self.needs_of.iter_mut().for_each(|list| list.sort_by_key(|need| std::cmp::Reverse(total(need))));
    }

    /// Makes a value an output or the next value of an input.
    fn end(&mut self, end: &End) -> Result<(), CutError> {
        let made = self.fetch(end.value, &end.need, self.sized.graph.made_in(end.value))?;
        for (device, made) in self.devices.iter_mut().zip(made) {
            match &end.becomes {
                Becomes::Next(input) => {
                    let local = device.local[input.index()].expect("inputs come first");
                    device.to.carry(local, made);
                }
                Becomes::Output(output) => {
                    device.to.output(GraphOutput { value: made, ..output.clone() });
                }
            }
        }
        Ok(())
    }

    /// Adds the part of a node to each device.
    fn node(&mut self, id: usize, parts: &NodeParts) -> Result<(), CutError> {
        let graph = self.sized.graph;
        let node = &graph.nodes[id];
        let choices = self.cut.choices(graph, id);
        for (v, shardings) in node.outs.iter().zip(&parts.shardings) {
            if *shardings != self.cut.values[v.index()] {
                let why = format!("%{} does not lie as its node leaves it", v.0);
                return Err(CutError::Illegal { node: id, why });
            }
        }
        let mut ins: Vec<Vec<Value>> = vec![Vec::new(); self.devices.len()];
        for (v, need) in node.ins.iter().zip(&parts.ins) {
            let local = self.fetch(*v, need, node.objective_phase())?;
            ins.iter_mut().zip(local).for_each(|(ins, v)| ins.push(v));
        }
        for (d, ins) in ins.into_iter().enumerate() {
            let op = self.part(id, &choices, d)?;
            let device = &mut self.devices[d];
            let outs: Vec<Value> = node
                .outs
                .iter()
                .enumerate()
                .map(|(o, v)| {
                    let info = graph.value(*v);
                    let ty = fixed(info.ty.dtype, &parts.outs[o][d]);
                    let local =
                        device.to.value(ValueInfo { name: info.name.clone(), ty, origin: info.origin });
                    device.local[v.index()] = Some(local);
                    local
                })
                .collect();
            device.to.push(Node { op, ins, outs, ..*node });
        }
        Ok(())
    }

    /// The operator of the part of a node on a device.
    fn part(&self, id: usize, choices: &[NodeCut], device: usize) -> Result<Op, CutError> {
        let (node, kind) = (&self.sized.graph.nodes[id], self.sized.kind(id));
        let mut op = node.op.def().bind(self.sizes)?.unwrap_or_else(|| node.op.clone());
        let cuts = ranges(kind, choices, self.mesh, device);
        let (mut ins, mut outs) = (kind.ins.clone(), kind.outs.clone());
        let dtypes: Vec<DType> = node.ins.iter().map(|v| self.sized.graph.ty(*v).dtype).collect();
        let wrong = |source| CutError::Node { node: id, op: node.op.def().name(), source: Box::new(source) };
        for (i, (axis, range, _)) in cuts.into_iter().enumerate() {
            let types: Vec<Type> = dtypes.iter().zip(&ins).map(|(t, shape)| Type::new(*t, shape)).collect();
            let (spec, axis) = match i {
                0 => (kind.spec.clone(), axis),
                _ => {
                    let spec = op.def().spec(&types).map_err(wrong)?;
                    let axis = same_axis(&kind.spec, axis, &spec);
                    let lost = || CutError::Illegal { node: id, why: "a part has lost an axis".into() };
                    (spec, axis.ok_or_else(lost)?)
                }
            };
            let extents = match i {
                0 => kind.extents.clone(),
                _ => {
                    let dims: Vec<&[Dim]> = types.iter().map(|t| t.shape.as_slice()).collect();
                    let extents = spec.extents(&dims).map_err(|e| wrong(e.into()))?;
                    extents.iter().map(|d| d.bind(&Bindings::new())).collect::<Result<_, _>>()?
                }
            };
            let part = spec.part(axis, range, &extents, &slices(&ins), &slices(&outs));
            op = op.def().part(&part).unwrap_or(op);
            ins = part.inputs.iter().map(|r| self::extents(r)).collect();
            outs = part.outputs.iter().map(|r| self::extents(r)).collect();
        }
        Ok(op)
    }
}
