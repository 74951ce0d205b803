//! Talking to people: the library façade, job files, reports and the command line.
#![forbid(unsafe_code)]

pub mod interrupt;
pub mod job;
pub mod report;

#[cfg(test)]
mod test_dir;
