//! `gulliver oracle MODEL --cluster NAME --devices 1..1024`: how long it would take there, by every strategy;
//! `gulliver oracle --validate DIR`: how well that agrees with what others measured; and
//! `gulliver oracle --accuracy`: how good predictions of this machine's own runs were.

mod accuracy;
mod jobs;
mod validate;

use super::CommandError;
use crate::oracle::cluster_file::cluster;
use crate::oracle::models::asked;
use crate::oracle::page::{Scale, first_of_each, page, seconds};
use crate::report::table::{Column, render};
use crate::report::units;
use crate::setup::measured;
use clap::Args;
use gulliver_plan::oracle::OracleError;
use gulliver_plan::oracle::change::change;
use gulliver_plan::oracle::closed::{Estimate, Oracle};
use gulliver_plan::oracle::cluster::Cluster;
use gulliver_plan::oracle::hardware::{Accelerator, Precision};
use gulliver_plan::oracle::mixed::Way;
use gulliver_plan::oracle::network::Link;
use gulliver_plan::oracle::rank::{epoch_cost, limits, rank};
use gulliver_plan::oracle::setting::{Setting, Software};
use gulliver_plan::oracle::workload::Workload;
use gulliver_run::atomic::write_atomic;
use gulliver_run::team::cores;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

/// Says what training a model on a cluster would take.
#[derive(Args)]
pub struct Arguments {
    /// A model (see `gulliver models`), a well-known configuration such as gpt3-175b, or a job file.
    #[arg(required_unless_present_any = ["validate", "accuracy"], value_name = "MODEL|JOB")]
    model: Option<String>,
    /// Overrides a field of the job, e.g. --set train.batch=32.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    sets: Vec<String>,
    /// A cluster by name, a TOML file that describes one, or cpu for this machine.
    #[arg(long, value_name = "NAME|FILE", default_value = "cpu")]
    cluster: String,
    /// Numbers of devices: 8, or 1..1024 for powers of two, or 1,2,6.
    #[arg(long, value_name = "RANGE", default_value = "1")]
    devices: String,
    /// Samples of a step over all devices; the job's, or 16 for each device of the largest number.
    #[arg(long)]
    batch: Option<u32>,
    /// Also asks about more devices than there are samples: some of them share layers, and samples with these.
    #[arg(long)]
    split_samples: bool,
    /// Samples of an epoch; the job's data has its own.
    #[arg(long)]
    epoch: Option<f64>,
    /// Tokens of a sample, for models that read any number of them.
    #[arg(long, default_value_t = 512)]
    length: u32,
    /// fp32, tf32 or mixed; mixed where the device has it.
    #[arg(long)]
    precision: Option<String>,
    /// What runs it: pytorch, megatron, tensorflow, mxnet, chainer, ideal, gulliver.
    #[arg(long)]
    software: Option<String>,
    /// Asks about so many jobs of the model, each with a batch of its own: fused to arrays, or side by side.
    #[arg(long, value_name = "COUNT")]
    jobs: Option<u32>,
    /// Changes the cluster before asking, e.g. --what-if link=2x.
    #[arg(long, value_name = "FIELD=FACTORx")]
    what_if: Vec<String>,
    /// Strategies shown for each number of devices.
    #[arg(long, default_value_t = 8)]
    top: usize,
    /// Everything as JSON.
    #[arg(long)]
    json: bool,
    /// Writes a page with scaling curves.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Compares predictions with the published measurements of a directory.
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    validate: Option<PathBuf>,
    /// How good predictions of this machine's own runs were, by model, strategy and devices.
    #[arg(long, conflicts_with_all = ["model", "validate"])]
    accuracy: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    if let Some(dir) = &arguments.validate {
        return validate::run(dir, arguments.json);
    }
    if arguments.accuracy {
        return accuracy::run(arguments.json);
    }
    let name = arguments.model.as_deref().unwrap_or_default();
    let asked = asked(name, &arguments.sets, arguments.length)?;
    let here = arguments.cluster == "cpu";
    let mut cluster = if here { this_machine() } else { cluster(&arguments.cluster)? };
    for what in &arguments.what_if {
        change(&mut cluster, what)?;
    }
    cluster.check()?;
    let devices = numbers(&arguments.devices, cluster.size())?;
    let most = devices.iter().copied().max().unwrap_or(1);
    // Jobs have a batch each.
    let most = if arguments.jobs.is_some() { 1 } else { most };
    let mut setting = Setting::new(arguments.batch.or(asked.batch).unwrap_or(16 * most))?;
    setting.states = asked.states;
    setting.precision = match &arguments.precision {
        Some(name) => Precision::named(name)?,
        None if here => Precision::F32,
        None => Precision::Mixed,
    };
    let software = arguments.software.as_deref().unwrap_or(if here { "gulliver" } else { "pytorch" });
    setting.software = Software::named(software)?;
    let epoch = arguments.epoch.or(asked.epoch);
    setting.epoch = epoch.unwrap_or(setting.epoch);
    if let Some(jobs) = arguments.jobs {
        let workload = &asked.workload;
        let mut about = about(name, workload, &cluster, &setting, 0);
        about.pop();
        about.push(format!("{jobs} jobs of batch {} each", setting.batch));
        let (json, html) = (arguments.json, arguments.html.as_deref());
        let all = jobs::Asked {
            name,
            workload,
            cluster: &cluster,
            setting: &setting,
            jobs,
            devices: &devices,
            json,
            html,
        };
        return jobs::run(&all, &about);
    }
    if setting.batch < most && setting.batch > 0 && !arguments.split_samples {
        let (batch, devices) = (setting.batch, if setting.batch == 1 { "device" } else { "devices" });
        return Err(CommandError::Unknown(format!(
            "batch {batch} is smaller than {most} devices; give a batch of {most} or more, at most {batch} {devices}, \
             or --split-samples to let devices share samples"
        )));
    }
    let mut scales: Vec<Scale> = Vec::new();
    let mut tried = 0;
    for &count in &devices {
        let ranking = rank(&asked.workload, &cluster, count, &setting)?;
        tried += ranking.tried;
        scales.push((count, ranking.estimates));
    }
    let about = about(name, &asked.workload, &cluster, &setting, tried);
    let mut shares = Shares(Oracle::new(&asked.workload, &cluster, &setting), &asked.workload);
    if let Some(path) = &arguments.html {
        let firsts = scales.iter().flat_map(|(_, estimates)| first_of_each(estimates));
        let shared = firsts.filter_map(|one| shares.words(one));
        let about: Vec<String> = about.iter().cloned().chain(shared).collect();
        let html = page(&format!("{name} on {}", cluster.name), &about, &scales);
        let write = write_atomic(path, |out| out.write_all(html.as_bytes()));
        write.map_err(|source| CommandError::File { path: path.clone(), source })?;
    }
    let limits = limits(&asked.workload, setting.batch);
    let text = if arguments.json {
        let scales: Vec<serde_json::Value> = scales
            .iter()
            .map(|(count, estimates)| {
                let shown = estimates.iter().take(arguments.top.max(1));
                let shown: Vec<serde_json::Value> =
                    shown.map(|one| answer(one, &cluster, &setting, epoch.is_some(), &mut shares)).collect();
                serde_json::json!({ "devices": count, "strategies": shown })
            })
            .collect();
        let all = serde_json::json!({
            "model": name, "cluster": cluster.name, "batch": setting.batch, "precision": setting.precision,
            "weights": asked.workload.weights(), "configurations": tried,
            "limits": limits.iter().copied().collect::<std::collections::BTreeMap<_, _>>(), "scales": scales,
        });
        serde_json::to_string(&all).map_err(io::Error::from)? + "\n"
    } else {
        let mut text = about.join("\n") + "\n";
        for (count, estimates) in &scales {
            let _ = write!(text, "\n{}", table(*count, estimates, &cluster, &setting, epoch, arguments.top));
            let shown = first_of_each(estimates).into_iter().filter(|one| one.missing.is_none());
            for words in shown.take(arguments.top.max(1)).filter_map(|one| shares.words(one)) {
                let _ = writeln!(text, "{words}");
            }
        }
        let limits: Vec<String> = limits.iter().map(|(name, most)| format!("{name} {most}")).collect();
        let _ = writeln!(text, "\nscaling ends at: {} devices", limits.join(", "));
        text
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// This machine: each processor a device, as fast as it is found to be now.
fn this_machine() -> Cluster {
    let cores = cores() as u32;
    let device = Accelerator::cpu(measured(1), 4e9);
    let link = Link::plain(2e-6, 1.0 / 8e9);
    Cluster { name: "this machine".into(), ..Cluster::of(device, (1, cores), link.clone(), link) }
}

/// `8`, `1..64` (powers of two from the first on), or `1,2,6`; all from 1 to `most`.
fn numbers(text: &str, most: u32) -> Result<Vec<u32>, CommandError> {
    let wrong = || CommandError::Unknown(format!("--devices {text}: give 8, 1..{most} or 1,2,4"));
    let one = |part: &str| part.trim().parse::<u32>().map_err(|_| wrong());
    let all = match text.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (one(first)?, one(last.trim_start_matches('='))?);
            let doubled = std::iter::successors(Some(first.max(1)), |n| n.checked_mul(2));
            let mut all: Vec<u32> = doubled.take_while(|n| *n <= last).collect();
            if first == 0 {
                all.insert(0, 0);
            }
            all
        }
        None => text.split(',').map(one).collect::<Result<_, _>>()?,
    };
    match all.iter().find(|n| **n == 0 || **n > most) {
        _ if all.is_empty() => Err(wrong()),
        Some(&asked) => Err(OracleError::Devices { asked, most }.into()),
        None => Ok(all),
    }
}

fn about(name: &str, workload: &Workload, cluster: &Cluster, setting: &Setting, tried: usize) -> Vec<String> {
    vec![
        format!(
            "{name}: {} weights, {:.1} GFLOP forward a sample, batch {}",
            units::count(workload.weights() as u64),
            workload.flops() / 1e9,
            setting.batch
        ),
        format!(
            "{}: {} x {} a node, {} within, {} x {} between; {}",
            cluster.name,
            cluster.devices,
            cluster.device.name,
            cluster.within.name,
            cluster.adapters,
            cluster.between.name,
            setting.software.name
        ),
        format!("{} configurations tried", units::count(tried as u64)),
    ]
}

/// How the layers of a mixed cut are shared.
struct Shares<'a>(Oracle<'a>, &'a Workload);

impl Shares<'_> {
    /// Layers in a row that are shared in the same way: the way, the first and the last of them.
    fn runs(&mut self, one: &Estimate) -> Vec<(Way, &str, &str)> {
        let ways = self.0.ways(&one.strategy);
        let mut runs: Vec<(Way, &str, &str)> = Vec::new();
        for (way, layer) in ways.into_iter().zip(&self.1.layers) {
            match runs.last_mut().filter(|last| last.0 == way) {
                Some(last) => last.2 = &layer.name,
                None => runs.push((way, &layer.name, &layer.name)),
            }
        }
        runs
    }

    /// In words; nothing of other strategies.
    fn words(&mut self, one: &Estimate) -> Option<String> {
        let words = |(way, first, last): (Way, &str, &str)| {
            let to = if first == last { String::new() } else { format!(" to {last}") };
            format!("{first}{to} by {}", way.name())
        };
        let runs: Vec<String> = self.runs(one).into_iter().map(words).collect();
        (!runs.is_empty()).then(|| format!("{} shares {}", one.strategy, runs.join(", ")))
    }
}

fn answer(
    one: &Estimate,
    cluster: &Cluster,
    setting: &Setting,
    epoch: bool,
    shares: &mut Shares,
) -> serde_json::Value {
    let (money, energy) = epoch_cost(one, cluster, setting);
    let steps = (setting.epoch / setting.batch as f64).ceil();
    let mut value = serde_json::json!({
        "name": one.strategy.to_string(), "family": one.strategy.family(), "fits": one.missing.is_none(),
        "bottleneck_in_words": one.bottleneck.words(), "estimate": one,
    });
    let runs = shares.runs(one);
    if !runs.is_empty() {
        value["ways"] = serde_json::json!(runs);
    }
    if epoch {
        value["epoch"] = serde_json::json!({ "seconds": one.seconds * steps, "kwh": energy, "money": money });
    }
    value
}

/// The best of each family and, while there is room, the next best; what does not fit comes last with why.
fn table(
    count: u32,
    estimates: &[Estimate],
    cluster: &Cluster,
    setting: &Setting,
    epoch: Option<f64>,
    top: usize,
) -> String {
    let mut columns = vec![
        Column::Left("strategy"),
        Column::Right("step"),
        Column::Right("80 % of steps"),
        Column::Right("samples/s"),
        Column::Right("memory"),
    ];
    if epoch.is_some() {
        columns.extend([Column::Right("epoch"), Column::Right("kWh")]);
        if cluster.price.or(cluster.energy_price).is_some() {
            columns.push(Column::Right("money"));
        }
    }
    columns.push(Column::Left("held up by"));
    let firsts = first_of_each(estimates);
    let fits = firsts.iter().filter(|one| one.missing.is_none());
    let rows: Vec<Vec<String>> = fits
        .take(top.max(1))
        .map(|one| {
            let mut row = vec![
                one.strategy.to_string(),
                seconds(one.seconds),
                format!("{} – {}", seconds(one.interval[0]), seconds(one.interval[1])),
                format!("{:.1}", one.throughput),
                units::bytes(one.memory.device() as u64),
            ];
            if epoch.is_some() {
                let (money, energy) = epoch_cost(one, cluster, setting);
                let steps = (setting.epoch / setting.batch as f64).ceil();
                let took = std::time::Duration::from_secs_f64((one.seconds * steps).min(1e12));
                row.extend([units::duration(took), format!("{energy:.1}")]);
                row.extend(money.map(|money| format!("{money:.2}")));
            }
            row.push(one.bottleneck.words().into());
            row
        })
        .collect();
    let mut text = format!("{count} device{}\n", if count == 1 { "" } else { "s" });
    if !rows.is_empty() {
        text += &render(&columns, &rows);
    }
    for one in firsts.iter().filter(|one| one.missing.is_some()) {
        let (holder, bytes) = one.memory.largest();
        if one.memory.device() <= cluster.device.memory {
            let devices = cluster.devices.min(count) as f64;
            let _ = writeln!(
                text,
                "does not fit: {} needs {} of {} host memory of a node",
                one.strategy,
                units::bytes((one.memory.host * devices) as u64),
                units::bytes(cluster.host_memory as u64)
            );
            continue;
        }
        let _ = writeln!(
            text,
            "does not fit: {} needs {} of {}; {holder} take {}",
            one.strategy,
            units::bytes(one.memory.device() as u64),
            units::bytes(cluster.device.memory as u64),
            units::bytes(bytes as u64)
        );
    }
    text
}
