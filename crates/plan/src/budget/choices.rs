//! The choice for every value between two of its uses: the result of a search, carried out by
//! [`rewrite`](crate::budget::rewrite).

use crate::document::plan::{Choice, Tier};
use crate::step::base::Base;
use crate::step::script::VersionId;

/// The choice for every version after every use, and where inputs reside between steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// By index into [`Base::uses`]: what happens between that use and the next of the same version.
    pub gaps: Vec<Choice>,
    /// By version: whether it is let go again when it was brought back for the sake of another.
    pub fleeting: Vec<bool>,
    /// Acts before which a version is brought back sooner than it is used, in order.
    pub early: Vec<(u32, VersionId)>,
    /// By version: the tier in which a weight or state waits for the next step.
    pub residences: Vec<Tier>,
}

impl Choices {
    /// Everything stays; inputs are resident in their tiers.
    pub fn keep(base: &Base, residences: Vec<Tier>) -> Choices {
        Choices {
            gaps: vec![Choice::Keep; base.uses.len()],
            fleeting: vec![false; residences.len()],
            early: Vec::new(),
            residences,
        }
    }
}
