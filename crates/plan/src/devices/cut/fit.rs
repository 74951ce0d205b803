//! A cut taken over to what it was not made for: inputs of other sizes, and another graph with the same
//! weights, such as the one that evaluates.

use super::bound::{Bound, SUMS};
use super::part::{Choice, parts_of};
use super::region::Grid;
use super::search::{Fixed, cut_fixed};
use super::{Cut, CutError, Level, Options, Spread, check_levels};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use std::collections::HashMap;

/// The same cut for inputs of other sizes: every node is divided as before where that is legal, and where not,
/// everyone does all of it. Weights and states, whose sizes do not change, stay where they are. No sum is
/// divided that was not.
pub fn fitted(graph: &Graph, sizes: &Bindings, cut: &Cut) -> Result<Cut, CutError> {
    check_levels(&cut.levels)?;
    let bound = Bound::new(graph, sizes)?;
    let grid = Grid::new(&cut.levels);
    let mut fit = cut.clone();
    for (id, node) in graph.nodes.iter().enumerate() {
        let mut choices = cut.choices(graph, id);
        let sums = |level: usize| {
            node.ins.iter().all(|v| fit.values[v.index()].get(level) == Some(&Spread::Partial(SUMS)))
        };
        for (level, choice) in choices.iter_mut().enumerate() {
            if *choice == Choice::Unreduced && !sums(level) {
                *choice = Choice::All;
            }
        }
        let mut level = choices.len();
        let parts = loop {
            match parts_of(bound.kind(id), &choices, &grid) {
                Ok(parts) => break parts,
                Err(why) if level == 0 => return Err(CutError::Illegal { node: id, why }),
                Err(_) => {
                    level -= 1;
                    choices[level] = Choice::All;
                }
            }
        };
        let axis = |choice: &Choice| if let Choice::Axis(axis) = choice { Some(*axis) } else { None };
        fit.nodes[id] = choices.iter().map(axis).collect();
        for (v, spreads) in node.outs.iter().zip(parts.spreads) {
            fit.values[v.index()] = spreads;
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
pub fn alongside(graph: &Graph, sizes: &Bindings, (trained, cut): (&Graph, &Cut)) -> Result<Cut, CutError> {
    let ordinary = |level: &Level| Level { bandwidth: ORDINARY, ..level.clone() };
    let levels: Vec<Level> = cut.levels.iter().map(ordinary).collect();
    let named: HashMap<&str, &Vec<Spread>> =
        trained.inputs().map(|(v, _, info)| (info.name.as_str(), &cut.values[v.index()])).collect();
    let bound = Bound::new(graph, sizes)?;
    let residences = graph.inputs().filter(|(v, ..)| bound.has_home(v.index()));
    let residences =
        residences.filter_map(|(v, _, info)| Some((v.index(), named.get(info.name.as_str())?.to_vec())));
    let whole = !cut.values.iter().flatten().any(|spread| matches!(spread, Spread::Partial(_)));
    let fixed = Fixed { residences: residences.collect(), whole_sums: whole };
    let found = cut_fixed(&bound, &levels, &Options::default(), &fixed)?.cut;
    if fixed.allows(&found) {
        return Ok(found);
    }
    let mut all = Cut::none(graph, &cut.levels);
    fixed.residences.into_iter().for_each(|(v, spreads)| all.values[v] = spreads);
    Ok(all)
}
