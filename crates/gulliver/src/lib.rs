//! Talking to people: the library façade, job files, reports and the command line.
//!
//! As a library: a model becomes a [`graph`], the graph a [`plan`], and the plan is [`run`]. Everyday
//! names are in the [`prelude`]; `examples/` has a model and an operator of one's own.
#![forbid(unsafe_code)]

pub use gulliver_graph as graph;
pub use gulliver_plan as plan;
pub use gulliver_run as run;

pub mod command;
pub mod error;
pub mod event;
pub mod files;
pub mod fit;
pub mod history;
pub mod interrupt;
pub mod job;
pub mod local;
pub mod machine;
pub mod model;
pub mod oracle;
pub mod prelude;
pub mod profile;
pub mod report;
pub mod run_dir;
pub mod setup;
pub mod sweep;
pub mod units;

#[cfg(test)]
mod test_dir;
