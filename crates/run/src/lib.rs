//! Doing it: threads, clocks, files and `unsafe` live here and nowhere else.

pub mod checkpoint;
pub mod collector;
pub mod data;
pub mod device;
pub mod files;
pub mod host;
pub mod kernel;
pub mod lower;
pub mod peers;
pub mod profile;
#[cfg(test)]
mod scratch;
pub mod session;
pub mod team;
pub mod train;
