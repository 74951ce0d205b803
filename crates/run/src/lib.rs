//! Doing it: threads, clocks, files and `unsafe` live here and nowhere else.

pub mod atomic;
mod boxed;
pub mod call;
pub mod checkpoint;
pub mod collector;
mod copy;
pub mod data;
mod deals;
pub mod disk;
pub mod executor;
pub mod host;
pub mod initial;
pub mod kernel;
pub mod link;
pub mod lock;
pub mod lower;
pub mod memory;
pub mod peers;
pub mod planner;
pub mod probe;
pub mod profile;
pub mod program;
mod prompt;
mod residences;
pub mod session;
pub mod stream;
mod sum;
pub mod team;
#[cfg(test)]
mod test_dir;
pub mod tiers;
pub mod train;
