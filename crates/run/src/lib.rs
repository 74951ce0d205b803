//! Doing it: threads, clocks, files and `unsafe` live here and nowhere else.

mod boxed;
pub mod checkpoint;
pub mod collector;
mod copy;
pub mod data;
mod deals;
pub mod disk;
pub mod executor;
pub mod files;
pub mod host;
pub mod kernel;
pub mod link;
pub mod lower;
pub mod memory;
pub mod peers;
pub mod planner;
pub mod profile;
pub mod program;
mod residences;
#[cfg(test)]
mod scratch;
pub mod session;
pub mod stream;
pub mod team;
pub mod tiers;
pub mod train;
