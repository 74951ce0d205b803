//! Choices for scripts too long to weigh values one by one: a value that is unused for longer than some time does not
//! stay. Values that pass from the forward into the backward pass are recomputed where possible, others wait in another
//! tier. The longest such time that meets the target is found by bisection.

use super::search::Search;
use super::{ChoiceTerms, STARTS, Shortfall};
use crate::budget::choices::Choices;
use crate::budget::evaluate::ScriptEvaluation;
use crate::document::plan::{Choice, Tier};
use crate::step::base::{Base, NEVER};
use crate::step::layout::aligned;
use crate::step::progress::Activity;
use crate::step::script::{ScriptOp, VersionId};
use gulliver_graph::graph::Phase;

/// Steps of the bisection.
const TRIES: usize = 14;

/// Choices that meet the target, or the least peak found.
pub(super) fn by_reach(
    base: &Base,
    terms: &ChoiceTerms,
    start: &Choices,
    target: u64,
    work: &mut ScriptEvaluation,
) -> Result<Choices, Shortfall> {
    let mut gaps = gaps(base, terms, start);
    let mut lengths: Vec<f64> = gaps.iter().map(|gap| gap.seconds).collect();
    lengths.sort_by(f64::total_cmp);
    let (mut low, mut high) = (0usize, lengths.len());
    let mut best = Err(Shortfall { enough: u64::MAX });
    for attempt in 0..TRIES {
        if !terms.go_on(Activity::Choose, attempt, TRIES) {
            break;
        }
        let middle = low.midpoint(high);
        let longest = lengths.get(middle).copied().unwrap_or(f64::INFINITY);
        let mut choices = Choices::keep(base, start.residences.clone());
        for gap in gaps.iter().filter(|gap| gap.seconds >= longest) {
            choices.gaps[gap.at] = gap.choice;
        }
        let peak = carried_out(base, terms, &mut choices, &mut gaps, work);
        if peak > target {
            best = best.map_err(|short: Shortfall| Shortfall { enough: short.enough.min(peak) });
            high = middle;
        } else {
            best = Ok(choices);
            low = middle + 1;
        }
        if low >= high {
            break;
        }
    }
    let choices = best?;
    let mut search = Search::new(base, terms, choices.clone(), target, STARTS[0].0, work);
    search.look();
    let better = search.take_back() && search.look() <= target;
    Ok(if better { search.choices } else { choices })
}

/// Writes the script of the choices; its peak in bytes. Values that cannot be recomputed fall back to `otherwise`.
fn carried_out(
    base: &Base,
    terms: &ChoiceTerms,
    choices: &mut Choices,
    gaps: &mut [Gap],
    work: &mut ScriptEvaluation,
) -> u64 {
    let all = gaps.len();
    while !work.of(base, terms.sharing, choices, terms.bytes, terms.scratch) {
        for failed in &work.writer.failed {
            let gap = gaps.binary_search_by_key(&failed.gap, |gap| gap.at).ok();
            let gap = gap.filter(|&k| choices.gaps[gaps[k].at] == Choice::Recompute);
            // If one of its operands is missing, nothing is recomputed.
            for gap in &mut gaps[gap.map_or(0..all, |k| k..k + 1)] {
                if choices.gaps[gap.at] == Choice::Recompute {
                    choices.gaps[gap.at] = gap.otherwise;
                }
                gap.choice = gap.otherwise;
            }
        }
    }
    work.peak()
}

/// The time between two uses of a version.
struct Gap {
    /// Index into [`Base::uses`].
    at: usize,
    seconds: f64,
    choice: Choice,
    /// The choice if it cannot be recomputed.
    otherwise: Choice,
}

/// All gaps that may be chosen, in order.
fn gaps(base: &Base, terms: &ChoiceTerms, start: &Choices) -> Vec<Gap> {
    let forward = |act: u32| match base.script.acts[act as usize].what {
        ScriptOp::Run(id, _) => base.graph.nodes[id.index()].phase == Phase::Forward,
        ScriptOp::Add | ScriptOp::Carry | ScriptOp::Move => false,
    };
    let beside = terms.away.iter().flatten().next().map(|(choice, _)| *choice);
    let tiny = |v: VersionId| {
        let of = base.script.versions[v as usize].of.value;
        aligned(terms.bytes[of.index()]) < super::search::TINY
    };
    // Small values, such as statistics of a layer, are recomputed with the large results of their act.
    let comes_along = |v: usize| {
        let act = base.producer[v];
        act != NEVER && base.script.split(act as usize).1.iter().any(|&other| !tiny(other))
    };
    let mut begins = vec![0.0];
    for seconds in terms.seconds {
        begins.push(begins[begins.len() - 1] + seconds);
    }
    let mut gaps = Vec::new();
    for (v, version) in base.script.versions.iter().enumerate() {
        let away = match start.residences[v] {
            Tier::Device if version.input => continue,
            Tier::Device => beside,
            tier => Some(tier.into()),
        };
        let small = tiny(v as u32);
        if small && !comes_along(v) {
            continue;
        }
        for (k, pair) in base.uses(v as u32).windows(2).enumerate().filter(|(_, pair)| pair[1] - pair[0] > 1)
        {
            let again = terms.recompute && base.again[v] && forward(pair[0]) && !forward(pair[1]);
            let away = away.filter(|_| !small);
            let Some(choice) = again.then_some(Choice::Recompute).or(away) else { continue };
            let seconds = begins[pair[1] as usize] - begins[pair[0] as usize + 1];
            let (at, otherwise) = (base.first[v] as usize + k, away.unwrap_or(Choice::Keep));
            gaps.push(Gap { at, seconds, choice, otherwise });
        }
    }
    gaps
}
