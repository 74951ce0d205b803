//! Arguments that all commands on a trained model share.

use crate::error::Error;
use crate::model::{Model, ModelOptions};
use clap::Args;
use std::path::PathBuf;

/// A trained model, and what it may use of the machine.
#[derive(Args)]
pub struct ModelArguments {
    /// The directory of a run, or a file of weights that a run wrote.
    run: PathBuf,
    /// Use the weights of the best evaluation instead of the last.
    #[arg(long)]
    best: bool,
    /// Threads; all cores if not given.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl ModelArguments {
    /// Loads the model.
    pub fn load(&self) -> Result<Model, Error> {
        let threads = self.threads.map(usize::from);
        Model::load_with(&self.run, ModelOptions { best: self.best, threads })
    }
}
