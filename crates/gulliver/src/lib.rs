//! Talking to people: the library façade, job files, reports and the command line.
#![forbid(unsafe_code)]

pub mod command;
pub mod interrupt;
pub mod job;
pub mod report;
pub mod setup;
pub mod workload;

#[cfg(test)]
mod test_dir;
