//! Cuts by rule, for tests and people to measure the search by: data parallel, filter parallel, largest tensor
//! first, one cut into as many parts as there are devices, data over filter, and everything there is.

use super::eliminate::{CostFactor, FORBIDDEN};
use super::evaluate::cut_cost;
use super::mesh::DeviceMesh;
use super::parts::{NeededBoxes, NodeCut, NodeParts, ResidenceChoices, options_at, residences_at};
use super::rule::{CutRule, Undivided, apply_rule};
use super::search::find_cut;
use super::sized::SizedGraph;
use super::tables::{CostTables, CutState, MemoryPrices, of_state};
use super::traffic::fetches;
use super::{CutError, CutObjective, CutOptions, FoundCut, GraphCut, MeshLevel, Sharding, check_levels};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin};

/// The cut in which every level follows its rule. A node that cannot be cut along the axis of the rule is cut
/// along the first axis it can be; if there is none, every group does all of it, as of updates that the rule
/// does not divide.
pub fn by_rule(
    graph: &Graph,
    sizes: &Bindings,
    levels: &[MeshLevel],
    rules: &[CutRule],
) -> Result<GraphCut, CutError> {
    check_levels(levels)?;
    let sized = SizedGraph::new(graph, sizes)?;
    let mut state = CutState::new(&sized);
    for (level, rule) in rules.iter().enumerate().take(levels.len()) {
        state.push(&sized);
        apply_rule(
            &sized,
            &DeviceMesh::new(&levels[..=level]),
            &mut state,
            (level, *rule),
            Undivided::AnyAxis,
        );
    }
    of_state(&sized, &levels[..rules.len().min(levels.len())], &state)
}

/// Data parallel: every sample on one device, every weight on all.
pub fn data(graph: &Graph, sizes: &Bindings, levels: &[MeshLevel]) -> Result<GraphCut, CutError> {
    by_rule(graph, sizes, levels, &vec![CutRule::Data; levels.len()])
}

/// Every weight, and what comes of it, along its first dimension.
pub fn filter(graph: &Graph, sizes: &Bindings, levels: &[MeshLevel]) -> Result<GraphCut, CutError> {
    by_rule(graph, sizes, levels, &vec![CutRule::Filter; levels.len()])
}

/// Data parallel between the groups of the first level, filter parallel within them.
pub fn hybrid(graph: &Graph, sizes: &Bindings, levels: &[MeshLevel]) -> Result<GraphCut, CutError> {
    let rules: Vec<CutRule> =
        (0..levels.len()).map(|l| if l == 0 { CutRule::Data } else { CutRule::Filter }).collect();
    by_rule(graph, sizes, levels, &rules)
}

/// Largest tensor first: nodes and weights in the order of their largest value, each with what costs least
/// given those before it.
pub fn largest_first(graph: &Graph, sizes: &Bindings, levels: &[MeshLevel]) -> Result<GraphCut, CutError> {
    check_levels(levels)?;
    let sized = SizedGraph::new(graph, sizes)?;
    let options = CutOptions { objective: CutObjective::Bytes, ..CutOptions::default() };
    let prices = MemoryPrices::new(0.0, &[], 0);
    let mut state = CutState::new(&sized);
    for level in 0..levels.len() {
        state.push(&sized);
        let mesh = DeviceMesh::new(&levels[..=level]);
        let tables = CostTables::new(&sized, &mesh, &options, &prices, &state, level);
        let mut problem = tables.problem();
        // Taken one by one, nodes cannot agree to pass partial sums on.
        for (node, options) in tables.nodes.iter().enumerate() {
            let cost = |c: &NodeCut| if *c == NodeCut::Unreduced { FORBIDDEN } else { 0.0 };
            let table = options.choices.iter().map(cost).collect();
            problem.factors.push(CostFactor { scope: vec![node], table });
        }
        let mut weights: Vec<u64> = Vec::with_capacity(problem.domains.len());
        let values = |node: &gulliver_graph::graph::Node| {
            node.outs.iter().map(|v| sized.value_bytes(v.index())).max().unwrap_or(0)
        };
        weights.extend(graph.nodes.iter().map(values));
        weights.resize(problem.domains.len(), 0);
        tables.residences.iter().for_each(|(v, (variable, _))| weights[*variable] = sized.value_bytes(*v));
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|&v| std::cmp::Reverse(weights[v]));
        let choices = problem.greedy(&order);
        tables.put(&choices, &mut state, level);
    }
    of_state(&sized, levels, &state)
}

/// One cut of everything into as many parts as there are devices: no value is divided along two dimensions.
pub fn equal_chop(
    graph: &Graph,
    sizes: &Bindings,
    levels: &[MeshLevel],
    options: &CutOptions,
) -> Result<FoundCut, CutError> {
    let devices: usize = levels.iter().map(|l| l.shares.len()).product();
    let slowest = levels.iter().map(|l| l.bandwidth).fold(f64::INFINITY, f64::min);
    find_cut(graph, sizes, &[MeshLevel::even(devices, slowest)], options)
}

/// The fewest bytes of all cuts over one level, by trying every one; none if there are more than `most`.
pub fn exhaustive(
    graph: &Graph,
    sizes: &Bindings,
    level: &MeshLevel,
    most: u64,
) -> Result<Option<(GraphCut, u64)>, CutError> {
    let levels = [level.clone()];
    check_levels(&levels)?;
    let sized = SizedGraph::new(graph, sizes)?;
    let mesh = DeviceMesh::new(&levels);
    let nodes: Vec<_> = (0..graph.nodes.len())
        .map(|n| {
            options_at(sized.kind(n), &[NodeCut::Repeat], 0, &mesh, sized.may_repeat(n, CutObjective::Bytes))
        })
        .collect();
    let residences: Vec<(usize, ResidenceChoices)> = (0..graph.values.len())
        .filter(|v| sized.persists(*v))
        .map(|v| (v, residences_at(&sized.shapes[v], &[Sharding::Replicated], 0, &mesh)))
        .collect();
    let counts: Vec<usize> = nodes.iter().map(Vec::len).chain(residences.iter().map(|h| h.1.len())).collect();
    if counts.iter().fold(1u64, |n, &c| n.saturating_mul(c as u64)) > most {
        return Ok(None);
    }
    let mut pick = vec![0usize; counts.len()];
    let mut best: Option<(u64, Vec<usize>)> = None;
    loop {
        let total = total_of(&sized, &mesh, &nodes, &residences, &pick);
        if let Some(total) = total.filter(|t| best.as_ref().is_none_or(|b| *t < b.0)) {
            best = Some((total, pick.clone()));
        }
        let Some(at) = (0..pick.len()).rev().find(|&i| pick[i] + 1 < counts[i]) else { break };
        pick[at] += 1;
        pick[at + 1..].fill(0);
    }
    let Some((total, pick)) = best else { return Ok(None) };
    let mut state = CutState::new(&sized);
    state.push(&sized);
    nodes.iter().enumerate().for_each(|(n, options)| state.choices[n][0] = options[pick[n]].0);
    for ((v, options), &p) in residences.iter().zip(&pick[nodes.len()..]) {
        state.residences[*v] = options[p].0.clone();
    }
    let found = of_state(&sized, &levels, &state)?;
    cut_cost(&sized, &found, &[])?;
    Ok(Some((found, total)))
}

/// Bytes of one combination, straight from what everyone needs; none if it is not a cut.
fn total_of(
    sized: &SizedGraph,
    mesh: &DeviceMesh,
    nodes: &[Vec<(NodeCut, NodeParts)>],
    residences: &[(usize, ResidenceChoices)],
    pick: &[usize],
) -> Option<u64> {
    let residence = |v: usize| {
        let at = residences.iter().position(|(h, _)| *h == v)?;
        Some(&residences[at].1[pick[nodes.len() + at]])
    };
    let mut total = 0;
    for v in 0..sized.graph.values.len() {
        let shardings: &[Sharding] = match sized.graph.values[v].origin {
            Origin::Node { node, output } => &nodes[node.index()][pick[node.index()]].1.shardings[output],
            Origin::Input(_) => residence(v).map_or(&[Sharding::Replicated], |h| &h.0),
        };
        let read = |(node, operands): &(usize, Vec<usize>)| {
            let parts = &nodes[*node][pick[*node]].1;
            operands.iter().map(|&i| &parts.ins[i]).collect::<Vec<&NeededBoxes>>()
        };
        let mut needs: Vec<&NeededBoxes> = sized.readers[v].iter().flat_map(read).collect();
        needs.extend(sized.carried_by[v].iter().filter_map(|&i| residence(i)).map(|h| &h.1));
        let mut add = |_: usize, _: usize, n: u64| total += n * sized.element[v];
        fetches(&sized.shapes[v], shardings, &needs, mesh, &mut add)?;
    }
    Some(total)
}
