//! Cuts by rule: along the batch, output channels, input channels or space. Every node is divided along the axis that
//! its spec gives for its operands. The strategies with names use rules, and the search starts from them.

use super::mesh::DeviceMesh;
use super::parts::{NodeCut, first_axis, node_parts, residences_at};
use super::sized::SizedGraph;
use super::tables::CutState;
use super::{CutObjective, Sharding};
use gulliver_graph::graph::{Origin, Role, Value};
use gulliver_graph::spec::AxisId;
use std::collections::HashMap;

/// How the groups of one level divide a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutRule {
    /// Along the batch; weights and states are replicated.
    Data,
    /// Along the first dimension of weights and states: output channels.
    Filter,
    /// Along the second dimension of weights and states: input channels. The result of a weight is a partial sum,
    /// and is divided along its own channels once it is reduced.
    Channel,
    /// Images and volumes along their first dimension in space; weights and states are replicated.
    Spatial,
}

impl CutRule {
    /// The dimension along which weights and states are divided.
    fn of_weights(self) -> Option<usize> {
        match self {
            CutRule::Filter => Some(0),
            CutRule::Channel => Some(1),
            CutRule::Data | CutRule::Spatial => None,
        }
    }

    /// The dimension along which data of `rank` dimensions is divided.
    fn of_data(self, rank: usize) -> Option<usize> {
        match self {
            CutRule::Data => (rank > 0).then_some(0),
            CutRule::Channel => (rank > 3).then_some(1),
            CutRule::Spatial => (rank > 3).then_some(2),
            CutRule::Filter => None,
        }
    }
}

/// What to do with nodes that cannot be divided as a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undivided {
    /// Every group repeats them.
    Repeat,
    /// They are divided along the first legal axis; updates and nodes of single numbers may be repeated.
    AnyAxis,
}

/// Cuts one level of a state by a rule.
pub(crate) fn apply_rule(
    sized: &SizedGraph,
    mesh: &DeviceMesh,
    state: &mut CutState,
    (level, rule): (usize, CutRule),
    undivided: Undivided,
) {
    let mut known: HashMap<_, Option<AxisId>> = HashMap::new();
    let followed = followed_axes(sized, rule);
    for (node, (choices, wanted)) in state.choices.iter_mut().zip(followed).enumerate() {
        let any = undivided == Undivided::AnyAxis;
        if wanted.is_none() && (!any || sized.may_repeat(node, CutObjective::Bytes)) {
            continue;
        }
        let key = (sized.kinds.kind_of[node], wanted, choices.clone());
        let axis = *known.entry(key).or_insert_with(|| {
            let kind = sized.kind(node);
            let legal = |axis: &AxisId| {
                let mut choices = choices.clone();
                choices[level] = NodeCut::Axis(*axis);
                node_parts(kind, &choices, mesh).is_ok()
            };
            wanted.filter(legal).or_else(|| kind.axes.iter().copied().find(|axis| any && legal(axis)))
        });
        if let Some(axis) = axis {
            choices[level] = NodeCut::Axis(axis);
        }
    }
    let Some(along) = rule.of_weights().map(Sharding::Split) else { return };
    for v in (0..state.residences.len()).filter(|v| sized.persists(*v)) {
        let options = residences_at(&sized.shapes[v], &state.residences[v], level, mesh);
        if options.iter().any(|(shardings, _)| shardings[level] == along) {
            state.residences[v][level] = along;
        }
    }
}

/// By node: the axis along which the rule divides it.
fn followed_axes(sized: &SizedGraph, rule: CutRule) -> Vec<Option<AxisId>> {
    let graph = sized.graph;
    let starts = |v: usize| match graph.values[v].origin {
        Origin::Input(Role::Data(_)) => rule.of_data(sized.shapes[v].len()),
        Origin::Input(Role::Weight(_) | Role::State(_)) => {
            rule.of_weights().filter(|d| *d < sized.shapes[v].len())
        }
        _ => None,
    };
    let mut along: Vec<Option<usize>> = (0..graph.values.len()).map(starts).collect();
    let mut axes = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.nodes.iter().enumerate() {
        let spec = &sized.kind(id).spec;
        let through = |(operand, v): (usize, &Value)| {
            along[v.index()].and_then(|d| first_axis(&spec.inputs[operand][d]))
        };
        let weighty = |v: &Value| rule.of_weights().is_some() && sized.persists(v.index());
        let inputs = || node.ins.iter().enumerate();
        // The last operand of a weight's gradient has the output channels, the first has the input channels.
        let axis = inputs().filter(|(_, v)| weighty(v)).find_map(through);
        let axis = axis.or_else(|| match rule {
            CutRule::Channel => inputs().find_map(through),
            _ => inputs().rev().find_map(through),
        });
        let of_weight = node.ins.iter().any(weighty);
        for (indices, v) in spec.outputs.iter().zip(&node.outs) {
            let same = axis.and_then(|a| indices.iter().position(|i| first_axis(i) == Some(a)));
            // Images and volumes have channels second, other values last.
            let channels = match indices.len() {
                rank @ 2..=3 => Some(rank - 1),
                rank => (rank > 3).then_some(1),
            };
            let summed = rule == CutRule::Channel && of_weight && axis.is_some();
            along[v.index()] = same.or(channels.filter(|_| summed));
        }
        axes.push(axis);
    }
    axes
}
