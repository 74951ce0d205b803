//! Why a measurement failed, in one line.

use gulliver::error::Error;
use gulliver::profile::ProfileError;
use gulliver_graph::graph::GraphError;
use gulliver_run::data::DataError;
use gulliver_run::session::SessionError;
use gulliver_run::train::TrainError;
use std::io;
use std::path::PathBuf;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An argument that names nothing, or a value out of range.
    #[error("{0}")]
    Argument(String),
    /// One workload could not be measured.
    #[error("{workload}: {problem}")]
    Workload {
        /// The workload.
        workload: String,
        /// What happened.
        problem: String,
    },
    /// A file or directory.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// Standard output, or a process that was started.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// Something of the product, such as a profile that cannot be read.
    #[error(transparent)]
    Product(#[from] Error),
    /// The model.
    #[error("model: {0}")]
    Graph(#[from] GraphError),
    /// The data.
    #[error("data: {0}")]
    Data(#[from] DataError),
    /// A job cannot be planned or started.
    #[error(transparent)]
    Local(#[from] gulliver::local::LocalError),
    /// A job cannot be planned.
    #[error(transparent)]
    Plan(#[from] gulliver_plan::devices::error::JobPlanError),
    /// Plan or device.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A machine that cannot be measured.
    #[error("cannot measure this machine: {0}")]
    Machine(#[from] ProfileError),
}

/// A value as a line of JSON.
pub fn json_line(value: &impl serde::Serialize) -> Result<String, LabError> {
    Ok(serde_json::to_string(value).map_err(io::Error::from)? + "\n")
}
