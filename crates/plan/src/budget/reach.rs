//! For scripts so long that choices cannot be weighed one by one: whatever is not used again for longer than some time
//! does not stay until then, as with paging that knows what comes. What only the backward pass needs again is computed
//! again, from what cannot be; the rest waits elsewhere. The longest time with which the target is met is found by
//! halving.

use super::search::Search;
use super::{STARTS, Short, Terms};
use crate::base::{Base, Choices};
use crate::evaluate::Evaluation;
use crate::layout::aligned;
use crate::plan::{Choice, Tier};
use crate::script::What;
use gulliver_graph::graph::Phase;

/// Times that are tried.
const TRIES: usize = 14;

/// Seconds and choices, or how little was enough on the way.
pub(super) fn by_reach(
    base: &Base,
    terms: &Terms,
    start: &Choices,
    target: u64,
    work: &mut Evaluation,
) -> Result<(f64, Choices), Short> {
    let gaps = gaps(base, terms, start);
    let mut lengths: Vec<f64> = gaps.iter().map(|gap| gap.seconds).collect();
    lengths.sort_by(f64::total_cmp);
    let (mut low, mut high) = (0usize, lengths.len());
    let mut best = Err(Short { enough: u64::MAX });
    for _ in 0..TRIES {
        let middle = low.midpoint(high);
        let longest = lengths.get(middle).copied().unwrap_or(f64::INFINITY);
        let mut choices = base.keep(start.homes.clone());
        for gap in gaps.iter().filter(|gap| gap.seconds >= longest) {
            choices.gaps[gap.at] = gap.choice;
        }
        let mut search = Search::new(base, terms, choices, target, STARTS[0].0, work);
        let peak = search.look();
        if peak > target {
            best = best.map_err(|short: Short| Short { enough: short.enough.min(peak) });
            high = middle;
        } else {
            best = Ok((search.cost(), search.choices.clone()));
            low = middle + 1;
        }
        if low >= high {
            break;
        }
    }
    let (cost, choices) = best?;
    let mut search = Search::new(base, terms, choices.clone(), target, STARTS[0].0, work);
    search.look();
    if search.take_back() && search.look() <= target {
        return Ok((search.cost(), search.choices));
    }
    Ok((cost, choices))
}

/// The time between two uses of a version.
struct Gap {
    /// Index into [`Base::uses`].
    at: usize,
    seconds: f64,
    choice: Choice,
}

fn gaps(base: &Base, terms: &Terms, start: &Choices) -> Vec<Gap> {
    let forward = |act: u32| match base.script.acts[act as usize].what {
        What::Run(id, _) => base.graph.nodes[id.index()].phase == Phase::Forward,
        What::Add | What::Carry | What::Move => false,
    };
    let beside = terms.away.iter().flatten().next().map(|(choice, _)| *choice);
    let mut begins = vec![0.0];
    for seconds in terms.seconds {
        begins.push(begins[begins.len() - 1] + seconds);
    }
    let mut gaps = Vec::new();
    for (v, version) in base.script.versions.iter().enumerate() {
        let away = match start.homes[v] {
            Tier::Device if version.input => continue,
            Tier::Device => beside,
            Tier::Host => Some(Choice::Host),
            Tier::Disk => Some(Choice::Disk),
        };
        if aligned(terms.bytes[version.of.value.index()]) < super::search::TINY {
            continue;
        }
        for (k, pair) in base.uses(v as u32).windows(2).enumerate().filter(|(_, pair)| pair[1] - pair[0] > 1)
        {
            let again = terms.recompute && base.again[v] && forward(pair[0]) && !forward(pair[1]);
            let Some(choice) = again.then_some(Choice::Recompute).or(away) else { continue };
            let seconds = begins[pair[1] as usize] - begins[pair[0] as usize + 1];
            gaps.push(Gap { at: base.first[v] as usize + k, seconds, choice });
        }
    }
    gaps
}
