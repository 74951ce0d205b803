//! One choice for every input: what [layers](super::mimose) would be checkpointed for the largest input is
//! checkpointed for all. What planners do that see a single size.

use super::{ComparedStep, mimose};
use gulliver_plan::budget::choices::Choices;

/// The choice for the step with the largest inputs, to be carried out for inputs of any size: steps of one
/// outline have the same uses.
pub fn choose(largest: &ComparedStep, start: &Choices, budget: u64) -> Choices {
    mimose::choose(largest, start, budget)
}
