//! `gulliver generate RUN --prompt TEXT`: continues a text with a trained language model.

use super::model::ModelArguments;
use crate::error::Error;
use crate::interrupt;
use crate::model::GenerateOptions;
use clap::Args;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Continue a text with a trained language model.
#[derive(Args)]
pub struct GenerateArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The text to continue.
    #[arg(long, default_value = "\n", hide_default_value = true)]
    prompt: String,
    /// Tokens to add.
    #[arg(long, default_value_t = 200)]
    length: u64,
    /// 0 always takes the likeliest token, 1 follows the probabilities, more is more random.
    #[arg(long, default_value_t = 1.0)]
    temperature: f64,
    /// Choose among this many of the likeliest tokens; 0: among all.
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Seed of the random choices.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Runs the command.
pub fn run(arguments: &GenerateArguments) -> Result<(), Error> {
    let stop = interrupt::install()?;
    let GenerateArguments { length, temperature, top_k, seed, .. } = *arguments;
    let options = GenerateOptions { length, temperature, top_k, seed };
    let mut model = arguments.model.load()?;
    let mut out = io::stdout().lock();
    model.generate_each(&arguments.prompt, &options, &mut |piece| {
        write!(out, "{piece}")?;
        out.flush()?;
        Ok(if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(writeln!(out)?)
}
