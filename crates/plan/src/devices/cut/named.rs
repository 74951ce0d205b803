//! Cuts that people ask for by name: a rule for every level of devices, followed from node to node as far as it
//! is legal, or the search.

use super::machine::{CutMachine, ShareBy};
use super::mesh::DeviceMesh;
use super::rule::{CutRule, Undivided, apply_rule};
use super::search::{FixedChoices, FoundCut, cuts_for_memory, cuts_of_falling_memory};
use super::sized::SizedGraph;
use super::tables::{CutState, of_state};
use super::{CutError, CutOptions, GraphCut, check_levels};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Role};

/// The names of cuts, each with what it divides.
pub const CUT_NAMES: [(&str, &str); 7] = [
    ("data", "the batch; weights are everywhere"),
    ("filter", "weights along their outputs"),
    ("channel", "weights along their inputs"),
    ("spatial", "images and volumes along their first dimension in space; weights are everywhere"),
    ("data+filter", "the batch between groups of devices, filters within them"),
    ("data+spatial", "the batch between groups of devices, space within them"),
    ("cut", "every node as the search finds it fastest, within the memory of a device"),
];

/// The cut of that name (see [`CUT_NAMES`]), for inputs of these sizes (of one partial). A node that cannot be divided
/// as the rule says is done by everyone. Two rules need a number of devices that is a product.
pub fn named_cut(
    graph: &Graph,
    sizes: &Bindings,
    machine: &CutMachine,
    name: &str,
) -> Result<GraphCut, CutError> {
    let count = machine.count();
    let one = |rule: CutRule| (machine.grouped(&[count]), vec![rule]);
    let two = |inner: CutRule| -> Result<_, CutError> {
        let within = (2..count).take_while(|n| n * n <= count).filter(|n| count.is_multiple_of(*n)).last();
        let why =
            || format!("{count} devices cannot be put into equal groups of several; use another number");
        let within = within.ok_or_else(|| CutError::Name { name: name.into(), why: why() })?;
        let levels = machine.grouped(&[count / within, within]);
        let rules = if levels.len() == 2 { vec![CutRule::Data, inner] } else { vec![inner] };
        Ok((levels, rules))
    };
    let (levels, rules) = match name {
        "data" => one(CutRule::Data),
        "filter" => one(CutRule::Filter),
        "channel" => one(CutRule::Channel),
        "spatial" => one(CutRule::Spatial),
        "data+filter" => two(CutRule::Filter)?,
        "data+spatial" => two(CutRule::Spatial)?,
        "cut" => {
            return Ok(best_cut(&SizedGraph::new(graph, sizes)?, machine)?.cut);
        }
        _ => {
            let all: Vec<&str> = CUT_NAMES.iter().map(|(name, _)| *name).collect();
            let why = format!("there is none of that name; use one of {}", all.join(", "));
            return Err(CutError::Name { name: name.into(), why });
        }
    };
    check_levels(&levels)?;
    let sized = SizedGraph::new(graph, sizes)?;
    let space = |(v, role, _): (gulliver_graph::graph::Value, Role, _)| {
        role.is_data() && sized.shapes[v.index()].len() >= 4
    };
    if rules.contains(&CutRule::Spatial) && !graph.inputs().any(space) {
        let why = "the model reads neither images nor volumes".to_string();
        return Err(CutError::Name { name: name.into(), why });
    }
    let mut state = CutState::new(&sized);
    for (level, rule) in rules.into_iter().enumerate() {
        state.push(&sized);
        let mesh = DeviceMesh::new(&levels[..=level]);
        apply_rule(&sized, &mesh, &mut state, (level, rule), Undivided::Repeat);
    }
    of_state(&sized, &levels, &state)
}

/// The cut that takes least seconds with what is beyond memory paid for. Shares are in proportion to speed or, if that
/// does not fit, to memory.
pub fn best_cut(sized: &SizedGraph, machine: &CutMachine) -> Result<FoundCut, CutError> {
    Ok(for_memory(sized, machine)?.swap_remove(0))
}

/// The same and up to two others that may have the shorter step, as only plans can tell.
fn for_memory(sized: &SizedGraph, machine: &CutMachine) -> Result<Vec<FoundCut>, CutError> {
    let options = CutOptions { devices: machine.devices.clone(), ..CutOptions::default() };
    let by = |by: ShareBy| cuts_for_memory(sized, &machine.leveled(by), &options, &FixedChoices::default());
    let mut found = by(ShareBy::Speed)?;
    if found[0].beyond > 0 && machine.uneven() {
        found.push(by(ShareBy::Memory)?.swap_remove(0));
        found.sort_by(|a, b| a.step_seconds().total_cmp(&b.step_seconds()));
    }
    Ok(found)
}

/// Cuts to turn to if the plans of [`worthwhile`] ones do not fit: each needs less memory than the one before, the last
/// follow rules. The best is the first whose plan fits.
pub fn low_memory_cuts(
    graph: &Graph,
    sizes: &Bindings,
    machine: &CutMachine,
) -> Result<Vec<GraphCut>, CutError> {
    let options = CutOptions { devices: machine.devices.clone(), ..CutOptions::default() };
    let by = if machine.uneven() { ShareBy::Memory } else { ShareBy::Speed };
    let found = cuts_of_falling_memory(&SizedGraph::new(graph, sizes)?, &machine.leveled(by), &options)?;
    let ruled = ["filter", "channel", "spatial"]
        .iter()
        .filter_map(|name| named_cut(graph, sizes, machine, name).ok());
    Ok(found.into_iter().map(|found| found.cut).chain(ruled).collect())
}

/// More devices must make a step this many times as fast to be worth using.
pub const WORTH: f64 = 1.05;

/// Cuts that are this many times as slow as the fastest are not worth a closer look.
const APART: f64 = 1.5;

/// The best cuts over all of the devices, over the first half of them, and so on down to one, fewest devices first:
/// those that are a twentieth faster than with fewer devices and about as fast as the fastest, where values move
/// beside what is computed. Where memory is short there may be several for as many devices, of which plans decide.
pub fn cut_candidates(
    graph: &Graph,
    sizes: &Bindings,
    machine: &CutMachine,
) -> Result<Vec<FoundCut>, CutError> {
    let sized = SizedGraph::new(graph, sizes)?;
    let mut all = vec![for_memory(&sized, machine)?];
    let mut count = machine.count();
    while count > 1 {
        count = count.div_ceil(2);
        let some = CutMachine { devices: machine.devices[..count].to_vec(), ..machine.clone() };
        all.push(for_memory(&sized, &some)?);
    }
    let seconds = |found: &Vec<FoundCut>| found[0].step_seconds();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::cut::{Sharding, cut_cost, fit_cut, partition};
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
                let cut = named_cut(&graph, &sizes(4), &CutMachine::new(4), name).unwrap();
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
                    weights.map_or(name == "cut" || divided == 0, |d| along(true, d) == divided),
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
    fn names_that_cannot_be_followed_are_refused() {
        let graph = graph("mlp-tiny", &[]);
        for (name, devices, expected) in [
            ("rows", 2, "strategy `rows`: there is none of that name; use one of data, filter, channel"),
            ("spatial", 2, "strategy `spatial`: the model reads neither images nor volumes"),
            ("data+filter", 3, "strategy `data+filter`: 3 devices cannot be put into equal groups"),
            ("data", 65, "level 0 has 65 groups"),
        ] {
            let said = named_cut(&graph, &sizes(4), &CutMachine::new(devices), name).unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
