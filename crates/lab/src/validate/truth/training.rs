//! Measured training steps: GPT over tensor, pipeline and data parallel grids; convolutional networks over
//! data, space and filters; and GPT with what memory it took.

use super::{ComparedRow, CsvTable, TruthPart, UNDOUBTED};
use crate::validate::csv::CsvRow;
use crate::validate::models::{Decoder, Known, alexnet, cosmoflow, gpt, resnet, vgg16};
use gulliver_oracle::OracleError;
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::estimate::Estimate;
use gulliver_oracle::from_graph::KernelStyle;
use gulliver_oracle::hardware::{GIB, Precision};
use gulliver_oracle::oracle::estimate;
use gulliver_oracle::setting::{Setting, Software};
use gulliver_oracle::strategy::{ClusterStrategy, Cut, Recompute};
use gulliver_oracle::workload::Workload;

/// vTrain's mean error on its own single-node rows, as its authors publish it.
const VTRAIN: f64 = 0.0837;
/// Devices up to which rows of a grid calibrate.
const CALIBRATES: u32 = 2;

/// GPT on A100: full recomputation, one forward and one backward in turn.
pub fn grid(table: &CsvTable) -> Vec<TruthPart> {
    let mut parts = [TruthPart::new("calibration", Vec::new()), TruthPart::new("test", Vec::new())];
    parts[1].published = Some(VTRAIN);
    let mut known = Known::default();
    for row in table.rows() {
        let mut asked = || -> Option<Result<Estimate, OracleError>> {
            let sizes =
                [row.count("hidden")?, row.count("layers")?, row.count("heads")?, row.count("seq_len")?];
            let [hidden, layers, heads, length] = sizes;
            let workload = known.find(format!("{sizes:?}"), || gpt(hidden, layers, heads, length, 50257))?;
            let strategy = ClusterStrategy { recompute: Recompute::Full, ..three_dimensional(&row)? };
            let batch = row.count("global_batch")?;
            let answer = Cluster::named("dgx-a100").and_then(|cluster| {
                let software = Software::named("deepspeed")?;
                let setting = Setting { software, ..Setting::new(batch)? };
                estimate(workload, &cluster, &strategy, &setting)
            });
            Some(answer)
        };
        let at = usize::from(row.count("gpus").is_some_and(|gpus| gpus > CALIBRATES));
        match (asked(), row.number("iter_time_ms")) {
            (Some(Ok(answer)), Some(time)) => parts[at].cases.push(ComparedRow {
                label: row.line(&[
                    "gpus",
                    "global_batch",
                    "micro_batch",
                    "hidden",
                    "layers",
                    "tp",
                    "dp",
                    "pp",
                ]),
                group: row.line(&["gpus", "global_batch", "hidden", "layers", "heads", "seq_len"]),
                measured: Some(time * 1e-3),
                predicted: answer.seconds,
                interval: Some(answer.interval),
                peer: None,
                out_of_memory: None,
            }),
            _ => parts[at].skipped += 1,
        }
    }
    parts.into()
}

fn three_dimensional(row: &CsvRow) -> Option<ClusterStrategy> {
    let ways = row.count("tp")?;
    Some(ClusterStrategy {
        data: row.count("dp")?,
        ways,
        cut: if ways > 1 { Cut::Tensor } else { Cut::Whole },
        stages: row.count("pp")?,
        ..ClusterStrategy::serial(row.count("micro_batch")?)
    })
}

/// Networks that the rows name, and what ParaDL calls them.
fn network(name: &str) -> Option<(Workload, &'static str)> {
    const SIZE: u32 = 226;
    Some(match name {
        "alexnet" => (alexnet(SIZE)?, "AlexNet"),
        "resnet" | "resnet50" => (resnet(&[3, 4, 6, 3], SIZE)?, "ResNet50"),
        "resnet152" => (resnet(&[3, 8, 36, 3], SIZE)?, "ResNet152"),
        "vgg" | "vgg16" => (vgg16(SIZE)?, "VGG16"),
        "cosmoflow" => (cosmoflow()?, "CosmoFlow"),
        _ => return None,
    })
}

/// Convolutional networks in Chainer on ABCI, four V100 a node; groups of four share space or filters.
pub fn cnn(table: &CsvTable, projections: Option<&CsvTable>) -> Vec<TruthPart> {
    let [mut all, mut undoubted] = ["test", UNDOUBTED].map(|name| TruthPart::new(name, Vec::new()));
    for row in table.rows() {
        match cnn_case(&row, projections) {
            Some(case) => {
                undoubted.cases.extend(Some(case.clone()).filter(|_| !is_doubted(&row)));
                all.cases.push(case);
            }
            None => all.skipped += 1,
        }
    }
    vec![all, undoubted]
}

/// Rows of which it is known that loading data, the network or the interpreter took what no form knows of: they are up to
/// ten times slower than their neighbours.
fn is_doubted(row: &CsvRow) -> bool {
    let disturbed = (128..=512).contains(&row.count("gpus").unwrap_or(0));
    match row.text("model").to_lowercase().as_str() {
        "alexnet" => true,
        "resnet" | "resnet50" if disturbed => true,
        _ => row.text("strategy").contains('+'),
    }
}

fn cnn_case(row: &CsvRow, projections: Option<&CsvTable>) -> Option<ComparedRow> {
    let model = row.text("model").to_lowercase();
    let (workload, theirs) = network(&model)?;
    let gpus = row.count("gpus")?;
    let named = row.text("strategy");
    let batch = match row.number("global_batch") {
        Some(batch) => batch as u32,
        // A sample for every four devices.
        None if model == "cosmoflow" => gpus / 4,
        None => return None,
    };
    let family = named.split('(').next().unwrap_or(named);
    let shared = gpus.min(4);
    let (cut, data, projected) = match family {
        "data" => (Cut::Whole, gpus, ["data", "single"]),
        "spatial" => (Cut::Spatial, 1, ["spatial", "ds"]),
        "data+spatial" => (Cut::Spatial, gpus / shared, ["ds", "ds"]),
        "filter" => (Cut::Filter, 1, ["filter3", "filter"]),
        "channel" => (Cut::Channel, 1, ["chan3", "channel"]),
        "data+filter" => (Cut::Filter, gpus / shared, ["df", "df"]),
        _ => return None,
    };
    let ways = gpus / data;
    let strategy = ClusterStrategy { data, ways, cut, ..ClusterStrategy::serial(batch / data) };
    let setting = Setting {
        precision: Precision::F32,
        software: Software::named("chainer").ok()?,
        ..Setting::new(batch).ok()?
    };
    let answer = estimate(&workload, &Cluster::named("abci").ok()?, &strategy, &setting).ok()?;
    let like = |other: &CsvRow| {
        other.text("model") == theirs
            && projected.contains(&other.text("strategy"))
            && other.count("gpus") == Some(gpus)
            && other.number("global_batch") == Some(batch as f64)
    };
    let peers: Vec<f64> = projections
        .iter()
        .flat_map(|table| table.rows().filter(like).filter_map(|other| other.number("sec_per_iter")))
        .collect();
    Some(ComparedRow {
        label: format!("{named} {model} {gpus} batch {batch}"),
        group: format!("{model} {gpus} {batch}"),
        measured: Some(row.number("median_sec_per_iter")?),
        predicted: answer.seconds,
        interval: Some(answer.interval),
        peer: (!peers.is_empty()).then(|| peers.iter().sum::<f64>() / peers.len() as f64),
        out_of_memory: None,
    })
}

/// GPT on nodes of four V100 with the optimizer's states sharded: time, memory, and what did not fit.
pub fn with_memory(table: &CsvTable) -> Vec<TruthPart> {
    let mut parts = [TruthPart::new("test", Vec::new()), TruthPart::new("test, memory", Vec::new())];
    for row in table.rows() {
        let Some(answer) = memory_answer(&row) else {
            parts[0].skipped += 1;
            continue;
        };
        let failed = row.text("status").eq_ignore_ascii_case("oom");
        let label = row.line(&["model", "gpu", "gpus", "tp", "pp", "dp", "micro_batch", "act_ckpt"]);
        parts[0].cases.push(ComparedRow {
            label: label.clone(),
            group: row.line(&["model", "gpu", "gpus", "global_batch", "act_ckpt"]),
            measured: row.number("sec_per_iter").filter(|_| !failed),
            predicted: answer.seconds,
            interval: Some(answer.interval),
            peer: None,
            out_of_memory: Some((failed, answer.missing.is_some())),
        });
        if let Some(measured) = row.number("gpu_mem_gb").filter(|_| !failed) {
            parts[1].cases.push(ComparedRow {
                label,
                group: String::new(),
                measured: Some(measured * GIB),
                predicted: answer.memory.device(),
                interval: None,
                peer: None,
                out_of_memory: None,
            });
        }
    }
    parts.into()
}

fn memory_answer(row: &CsvRow) -> Option<Estimate> {
    let cluster = match row.text("gpu") {
        gpu if gpu.contains("V100") && gpu.contains("16") => "jean-zay-16",
        gpu if gpu.contains("V100") => "jean-zay-32",
        gpu if gpu.contains("A100") && gpu.contains("40") => "dgx-a100-40",
        gpu if gpu.contains("A100") => "dgx-a100",
        _ => return None,
    };
    let strategy = ClusterStrategy {
        recompute: if row.text("act_ckpt") == "no_ckpt" { Recompute::Nothing } else { Recompute::Full },
        shard: 1,
        ..three_dimensional(row)?
    };
    let eight_bit = row.text("optimizer").contains("8bit");
    let setting = Setting {
        software: Software::named("deepspeed").ok()?,
        state_bytes: if eight_bit { 1.0 } else { 4.0 },
        ..Setting::new(row.count("global_batch")?).ok()?
    };
    let workload = sized(row.text("model"), row.count("seq_len")?, strategy.stages)?;
    estimate(&workload, &Cluster::named(cluster).ok()?, &strategy, &setting).ok()
}

/// A GPT of this many billion weights, by the configuration its authors give or, where none is known, of 64
/// layers. Of the one with 58 they say that it is the one with 104 with too narrow an inner layer, at first with 32
/// layers; it has as many as its stages need.
fn sized(name: &str, length: u32, stages: u32) -> Option<Workload> {
    const VOCABULARY: u32 = 50304;
    let digits: String = name.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let billions: f64 = digits.parse().ok().filter(|b| (0.01..1e5).contains(b))?;
    let (hidden, layers, heads) = match digits.as_str() {
        "1.3" => (2048, 24, 16),
        "58" if stages <= 32 => (16384, 32, 32),
        "58" | "104" => (11600, 64, 80),
        _ => {
            let hidden = ((billions * 1e9 / (12.0 * 64.0)).sqrt() / 64.0).round().max(1.0) as u32 * 64;
            (hidden, 64, 64)
        }
    };
    if digits != "58" {
        return gpt(hidden, layers, heads, length, VOCABULARY);
    }
    let width = f64::from(hidden);
    let blocks = billions * 1e9 - f64::from(VOCABULARY + length) * width;
    let inner = (blocks / (f64::from(layers) * width) - 4.0 * width) / 2.0;
    let decoder = Decoder {
        width: hidden as usize,
        layers: layers as usize,
        heads: heads as usize,
        inner: inner as usize,
        vocabulary: VOCABULARY as usize,
        context: length as usize,
        gated: false,
    };
    decoder.workload("gpt", KernelStyle::Framework)
}
