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
