//! The commands. Each is a file with its arguments and a `run` function.

pub mod evaluate;
pub mod generate;
mod model;
pub mod models;
pub mod ops;
pub mod oracle;
pub mod plan;
pub mod predict;
pub mod profile;
mod several;
pub mod sweep;
pub mod train;

use crate::error::JobError;
use crate::job::{Job, Override};
use gulliver_plan::devices::strategy::{self, AUTO, STRATEGIES};
use std::path::PathBuf;

fn strategy_help() -> String {
    format!("How devices share the work: {}", strategy::names().join(", "))
}

fn strategy_table() -> String {
    let mut text = String::from("How devices share the work:");
    let auto = (AUTO, "the fastest by prediction, of those with the results of one device", false);
    let rows = STRATEGIES.map(|strategy| (strategy.name, strategy.help, strategy.divides_sums));
    for (name, help, divides_sums) in std::iter::once(auto).chain(rows) {
        let rounding = if divides_sums { "; sums may be rounded differently" } else { "" };
        text += &format!("\n  {name:<13} {help}{rounding}");
    }
    text
}

/// A job file, and flags that override its fields.
#[derive(clap::Args, Clone, Debug)]
pub struct JobArguments {
    /// The job file.
    job: PathBuf,
    /// Override a field of the job, e.g. --set train.batch=32.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    sets: Vec<String>,
    /// Number of devices and the memory budget of each: 4x256MiB, or 4 without a budget.
    #[arg(long, value_name = "COUNT[xSIZE]", conflicts_with = "memory")]
    devices: Option<String>,
    #[arg(long, value_name = "NAME", help = strategy_help(), long_help = strategy_table())]
    strategy: Option<String>,
    /// Memory budget of the device, e.g. 256MiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Budget of host memory for values that do not fit on the device; 0 uses none.
    #[arg(long, value_name = "SIZE")]
    host_memory: Option<String>,
    /// Budget of a file for values that fit neither on the device nor in host memory.
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// The profile of the machine, as `gulliver profile` wrote it [default: its usual file].
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

impl JobArguments {
    /// Reads the job. `more` are fields with the flags that set them and their values; they win over `--set`.
    fn load<'f>(&self, more: impl IntoIterator<Item = (&'f str, &'f str, String)>) -> Result<Job, JobError> {
        let mut overrides: Vec<Override> = self.sets.iter().cloned().map(Override::from).collect();
        let mut add = |field: &str, value: &str, flag: &str, given: &str| {
            overrides
                .push(Override { text: format!("{field}={value}"), flag: Some(format!("{flag} {given}")) });
        };
        if let Some(text) = &self.devices {
            let (count, memory) =
                text.split_once(['x', '×']).map_or((text.as_str(), None), |(n, m)| (n, Some(m)));
            add("devices.count", count, "--devices", text);
            if let Some(memory) = memory {
                add("devices.memory", memory, "--devices", text);
            }
        }
        let others = [
            ("train.strategy", "--strategy", &self.strategy),
            ("devices.memory", "--memory", &self.memory),
            ("devices.host_memory", "--host-memory", &self.host_memory),
            ("devices.disk", "--disk", &self.disk),
        ];
        for (field, flag, given) in others {
            if let Some(given) = given {
                add(field, given, flag, given);
            }
        }
        for (field, flag, given) in more {
            add(field, &given, flag, &given);
        }
        Job::load_with(&self.job, overrides)
    }
}
