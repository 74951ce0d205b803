//! Keeping within a hard limit of memory: recompute, swapping, and moves beside kernels.

pub mod bound;
pub mod choices;
pub mod choose;
pub mod evaluate;
pub(crate) mod finish;
pub(crate) mod learn;
pub mod overlap;
pub(crate) mod passes;
pub mod planner;
pub(crate) mod problem;
pub mod residences;
pub mod rewrite;
pub(crate) mod squeeze;
