//! `gulliver predict RUN INPUTS`: the predictions of a trained model for new files, one line for each example.

use super::model::ModelArguments;
use crate::error::Error;
use crate::files::{check_file, write_file};
use crate::interrupt;
use crate::model::{Model, Prediction, Predicts};
use crate::report::table::csv_field;
use crate::report::terminal::examples_bar;
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Predict classes or numbers for new files with a trained model.
#[derive(Args)]
pub struct PredictArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// New files of the kind the model was trained on: a table (its columns are found by name), images or folders
    /// of them, texts (a table, or a .txt with one a line), an .npy.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// File for the predictions [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Format of the predictions [default: that of the file's name, or csv].
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Also write the probability of every class.
    #[arg(long)]
    probabilities: bool,
    /// Examples computed at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
}

/// The format of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table with a header.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// A NumPy array: a row for each example, with the probability of every class or the numbers.
    Npy,
}

/// Runs the command.
pub fn run(arguments: &PredictArguments) -> Result<(), Error> {
    let stop = interrupt::install()?;
    let extension = arguments.out.as_ref().and_then(|path| path.extension()).map(|e| e.to_string_lossy());
    let format = arguments.format.unwrap_or(match extension.as_deref() {
        Some("jsonl" | "json") => Format::Jsonl,
        Some("npy") => Format::Npy,
        _ => Format::Csv,
    });
    if let Some(path) = &arguments.out {
        check_file(path)?;
    }
    let mut model = arguments.model.load()?;
    model.check_predicts()?;
    match &arguments.out {
        Some(path) => {
            let mut failed = None;
            let written = write_file(path, |file| {
                predict(arguments, &mut model, format, file, &stop)
                    .map_err(|e| io::Error::other(failed.insert(e).to_string()))
            });
            failed.map_or(written, Err)
        }
        None => predict(arguments, &mut model, format, &mut io::stdout().lock(), &stop),
    }
}

fn predict(
    arguments: &PredictArguments,
    model: &mut Model,
    format: Format,
    out: &mut dyn Write,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let inputs = model.open_inputs(&arguments.inputs)?;
    let (names, numbers) = (model.class_names(), model.predicts == Predicts::Numbers);
    let bar = examples_bar(inputs.set.len() as u64);
    match format {
        Format::Csv => writeln!(out, "{}", header(&names, numbers, model.width(), arguments.probabilities))?,
        Format::Npy => out.write_all(&npy_header(inputs.set.len(), model.width()))?,
        Format::Jsonl => {}
    }
    let complete = model.predict_each(&inputs, arguments.batch as usize, &mut |prediction| {
        let names = (!numbers).then_some(&names[..]);
        match format {
            Format::Csv => writeln!(out, "{}", row(names, &prediction, arguments.probabilities))?,
            Format::Jsonl => writeln!(out, "{}", object(names, &prediction))?,
            Format::Npy => prediction.values.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))?,
        }
        bar.inc(1);
        Ok(if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    bar.finish_and_clear();
    if !complete {
        return Err(Error::Cancelled);
    }
    Ok(out.flush()?)
}

fn header(names: &[String], numbers: bool, width: usize, probabilities: bool) -> String {
    let mut header = vec!["input".to_string()];
    match numbers {
        true if width == 1 => header.push("prediction".into()),
        true => header.extend((1..=width).map(|k| format!("prediction {k}"))),
        false => {
            header.extend(["class", "probability"].map(String::from));
            header.extend(names.iter().map(|name| csv_field(name)).filter(|_| probabilities));
        }
    }
    header.join(",")
}

/// The name of class `k`; a model may tell more classes apart than its data had.
fn name_of(names: &[String], k: usize) -> String {
    names.get(k).cloned().unwrap_or_else(|| k.to_string())
}

/// A prediction as a row of CSV; `names` are those of classes, none where numbers are predicted.
fn row(names: Option<&[String]>, prediction: &Prediction, probabilities: bool) -> String {
    let mut cells = vec![csv_field(&prediction.input)];
    let values = prediction.values.iter().map(f32::to_string);
    match names {
        None => cells.extend(values),
        Some(names) => {
            let (best, probability) = prediction.likeliest();
            cells.extend([csv_field(&name_of(names, best)), probability.to_string()]);
            cells.extend(values.filter(|_| probabilities));
        }
    }
    cells.join(",")
}

fn object(names: Option<&[String]>, prediction: &Prediction) -> serde_json::Value {
    let Prediction { input, values } = prediction;
    match names {
        None if values.len() == 1 => serde_json::json!({"input": input, "prediction": values[0]}),
        None => serde_json::json!({"input": input, "prediction": values}),
        Some(names) => {
            let (best, probability) = prediction.likeliest();
            let all: serde_json::Map<String, serde_json::Value> =
                values.iter().enumerate().map(|(k, &p)| (name_of(names, k), p.into())).collect();
            let class = name_of(names, best);
            serde_json::json!({"input": input, "class": class, "probability": probability, "probabilities": all})
        }
    }
}

/// The beginning of an `.npy` file of f32 `[rows, columns]`.
fn npy_header(rows: usize, columns: usize) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // The data starts at a multiple of 64 bytes.
    while !(10 + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
}
