//! Cuts by rule: along the batch, output channels, input channels or space. Every node is divided along the axis that
//! its spec gives for its operands. The strategies with names use rules, and the search starts from them.

use super::machine::CutMachine;
use super::mesh::DeviceMesh;
use super::parts::{NodeCut, first_axis, node_parts, residences_at};
use super::sized::SizedGraph;
use super::tables::{CutState, of_state};
use super::{CutError, CutObjective, GraphCut, MeshLevel, Sharding, check_levels};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin, Role, Value};
use gulliver_graph::spec::AxisId;
use serde::Serialize;
use std::collections::HashMap;

/// How the groups of one level divide a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
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
    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            CutRule::Data => "data",
            CutRule::Filter => "filter",
            CutRule::Channel => "channel",
            CutRule::Spatial => "spatial",
        }
    }

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

/// The cut by one rule over all devices, or by one rule between equal groups of devices and another within them, for
/// inputs of these sizes (of one partial). Nodes that a rule cannot divide are repeated.
pub fn rule_cut(
    graph: &Graph,
    sizes: &Bindings,
    machine: &CutMachine,
    rules: &[CutRule],
) -> Result<GraphCut, CutError> {
    let refused = |why: String| {
        let names: Vec<&str> = rules.iter().map(|rule| rule.name()).collect();
        CutError::Rule { name: names.join("+"), why }
    };
    let count = machine.count();
    let levels = match rules {
        [_] => machine.grouped(&[count]),
        _ => {
            let within =
                (2..count).take_while(|n| n * n <= count).filter(|n| count.is_multiple_of(*n)).last();
            let within = within.ok_or_else(|| {
                refused(format!(
                    "{count} devices cannot be put into equal groups of several; use another number"
                ))
            })?;
            machine.grouped(&[count / within, within])
        }
    };
    let sized = SizedGraph::new(graph, sizes)?;
    let space = |v: Value| sized.shapes[v.index()].len() >= 4;
    if rules.contains(&CutRule::Spatial) && !graph.inputs().any(|(v, role, _)| role.is_data() && space(v)) {
        return Err(refused("the model reads neither images nor volumes".to_string()));
    }
    // Devices that cannot be grouped evenly are one level, which the inner rule divides.
    let inner = rules.len() - levels.len().min(rules.len());
    cut_by_rules(&sized, &levels, &rules[inner..], Undivided::Repeat)
}

/// The cut over the devices of these levels that follows one rule at each level.
pub fn cut_by_rules(
    sized: &SizedGraph,
    levels: &[MeshLevel],
    rules: &[CutRule],
    undivided: Undivided,
) -> Result<GraphCut, CutError> {
    check_levels(levels)?;
    let mut state = CutState::new(sized);
    for (level, rule) in rules.iter().enumerate() {
        state.push(sized);
        apply_rule(sized, &DeviceMesh::new(&levels[..=level]), &mut state, (level, *rule), undivided);
    }
    of_state(sized, levels, &state)
}

/// What to do with nodes that cannot be divided as a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undivided {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::cut::{best_cut, cut_cost, fit_cut, partition};
    use gulliver_graph::model::model;
    use gulliver_graph::model::param::ParamValue;
    use gulliver_graph::optim::Optimizer;
    use gulliver_graph::training::training_graph;

    fn graph(name: &str, params: &[(&str, i64)]) -> Graph {
        let params: Vec<_> = params.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
        let model = model(name, &params).unwrap();
        training_graph(model.as_ref(), &[Optimizer::new("sgd", &[]).unwrap()], None).unwrap()
    }

    fn sizes(batch: usize) -> Bindings {
        Bindings::new().with("batch", batch).with("length", 6)
    }

    #[test]
    fn rules_divide_what_they_say_and_fit_other_sizes() {
        use CutRule::{Channel, Data, Filter, Spatial};
        for (graph, space) in [
            (graph("cnn", &[("width", 8), ("size", 16)]), Some(2)),
            (graph("cosmoflow", &[("width", 8), ("size", 16), ("layers", 2), ("hidden", 8)]), Some(2)),
            (graph("lstm", &[("width", 8), ("vocab", 12)]), None),
        ] {
            let searched: &[CutRule] = &[];
            for (rules, weights, values) in [
                (&[Data][..], None, Some(0)),
                (&[Filter], Some(0), None),
                (&[Channel], Some(1), None),
                (&[Spatial], None, space),
                (&[Data, Filter], Some(0), Some(0)),
                (&[Data, Spatial], None, space),
                (searched, None, None),
            ] {
                if rules.contains(&Spatial) && space.is_none() {
                    continue;
                }
                let (name, machine) = (format!("{rules:?}"), CutMachine::new(4));
                let cut = match rules {
                    [] => best_cut(&SizedGraph::new(&graph, &sizes(4)).unwrap(), &machine).unwrap().cut,
                    rules => rule_cut(&graph, &sizes(4), &machine, rules).unwrap(),
                };
                assert_eq!(cut.devices(), 4);
                let sized = SizedGraph::new(&graph, &sizes(4)).unwrap();
                assert!(cut_cost(&sized, &cut, &[]).is_ok(), "{name}");
                let along = |residence: bool, d: usize| {
                    let values =
                        cut.values.iter().enumerate().filter(|(v, _)| sized.persists(*v) == residence);
                    values.filter(|(_, shardings)| shardings.contains(&Sharding::Split(d))).count()
                };
                let divided = (0..5).map(|d| along(true, d)).sum::<usize>();
                assert!(
                    weights.map_or(rules.is_empty() || divided == 0, |d| along(true, d) == divided),
                    "{name}"
                );
                assert!(weights.is_none() || divided > 0, "{name}");
                assert!(values.is_none_or(|d| along(false, d) > 10), "{name}");
                for batch in [1, 2, 4, 7, 12] {
                    let fit = fit_cut(&graph, &sizes(batch), &cut).unwrap();
                    assert!(batch != 4 || fit == cut, "{name}: the same sizes need no fitting");
                    assert_eq!(partition(&graph, &sizes(batch), &fit).unwrap().len(), 4, "{name}");
                }
            }
        }
    }

    #[test]
    fn rules_that_cannot_be_followed_are_refused() {
        use CutRule::{Data, Filter, Spatial};
        let graph = graph("mlp-tiny", &[]);
        for (rules, devices, expected) in [
            (&[Spatial][..], 2, "strategy `spatial`: the model reads neither images nor volumes"),
            (&[Data, Filter], 3, "strategy `data+filter`: 3 devices cannot be put into equal groups"),
            (&[Data], 65, "level 0 has 65 groups"),
        ] {
            let said = rule_cut(&graph, &sizes(4), &CutMachine::new(devices), rules).unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
