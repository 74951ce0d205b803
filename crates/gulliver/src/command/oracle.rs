//! `gulliver oracle MODEL --cluster NAME --devices 1..1024`: predicted training times by strategy.

mod answer;
mod jobs;

use crate::error::Error;
use crate::files::{check_file, write_file};
use crate::oracle::cluster_file::cluster;
use crate::oracle::models::{NamedModel, asked};
use crate::oracle::page::{Scale, first_of_each, page};
use crate::setup::measured;
use crate::units;
use answer::{Question, Shares, Training, legend_lines, meanings, round_count};
use clap::Args;
use gulliver_oracle::OracleError;
use gulliver_oracle::change::change;
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::estimate::Estimate;
use gulliver_oracle::hardware::{Accelerator, Precision};
use gulliver_oracle::network::ClusterLink;
use gulliver_oracle::oracle::Oracle;
use gulliver_oracle::rank::{limits, rank};
use gulliver_oracle::setting::{Setting, Software};
use gulliver_run::team::cores;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

/// Predict the training time of a model on a cluster, by strategy.
#[derive(Args)]
pub struct OracleArguments {
    /// A model (see `gulliver models`), such as gpt3-175b, or a job file.
    #[arg(value_name = "MODEL|JOB")]
    model: String,
    /// Override a field of the job, e.g. --set train.batch=32, or a setting of the model, e.g. --set layers=24.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    sets: Vec<String>,
    /// A cluster by name, a TOML file that describes one, or cpu for this machine.
    #[arg(long, value_name = "NAME|FILE", default_value = "cpu")]
    cluster: String,
    /// Numbers of devices: 8, or 1..1024 for powers of two, or 1,2,6.
    #[arg(long, value_name = "RANGE", default_value = "1")]
    devices: String,
    /// Samples of a step over all devices [default: the job's, or 16 for each device of the largest number].
    #[arg(long)]
    batch: Option<u32>,
    /// Also consider more devices than samples: some devices share layers and samples.
    #[arg(long)]
    split_samples: bool,
    /// Samples of an epoch [default: those of the job's data].
    #[arg(long)]
    epoch: Option<f64>,
    /// Tokens of the whole training, for models of text: adds the days it takes.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["samples", "jobs"])]
    tokens: Option<f64>,
    /// Samples of the whole training: adds the days it takes.
    #[arg(long, value_name = "COUNT", conflicts_with = "jobs")]
    samples: Option<f64>,
    /// Tokens of a sample, for models of text [default: the model's context, or 512 if it has none].
    #[arg(long)]
    length: Option<u32>,
    /// fp32, tf32 or mixed [default: mixed where the device has it].
    #[arg(long)]
    precision: Option<String>,
    /// Software that trains: pytorch, megatron, deepspeed, tensorflow, mxnet, chainer, ideal, gulliver.
    #[arg(long)]
    software: Option<String>,
    /// Consider this many jobs of the model, each with its own batch: fused to arrays, or side by side.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["split_samples", "epoch", "top"])]
    jobs: Option<u32>,
    /// Change the cluster, e.g. --what-if link=2x.
    #[arg(long, value_name = "FIELD=FACTORx")]
    what_if: Vec<String>,
    /// Strategies to show for each number of devices.
    #[arg(long, default_value_t = 8)]
    top: usize,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
    /// Write a page with scaling curves.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &OracleArguments) -> Result<(), Error> {
    if let Some(path) = &arguments.html {
        check_file(path)?;
    }
    let name = arguments.model.as_str();
    let here = arguments.cluster == "cpu";
    let software = arguments.software.as_deref().unwrap_or(if here { "gulliver" } else { "pytorch" });
    let software = Software::named(software)?;
    let asked = asked(name, &arguments.sets, arguments.length, software.kernels)?;
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
    setting.software = software;
    let epoch = arguments.epoch.or(asked.epoch);
    setting.epoch = epoch.unwrap_or(setting.epoch);
    if let Some(jobs) = arguments.jobs {
        let workload = &asked.workload;
        let mut about = about(name, &asked, &cluster, &setting, 0);
        about.push(format!("{jobs} jobs of batch {} each", setting.batch));
        let (json, html) = (arguments.json, arguments.html.as_deref());
        let all = jobs::JobsQuestion {
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
    let training = training(arguments, &asked, epoch.is_some())?;
    if setting.batch < most && setting.batch > 0 && !arguments.split_samples {
        let (batch, devices) = (setting.batch, if setting.batch == 1 { "device" } else { "devices" });
        return Err(Error::Invalid(format!(
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
    let about = about(name, &asked, &cluster, &setting, tried);
    let mut shares = Shares(Oracle::new(&asked.workload, &cluster, &setting), &asked.workload);
    let limits = limits(&asked.workload, setting.batch);
    let question = Question {
        cluster: &cluster,
        setting: &setting,
        tokens: asked.tokens,
        epoch: epoch.is_some(),
        training,
        top: arguments.top,
    };
    if let Some(path) = &arguments.html {
        let firsts = scales.iter().flat_map(|(_, estimates)| first_of_each(estimates));
        let shared = firsts.filter_map(|one| shares.words(one));
        let about: Vec<String> = about.iter().cloned().chain(shared).collect();
        let all: Vec<&Estimate> = scales.iter().flat_map(|(_, all)| first_of_each(all)).collect();
        let html = page(&format!("{name} on {}", cluster.name), &about, &scales, &meanings(&all, None));
        write_file(path, |out| out.write_all(html.as_bytes()))?;
    }
    let text = if arguments.json {
        let scales: Vec<serde_json::Value> = scales
            .iter()
            .map(|(count, estimates)| {
                let shown = estimates.iter().take(arguments.top.max(1));
                let shown: Vec<serde_json::Value> =
                    shown.map(|one| question.value(one, &mut shares)).collect();
                serde_json::json!({ "devices": count, "strategies": shown })
            })
            .collect();
        let all = serde_json::json!({
            "model": name, "cluster": cluster.name, "batch": setting.batch, "precision": setting.precision,
            "weights": asked.workload.weights(), "configurations": tried, "tokens_per_sample": asked.tokens,
            "limits": limits.iter().copied().collect::<std::collections::BTreeMap<_, _>>(), "scales": scales,
        });
        serde_json::to_string(&all).map_err(io::Error::from)? + "\n"
    } else {
        let mut text = about.join("\n") + "\n";
        for (count, estimates) in &scales {
            let _ = write!(text, "\n{}", question.text(*count, estimates, &mut shares));
        }
        let limits: Vec<String> = limits.iter().map(|(name, most)| format!("{name} {most}")).collect();
        let _ = writeln!(text, "\nmost devices that each way has a use for: {}", limits.join(", "));
        let shown: Vec<&Estimate> = scales.iter().flat_map(|(_, all)| question.shown(all)).collect();
        if !shown.is_empty() {
            let _ = write!(text, "\n{}", legend_lines(&meanings(&shown, question.training.as_ref())));
        }
        text
    };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// The amount of training: as flags say; else the model's customary amount, or a round number. None if an epoch is asked
/// about.
fn training(arguments: &OracleArguments, asked: &NamedModel, epoch: bool) -> Result<Option<Training>, Error> {
    let amount = |flag: &str, amount: f64| match amount.is_finite() && amount > 0.0 {
        true => Ok(amount),
        false => Err(Error::Invalid(format!("{flag} {amount}: give a number above 0, such as 300e9"))),
    };
    let of_tokens = |tokens: f64, each: f64| Training {
        samples: tokens / each,
        called: format!("{} tokens", round_count(tokens)),
    };
    Ok(match (arguments.tokens, arguments.samples, asked.tokens) {
        (Some(tokens), _, Some(each)) => Some(of_tokens(amount("--tokens", tokens)?, each)),
        (Some(_), _, None) => {
            return Err(Error::Invalid("--tokens: this model does not read tokens; give --samples".into()));
        }
        (None, Some(samples), _) => {
            let samples = amount("--samples", samples)?;
            Some(Training { samples, called: format!("{} samples", round_count(samples)) })
        }
        _ if epoch => None,
        (None, None, Some(each)) => Some(of_tokens(asked.customary.unwrap_or(1e9), each)),
        (None, None, None) => Some(Training { samples: 1e6, called: "1M samples".into() }),
    })
}

/// This machine: each processor a device, as fast as it is found to be now.
fn this_machine() -> Cluster {
    let cores = cores() as u32;
    let device = Accelerator::cpu(measured(1), 4e9);
    let link = ClusterLink::plain(2e-6, 1.0 / 8e9);
    Cluster { name: "this machine".into(), ..Cluster::of(device, (1, cores), link.clone(), link) }
}

/// `8`, `1..64` (powers of two from the first on), or `1,2,6`; all from 1 to `most`.
fn numbers(text: &str, most: u32) -> Result<Vec<u32>, Error> {
    let wrong = || Error::Invalid(format!("--devices {text}: give 8, 1..{most} or 1,2,4"));
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
        Some(&asked) => Err(OracleError::Count { what: "devices", asked, most }.into()),
        None => Ok(all),
    }
}

fn about(name: &str, asked: &NamedModel, cluster: &Cluster, setting: &Setting, tried: usize) -> Vec<String> {
    let workload = &asked.workload;
    let tokens = asked.tokens.map_or(String::new(), |tokens| format!(" of {tokens} tokens"));
    let precision = match setting.precision {
        Precision::F32 => "fp32",
        Precision::Tf32 => "tf32",
        Precision::Mixed => "mixed precision",
    };
    let nodes = match cluster.nodes {
        1 => String::new(),
        _ => format!("; {} x {} between nodes", cluster.adapters, cluster.between.name),
    };
    let within = match (cluster.devices, cluster.within.name.as_str()) {
        (1, _) | (_, "plain") => String::new(),
        (_, link) => format!(" linked by {link}"),
    };
    let devices = match cluster.nodes {
        1 => format!("{} x {}", cluster.devices, cluster.device.name),
        nodes => format!("{nodes} nodes of {} x {}", cluster.devices, cluster.device.name),
    };
    let mut lines = vec![
        format!(
            "{name}: {} weights, {}FLOP in the forward pass of a sample{tokens}, batch {}",
            units::count(workload.weights() as u64),
            flops(workload.flops()),
            setting.batch
        ),
        format!("{}: {devices}{within}{nodes}; {precision}, run by {}", cluster.name, setting.software.name),
    ];
    lines.extend((tried > 0).then(|| format!("{} ways to train compared", units::count(tried as u64))));
    lines
}

/// A number of operations with a prefix of its own: `8.3 G`.
fn flops(value: f64) -> String {
    let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")];
    let (size, prefix) = prefixes.into_iter().find(|(size, _)| value >= *size).unwrap_or((1e6, "M"));
    format!("{:.1} {prefix}", value / size)
}
