//! Cuts that people ask for by name: a rule for every level of devices, followed from node to node as far as it
//! is legal, or the search.

use super::bound::Bound;
use super::comparator::{Rule, followed};
use super::machine::{By, Devices};
use super::part::{Choice, parts_of, residences_at};
use super::region::Grid;
use super::search::{Fixed, Found, cuts_for_memory, ever_thriftier};
use super::tables::{State, of_state};
use super::{Cut, CutError, Options, Spread, check_levels};
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

/// The cut of that name (see [`NAMES`]), for inputs of these sizes (of one partial). A node that cannot be divided
/// as the rule says is done by everyone. Two rules need a number of devices that is a product.
pub fn named(graph: &Graph, sizes: &Bindings, devices: &Devices, name: &str) -> Result<Cut, CutError> {
    let count = devices.count();
    let one = |rule: Rule| (devices.grouped(&[count]), vec![rule]);
    let two = |inner: Rule| -> Result<_, CutError> {
        let within = (2..count).take_while(|n| n * n <= count).filter(|n| count.is_multiple_of(*n)).last();
        let why =
            || format!("{count} devices cannot be put into equal groups of several; use another number");
        let within = within.ok_or_else(|| CutError::Name { name: name.into(), why: why() })?;
        let levels = devices.grouped(&[count / within, within]);
        let rules = if levels.len() == 2 { vec![Rule::Data, inner] } else { vec![inner] };
        Ok((levels, rules))
    };
    let (levels, rules) = match name {
        "data" => one(Rule::Data),
        "filter" => one(Rule::Filter),
        "channel" => one(Rule::Channel),
        "spatial" => one(Rule::Spatial),
        "data+filter" => two(Rule::Filter)?,
        "data+spatial" => two(Rule::Spatial)?,
        "cut" => {
            return Ok(searched(&Bound::new(graph, sizes)?, devices)?.cut);
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
        role.is_data() && bound.shapes[v.index()].len() >= 4
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
    of_state(&bound, &levels, &state)
}

/// The cut that takes least seconds with what is beyond memory paid for. Shares are in proportion to speed or, if that
/// does not fit, to memory.
pub fn searched(bound: &Bound, devices: &Devices) -> Result<Found, CutError> {
    Ok(for_memory(bound, devices)?.swap_remove(0))
}

/// The same and up to two others that may have the shorter step, as only plans can tell.
fn for_memory(bound: &Bound, devices: &Devices) -> Result<Vec<Found>, CutError> {
    let options = Options { units: devices.units.clone(), ..Options::default() };
    let by = |by: By| cuts_for_memory(bound, &devices.leveled(by), &options, &Fixed::default());
    let mut found = by(By::Speed)?;
    if found[0].beyond > 0 && devices.uneven() {
        found.push(by(By::Memory)?.swap_remove(0));
        found.sort_by(|a, b| a.step_seconds().total_cmp(&b.step_seconds()));
    }
    Ok(found)
}

/// Cuts to turn to if the plans of [`worthwhile`] ones do not fit: each needs less memory than the one before, the last
/// follow rules. The best is the first whose plan fits.
pub fn thrifty(graph: &Graph, sizes: &Bindings, devices: &Devices) -> Result<Vec<Cut>, CutError> {
    let options = Options { units: devices.units.clone(), ..Options::default() };
    let by = if devices.uneven() { By::Memory } else { By::Speed };
    let found = ever_thriftier(&Bound::new(graph, sizes)?, &devices.leveled(by), &options)?;
    let ruled =
        ["filter", "channel", "spatial"].iter().filter_map(|name| named(graph, sizes, devices, name).ok());
    Ok(found.into_iter().map(|found| found.cut).chain(ruled).collect())
}

/// More devices must make a step this many times as fast to be worth using.
pub const WORTH: f64 = 1.05;

/// Cuts that are this many times as slow as the fastest are not worth a closer look.
const APART: f64 = 1.5;

/// The best cuts over all of the devices, over the first half of them, and so on down to one, fewest devices first:
/// those that are a twentieth faster than with fewer devices and about as fast as the fastest, where values move
/// beside what is computed. Where memory is short there may be several for as many devices, of which plans decide.
pub fn worthwhile(graph: &Graph, sizes: &Bindings, devices: &Devices) -> Result<Vec<Found>, CutError> {
    let bound = Bound::new(graph, sizes)?;
    let mut all = vec![for_memory(&bound, devices)?];
    let mut count = devices.count();
    while count > 1 {
        count = count.div_ceil(2);
        let some = Devices { units: devices.units[..count].to_vec(), ..devices.clone() };
        all.push(for_memory(&bound, &some)?);
    }
    let seconds = |found: &Vec<Found>| found[0].step_seconds();
    let least = all.iter().map(seconds).fold(f64::INFINITY, f64::min);
    let (mut some, mut fewer) = (Vec::new(), f64::INFINITY);
    for found in all.into_iter().rev().filter(|found| seconds(found) <= APART * least) {
        if WORTH * seconds(&found) < fewer {
            fewer = seconds(&found);
            some.extend(found);
        }
    }
    Ok(some)
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
    for v in (0..state.residences.len()).filter(|v| bound.has_home(*v)) {
        let mut options = residences_at(&bound.shapes[v], &state.residences[v], level, grid).into_iter();
        if let Some((spreads, _)) = options.find(|(spreads, _)| spreads[level] == Spread::Along(along)) {
            state.residences[v] = spreads;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::cut::{deal, fitted, judge};
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
                assert!(judge(&bound, &cut, &[]).is_ok(), "{name}");
                let along = |residence: bool, d: usize| {
                    let values =
                        cut.values.iter().enumerate().filter(|(v, _)| bound.has_home(*v) == residence);
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
