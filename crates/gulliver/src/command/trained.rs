//! Arguments that all commands on a trained model share.

use crate::error::Error;
use crate::run_dir::BEST;
use crate::trained::{Trained, Use};
use clap::Args;
use gulliver_run::session::SessionOptions;
use gulliver_run::team::cores;
use std::path::PathBuf;

/// A trained model, and what it may use of the machine.
#[derive(Args)]
pub struct ModelArguments {
    /// The directory of a run, or a file of weights that a run wrote.
    run: PathBuf,
    /// Uses the weights of the best evaluation instead of the last.
    #[arg(long)]
    best: bool,
    /// Threads; all cores if not given.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl ModelArguments {
    /// Loads the model.
    pub fn load(&self, using: Use) -> Result<Trained, Error> {
        let file = match (self.best, self.run.is_dir()) {
            (true, false) => {
                let problem = format!("--best needs the directory of a run, not {}", self.run.display());
                return Err(Error::Invalid(problem));
            }
            (true, true) => self.run.join(BEST),
            (false, _) => self.run.clone(),
        };
        let threads = self.threads.map_or_else(cores, usize::from);
        Trained::load(&file, using, SessionOptions { threads, ..SessionOptions::default() })
    }

    /// Says that the model is of another kind than a command needs.
    pub fn refuse(&self, trained: &Trained, does: &str, instead: &str) -> Error {
        let (path, model) = (self.run.display(), &trained.model.name);
        Error::Invalid(format!("{path}: {model} {does}; use gulliver {instead}"))
    }
}
