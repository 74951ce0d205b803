//! Data sets that are computed from a seed instead of read from files.

pub mod digits;
pub mod generated;
pub mod grammar;
pub mod points;
pub mod tokens;
