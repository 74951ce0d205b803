//! `gulliver evaluate RUN INPUTS`: how good a trained model is on files whose answers are known.

use super::trained::ModelArguments;
use crate::error::Error;
use crate::interrupt;
use crate::report::confusion::confusion;
use crate::report::progress::{examples_bar, short};
use crate::trained::Use;
use clap::Args;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Evaluates the model of a run.
#[derive(Args)]
pub struct EvaluateArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Files of the kind the model was trained on, with what is to be predicted: a table with the label column, folders
    /// named after classes, a text.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Examples that are evaluated at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Everything as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &EvaluateArguments) -> Result<(), Error> {
    let stop = interrupt::install()?;
    let mut trained = arguments.model.load(Use::Evaluate)?;
    let inputs = trained.mapping.open_inputs(&arguments.inputs)?;
    if !inputs.labelled {
        let wanted = match &trained.mapping.label_column {
            Some(column) => format!("a column `{column}`"),
            None => format!("folders named {}", trained.mapping.class_names.join(", ")),
        };
        let problem =
            format!("the answers are not in the inputs, which would need {wanted}; use gulliver predict");
        return Err(Error::Invalid(problem));
    }
    let bar = examples_bar(0);
    let mut watch = |done: u64, of: u64| {
        bar.set_length(of);
        bar.set_position(done);
        !stop.load(Ordering::Relaxed)
    };
    let scores = trained.evaluate(&inputs.set, arguments.batch as usize, &mut watch)?;
    bar.finish_and_clear();
    let scores = scores.ok_or(Error::Cancelled)?;
    let (examples, names) = (inputs.set.len(), &trained.mapping.class_names);
    let mut out = io::stdout().lock();
    if arguments.json {
        let (metrics, matrix) = (&scores.metrics, &scores.confusion);
        let all = serde_json::json!({"examples": examples, "metrics": metrics, "classes": names, "confusion": matrix});
        return Ok(writeln!(out, "{all}")?);
    }
    if let Some(matrix) = &scores.confusion {
        writeln!(out, "{}", confusion(matrix, names))?;
    }
    let metrics: Vec<String> =
        scores.metrics.iter().map(|(name, x)| format!("{name} {}", short(*x))).collect();
    Ok(writeln!(out, "{examples} examples  {}", metrics.join("  "))?)
}
