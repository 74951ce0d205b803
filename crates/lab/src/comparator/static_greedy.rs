//! One choice for all inputs, as planners make that see a single size: the [layers](super::mimose) that the largest input
//! needs are checkpointed for every input.

use super::{ComparedStep, mimose};
use gulliver_plan::budget::choices::Choices;

/// The choice for the step with the largest inputs, to be carried out for inputs of any size: steps of one
/// outline have the same uses.
pub fn choose(largest: &ComparedStep, start: &Choices, budget: u64) -> Choices {
    mimose::choose(largest, start, budget)
}
