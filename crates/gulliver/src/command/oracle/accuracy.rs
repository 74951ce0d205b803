//! `gulliver oracle --accuracy`: predictions of this machine's own runs against what was measured.

use crate::error::Error;
use crate::history::{Standing, default_path, read, standings};
use crate::report::table::{Column, render};
use std::io::{self, Write};

/// Runs the command.
pub fn run(json: bool) -> Result<(), Error> {
    let all = default_path().map_or_else(|| Ok(Vec::new()), |path| read(&path))?;
    let found = standings(&all);
    let text = match (json, found.is_empty()) {
        (true, _) => serde_json::to_string(&found).map_err(io::Error::from)? + "\n",
        (false, true) => "no runs are remembered; `gulliver train` adds them\n".to_string(),
        (false, false) => table(&found),
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

fn table(found: &[Standing]) -> String {
    let columns = [
        Column::Left("model"),
        Column::Left("strategy"),
        Column::Right("devices"),
        Column::Left("by"),
        Column::Right("runs"),
        Column::Right("mean accuracy"),
        Column::Right("worst"),
        Column::Right("bias"),
        Column::Right("bytes as planned"),
    ];
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let row = |one: &Standing| {
        vec![
            one.model.clone(),
            one.strategy.clone(),
            one.devices.to_string(),
            if one.profile { "a profile" } else { "rough rates" }.to_string(),
            one.runs.to_string(),
            percent(one.mean),
            percent(one.worst),
            format!("{:+.1} %", 100.0 * one.bias),
            format!("{} of {}", one.exact, one.runs),
        ]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    let runs: usize = found.iter().map(|one| one.runs).sum();
    let mean = found.iter().map(|one| one.mean * one.runs as f64).sum::<f64>() / runs.max(1) as f64;
    render(&columns, &rows) + &format!("\n{runs} runs, mean accuracy {}\n", percent(mean))
}
