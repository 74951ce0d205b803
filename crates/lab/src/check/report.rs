//! `lab check`: a row for every job and strategy, and what they come to.

use crate::check::cases::{CheckCase, JOBS, SlowLinks, cases};
use crate::check::part::StepPart;
use crate::check::{CheckOptions, CheckedJob, CheckedStrategy, FreshCurves, check};
use crate::error::{LabError, json_line};
use crate::refine::profile_path;
use clap::Args;
use gulliver::machine;
use gulliver::report::table::{self, Column};
use gulliver::units;
use gulliver_plan::time::cost::MachineProfile;
use gulliver_run::team::cores;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

/// Trains jobs that no profile is made from, with every strategy, and compares their steps with predictions.
#[derive(Args)]
pub struct CheckArguments {
    /// The profile that predicts; the one that other commands look for if not given.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Threads to train with; all cores unless told otherwise.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Only jobs of these models.
    #[arg(long, value_name = "MODEL,…", value_delimiter = ',')]
    models: Vec<String>,
    /// Measures the machine in turns with the jobs, so that changes of its speed are no error of the prediction. The
    /// profile's file stays as it is.
    #[arg(long)]
    fresh: bool,
    /// How many turns each job has: more turns average over what else the machine does.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Also prints where the time of steps goes, predicted and measured.
    #[arg(long)]
    parts: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &CheckArguments) -> Result<(), LabError> {
    let profile = machine::read(&profile_path(arguments.profile.as_ref())?)?;
    let cores = arguments.threads.map_or_else(cores, usize::from);
    let all = compare(&profile, cores, arguments)?;
    let text = if arguments.json { json_line(&all)? } else { rendered(&all) };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// Regret that is nobody's fault: two strategies as good as equal.
const EQUAL: f64 = 0.03;

/// A part of a step that is off by a smaller share of it is not told of.
const PART: f64 = 0.01;

/// Trains what is to be compared; with `--fresh`, the machine is measured meanwhile.
fn compare(
    profile: &MachineProfile,
    cores: usize,
    arguments: &CheckArguments,
) -> Result<Vec<CheckedJob>, LabError> {
    let models = &arguments.models;
    if let Some(name) = models.iter().find(|name| JOBS.iter().all(|job| job.model != **name)) {
        let mut known: Vec<&str> = JOBS.iter().map(|job| job.model).collect();
        known.dedup();
        return Err(LabError::Argument(format!("--models {name}: expected {}", known.join(", "))));
    }
    let cases = cases(cores, models);
    let mut all = Vec::new();
    let mut wanted = CheckOptions {
        rounds: usize::from(arguments.rounds),
        parts: arguments.parts,
        fresh: arguments.fresh.then(FreshCurves::default),
    };
    for of_one in cases.chunk_by(|a, b| a.probe == b.probe) {
        let groups = check(of_one, profile, &mut wanted)?;
        groups.iter().for_each(|group| eprint!("{}", lines(group)));
        all.extend(groups);
    }
    Ok(all)
}

/// A row for every job and strategy, then what they come to.
fn rendered(all: &[CheckedJob]) -> String {
    let columns = [
        Column::Left("model"),
        Column::Right("batch"),
        Column::Right("devices"),
        Column::Left("links"),
        Column::Left("strategy"),
        Column::Right("predicted ms"),
        Column::Right("measured ms"),
        Column::Right("spread"),
        Column::Right("accuracy"),
        Column::Right("peak"),
        Column::Right("over links"),
        Column::Left("bytes as planned"),
    ];
    let row = |(group, one): (&CheckedJob, &CheckedStrategy)| {
        let case = &group.case;
        vec![
            case.probe.model.to_string(),
            case.probe.sizes[0].to_string(),
            format!("{}×{}", case.devices, case.threads),
            case.wires.map_or("free", |wires: SlowLinks| wires.name).to_string(),
            one.strategy.to_string(),
            format!("{:.2}", 1e3 * one.predicted),
            format!("{:.2}", 1e3 * one.measured),
            percent(one.spread),
            percent(one.accuracy()),
            units::bytes(one.peak[1]),
            units::bytes(one.bytes[1]),
            if one.exact { "yes" } else { "no" }.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = every(all).map(row).collect();
    let mut text = table::render(&columns, &rows) + "\n";
    let unable = all.iter().flat_map(|group| group.unable.iter().map(move |one| (group.case, one)));
    let said: BTreeSet<String> = unable
        .map(|(case, (strategy, why))| {
            format!("{} on {} devices, {strategy}: {why}\n", case.probe.model, case.devices)
        })
        .collect();
    text.extend(said);
    text + &summary(all)
}

/// One job, a line for each strategy, printed as soon as it is known.
fn lines(group: &CheckedJob) -> String {
    let CheckCase { probe, devices, threads, .. } = group.case;
    let links = group.case.wires.map_or("free", |wires| wires.name);
    let line = |one: &CheckedStrategy| {
        let [predicted, measured] = [one.predicted, one.measured].map(|seconds| 1e3 * seconds);
        format!(
            "{} {} {devices}×{threads} {links} {}: predicted {predicted:.2} ms, measured {measured:.2} ms, {}\n",
            probe.model,
            probe.sizes[0],
            one.strategy,
            percent(one.accuracy()),
        ) + &parts(one)
    };
    group.all.iter().map(line).collect()
}

/// StepParts that matter of where the time of steps went, if that is known.
fn parts(one: &CheckedStrategy) -> String {
    let matters = |part: &&StepPart| (part.predicted - part.measured).abs() > PART * one.measured;
    let line = |part: &StepPart| {
        let [predicted, measured] = [part.predicted, part.measured].map(|seconds| 1e3 * seconds);
        format!("    {}: predicted {predicted:.2} ms, measured {measured:.2} ms\n", part.family)
    };
    one.parts.iter().filter(matters).map(line).collect()
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// All that was compared, with the job it belongs to.
fn every(all: &[CheckedJob]) -> impl Iterator<Item = (&CheckedJob, &CheckedStrategy)> {
    all.iter().flat_map(|group| group.all.iter().map(move |one| (group, one)))
}

fn summary(all: &[CheckedJob]) -> String {
    let accuracies: Vec<f64> = every(all).map(|(_, one)| one.accuracy()).collect();
    let mean = accuracies.iter().sum::<f64>() / accuracies.len().max(1) as f64;
    let worst = accuracies.iter().copied().fold(1.0, f64::min);
    let spread = every(all).map(|(_, one)| one.spread).sum::<f64>() / accuracies.len().max(1) as f64;
    let exact = every(all).filter(|(_, one)| one.exact).count();
    let unsure = every(all).map(|(_, one)| one.unsure).sum::<f64>() / accuracies.len().max(1) as f64;
    let groups = all.iter().filter(|group| group.all.len() > 1);
    let ranked: Vec<[f64; 2]> = groups.map(|group| [group.regret(), group.unsure()]).collect();
    let good = ranked.iter().filter(|[regret, _]| *regret <= EQUAL).count();
    let [most, more] = ranked.iter().copied().max_by(|a, b| a[0].total_cmp(&b[0])).unwrap_or_default();
    format!(
        "step time of {count} cases: mean accuracy {}, worst {}; what was measured has a mean spread of {}, a standard error of {}\n\
         peaks and bytes over links as planned: {exact} of {count}\n\
         fastest strategy ranked first, or within {} of it: {good} of {}; largest regret {} ± {}\n",
        percent(mean),
        percent(worst),
        percent(spread),
        percent(unsure),
        percent(EQUAL),
        ranked.len(),
        percent(most),
        percent(more),
        count = accuracies.len(),
    )
}
