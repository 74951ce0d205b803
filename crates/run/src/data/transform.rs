//! Data sets that change the batches of another data set.

pub mod augment;
pub mod masked;
pub mod weighted;
