//! `gulliver predict RUN INPUTS`: what a trained model makes of new files, one line for each example.

use super::trained::ModelArguments;
use crate::error::Error;
use crate::files::{check_file, write_file};
use crate::interrupt;
use crate::report::metrics::quoted;
use crate::report::progress::examples_bar;
use crate::trained::{Predicts, Trained, Use};
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Predicts with the model of a run.
#[derive(Args)]
pub struct PredictArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// New files of the kind the model was trained on: a table (its columns are found by name), images or folders
    /// of them, texts (a table, or a .txt with one a line), an .npy.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Where predictions go; standard output if not given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How they are written; as the name of the file says, if not given.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Also says the probability of every class, not only of the likeliest.
    #[arg(long)]
    probabilities: bool,
    /// Examples that are predicted at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
}

/// How predictions are written.
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
    let mut trained = arguments.model.load(Use::Predict)?;
    match trained.predicts {
        Predicts::Classes | Predicts::Numbers => {}
        Predicts::NextTokens => {
            return Err(arguments.model.refuse(&trained, "continues texts", "generate"));
        }
        Predicts::HiddenTokens => {
            return Err(arguments.model.refuse(&trained, "finds hidden tokens of texts", "evaluate"));
        }
    }
    match &arguments.out {
        Some(path) => {
            let mut failed = None;
            let written = write_file(path, |file| {
                predict(arguments, &mut trained, format, file, &stop)
                    .map_err(|e| io::Error::other(failed.insert(e).to_string()))
            });
            failed.map_or(written, Err)
        }
        None => predict(arguments, &mut trained, format, &mut io::stdout().lock(), &stop),
    }
}

fn predict(
    arguments: &PredictArguments,
    trained: &mut Trained,
    format: Format,
    out: &mut dyn Write,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let inputs = trained.mapping.open_inputs(&arguments.inputs)?;
    let count = inputs.set.len();
    let width = trained.mapping.targets.or(trained.mapping.classes).unwrap_or(0);
    let bar = examples_bar(count as u64);
    match format {
        Format::Csv => writeln!(out, "{}", header(trained, width, arguments.probabilities).join(","))?,
        Format::Npy => out.write_all(&npy_header(count, width))?,
        Format::Jsonl => {}
    }
    for first in (0..count).step_by(arguments.batch as usize) {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let indices: Vec<usize> = (first..count.min(first + arguments.batch as usize)).collect();
        let rows = trained.predict(&inputs.set.batch(&indices)?)?;
        for (i, row) in indices.iter().zip(rows) {
            let name = inputs.name(*i);
            match format {
                Format::Csv => {
                    let cells = cells(trained, &name, &row, arguments.probabilities);
                    let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
                    writeln!(out, "{}", cells.join(","))?;
                }
                Format::Jsonl => writeln!(out, "{}", object(trained, &name, &row))?,
                Format::Npy => row.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))?,
            }
        }
        bar.set_position((first + indices.len()) as u64);
    }
    bar.finish_and_clear();
    Ok(out.flush()?)
}

fn header(trained: &Trained, width: usize, probabilities: bool) -> Vec<String> {
    let mut header = vec!["input".to_string()];
    match trained.predicts {
        Predicts::Numbers if width == 1 => header.push("prediction".into()),
        Predicts::Numbers => header.extend((1..=width).map(|k| format!("prediction {k}"))),
        _ => {
            header.extend(["class", "probability"].map(String::from));
            let names = (0..width).map(|k| quoted(&trained.class_name(k)));
            header.extend(names.filter(|_| probabilities));
        }
    }
    header
}

fn likeliest(row: &[f32]) -> usize {
    // The first of equals, as training counts them.
    (0..row.len()).fold(0, |best, k| if row[k] > row[best] { k } else { best })
}

fn cells(trained: &Trained, name: &str, row: &[f32], probabilities: bool) -> Vec<String> {
    let mut cells = vec![name.to_string()];
    let numbers = row.iter().map(f32::to_string);
    match trained.predicts {
        Predicts::Numbers => cells.extend(numbers),
        _ => {
            let best = likeliest(row);
            cells.extend([trained.class_name(best), row.get(best).copied().unwrap_or_default().to_string()]);
            cells.extend(numbers.filter(|_| probabilities));
        }
    }
    cells
}

fn object(trained: &Trained, name: &str, row: &[f32]) -> serde_json::Value {
    match trained.predicts {
        Predicts::Numbers if row.len() == 1 => serde_json::json!({"input": name, "prediction": row[0]}),
        Predicts::Numbers => serde_json::json!({"input": name, "prediction": row}),
        _ => {
            let best = likeliest(row);
            let all: serde_json::Map<String, serde_json::Value> =
                row.iter().enumerate().map(|(k, p)| (trained.class_name(k), (*p).into())).collect();
            let probability = row.get(best).copied().unwrap_or_default();
            let class = trained.class_name(best);
            serde_json::json!({"input": name, "class": class, "probability": probability, "probabilities": all})
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
