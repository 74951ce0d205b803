//! Measurements of single kernels and collectives.

use super::{ComparedRow, CsvTable, TruthPart};
use crate::validate::models::Decoder;
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::collective::all_reduce as seconds_of;
use gulliver_oracle::from_graph::KernelStyle;
use gulliver_oracle::oracle::estimate;
use gulliver_oracle::setting::Setting;
use gulliver_oracle::strategy::ClusterStrategy;

/// All-reduces within a node of V100 or A100.
pub fn all_reduce(table: &CsvTable) -> Vec<TruthPart> {
    let mut part = TruthPart::new("calibration", Vec::new());
    for row in table.rows() {
        let cluster = match row.text("gpu").to_lowercase().as_str() {
            "a100" => Cluster::named("dgx-a100"),
            "v100" => Cluster::named("dgx1-16"),
            "h100" => Cluster::named("dgx-h100"),
            other => Cluster::named(other),
        };
        let (Ok(cluster), Some(size), Some(bytes), Some(time)) =
            (cluster, row.count("num_gpus"), row.number("bytes"), row.number("time_ns"))
        else {
            part.skipped += 1;
            continue;
        };
        part.cases.push(ComparedRow {
            label: row.line(&["gpu", "num_gpus", "bytes"]),
            group: String::new(),
            measured: Some(time * 1e-9),
            predicted: seconds_of(&cluster, cluster.group(size, 1, size), bytes),
            interval: None,
            peer: None,
            out_of_memory: None,
        });
    }
    vec![part]
}

/// Forward passes of a few layers of a llama on one A100, attention without stored scores.
pub fn forward(name: &str, table: &CsvTable) -> Vec<TruthPart> {
    let mut part = TruthPart::new("calibration", Vec::new());
    let (width, heads, inner) = if name.contains("13b") { (5120, 40, 13824) } else { (4096, 32, 11008) };
    for row in table.rows() {
        let (Some(layers), Some(batch), Some(length), Some(time)) =
            (row.count("layers"), row.count("batch"), row.count("seq_len"), row.number("fwd_ms"))
        else {
            part.skipped += 1;
            continue;
        };
        let llama = Decoder {
            width,
            layers: layers as usize,
            heads,
            inner,
            vocabulary: 32000,
            context: length as usize,
            gated: true,
        };
        let workload = llama.workload("llama", KernelStyle::FusedAttention);
        let (Ok(cluster), Ok(setting), Some(workload)) =
            (Cluster::named("dgx-a100"), Setting::new(batch), workload)
        else {
            continue;
        };
        let Ok(answer) = estimate(&workload, &cluster, &ClusterStrategy::serial(batch), &setting) else {
            continue;
        };
        part.cases.push(ComparedRow {
            label: row.line(&["layers", "batch", "seq_len"]),
            group: String::new(),
            measured: Some(time * 1e-3),
            predicted: answer.phases.forward,
            interval: None,
            peer: None,
            out_of_memory: None,
        });
    }
    vec![part]
}
