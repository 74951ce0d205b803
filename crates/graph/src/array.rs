//! Fuses the graphs of several jobs into one. Nodes that all members have become one
//! [`Array`](crate::graph::op::array::Array) node, whose values have a first dimension for the members. Nodes that depend on
//! shared data alone run once. Each member runs its remaining nodes itself.

mod copies;
mod emit;
mod matching;
mod order;
mod residences;

use crate::dim::{Bindings, Dim};
use crate::graph::{Graph, GraphError, Value};
use crate::role::DataRole;
use emit::emit;
use matching::matched;
use order::order;
use residences::residences;
use std::collections::BTreeMap;
use std::fmt;

/// A graph of several members.
///
/// Inputs and outputs that all members have keep their names; others are named by [`own`]. Outputs that are one number
/// per member are stacked if all members have them. The first value or default in an input's role is that of its
/// first member.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// Values of the first member keep the order they have in its graph, and come first.
    pub graph: Graph,
    /// How many jobs.
    pub members: usize,
    /// For every member, where the values of its graph are, by their number.
    pub places: Vec<Vec<MemberPlace>>,
    /// For every member, where the outputs of its graph can be read, by their names.
    pub outputs: Vec<BTreeMap<String, MemberPlace>>,
    /// How much was fused.
    pub report: Report,
}

/// Where a member's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberPlace {
    /// The value of the fused graph.
    pub value: Value,
    /// Which element of its first dimension, if members have one there.
    pub row: Option<usize>,
}

/// How much of the members' work is done together. Sizes of inputs that are not known are taken for a few
/// dozen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// How many jobs.
    pub members: usize,
    /// Nodes of all their graphs.
    pub nodes: usize,
    /// Those of them done together with the same of another member.
    pub fused: usize,
    /// Nodes that put values together or take them apart.
    pub copies: usize,
    /// Floating-point operations of all members.
    pub flops: f64,
    /// Those of them done together.
    pub fused_flops: f64,
}

impl Report {
    /// Nodes that members do for themselves.
    pub fn alone(&self) -> usize {
        self.nodes - self.fused
    }

    /// The share of floating-point operations that are done together.
    pub fn share(&self) -> f64 {
        if self.flops > 0.0 { self.fused_flops / self.flops } else { 1.0 }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { members, nodes, fused, copies, .. } = self;
        let (share, alone) = (100.0 * self.share(), self.alone());
        write!(f, "{members} members: {fused} of {nodes} nodes fused with {share:.1} % of the operations, ")?;
        write!(f, "{alone} alone, {copies} copies between them")
    }
}

/// The name of an input, value or output that only these members have, in ascending order.
pub fn own(name: &str, members: &[usize]) -> String {
    let members: Vec<String> = members.iter().map(usize::to_string).collect();
    format!("{name}@{}", members.join("+"))
}

/// Whether the members of an array have a data input of this role each for itself.
pub type Apart<'a> = &'a dyn Fn(DataRole) -> bool;

/// Makes one graph of `members` jobs with the same graph. Data inputs that are `apart` are one input per
/// member, named by [`own`]; the others are shared.
pub fn fuse(graph: &Graph, members: usize, apart: Apart<'_>) -> Result<Fused, GraphError> {
    fuse_partly(&vec![graph; members], apart)
}

/// Makes one graph of these jobs, whose graphs may differ in places.
///
/// Inputs correspond that have the same name, type and kind of role. Nodes correspond that do the same to
/// corresponding operands; and nodes that do the same with some corresponding operands, if putting the others
/// together costs less than it saves (`matching` says when). Corresponding nodes of two or more members
/// become one node. Weights and states are one value for the members that use and update them together, and
/// one value for each of the others, whichever needs fewer copies. Equal graphs are fused completely, and
/// graphs that have nothing in common stand beside each other.
pub fn fuse_partly(graphs: &[&Graph], apart: Apart<'_>) -> Result<Fused, GraphError> {
    if graphs.is_empty() {
        return Err(GraphError::Invalid("an array needs at least one member".into()));
    }
    let mut matched = matched(graphs, apart)?;
    let order = order(&mut matched);
    emit(&matched, &residences(&matched), &order)
}

/// An extent for inputs of middling size, where only the proportion of two matters.
fn about(dim: &Dim) -> f64 {
    const SIZE: usize = 32;
    let mut sizes = Bindings::new();
    dim.symbols(&mut |symbol| sizes.set(symbol, SIZE));
    dim.bind(&sizes).map_or(f64::MAX, |n| n as f64)
}
