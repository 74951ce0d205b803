//! What is computed. Pure: no files, threads, clocks, prints or `unsafe`.
#![forbid(unsafe_code)]

pub mod dim;
pub mod dtype;
pub mod spec;
