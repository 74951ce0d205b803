//! A cut taken over to what it was not made for: inputs of other sizes, and another graph with the same
//! weights, such as the one that evaluates.

use super::mesh::DeviceMesh;
use super::parts::{NodeCut, node_parts};
use super::search::{FixedChoices, find_fixed_cut};
use super::sized::{SUMS, SizedGraph};
use super::{CutError, CutOptions, GraphCut, MeshLevel, Sharding, check_levels};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use std::collections::HashMap;

/// The same cut for inputs of other sizes: every node is divided as before where that is legal, and where not,
/// everyone does all of it. Weights and states, whose sizes do not change, stay where they are. No sum is
/// divided that was not.
pub fn fit_cut(graph: &Graph, sizes: &Bindings, cut: &GraphCut) -> Result<GraphCut, CutError> {
    check_levels(&cut.levels)?;
    let sized = SizedGraph::new(graph, sizes)?;
    let mesh = DeviceMesh::new(&cut.levels);
    let mut fit = cut.clone();
    for (id, node) in graph.nodes.iter().enumerate() {
        let mut choices = cut.choices(graph, id);
        let sums = |level: usize| {
            node.ins.iter().all(|v| fit.values[v.index()].get(level) == Some(&Sharding::Partial(SUMS)))
        };
        for (level, choice) in choices.iter_mut().enumerate() {
            if *choice == NodeCut::Unreduced && !sums(level) {
                *choice = NodeCut::Repeat;
            }
        }
        let mut level = choices.len();
        let parts = loop {
            match node_parts(sized.kind(id), &choices, &mesh) {
                Ok(parts) => break parts,
                Err(why) if level == 0 => return Err(CutError::Illegal { node: id, why }),
                Err(_) => {
                    level -= 1;
                    choices[level] = NodeCut::Repeat;
                }
            }
        };
        let axis = |choice: &NodeCut| if let NodeCut::Axis(axis) = choice { Some(*axis) } else { None };
        fit.nodes[id] = choices.iter().map(axis).collect();
        for (v, shardings) in node.outs.iter().zip(parts.shardings) {
            fit.values[v.index()] = shardings;
        }
    }
    Ok(fit)
}

/// Bytes a second between devices, whatever they are, where a choice may not depend on them.
const ORDINARY: f64 = 1e10;

/// A cut of another graph with the same weights: these lie as they do in the `trained` graph, and of the rest
/// the search chooses what would take least seconds on ordinary devices and links: where sums are divided changes their
/// last digits, and those are the same however fast a machine is. If the cut of the trained graph divides no sum,
/// neither does this one.
pub fn cut_like(
    graph: &Graph,
    sizes: &Bindings,
    (trained, cut): (&Graph, &GraphCut),
) -> Result<GraphCut, CutError> {
    let ordinary = |level: &MeshLevel| MeshLevel { bandwidth: ORDINARY, ..level.clone() };
    let levels: Vec<MeshLevel> = cut.levels.iter().map(ordinary).collect();
    let named: HashMap<&str, &Vec<Sharding>> =
        trained.inputs().map(|(v, _, info)| (info.name.as_str(), &cut.values[v.index()])).collect();
    let sized = SizedGraph::new(graph, sizes)?;
    let residences = graph.inputs().filter(|(v, ..)| sized.persists(v.index()));
    let residences =
        residences.filter_map(|(v, _, info)| Some((v.index(), named.get(info.name.as_str())?.to_vec())));
    let whole = !cut.values.iter().flatten().any(|sharding| matches!(sharding, Sharding::Partial(_)));
    let fixed = FixedChoices { residences: residences.collect(), whole_sums: whole };
    let found = find_fixed_cut(&sized, &levels, &CutOptions::default(), &fixed)?.cut;
    if fixed.allows(&found) {
        return Ok(found);
    }
    let mut all = GraphCut::none(graph, &cut.levels);
    fixed.residences.into_iter().for_each(|(v, shardings)| all.values[v] = shardings);
    Ok(all)
}
