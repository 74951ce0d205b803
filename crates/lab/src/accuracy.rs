//! `lab accuracy`: predictions of the runs of `gulliver train` on this machine against what was measured.

use crate::error::{LabError, json_line};
use clap::Args;
use gulliver::history::{RunRecord, default_path, read};
use gulliver::report::table::{Column, render};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Compares what was predicted of this machine's runs with what was measured, by model, strategy and devices.
#[derive(Args)]
pub struct AccuracyArguments {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &AccuracyArguments) -> Result<(), LabError> {
    let all = default_path().map_or_else(|| Ok(Vec::new()), |path| read(&path))?;
    let found = standings(&all);
    let text = match (arguments.json, found.is_empty()) {
        (true, _) => json_line(&found)?,
        (false, true) => "no runs are remembered; `gulliver train` adds them\n".to_string(),
        (false, false) => table(&found),
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// `1 - |predicted - measured| / measured`, not below 0.
pub fn accuracy(predicted: f64, measured: f64) -> f64 {
    (1.0 - (predicted - measured).abs() / measured).max(0.0)
}

/// How good predictions of runs of one kind were.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// The model.
    pub model: String,
    /// How devices share the work.
    pub strategy: String,
    /// Devices.
    pub devices: usize,
    /// Whether a profile predicted.
    pub profile: bool,
    /// How many runs.
    pub runs: usize,
    /// Mean accuracy of step time.
    pub mean: f64,
    /// The worst.
    pub worst: f64,
    /// How much longer predicted steps are than measured ones, as a share, on average.
    pub bias: f64,
    /// Runs whose peak and bytes were as planned.
    pub exact: usize,
}

/// By model, strategy, devices, and whether there was a profile.
pub fn standings(all: &[RunRecord]) -> Vec<Standing> {
    let mut groups: BTreeMap<(&str, &str, usize, bool), Vec<&RunRecord>> = BTreeMap::new();
    for ran in all {
        let key = (ran.model.as_str(), ran.strategy.as_str(), ran.devices, ran.profile.is_some());
        groups.entry(key).or_default().push(ran);
    }
    let standing =
        |((model, strategy, devices, profile), runs): ((&str, &str, usize, bool), Vec<&RunRecord>)| {
            let mean = |of: &dyn Fn(&RunRecord) -> f64| {
                runs.iter().map(|ran| of(ran)).sum::<f64>() / runs.len() as f64
            };
            Standing {
                model: model.to_string(),
                strategy: strategy.to_string(),
                devices,
                profile,
                runs: runs.len(),
                mean: mean(&of_run),
                worst: runs.iter().map(|ran| of_run(ran)).fold(1.0, f64::min),
                bias: mean(&|ran| ran.seconds[0] / ran.seconds[1] - 1.0),
                exact: runs.iter().filter(|ran| exact(ran)).count(),
            }
        };
    groups.into_iter().map(standing).collect()
}

fn of_run(ran: &RunRecord) -> f64 {
    accuracy(ran.seconds[0], ran.seconds[1])
}

/// Whether peak and bytes were as planned.
fn exact(ran: &RunRecord) -> bool {
    ran.peak[0] == ran.peak[1] && ran.bytes[0] == ran.bytes[1]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(model: &str, profile: Option<&str>, seconds: [f64; 2]) -> RunRecord {
        let (strategy, profile) = ("alone".to_string(), profile.map(str::to_string));
        let (devices, threads, batch, steps) = (1, 2, 8, 20);
        let (when, peak, bytes) = (1e9, [7, 7], [0, 0]);
        let model = model.to_string();
        RunRecord { when, model, strategy, devices, threads, batch, steps, profile, seconds, peak, bytes }
    }

    #[test]
    fn standings_are_by_kind_of_run() {
        let all =
            [ran("a", None, [1.0, 2.0]), ran("b", Some("p"), [1.1, 1.0]), ran("b", Some("p"), [0.7, 1.0])];
        let found = standings(&all);
        assert_eq!((found[0].model.as_str(), found[0].runs, found[0].profile), ("a", 1, false));
        assert!((found[0].mean - 0.5).abs() < 1e-9 && (found[0].bias + 0.5).abs() < 1e-9);
        assert!((found[1].mean - 0.8).abs() < 1e-9 && (found[1].worst - 0.7).abs() < 1e-9);
        assert!((found[1].bias + 0.1).abs() < 1e-9 && found[1].exact == 2);
    }
}
