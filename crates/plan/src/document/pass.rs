//! The passes of planning one step, as a record: what each changed, and the device's peak and the step's predicted time
//! after it. The rows of `gulliver plan` are these.

use crate::document::ledger::Ledger;
use serde::{Deserialize, Serialize};

/// One pass. Its figures are those of the plan as it stood after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanPass {
    /// Name and effect.
    #[serde(flatten)]
    pub change: PassChange,
    /// Most bytes of the device in use at once; after the layout, bytes of its arena.
    pub peak: u64,
    /// Predicted seconds of the step.
    pub seconds: f64,
}

/// What a pass changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", content = "changed", rename_all = "snake_case")]
pub enum PassChange {
    /// All operators in the graph's order, updates last, everything on the device.
    Graph {
        /// Operators that run; views do not.
        operators: usize,
    },
    /// Backward and update operators in another order.
    Order {
        /// Which one, in words.
        rule: String,
    },
    /// Values that are recomputed instead of kept.
    Recompute {
        /// How often a value is let go and recomputed.
        values: usize,
        /// Seconds of the step spent on that.
        seconds: f64,
    },
    /// Values that wait in other tiers.
    Swap {
        /// Bytes of weights and states that reside off the device between steps.
        resident: u64,
        /// Bytes that a step moves.
        moved: Ledger,
    },
    /// Moves and collectives beside kernels.
    Overlap {
        /// Fetches that start before they must.
        fetches: usize,
        /// Stores that may end after the next kernel has begun.
        stores: usize,
        /// Collectives that kernels run beside.
        collectives: usize,
    },
    /// Offsets for all buffers.
    Layout {
        /// Bytes of the arena that are in no buffer at the peak.
        gaps: u64,
    },
}

impl PassChange {
    /// The pass.
    pub fn name(&self) -> &'static str {
        match self {
            PassChange::Graph { .. } => "graph",
            PassChange::Order { .. } => "order",
            PassChange::Recompute { .. } => "recompute",
            PassChange::Swap { .. } => "swap",
            PassChange::Overlap { .. } => "overlap",
            PassChange::Layout { .. } => "layout",
        }
    }
}
