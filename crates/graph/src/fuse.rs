//! Many jobs with the same graph as one: weights, states, hyper-parameters and random keys get a first
//! dimension for the members, and whatever depends on them is done by an [`Array`]. What depends on
//! shared data alone is done once for all.

use crate::dim::Dim;
use crate::graph::{Graph, GraphError, Node, NodeId, Origin, Phase, Role, Value, ValueInfo};
use crate::op::Op;
use crate::op::array::Array;
use crate::op::concat::Concat;
use crate::op::reshape::Reshape;
use crate::verify::verify;

/// A graph of several members.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// Values keep the numbers, and inputs the names, they have in the graph of one job.
    pub graph: Graph,
    /// How many jobs.
    pub members: usize,
    /// For each value, whether its first dimension is that of members.
    pub own: Vec<bool>,
}

/// The name of a data input of one member.
pub fn own_data(name: &str, member: usize) -> String {
    format!("{name}@{member}")
}

/// Makes one graph of `members` jobs. Data inputs whose name is `apart` are one input per member, named by
/// [`own_data`]; the others are shared.
pub fn fuse(graph: &Graph, members: usize, apart: &dyn Fn(&str) -> bool) -> Result<Fused, GraphError> {
    if members == 0 {
        return Err(GraphError::Invalid("an array needs at least one member".into()));
    }
    let mut fused = Fused { graph: graph.clone(), members, own: vec![false; graph.values.len()] };
    fused.graph.nodes.clear();
    for (value, role, info) in graph.inputs() {
        match role {
            Role::Data if apart(&info.name) => fused.gather_data(value, info),
            Role::Data => {}
            Role::Weight(_) | Role::State(_) | Role::Hyper(_) | Role::Random => fused.set_own(value),
        }
    }
    for node in &graph.nodes {
        fused.add(node.clone());
    }
    verify(&fused.graph)?;
    Ok(fused)
}

impl Fused {
    fn set_own(&mut self, value: Value) {
        self.own[value.index()] = true;
        self.graph.values[value.index()].ty.shape.insert(0, Dim::from(self.members));
    }

    /// Appends a node whose results have their types already, those of one member.
    fn add(&mut self, mut node: Node) {
        let shared: Vec<bool> = node.ins.iter().map(|v| !self.own[v.index()]).collect();
        if shared.contains(&false) {
            node.op = Array { op: Box::new(node.op), members: self.members, shared }.into();
            node.outs.iter().for_each(|v| self.set_own(*v));
        }
        self.push(node);
    }

    fn push(&mut self, node: Node) {
        let id = NodeId(self.graph.nodes.len() as u32);
        for (output, v) in node.outs.iter().enumerate() {
            self.graph.values[v.index()].origin = Origin::Node { node: id, output };
        }
        self.graph.nodes.push(node);
    }

    /// Makes a data input of the one job a value put together from one input per member.
    fn gather_data(&mut self, value: Value, info: &ValueInfo) {
        let ins: Vec<Value> = (0..self.members)
            .map(|m| self.new_value(ValueInfo { name: own_data(&info.name, m), ..info.clone() }))
            .collect();
        let mut rows = info.ty.clone();
        match rows.shape.first_mut() {
            Some(first) => *first = first.clone() * self.members as i64,
            None => rows.shape.push(Dim::from(self.members)),
        }
        let all = self.new_value(ValueInfo { name: info.name.clone(), ty: rows, origin: info.origin });
        self.set_own(value);
        let shape = self.graph.ty(value).shape.clone();
        let node = |op: Op, ins, out| Node { op, ins, outs: vec![out], phase: Phase::Forward, stage: 0 };
        self.push(node(Concat { axis: 0 }.into(), ins, all));
        self.push(node(Reshape { shape }.into(), vec![all], value));
    }

    fn new_value(&mut self, info: ValueInfo) -> Value {
        self.graph.values.push(info);
        self.own.push(false);
        Value(self.graph.values.len() as u32 - 1)
    }
}
