//! Why a call failed: one enum for the whole crate, sorted by who must act. Every message is one line without a
//! full stop. Nothing here depends on another module of the crate but [`crate::units`].

mod advice;
mod job;

pub use advice::{Advice, Needed, Proposal};
pub use job::{FieldOrigin, JobError, brief, one_line};

use crate::local::LocalError;
use crate::profile::ProfileError;
use gulliver_graph::graph::GraphError;
use gulliver_oracle::OracleError;
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::document::error::PlanError;
use gulliver_run::checkpoint::CheckpointError;
use gulliver_run::data::DataError;
use gulliver_run::session::SessionError;
use gulliver_run::train::TrainError;
use std::io;
use std::path::PathBuf;

/// Why a call failed. The first variants are for the user to mend (the job, its data, its budget), those in the middle
/// are about files and directories, then come failures of the machine, and last what is no failure: a stop that was
/// asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of a job or sweep file, or of a flag that overrides it.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The model.
    #[error("model: {0}")]
    Graph(#[from] GraphError),
    /// The data.
    #[error("data: {0}")]
    Data(#[from] DataError),
    /// A question that the oracle cannot answer.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// Any other argument or file that cannot be used; the text says which and why.
    #[error("{0}")]
    Invalid(String),
    /// The job needs more memory than its budget.
    #[error("does not fit: {0}")]
    DoesNotFit(Box<Advice>),
    /// Weights without a description of their model.
    #[error("{file}: does not say which model it is of and what its inputs mean; use weights that gulliver train wrote", file = .0.display())]
    NoModel(PathBuf),
    /// A model that predicts neither classes, numbers nor tokens.
    #[error("{file}: {model} was trained to predict neither a class nor a number of each input", file = .path.display())]
    NoPredictions {
        /// The run or file.
        path: PathBuf,
        /// The model.
        model: String,
    },
    /// No trial of a sweep could be trained.
    #[error("all {trials} trials failed; {count} of them because {reason}")]
    AllTrialsFailed {
        /// Trials.
        trials: u64,
        /// Trials that failed for the most common reason.
        count: u64,
        /// The most common reason.
        reason: String,
    },

    /// The run directory holds another run.
    #[error("{dir} already holds a run; pass --resume to go on with it, or another --out", dir = .0.display())]
    DirectoryTaken(PathBuf),
    /// Another process is using the run directory.
    #[error("{dir} is in use by {holder}; wait for it, or pass another --out", dir = .dir.display())]
    DirectoryInUse {
        /// The directory.
        dir: PathBuf,
        /// The process, such as `process 123`.
        holder: String,
    },
    /// A file that a run would replace and that no run has written.
    #[error("{file} was not written by a run and is not replaced; pass another --out, or move it away", file = .0.display())]
    ForeignFile(PathBuf),
    /// None of the checkpoints can be read.
    #[error(
        "none of the {count} checkpoints in {dir} can be read ({first}); restore one of them, or start anew in another --out",
        dir = .dir.display()
    )]
    DamagedCheckpoints {
        /// Their directory.
        dir: PathBuf,
        /// Their number.
        count: usize,
        /// The damage of the newest.
        first: Box<CheckpointError>,
    },
    /// Another process is working on the sweep.
    #[error("{dir}: {holder} is working on this sweep; wait for it to end, or pass another --out", dir = .dir.display())]
    SweepInUse {
        /// The sweep's directory.
        dir: PathBuf,
        /// The process, such as `process 123`.
        holder: String,
    },
    /// The directory holds a sweep with other settings.
    #[error("{path}: was made by a sweep with {before}, this one has {now}; pass another --out to start anew", path = .path.display())]
    SweepChanged {
        /// The study file.
        path: PathBuf,
        /// The setting as stored.
        before: String,
        /// The setting as asked for.
        now: String,
    },
    /// The study file holds something that no sweep writes.
    #[error("{path}: {problem}", path = .path.display())]
    ForeignStudy {
        /// The study file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },

    /// A file cannot be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot write output: {0}")]
    Output(#[from] io::Error),
    /// The database of a sweep.
    #[error("{path}: {source}", path = .path.display())]
    Study {
        /// The study file.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There is no plan.
    #[error(transparent)]
    Plan(JobPlanError),
    /// A device.
    #[error(transparent)]
    Session(SessionError),
    /// Training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// This machine cannot be measured.
    #[error("cannot measure this machine: {0}")]
    Profile(#[from] ProfileError),
    /// Training of a sweep stopped for a reason that is not the trial's.
    #[error("trial {trial}: {source}")]
    Trial {
        /// The trial that was being trained.
        trial: u64,
        /// The cause.
        source: Box<Error>,
    },
    /// Training stopped by an error, after a checkpoint.
    #[error(
        "{source}; stopped after step {step} of {steps}, nothing is lost; when that is mended, go on: {command}"
    )]
    Stopped {
        /// The error.
        source: Box<Error>,
        /// The last step done.
        step: u64,
        /// The last step to do.
        steps: u64,
        /// The directory of the run.
        dir: PathBuf,
        /// The command that continues the run.
        command: String,
    },

    /// Stopped on request while planning.
    #[error("interrupted while planning; nothing was started")]
    PlanningInterrupted,
    /// Stopped on request; there is nothing to go on from.
    #[error("interrupted")]
    Cancelled,
    /// Training stopped on request, after a checkpoint.
    #[error("interrupted after step {step} of {steps}; to go on: {command}")]
    Interrupted {
        /// The last step done.
        step: u64,
        /// The last step to do.
        steps: u64,
        /// The command that goes on.
        command: String,
    },
    /// A sweep stopped on request, after a checkpoint.
    #[error("interrupted after {ended} of {trials} trials; run the same command again to go on")]
    SweepInterrupted {
        /// Trials that need no more training.
        ended: u64,
        /// Trials in all.
        trials: u64,
    },
}

impl Error {
    /// Whether this is no failure but a stop that was asked for.
    pub fn is_stop(&self) -> bool {
        matches!(
            self,
            Error::PlanningInterrupted
                | Error::Cancelled
                | Error::Interrupted { .. }
                | Error::SweepInterrupted { .. }
        )
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Error {
        match error {
            SessionError::Plan(error) => error.into(),
            error => Error::Session(error),
        }
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Error {
        match error {
            PlanError::Interrupted => Error::PlanningInterrupted,
            PlanError::DoesNotFit { needed, proven, budget, holders } => {
                Error::DoesNotFit(Box::new(Advice::bare(needed, proven, budget, holders)))
            }
            error => Error::Plan(error.into()),
        }
    }
}

impl From<JobPlanError> for Error {
    fn from(error: JobPlanError) -> Error {
        match error {
            JobPlanError::Plan(error) => error.into(),
            error => Error::Plan(error),
        }
    }
}

impl From<LocalError> for Error {
    fn from(error: LocalError) -> Error {
        match error {
            LocalError::Plan(error) => error.into(),
            LocalError::Session(error) => error.into(),
        }
    }
}
