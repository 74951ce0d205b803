//! The commands. Each is a file with its arguments and a `run` function.

pub mod bench;
pub mod models;
pub mod ops;
pub mod plan;
pub mod train;

use crate::job::JobError;
use gulliver_graph::graph::GraphError;
use gulliver_run::checkpoint::CheckpointError;
use gulliver_run::data::DataError;
use gulliver_run::session::SessionError;
use gulliver_run::train::TrainError;
use std::io;
use std::path::PathBuf;

/// Budgets of the tiers, over what the job says.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Budgets {
    /// Hard budget of the device, e.g. 256MiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Hard budget of host memory for what does not fit on the device; 0 keeps everything off it.
    #[arg(long, value_name = "SIZE")]
    host_memory: Option<String>,
    /// Hard budget of a file for what fits neither on the device nor in host memory.
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
}

impl Budgets {
    /// The same as overrides of the job's fields.
    fn sets(&self) -> impl Iterator<Item = String> {
        let fields = [("memory", &self.memory), ("host_memory", &self.host_memory), ("disk", &self.disk)];
        fields.into_iter().filter_map(|(field, size)| Some(format!("devices.{field}={}", size.as_ref()?)))
    }
}

/// Why a command failed, in one line.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The job file.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The model.
    #[error("model: {0}")]
    Graph(#[from] GraphError),
    /// The data.
    #[error("data: {0}")]
    Data(#[from] DataError),
    /// Plan or device.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A budget that cannot be met.
    #[error("does not fit: {0}")]
    DoesNotFit(Box<crate::advice::Advice>),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A file of the run directory.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The run directory is taken.
    #[error("{dir} already holds a run; pass --resume to go on with it, or another --out", dir = .0.display())]
    DirectoryTaken(PathBuf),
    /// Standard output.
    #[error("cannot write output: {0}")]
    Output(#[from] io::Error),
    /// A measurement went wrong.
    #[error("{workload}: {problem}")]
    Bench {
        /// The workload that was being measured.
        workload: String,
        /// What happened.
        problem: String,
    },
    /// Something asked for does not exist.
    #[error("{0}")]
    Unknown(String),
    /// Stopped by a signal, after a checkpoint.
    #[error("interrupted after step {step} of {steps}; pass --resume to go on")]
    Interrupted {
        /// The last step done.
        step: u64,
        /// The last step to do.
        steps: u64,
    },
}
