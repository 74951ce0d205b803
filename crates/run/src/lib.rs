//! Doing it: threads, clocks, files and `unsafe` live here and nowhere else.

pub mod data;
pub mod host;
