//! Cuts by rule, for tests and people to measure the search by: data parallel, filter parallel, largest tensor
//! first, one cut into as many parts as there are devices, data over filter, and everything there is.

use super::bound::Bound;
use super::eliminate::{FORBIDDEN, Factor};
use super::judge::judge;
use super::part::{Choice, Homes, Need, Parts, options_at, parts_of, residences_at};
use super::region::Grid;
use super::search::cut;
use super::tables::{Prices, State, Tables, of_state};
use super::traffic::fetches;
use super::{Cut, CutError, Found, Level, Objective, Options, Spread, check_levels};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin, Role};
use gulliver_graph::spec::{AxisId, Index};

/// How the groups of one level divide everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Everything along the batch; weights and states are everywhere.
    Data,
    /// Weights, states and what follows from them along the weights' first dimension: output channels.
    Filter,
    /// The same along their second dimension: input channels. What a weight makes is a partial sum, and is
    /// divided along its own channels once it is complete.
    Channel,
    /// Everything that comes of images and volumes along their first dimension in space; weights and states
    /// are everywhere.
    Spatial,
}

impl Rule {
    /// The dimension along which weights and states are divided.
    pub(crate) fn of_weights(self) -> Option<usize> {
        match self {
            Rule::Filter => Some(0),
            Rule::Channel => Some(1),
            Rule::Data | Rule::Spatial => None,
        }
    }

    /// The dimension along which data of this many dimensions is divided.
    fn of_data(self, rank: usize) -> Option<usize> {
        match self {
            Rule::Data => (rank > 0).then_some(0),
            Rule::Channel => (rank > 3).then_some(1),
            Rule::Spatial => (rank > 3).then_some(2),
            Rule::Filter => None,
        }
    }
}

/// The cut in which every level follows its rule. A node that cannot be cut along the axis of the rule is cut
/// along the first axis it can be; if there is none, every group does all of it, as of updates that the rule
/// does not divide.
pub fn by_rule(graph: &Graph, sizes: &Bindings, levels: &[Level], rules: &[Rule]) -> Result<Cut, CutError> {
    check_levels(levels)?;
    let bound = Bound::new(graph, sizes)?;
    let mut state = State::new(&bound);
    for (level, rule) in rules.iter().enumerate().take(levels.len()) {
        state.push(&bound);
        state = ruled(&bound, &levels[..=level], &state, level, *rule);
    }
    of_state(&bound, &levels[..rules.len().min(levels.len())], &state)
}

/// A state with one level as a rule says.
pub(crate) fn ruled(bound: &Bound, levels: &[Level], state: &State, level: usize, rule: Rule) -> State {
    let grid = Grid::new(levels);
    let mut state = state.clone();
    let wanted = followed(bound, rule);
    let mut known = std::collections::HashMap::new();
    for (node, choices) in state.choices.iter_mut().enumerate() {
        let axis = wanted[node];
        let repeat = bound.may_repeat(node, Objective::Bytes);
        if axis.is_none() && repeat {
            continue;
        }
        let key = (bound.kinds.kind_of[node], axis, repeat, choices.clone());
        let choice = *known.entry(key).or_insert_with(|| {
            let kind = bound.kind(node);
            let legal = |axis: &AxisId| {
                let mut choices = choices.clone();
                choices[level] = Choice::Axis(*axis);
                parts_of(kind, &choices, &grid).is_ok()
            };
            let axis = axis.filter(legal).or_else(|| kind.axes.iter().copied().find(legal));
            axis.map_or(Choice::All, Choice::Axis)
        });
        choices[level] = choice;
    }
    if let Some(along) = rule.of_weights().map(Spread::Along) {
        for v in (0..state.residences.len()).filter(|v| bound.has_home(*v)) {
            let options = residences_at(&bound.shapes[v], &state.residences[v], level, &grid);
            if options.iter().any(|(s, _)| s[level] == along) {
                state.residences[v][level] = along;
            }
        }
    }
    state
}

/// By node, the axis along which what the rule divides runs through it.
pub(crate) fn followed(bound: &Bound, rule: Rule) -> Vec<Option<AxisId>> {
    let first = |index: &Index| match index {
        Index::Axis(a) => Some(*a),
        Index::One => None,
        Index::Merge(axes) => axes.first().copied(),
        Index::Affine { terms, .. } => terms.first().map(|t| t.1),
    };
    let graph = bound.graph;
    let starts = |v: usize| match graph.values[v].origin {
        Origin::Input(Role::Data(_)) => rule.of_data(bound.shapes[v].len()),
        Origin::Input(Role::Weight(_) | Role::State(_)) => {
            rule.of_weights().filter(|d| *d < bound.shapes[v].len())
        }
        _ => None,
    };
    let mut along: Vec<Option<usize>> = (0..graph.values.len()).map(starts).collect();
    let mut axes = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.nodes.iter().enumerate() {
        let spec = &bound.kind(id).spec;
        let through = |(operand, v): (usize, &gulliver_graph::graph::Value)| {
            along[v.index()].and_then(|d| first(&spec.inputs[operand][d]))
        };
        let weighty =
            |v: &gulliver_graph::graph::Value| rule.of_weights().is_some() && bound.has_home(v.index());
        let inputs = || node.ins.iter().enumerate();
        // Of a weight's gradient the last operand is the one whose channels the weight's rows make, the first
        // the one whose channels its columns read.
        let axis = inputs().filter(|(_, v)| weighty(v)).find_map(through);
        let axis = axis.or_else(|| match rule {
            Rule::Channel => inputs().find_map(through),
            _ => inputs().rev().find_map(through),
        });
        let of_weight = node.ins.iter().any(weighty);
        for (indices, v) in spec.outputs.iter().zip(&node.outs) {
            let same = axis.and_then(|a| indices.iter().position(|i| first(i) == Some(a)));
            // Channels are the second dimension of images and volumes, and the last of other things.
            let channels = match indices.len() {
                rank @ 2..=3 => Some(rank - 1),
                rank => (rank > 3).then_some(1),
            };
            let summed = rule == Rule::Channel && of_weight && axis.is_some();
            along[v.index()] = same.or(channels.filter(|_| summed));
        }
        axes.push(axis);
    }
    axes
}

/// Data parallel: every sample on one device, every weight on all.
pub fn data(graph: &Graph, sizes: &Bindings, levels: &[Level]) -> Result<Cut, CutError> {
    by_rule(graph, sizes, levels, &vec![Rule::Data; levels.len()])
}

/// Every weight, and what comes of it, along its first dimension.
pub fn filter(graph: &Graph, sizes: &Bindings, levels: &[Level]) -> Result<Cut, CutError> {
    by_rule(graph, sizes, levels, &vec![Rule::Filter; levels.len()])
}

/// Data parallel between the groups of the first level, filter parallel within them.
pub fn hybrid(graph: &Graph, sizes: &Bindings, levels: &[Level]) -> Result<Cut, CutError> {
    let rules: Vec<Rule> =
        (0..levels.len()).map(|l| if l == 0 { Rule::Data } else { Rule::Filter }).collect();
    by_rule(graph, sizes, levels, &rules)
}

/// Largest tensor first: nodes and weights in the order of their largest value, each with what costs least
/// given those before it.
pub fn largest_first(graph: &Graph, sizes: &Bindings, levels: &[Level]) -> Result<Cut, CutError> {
    check_levels(levels)?;
    let bound = Bound::new(graph, sizes)?;
    let options = Options { objective: Objective::Bytes, ..Options::default() };
    let prices = Prices::new(0.0, &[], 0);
    let mut state = State::new(&bound);
    for level in 0..levels.len() {
        state.push(&bound);
        let grid = Grid::new(&levels[..=level]);
        let tables = Tables::new(&bound, &grid, &options, &prices, &state, level);
        let mut problem = tables.problem();
        // Taken one by one, nodes cannot agree to pass partial sums on.
        for (node, options) in tables.nodes.iter().enumerate() {
            let cost = |c: &Choice| if *c == Choice::Unreduced { FORBIDDEN } else { 0.0 };
            let table = options.choices.iter().map(cost).collect();
            problem.factors.push(Factor { scope: vec![node], table });
        }
        let mut weights: Vec<u64> = Vec::with_capacity(problem.domains.len());
        let values = |node: &gulliver_graph::graph::Node| {
            node.outs.iter().map(|v| bound.value_bytes(v.index())).max().unwrap_or(0)
        };
        weights.extend(graph.nodes.iter().map(values));
        weights.resize(problem.domains.len(), 0);
        tables.residences.iter().for_each(|(v, (variable, _))| weights[*variable] = bound.value_bytes(*v));
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by_key(|&v| std::cmp::Reverse(weights[v]));
        let choices = problem.greedy(&order);
        tables.put(&choices, &mut state, level);
    }
    of_state(&bound, levels, &state)
}

/// One cut of everything into as many parts as there are devices: no value is divided along two dimensions.
pub fn equal_chop(
    graph: &Graph,
    sizes: &Bindings,
    levels: &[Level],
    options: &Options,
) -> Result<Found, CutError> {
    let devices: usize = levels.iter().map(|l| l.shares.len()).product();
    let slowest = levels.iter().map(|l| l.bandwidth).fold(f64::INFINITY, f64::min);
    cut(graph, sizes, &[Level::even(devices, slowest)], options)
}

/// The fewest bytes of all cuts over one level, by trying every one; none if there are more than `most`.
pub fn exhaustive(
    graph: &Graph,
    sizes: &Bindings,
    level: &Level,
    most: u64,
) -> Result<Option<(Cut, u64)>, CutError> {
    let levels = [level.clone()];
    check_levels(&levels)?;
    let bound = Bound::new(graph, sizes)?;
    let grid = Grid::new(&levels);
    let nodes: Vec<_> = (0..graph.nodes.len())
        .map(|n| options_at(bound.kind(n), &[Choice::All], 0, &grid, bound.may_repeat(n, Objective::Bytes)))
        .collect();
    let residences: Vec<(usize, Homes)> = (0..graph.values.len())
        .filter(|v| bound.has_home(*v))
        .map(|v| (v, residences_at(&bound.shapes[v], &[Spread::Whole], 0, &grid)))
        .collect();
    let counts: Vec<usize> = nodes.iter().map(Vec::len).chain(residences.iter().map(|h| h.1.len())).collect();
    if counts.iter().fold(1u64, |n, &c| n.saturating_mul(c as u64)) > most {
        return Ok(None);
    }
    let mut pick = vec![0usize; counts.len()];
    let mut best: Option<(u64, Vec<usize>)> = None;
    loop {
        let total = total_of(&bound, &grid, &nodes, &residences, &pick);
        if let Some(total) = total.filter(|t| best.as_ref().is_none_or(|b| *t < b.0)) {
            best = Some((total, pick.clone()));
        }
        let Some(at) = (0..pick.len()).rev().find(|&i| pick[i] + 1 < counts[i]) else { break };
        pick[at] += 1;
        pick[at + 1..].fill(0);
    }
    let Some((total, pick)) = best else { return Ok(None) };
    let mut state = State::new(&bound);
    state.push(&bound);
    nodes.iter().enumerate().for_each(|(n, options)| state.choices[n][0] = options[pick[n]].0);
    for ((v, options), &p) in residences.iter().zip(&pick[nodes.len()..]) {
        state.residences[*v] = options[p].0.clone();
    }
    let found = of_state(&bound, &levels, &state)?;
    judge(&bound, &found, &[])?;
    Ok(Some((found, total)))
}

/// Bytes of one combination, straight from what everyone needs; none if it is not a cut.
fn total_of(
    bound: &Bound,
    grid: &Grid,
    nodes: &[Vec<(Choice, Parts)>],
    residences: &[(usize, Homes)],
    pick: &[usize],
) -> Option<u64> {
    let residence = |v: usize| {
        let at = residences.iter().position(|(h, _)| *h == v)?;
        Some(&residences[at].1[pick[nodes.len() + at]])
    };
    let mut total = 0;
    for v in 0..bound.graph.values.len() {
        let spreads: &[Spread] = match bound.graph.values[v].origin {
            Origin::Node { node, output } => &nodes[node.index()][pick[node.index()]].1.spreads[output],
            Origin::Input(_) => residence(v).map_or(&[Spread::Whole], |h| &h.0),
        };
        let read = |(node, operands): &(usize, Vec<usize>)| {
            let parts = &nodes[*node][pick[*node]].1;
            operands.iter().map(|&i| &parts.ins[i]).collect::<Vec<&Need>>()
        };
        let mut needs: Vec<&Need> = bound.readers[v].iter().flat_map(read).collect();
        needs.extend(bound.carried_by[v].iter().filter_map(|&i| residence(i)).map(|h| &h.1));
        let mut add = |_: usize, _: usize, n: u64| total += n * bound.element[v];
        fetches(&bound.shapes[v], spreads, &needs, grid, &mut add)?;
    }
    Some(total)
}
