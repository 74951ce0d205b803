//! Cuts that people ask for by name: a rule for every level of devices, followed from node to node as far as it
//! is legal, or the search.

use super::bound::Bound;
use super::comparator::{Rule, followed};
use super::part::{Choice, homes_at, parts_of};
use super::region::Grid;
use super::search::cut;
use super::tables::{State, cut_of};
use super::{Cut, CutError, Level, Options, Spread, check_levels, levels_of};
use crate::cost::Rates;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Role};

/// The names of cuts, each with what it divides.
pub const NAMES: [(&str, &str); 7] = [
    ("data", "the batch; weights are everywhere"),
    ("filter", "weights along their outputs"),
    ("channel", "weights along their inputs"),
    ("spatial", "images and volumes along their first dimension in space; weights are everywhere"),
    ("data+filter", "the batch between groups of devices, filters within them"),
    ("data+spatial", "the batch between groups of devices, space within them"),
    ("cut", "every node as the search finds it fastest, within the memory of a device"),
];

/// Equal devices with one kind of link.
#[derive(Clone, Debug, PartialEq)]
pub struct Devices {
    /// How many.
    pub count: usize,
    /// Bytes a second that a device receives.
    pub bandwidth: f64,
    /// How fast each is.
    pub rates: Rates,
    /// Most bytes of weights, states and kept results on any, for the search; none is no limit.
    pub memory: Option<u64>,
}

impl Devices {
    /// So many, at the usual speeds and without a limit of memory.
    pub fn new(count: usize) -> Devices {
        Devices { count, bandwidth: 1e10, rates: Rates::default(), memory: None }
    }
}

/// The cut of that name (see [`NAMES`]), for inputs of these sizes (of one partial). A node that cannot be divided
/// as the rule says is done by everyone. Two rules need a number of devices that is a product.
pub fn named(graph: &Graph, sizes: &Bindings, devices: &Devices, name: &str) -> Result<Cut, CutError> {
    let Devices { count, bandwidth, .. } = *devices;
    let one = |rule: Rule| (vec![Level::even(count, bandwidth)], vec![rule]);
    let two = |inner: Rule| -> Result<_, CutError> {
        let within = (2..count).take_while(|n| n * n <= count).filter(|n| count.is_multiple_of(*n)).last();
        let why =
            || format!("{count} devices cannot be put into equal groups of several; use another number");
        let within = within.ok_or_else(|| CutError::Name { name: name.into(), why: why() })?;
        let levels = vec![Level::even(count / within, bandwidth), Level::even(within, bandwidth)];
        Ok((levels, vec![Rule::Data, inner]))
    };
    let (levels, rules) = match name {
        "data" => one(Rule::Data),
        "filter" => one(Rule::Filter),
        "channel" => one(Rule::Channel),
        "spatial" => one(Rule::Spatial),
        "data+filter" => two(Rule::Filter)?,
        "data+spatial" => two(Rule::Spatial)?,
        "cut" => {
            let options = Options { rates: devices.rates, memory: devices.memory, ..Options::default() };
            return Ok(cut(graph, sizes, &levels_of(count, bandwidth), &options)?.cut);
        }
        _ => {
            let all: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            let why = format!("there is none of that name; use one of {}", all.join(", "));
            return Err(CutError::Name { name: name.into(), why });
        }
    };
    check_levels(&levels)?;
    let bound = Bound::new(graph, sizes)?;
    let space = |(v, role, _): (gulliver_graph::graph::Value, Role, _)| {
        role == Role::Data && bound.shapes[v.index()].len() >= 4
    };
    if rules.contains(&Rule::Spatial) && !graph.inputs().any(space) {
        let why = "the model reads neither images nor volumes".to_string();
        return Err(CutError::Name { name: name.into(), why });
    }
    let mut state = State::new(&bound);
    for (level, rule) in rules.into_iter().enumerate() {
        state.push(&bound);
        follow(&bound, &Grid::new(&levels[..=level]), &mut state, level, rule);
    }
    cut_of(&bound, &Grid::new(&levels), &state)
}

/// Puts one level as a rule says into a state.
fn follow(bound: &Bound, grid: &Grid, state: &mut State, level: usize, rule: Rule) {
    for ((node, choices), axis) in state.choices.iter_mut().enumerate().zip(followed(bound, rule)) {
        let Some(axis) = axis else { continue };
        let mut divided = choices.clone();
        divided[level] = Choice::Axis(axis);
        if parts_of(bound.kind(node), &divided, grid).is_ok() {
            *choices = divided;
        }
    }
    let Some(along) = rule.of_weights() else { return };
    for v in (0..state.homes.len()).filter(|v| bound.has_home(*v)) {
        let mut options = homes_at(&bound.shapes[v], &state.homes[v], level, grid).into_iter();
        if let Some((spreads, _)) = options.find(|(spreads, _)| spreads[level] == Spread::Along(along)) {
            state.homes[v] = spreads;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::{deal, fitted, judge};
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
    fn names_divide_what_they_say_and_fit_other_sizes() {
        for (graph, space) in [
            (graph("cnn", &[("width", 8), ("size", 16)]), Some(2)),
            (graph("cosmoflow", &[("width", 8), ("size", 16), ("layers", 2), ("hidden", 8)]), Some(2)),
            (graph("lstm", &[("width", 8), ("vocab", 12)]), None),
        ] {
            for (name, weights, values) in [
                ("data", None, Some(0)),
                ("filter", Some(0), None),
                ("channel", Some(1), None),
                ("spatial", None, space),
                ("data+filter", Some(0), Some(0)),
                ("data+spatial", None, space),
                ("cut", None, None),
            ] {
                if name.ends_with("spatial") && space.is_none() {
                    continue;
                }
                let cut = named(&graph, &sizes(4), &Devices::new(4), name).unwrap();
                assert_eq!(cut.devices(), 4);
                let bound = Bound::new(&graph, &sizes(4)).unwrap();
                assert!(judge(&bound, &cut, &Rates::default()).is_ok(), "{name}");
                let along = |home: bool, d: usize| {
                    let values = cut.values.iter().enumerate().filter(|(v, _)| bound.has_home(*v) == home);
                    values.filter(|(_, spreads)| spreads.contains(&Spread::Along(d))).count()
                };
                let divided = (0..5).map(|d| along(true, d)).sum::<usize>();
                assert!(
                    weights.map_or(name == "cut" || divided == 0, |d| along(true, d) == divided),
                    "{name}"
                );
                assert!(weights.is_none() || divided > 0, "{name}");
                assert!(values.is_none_or(|d| along(false, d) > 10), "{name}");
                for batch in [1, 2, 4, 7, 12] {
                    let fit = fitted(&graph, &sizes(batch), &cut).unwrap();
                    assert!(batch != 4 || fit == cut, "{name}: the same sizes need no fitting");
                    assert_eq!(deal(&graph, &sizes(batch), &fit).unwrap().len(), 4, "{name}");
                }
            }
        }
    }

    #[test]
    fn names_that_cannot_be_followed_are_refused() {
        let graph = graph("mlp-tiny", &[]);
        for (name, devices, expected) in [
            ("rows", 2, "strategy `rows`: there is none of that name; use one of data, filter, channel"),
            ("spatial", 2, "strategy `spatial`: the model reads neither images nor volumes"),
            ("data+filter", 3, "strategy `data+filter`: 3 devices cannot be put into equal groups"),
            ("data", 65, "level 0 has 65 groups"),
        ] {
            let said = named(&graph, &sizes(4), &Devices::new(devices), name).unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
