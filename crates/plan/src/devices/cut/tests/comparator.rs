//! Other ways to find a cut, which the search is measured by: largest tensor first, and every cut there is.

use crate::devices::cut::eliminate::{CostFactor, CostProblem, FORBIDDEN};
use crate::devices::cut::evaluate::cut_cost;
use crate::devices::cut::mesh::DeviceMesh;
use crate::devices::cut::parts::{
    NeededBoxes, NodeCut, NodeParts, ResidenceChoices, options_at, residences_at,
};
use crate::devices::cut::sized::SizedGraph;
use crate::devices::cut::tables::{CostTables, CutState, MemoryPrices, of_state};
use crate::devices::cut::traffic::HeldBoxes;
use crate::devices::cut::{CutError, CutObjective, CutOptions, GraphCut, MeshLevel, Sharding, check_levels};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Node, Origin};

/// Largest tensor first: nodes and weights in the order of their largest value, each with what costs least
/// given those before it.
pub(super) fn largest_first(
    graph: &Graph,
    sizes: &Bindings,
    levels: &[MeshLevel],
) -> Result<GraphCut, CutError> {
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
        let bytes = |v: usize| sized.shapes[v].iter().product::<usize>() as u64 * sized.element[v];
        let values = |node: &Node| node.outs.iter().map(|v| bytes(v.index())).max().unwrap_or(0);
        weights.extend(graph.nodes.iter().map(values));
        weights.resize(problem.domains.len(), 0);
        tables.residences.iter().for_each(|(v, (variable, _))| weights[*variable] = bytes(*v));
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|&v| std::cmp::Reverse(weights[v]));
        let choices = greedy(problem, &order);
        tables.put(&choices, &mut state, level);
    }
    of_state(&sized, levels, &state)
}

/// Choices made in this order, each with the least possible cost given those before.
fn greedy(problem: CostProblem, order: &[usize]) -> Vec<usize> {
    let CostProblem { domains, mut factors } = problem;
    let mut of: Vec<Vec<usize>> = vec![Vec::new(); domains.len()];
    for (f, factor) in factors.iter().enumerate() {
        factor.scope.iter().for_each(|&var| of[var].push(f));
    }
    let mut choices = vec![0; domains.len()];
    for &var in order {
        let place = |factor: &CostFactor| {
            let place = factor.scope.iter().position(|v| *v == var).unwrap();
            (place, factor.scope[place + 1..].iter().map(|&v| domains[v]).product::<usize>())
        };
        let mut sums = vec![0.0; domains[var]];
        for &f in &of[var] {
            let (_, inner) = place(&factors[f]);
            let mut least = vec![f64::INFINITY; sums.len()];
            for (i, &cost) in factors[f].table.iter().enumerate() {
                let choice = i / inner % sums.len();
                least[choice] = cost.min(least[choice]);
            }
            sums.iter_mut().zip(least).for_each(|(sum, l)| *sum += l);
        }
        let best = (0..sums.len()).min_by(|&a, &b| sums[a].total_cmp(&sums[b])).unwrap_or(0);
        choices[var] = best;
        for &f in &of[var] {
            let (place, inner) = place(&factors[f]);
            let rows = factors[f].table.chunks(inner * domains[var]);
            factors[f].table = rows.flat_map(|row| &row[best * inner..(best + 1) * inner]).copied().collect();
            factors[f].scope.remove(place);
        }
    }
    choices
}

/// The fewest bytes of all cuts over one level, by trying every one; none if there are more than `most`.
pub(super) fn exhaustive(
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
        HeldBoxes::new(&sized.shapes[v], shardings, mesh).fetches(&needs, &mut add)?;
    }
    Some(total)
}
