//! The oracle on the command line: models and clusters read from files, estimates as pages. `gulliver_oracle` makes the
//! estimates.

pub mod cluster_file;
pub mod jobs_page;
pub mod models;
pub mod page;
