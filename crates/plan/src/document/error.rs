//! Why there is no plan, told to the person who must change the job or the machine.

use super::plan::Tier;
use gulliver_graph::dim::DimError;
use std::fmt;

/// Names and bytes of values, largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders(pub Vec<(String, u64)>);

impl Holders {
    /// Named where a budget is too small.
    pub const NAMED: usize = 3;
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(name, bytes): &(String, u64)| format!("{name} {bytes}");
        f.write_str(&self.0.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A size is missing or makes no sense.
    #[error(transparent)]
    Size(#[from] DimError),
    /// A cut that these sizes do not allow.
    #[error("{0}")]
    Cut(String),
    /// The batch cannot be sliced as asked.
    #[error("a batch of {batch} cannot be divided into {partials} equal partials")]
    Partials {
        /// Samples in the batch.
        batch: usize,
        /// Slices asked for.
        partials: u32,
    },
    /// Partials that take turns, and a state that passes from one to the next too late.
    #[error(
        "a state that the forward pass changes is read after that: the partials of this model cannot take turns"
    )]
    Turns,
    /// An operator that symbolic shapes promised, and these sizes break.
    #[error("{node}: {why}; the input is too long for this model, or the model too small for it")]
    Shape {
        /// The node.
        node: String,
        /// What does not fit.
        why: String,
    },
    /// A weight or state that the job does not keep.
    #[error("`{0}` has no place among the persistent values of this job")]
    NotPersistent(String),
    /// Another tier is over its budget.
    #[error(
        "the plan needs {needed} bytes of {tier}, the budget is {budget}; raise it, or that of the device"
    )]
    TierFull {
        /// Which.
        tier: Tier,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// Weights and states have nowhere to be.
    #[error(
        "weights and optimizer state fit neither on the device nor beside it; raise devices.host_memory or devices.disk"
    )]
    NoRoom,
    /// Over the budget.
    #[error(
        "{} {needed} bytes of device memory, the budget is {budget}; largest at the peak: {holders}; raise the budget, or lower train.batch or raise train.partials",
        if *.proven { "every plan needs at least" } else { "the best plan found needs" }
    )]
    DoesNotFit {
        /// Bytes of the arena.
        needed: u64,
        /// Whether no plan can need less: a bound, not the result of a search.
        proven: bool,
        /// Bytes allowed.
        budget: u64,
        /// The largest values in use at once.
        holders: Holders,
    },
    /// A stored job plan has no plan for these sizes.
    #[error("there is no plan for inputs of {sizes} in this stored job plan; it has plans for {known}")]
    NotPlanned {
        /// The sizes asked for.
        sizes: String,
        /// Those there are plans for.
        known: String,
    },
    /// The observer said stop.
    #[error("interrupted while planning; nothing was started")]
    Interrupted,
}
