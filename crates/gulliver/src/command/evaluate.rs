//! `gulliver evaluate RUN INPUTS`: measures a trained model on files whose answers are known.

use super::model::ModelArguments;
use crate::error::Error;
use crate::interrupt;
use crate::report::confusion::confusion;
use crate::report::table::short;
use crate::report::terminal::examples_bar;
use clap::Args;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Measure a trained model on files whose answers are known.
#[derive(Args)]
pub struct EvaluateArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Files of the kind the model was trained on, with the answers: a table with the label column, folders named after
    /// classes, a text.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Examples computed at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &EvaluateArguments) -> Result<(), Error> {
    let stop = interrupt::install()?;
    let mut model = arguments.model.load()?;
    let bar = examples_bar(0);
    let mut on_batch = |done: u64, of: u64| {
        bar.set_length(of);
        bar.set_position(done);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let scores = model.evaluate(&arguments.inputs, arguments.batch as usize, &mut on_batch)?;
    bar.finish_and_clear();
    let scores = scores.ok_or(Error::Cancelled)?;
    let names = &model.mapping.class_names;
    let mut out = io::stdout().lock();
    if arguments.json {
        let (examples, metrics, matrix) = (scores.examples, &scores.metrics, &scores.confusion);
        let all = serde_json::json!({"examples": examples, "metrics": metrics, "classes": names, "confusion": matrix});
        return Ok(writeln!(out, "{all}")?);
    }
    if let Some(matrix) = &scores.confusion {
        writeln!(out, "{}", confusion(matrix, names))?;
    }
    let metrics: Vec<String> =
        scores.metrics.iter().map(|(name, x)| format!("{name} {}", short(*x))).collect();
    Ok(writeln!(out, "{} examples  {}", scores.examples, metrics.join("  "))?)
}
