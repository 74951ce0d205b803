//! Sweeps: many trainings of one job with different settings. `file` and `space` say what is tried, `search` what
//! is tried next, `run` and `array` train it as widely as `width` says, `store` remembers it, `drive` is the loop around
//! them and `report` shows it. Before that, `metric` checks what trials are compared by, and `plan` says what would be
//! trained together and how long it would take, from what `rehearse` measures and `forecast` adds up.

pub mod array;
pub mod drive;
pub mod file;
pub mod forecast;
pub mod metric;
pub mod plan;
mod rehearse;
pub mod report;
pub mod run;
pub mod search;
pub mod space;
pub mod store;
pub mod width;

use crate::command::CommandError;
use crate::job::JobError;
use std::io;
use std::path::PathBuf;

/// Why a sweep stopped. What one trial cannot do is not here: that trial fails, and the others go on.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The sweep file, or a job file.
    #[error(transparent)]
    File(#[from] JobError),
    /// Somebody else is at it.
    #[error("{dir}: {holder} is working on this sweep; wait for it to end, or pass another --out", dir = .dir.display())]
    Taken {
        /// The sweep's directory.
        dir: PathBuf,
        /// Who, such as `process 123`.
        holder: String,
    },
    /// The sweep that is there is another one.
    #[error("{path}: was made by a sweep with {before}, this one has {now}; pass another --out to start anew", path = .path.display())]
    Changed {
        /// The study.
        path: PathBuf,
        /// What it was.
        before: String,
        /// What it is.
        now: String,
    },
    /// The study file.
    #[error("{path}: {source}", path = .path.display())]
    Store {
        /// The study.
        path: PathBuf,
        /// What happened.
        source: rusqlite::Error,
    },
    /// The study file holds something we did not write.
    #[error("{path}: {problem}", path = .path.display())]
    Foreign {
        /// The study.
        path: PathBuf,
        /// What.
        problem: String,
    },
    /// Another file.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// Not one trial could be trained.
    #[error("all {trials} trials failed; {count} of them because {reason}")]
    AllFailed {
        /// Trials.
        trials: u64,
        /// How many of them have the commonest reason.
        count: u64,
        /// The commonest reason.
        reason: String,
    },
    /// Training stopped for a reason that is not the trial's.
    #[error("trial {trial}: {source}")]
    Machine {
        /// The trial that was being trained.
        trial: u64,
        /// What happened.
        source: Box<CommandError>,
    },
    /// Standard output.
    #[error("cannot write output: {0}")]
    Output(#[source] io::Error),
}
