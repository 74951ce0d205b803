//! `gulliver ops`: the operators, with the spec of a small case of each; all from the table.

use crate::error::Error;
use crate::report::table::{self, Column};
use clap::Args;
use gulliver_graph::graph::op::Op;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;

/// List the operators.
#[derive(Args)]
pub struct OpsArguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Name, one line of help, and spec lines of its samples.
fn rows() -> BTreeMap<&'static str, (&'static str, Vec<String>)> {
    let mut rows: BTreeMap<&'static str, (&'static str, Vec<String>)> = BTreeMap::new();
    for sample in Op::samples() {
        let def = sample.op.def();
        let row = rows.entry(def.name()).or_insert((def.help(), Vec::new()));
        if let Ok(spec) = def.spec(&sample.types()) {
            let line = spec.to_string();
            if !row.1.contains(&line) {
                row.1.push(line);
            }
        }
    }
    rows
}

/// Runs the command.
pub fn run(arguments: &OpsArguments) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let rows = rows();
    if arguments.json {
        let list =
            rows.iter().map(|(name, (help, specs))| json!({"name": name, "help": help, "specs": specs}));
        writeln!(out, "{}", serde_json::Value::Array(list.collect()))?;
        return Ok(());
    }
    let columns = [Column::Left("operator"), Column::Left("for example"), Column::Left("what it is")];
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|(name, (help, specs))| {
            vec![name.to_string(), specs.first().cloned().unwrap_or_default(), help.to_string()]
        })
        .collect();
    write!(out, "{}", table::render(&columns, &cells))?;
    Ok(())
}
