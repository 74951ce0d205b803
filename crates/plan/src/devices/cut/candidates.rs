//! Cuts worth planning: the best of the search for all devices and for fewer, and cuts of less memory for plans that do
//! not fit.

use super::machine::{CutMachine, ShareBy};
use super::rule::{CutRule, rule_cut};
use super::search::{FixedChoices, FoundCut, cuts_for_memory, cuts_of_falling_memory};
use super::sized::SizedGraph;
use super::{CutError, CutOptions, GraphCut};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;

/// The cut with the shortest step, bytes beyond memory included. Shares are proportional to speed or, if that does not
/// fit, to memory.
pub fn best_cut(sized: &SizedGraph, machine: &CutMachine) -> Result<FoundCut, CutError> {
    Ok(cuts_for(sized, machine)?.swap_remove(0))
}

/// The best cut, then up to two others whose plans may have a shorter step.
fn cuts_for(sized: &SizedGraph, machine: &CutMachine) -> Result<Vec<FoundCut>, CutError> {
    let options = CutOptions { devices: machine.devices.clone(), ..CutOptions::default() };
    let by = |by: ShareBy| cuts_for_memory(sized, &machine.levels(by), &options, &FixedChoices::default());
    let mut found = by(ShareBy::Speed)?;
    if found[0].beyond > 0 && machine.uneven() {
        found.push(by(ShareBy::Memory)?.swap_remove(0));
        found.sort_by(|a, b| a.step_seconds().total_cmp(&b.step_seconds()));
    }
    Ok(found)
}

/// Cuts to plan when no plan of [`cut_candidates`] fits: each needs less memory than the one before, then cuts by rule.
/// The first whose plan fits is the best.
pub fn low_memory_cuts(
    graph: &Graph,
    sizes: &Bindings,
    machine: &CutMachine,
) -> Result<Vec<GraphCut>, CutError> {
    let options = CutOptions { devices: machine.devices.clone(), ..CutOptions::default() };
    let by = if machine.uneven() { ShareBy::Memory } else { ShareBy::Speed };
    let found = cuts_of_falling_memory(&SizedGraph::new(graph, sizes)?, &machine.levels(by), &options)?;
    let rules = [CutRule::Filter, CutRule::Channel, CutRule::Spatial];
    let ruled = rules.into_iter().filter_map(|rule| rule_cut(graph, sizes, machine, &[rule]).ok());
    Ok(found.into_iter().map(|found| found.cut).chain(ruled).collect())
}

/// A step on more devices must be faster by this factor.
pub const WORTH: f64 = 1.05;

/// Cuts slower than the fastest by this factor are not planned.
const APART: f64 = 1.5;

/// The best cuts for all devices, for the first half of them, and so on down to one; fewest devices first. Kept are
/// those faster by [`WORTH`] than with fewer devices and at most half as slow again as the fastest. Where memory is short there may
/// be several for one number of devices.
pub fn cut_candidates(
    graph: &Graph,
    sizes: &Bindings,
    machine: &CutMachine,
) -> Result<Vec<FoundCut>, CutError> {
    let sized = SizedGraph::new(graph, sizes)?;
    let mut all = vec![cuts_for(&sized, machine)?];
    let mut count = machine.count();
    while count > 1 {
        count = count.div_ceil(2);
        let some = CutMachine { devices: machine.devices[..count].to_vec(), ..machine.clone() };
        all.push(cuts_for(&sized, &some)?);
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
