//! `gulliver profile`: measures the speed of this machine and writes a profile that `plan` and `train` use.

use crate::error::Error;
use crate::machine::{self, processor};
use crate::profile::{Doing, SECONDS, profile};
use crate::report::table::{self, Column};
use crate::units;
use clap::Args;
use gulliver_plan::time::cost::{Curves, Point, Profile};
use gulliver_run::team::cores;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

/// Measure the speed of this machine, in about a minute.
#[derive(Args)]
pub struct ProfileArguments {
    /// File to write [default: the one that other commands read].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Threads to measure with [default: all cores].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Seconds to measure kernels for.
    #[arg(long, default_value_t = SECONDS)]
    seconds: f64,
    /// Print the profile as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &ProfileArguments) -> Result<(), Error> {
    let path = arguments.out.clone().or_else(machine::default_path);
    let path = path.ok_or_else(|| {
        Error::Invalid("there is no directory of settings; say where with --out FILE".into())
    })?;
    let cores = arguments.threads.map_or_else(cores, usize::from);
    let mut out = io::stdout().lock();
    if !(0.0..=3600.0).contains(&arguments.seconds) {
        return Err(Error::Invalid(format!("--seconds {}: expected 0 to 3600", arguments.seconds)));
    }
    machine::make_ready(&path)?;
    let (bar, dir) = (bar(), std::env::temp_dir());
    let made = profile(cores, arguments.seconds, (&dir, processor()), &mut |doing| show(&bar, &doing))?;
    bar.finish_and_clear();
    machine::write(&path, &made)?;
    let text = if arguments.json { json(&made)? } else { render(&made) };
    out.write_all(text.as_bytes())?;
    eprintln!("written to {}", path.display());
    Ok(())
}

fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    Ok(serde_json::to_string(value).map_err(io::Error::from)? + "\n")
}

/// Drawn on terminals only; logs need no progress.
fn bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, doing: &Doing) {
    bar.set_length(doing.done[1] as u64);
    bar.set_position(doing.done[0] as u64);
    bar.set_message(doing.what.clone());
}

/// The measured rates of every operator, for each number of devices and threads.
fn render(profile: &Profile) -> String {
    let rate = |rate: f64| format!("{:.1}", rate / 1e9);
    let percent = |share: f64| format!("{:.0}%", 100.0 * share);
    let mut text = String::new();
    let columns =
        [Column::Right("threads"), Column::Right("GFLOP/s"), Column::Right("GB/s"), Column::Right("spread")];
    let rows: Vec<Vec<String>> = profile
        .scaling
        .iter()
        .map(|s| vec![s.threads.to_string(), rate(s.flops), rate(s.bytes), percent(s.spread)])
        .collect();
    text += &table::render(&columns, &rows);
    let links = profile.links;
    let per_second = |bytes: f64| units::bytes(bytes as u64) + "/s";
    text += &format!(
        "\nbetween tiers {}; disk read {}, written {}\n",
        per_second(links.to_device),
        per_second(links.disk_read),
        per_second(links.disk_write)
    );
    for curves in &profile.curves {
        text += &format!("\n{} × {} threads\n{}", curves.devices, curves.threads, operators(curves));
    }
    text
}

/// A row for each operator: the first word of its families.
fn operators(curves: &Curves) -> String {
    let columns = [
        Column::Left("operator"),
        Column::Right("points"),
        Column::Right("GFLOP/s"),
        Column::Right("GB/s"),
        Column::Right("spread"),
    ];
    let mut rows: Vec<(&str, Vec<&Point>)> = Vec::new();
    for (family, points) in &curves.families {
        let operator = family.split(' ').next().unwrap_or(family);
        match rows.last_mut() {
            Some((last, all)) if *last == operator => all.extend(points),
            _ => rows.push((operator, points.iter().collect())),
        }
    }
    let median = |mut numbers: Vec<f64>| {
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    let cells = rows.iter().map(|(operator, points)| {
        let of = |f: &dyn Fn(&Point) -> f64| median(points.iter().map(|p| f(p)).collect());
        vec![
            operator.to_string(),
            points.len().to_string(),
            format!("{:.1}", of(&|p| p.load.flops / p.seconds / 1e9)),
            format!("{:.1}", of(&|p| p.load.bytes / p.seconds / 1e9)),
            format!("{:.0}%", 100.0 * of(&|p| p.spread)),
        ]
    });
    table::render(&columns, &cells.collect::<Vec<_>>())
}
