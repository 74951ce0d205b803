//! What is computed. Pure: no files, threads, clocks, prints or `unsafe`.
#![forbid(unsafe_code)]

pub mod dtype;
pub mod random;
