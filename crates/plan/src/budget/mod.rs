//! Keeping within a hard limit of memory: recompute, swapping, and moves beside kernels.

pub mod base;
pub mod bound;
pub mod choose;
pub mod evaluate;
pub(crate) mod learn;
pub mod overlap;
pub mod rewrite;
pub(crate) mod settle;
pub mod squeeze;
pub(crate) mod view;
pub mod wait;
