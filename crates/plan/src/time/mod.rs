//! How long plans take: prices of kernels and links, and simulation.

pub mod cost;
pub mod lanes;
pub mod simulate;
