//! `lab validate DIR`: the oracle's predictions against the published measurements of a directory.

pub mod csv;
pub mod models;
pub mod paradl;
pub mod score;
pub mod truth;

use crate::error::{LabError, json_line};
use clap::Args;
use csv::CsvTable;
use gulliver::files::read_text;
use gulliver::oracle::page::seconds;
use gulliver::report::table::{Column, render};
use score::{ComparedRow, Score, score};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use truth::{TruthPart, UNDOUBTED, parts};

/// Much larger than any published file.
const MOST_BYTES: u64 = 256 << 20;

/// Misses that are listed for each part that tests.
const WORST: usize = 3;

/// Compares the oracle's predictions with published measurements.
#[derive(Args)]
pub struct ValidateArguments {
    /// A directory of CSV files; docs/oracle.md describes their formats.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// A part of a file, and its score.
struct Scored {
    file: String,
    part: TruthPart,
    score: Score,
}

/// Reads every file of the directory, and prints how well each was predicted.
pub fn run(arguments: &ValidateArguments) -> Result<(), LabError> {
    let dir = arguments.dir.as_path();
    let failed = |path: &Path, source| LabError::File { path: path.to_path_buf(), source };
    let listed = std::fs::read_dir(dir).map_err(|source| failed(dir, source))?;
    let mut files: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "csv"));
    files.sort();
    let beside = |name: &str| Some(CsvTable::parse(&read_text(&dir.join(name), "it", MOST_BYTES).ok()?));
    let (mut scored, mut unknown) = (Vec::new(), Vec::new());
    for path in &files {
        let table = CsvTable::parse(&read_text(path, "a file of measurements", MOST_BYTES)?);
        let file = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        match parts(path, &table, &beside) {
            Some(parts) => scored.extend(parts.into_iter().map(|part| Scored {
                file: file.clone(),
                score: score(&part.cases),
                part,
            })),
            None => unknown.push(file),
        }
    }
    if scored.is_empty() {
        return Err(LabError::Argument(format!(
            "{}: no file of a known format; formats are described in docs/oracle.md",
            dir.display()
        )));
    }
    let text = if arguments.json { as_json(&scored, &unknown)? } else { as_text(&scored, &unknown) };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |share| format!("{:.1} %", 100.0 * share))
}

fn as_text(scored: &[Scored], unknown: &[String]) -> String {
    let columns = [
        Column::Left("file"),
        Column::Left("part"),
        Column::Right("rows"),
        Column::Right("error"),
        Column::Right("bias"),
        Column::Right("in interval"),
        Column::Right("tau"),
        Column::Right("regret"),
        Column::Right("oom precision"),
        Column::Right("recall"),
        Column::Left("peer"),
    ];
    let rows: Vec<Vec<String>> = scored
        .iter()
        .map(|Scored { file, part, score }| {
            let peer = match (score.peer, part.published) {
                (Some((theirs, ours, rows)), _) => {
                    format!("{:.1} %, ours {:.1} %, on {rows} rows", 100.0 * theirs, 100.0 * ours)
                }
                (None, Some(theirs)) => format!("{:.2} % published", 100.0 * theirs),
                (None, None) => "–".into(),
            };
            vec![
                file.clone(),
                part.name.to_string(),
                score.rows.to_string(),
                percent(score.error),
                percent(score.bias),
                percent(score.within),
                score.tau.map_or("–".into(), |tau| format!("{tau:.2}")),
                percent(score.regret),
                percent(score.precision),
                percent(score.recall),
                peer,
            ]
        })
        .collect();
    let mut text = render(&columns, &rows);
    for Scored { file, part, .. } in scored.iter().filter(|one| one.part.skipped > 0) {
        let _ =
            writeln!(text, "{file}: {} rows of {} say too little to be asked about", part.skipped, part.name);
    }
    for file in unknown {
        let _ = writeln!(text, "{file}: skipped, no measurements of a known format");
    }
    text += "\nworst misses of rows that nothing was fitted on\n";
    let columns = [
        Column::Left("file"),
        Column::Left("row"),
        Column::Right("measured"),
        Column::Right("predicted"),
        Column::Right("error"),
    ];
    let mut rows = Vec::new();
    let told = |one: &&Scored| one.part.name.starts_with("test") && one.part.name != UNDOUBTED;
    for Scored { file, part, .. } in scored.iter().filter(told) {
        for (error, case) in worst(&part.cases).into_iter().take(WORST) {
            rows.push(vec![
                file.clone(),
                case.label.clone(),
                figure(case.measured.unwrap_or(0.0)),
                figure(case.predicted),
                format!("{:+.0} %", 100.0 * error),
            ]);
        }
    }
    text + &render(&columns, &rows)
}

/// Seconds, or bytes where a part is about memory.
fn figure(value: f64) -> String {
    if value > 1e8 { format!("{:.1} GB", value / 1e9) } else { seconds(value) }
}

/// Cases by how far they are off, the farthest first.
fn worst(cases: &[ComparedRow]) -> Vec<(f64, &ComparedRow)> {
    let mut all: Vec<(f64, &ComparedRow)> =
        cases.iter().filter_map(|case| Some((case.error()?, case))).collect();
    all.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
    all
}

fn as_json(scored: &[Scored], unknown: &[String]) -> Result<String, LabError> {
    let files: Vec<serde_json::Value> = scored
        .iter()
        .map(|Scored { file, part, score }| {
            let mut cases: Vec<&ComparedRow> = worst(&part.cases).into_iter().map(|(_, case)| case).collect();
            cases.extend(part.cases.iter().filter(|case| case.error().is_none()));
            serde_json::json!({
                "file": file, "part": part.name, "score": score, "published": part.published,
                "skipped": part.skipped, "cases": cases,
            })
        })
        .collect();
    let all = serde_json::json!({ "files": files, "skipped": unknown });
    json_line(&all)
}
