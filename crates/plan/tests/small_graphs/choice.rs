//! What our planner chooses where nothing may be done but to compute again.

use gulliver_lab::comparator::ComparedStep;
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::budget::choose::{ChoiceTerms, Selection, Shortfall, fit};

/// What is chosen from `start` on for a target of bytes in use.
pub fn recompute(
    case: &ComparedStep,
    start: &Choices,
    target: u64,
    at_leisure: bool,
) -> Result<Selection, Shortfall> {
    let base = case.base;
    let seconds: Vec<f64> = (0..base.script.acts.len() as u32).map(|act| case.seconds(act)).collect();
    let terms = ChoiceTerms {
        sharing: case.sharing,
        bytes: &case.bytes,
        scratch: &|node| case.scratch[node],
        seconds: &seconds,
        node: &|node| case.node[node],
        away: [None, None],
        recompute: true,
        room: [0, 0],
        go_on: &|_| true,
    };
    fit(base, &terms, start, target, at_leisure)
}
