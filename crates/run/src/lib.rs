//! Doing it: threads, clocks, files and `unsafe` live here and nowhere else.

pub mod host;
pub mod kernel;
pub mod team;
