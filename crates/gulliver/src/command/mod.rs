//! The commands. Each is a file with its arguments and a `run` function.

pub mod bench;
pub mod evaluate;
pub mod generate;
pub mod models;
pub mod ops;
pub mod oracle;
pub mod plan;
pub mod predict;
pub mod profile;
mod several;
pub mod sweep;
pub mod train;
mod trained;

use crate::advice::Advice;
use crate::job::{Job, JobError, Set};
use crate::machine::{self, Known};
use crate::sweep::SweepError;
use gulliver_graph::graph::GraphError;
use gulliver_plan::document::error::PlanError;
use gulliver_run::checkpoint::CheckpointError;
use gulliver_run::data::DataError;
use gulliver_run::files::atomic::{check_writable, write_atomic};
use gulliver_run::profile::ProfileError;
use gulliver_run::session::SessionError;
use gulliver_run::train::TrainError;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A job file, and what is said over it.
#[derive(clap::Args, Clone, Debug)]
pub struct JobArguments {
    /// The job file.
    job: PathBuf,
    /// Overrides a field of the job, e.g. --set train.batch=32.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    sets: Vec<String>,
    /// Devices that share every batch, and the hard budget of each: 4x256MiB, or 4 without a budget.
    #[arg(long, value_name = "COUNT[xSIZE]", conflicts_with = "memory")]
    devices: Option<String>,
    /// How devices share the work: data, harmony-dp, zero, pipeline, harmony-pp, filter, channel, spatial,
    /// data+filter, data+spatial, cut, or auto.
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    /// Hard budget of the device, e.g. 256MiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Hard budget of host memory for what does not fit on the device; 0 keeps everything off it.
    #[arg(long, value_name = "SIZE")]
    host_memory: Option<String>,
    /// Hard budget of a file for what fits neither on the device nor in host memory.
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// How fast the machine is, as `gulliver profile` wrote it; what it wrote to its own place if not given.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

impl JobArguments {
    /// Reads the job, with these fields overridden last.
    fn load(&self, more: impl IntoIterator<Item = String>) -> Result<Job, JobError> {
        let mut sets: Vec<Set> = self.sets.iter().cloned().map(Set::from).collect();
        let mut add = |field: &str, value: &str, flag: &str, given: &str| {
            sets.push(Set { text: format!("{field}={value}"), flag: Some(format!("{flag} {given}")) });
        };
        if let Some(text) = &self.devices {
            let (count, memory) =
                text.split_once(['x', '×']).map_or((text.as_str(), None), |(n, m)| (n, Some(m)));
            add("devices.count", count, "--devices", text);
            if let Some(memory) = memory {
                add("devices.memory", memory, "--devices", text);
            }
        }
        let others = [
            ("train.strategy", "--strategy", &self.strategy),
            ("devices.memory", "--memory", &self.memory),
            ("devices.host_memory", "--host-memory", &self.host_memory),
            ("devices.disk", "--disk", &self.disk),
        ];
        for (field, flag, given) in others {
            if let Some(given) = given {
                add(field, given, flag, given);
            }
        }
        for text in more {
            let flag = text.strip_prefix("train.steps=").map(|steps| format!("--steps {steps}"));
            sets.push(Set { text, flag });
        }
        Job::load_with(&self.job, &sets)
    }

    /// What is known of the machine.
    fn machine(&self) -> Result<Known, CommandError> {
        machine::known(self.profile.as_deref())
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
    Session(SessionError),
    /// Stopped by a signal before anything was started.
    #[error("interrupted while planning; nothing was started")]
    PlanningInterrupted,
    /// A budget that cannot be met.
    #[error("does not fit: {0}")]
    DoesNotFit(Box<Advice>),
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
    /// Another process is using the run directory.
    #[error("{dir} is in use by {holder}; wait for it, or pass another --out", dir = .dir.display())]
    DirectoryInUse {
        /// The directory.
        dir: PathBuf,
        /// The process.
        holder: String,
    },
    /// A file that a run would replace and that no run has written.
    #[error("{file} was not written by a run and is not replaced; pass another --out, or move it away", file = .0.display())]
    NotOurs(PathBuf),
    /// There are checkpoints, and none can be read.
    #[error(
        "none of the {count} checkpoints in {dir} can be read ({first}); restore one of them, or start anew in another --out",
        dir = .dir.display()
    )]
    Damaged {
        /// Where they are.
        dir: PathBuf,
        /// How many there are.
        count: usize,
        /// What is wrong with the newest.
        first: Box<CheckpointError>,
    },
    /// A sweep.
    #[error(transparent)]
    Sweep(SweepError),
    /// Standard output.
    #[error("cannot write output: {0}")]
    Output(#[from] io::Error),
    /// A machine that cannot be measured.
    #[error("cannot measure this machine: {0}")]
    Profile(#[from] ProfileError),
    /// A measurement went wrong.
    #[error("{workload}: {problem}")]
    Bench {
        /// The workload that was being measured.
        workload: String,
        /// What happened.
        problem: String,
    },
    /// A question the oracle cannot answer.
    #[error(transparent)]
    Oracle(#[from] gulliver_oracle::OracleError),
    /// Something asked for does not exist.
    #[error("{0}")]
    Unknown(String),
    /// Weights that do not say what model they are of.
    #[error("{file}: does not say which model it is of and what its inputs mean; use weights that gulliver train wrote", file = .0.display())]
    NoModel(PathBuf),
    /// A model that predicts neither classes nor numbers.
    #[error("{file}: {model} was trained to predict neither a class nor a number of each input", file = .path.display())]
    NoPredictions {
        /// The run or file.
        path: PathBuf,
        /// The model.
        model: String,
    },
    /// Stopped by a signal, with nothing to go on from.
    #[error("interrupted")]
    Cancelled,
    /// A sweep stopped by a signal, after a checkpoint.
    #[error("interrupted after {ended} of {trials} trials; run the same command again to go on")]
    SweepInterrupted {
        /// Trials that need no more training.
        ended: u64,
        /// Trials in all.
        trials: u64,
    },
    /// Stopped by a signal, after a checkpoint.
    #[error("interrupted after step {step} of {steps}; to go on: {command}")]
    Interrupted {
        /// The last step done.
        step: u64,
        /// The last step to do.
        steps: u64,
        /// What to type.
        command: String,
    },
    /// Stopped by an error, after a checkpoint.
    #[error(
        "{source}; stopped after step {step} of {steps}, nothing is lost; when that is mended, go on: {command}"
    )]
    Stopped {
        /// The error.
        source: Box<CommandError>,
        /// The last step done.
        step: u64,
        /// The last step to do.
        steps: u64,
        /// What to type.
        command: String,
    },
}

impl From<SessionError> for CommandError {
    fn from(error: SessionError) -> CommandError {
        match error {
            SessionError::Plan(PlanError::Interrupted) => CommandError::PlanningInterrupted,
            SessionError::Plan(PlanError::DoesNotFit { needed, proven, budget, holders }) => {
                CommandError::DoesNotFit(Box::new(Advice::bare(needed, proven, budget, holders)))
            }
            error => CommandError::Session(error),
        }
    }
}

impl From<SweepError> for CommandError {
    fn from(error: SweepError) -> CommandError {
        match error {
            SweepError::File(error) => CommandError::Job(error),
            SweepError::Output(error) => CommandError::Output(error),
            error => CommandError::Sweep(error),
        }
    }
}

/// Whether [`write_file`] could write there; asked before the work whose outcome is to be written.
pub(crate) fn check_file(path: &Path) -> Result<(), CommandError> {
    check_writable(path).map_err(|source| CommandError::File { path: path.to_path_buf(), source })
}

pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CommandError> {
    write_atomic(path, |file| write(file))
        .map_err(|source| CommandError::File { path: path.to_path_buf(), source })
}
