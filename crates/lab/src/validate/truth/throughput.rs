//! Published training throughput of data-parallel runs. Rows of one device calibrate; others are predicted
//! from specifications alone, and once more from what one device of the same system was measured to do.

use super::{ComparedRow, CsvTable, TruthPart};
use crate::validate::csv::CsvRow;
use crate::validate::models::{bert_large, gnmt, resnet, transformer_big, transformer_xl};
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::estimate::Estimate;
use gulliver_oracle::hardware::Precision;
use gulliver_oracle::oracle::estimate;
use gulliver_oracle::setting::{Setting, Software};
use gulliver_oracle::strategy::ClusterStrategy;
use gulliver_oracle::workload::Workload;
use std::collections::BTreeMap;

/// Tokens of a sentence, where rows count tokens and do not say how many a sample has.
const SENTENCE: u32 = 32;
/// Share of a batch that is tokens of sentences, which GNMT's rows count, and no padding to the longest of a bucket.
/// Fitted on rows of one device.
const COUNTED: f64 = 0.67;
/// Tokens that BERT reads of samples of up to 512, as its authors' loader makes batches of samples of similar length,
/// in bins of 64. Fitted on rows of one device.
const BINNED: u32 = 304;

/// A row: a workload, a batch for each device in this many parts, and the unit of throughput.
struct Asked {
    workload: Workload,
    micro_batch: u32,
    parts: u32,
    units: f64,
    states: f64,
    /// Bytes that its update moves, relative to a fused kernel, if not those of the software.
    update: Option<f64>,
}

/// Calibration, test, and test with one device measured.
pub fn throughput(table: &CsvTable) -> Vec<TruthPart> {
    let mut parts = [
        TruthPart::new("calibration", Vec::new()),
        TruthPart::new("test", Vec::new()),
        TruthPart::new("test, one device measured", Vec::new()),
    ];
    // By what is the same on one device and on many: seconds measured and predicted.
    let mut single: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let mut rows: Vec<CsvRow> = table.rows().collect();
    rows.sort_by_key(|row| row.count("gpus"));
    for row in rows {
        let gpus = row.count("gpus").unwrap_or(0);
        let at = usize::from(gpus > 1);
        let answered = asked(&row).zip(row.number("throughput").filter(|t| *t > 0.0));
        let Some((asked, measured)) = answered else {
            parts[at].skipped += 1;
            continue;
        };
        let Some(answer) = answer(&row, &asked, gpus) else {
            parts[at].skipped += 1;
            continue;
        };
        let counted = gpus as f64 * asked.micro_batch as f64 * asked.parts as f64 * asked.units;
        let case = ComparedRow {
            label: row.line(&[
                "framework",
                "model",
                "variant",
                "system",
                "gpus",
                "batch_per_gpu",
                "seq_len",
                "precision",
            ]),
            group: String::new(),
            measured: Some(counted / measured),
            predicted: answer.seconds,
            interval: Some(answer.interval),
            peer: None,
            out_of_memory: None,
        };
        let same = format!(
            "{} {} {} {}",
            row.line(&["framework", "model", "seq_len", "precision"]),
            row.text("variant").split(" NVIDIA").next().unwrap_or(""),
            system(row.text("system")).unwrap_or(""),
            asked.micro_batch
        );
        if gpus == 1 {
            single
                .insert(same, (counted / measured / asked.parts as f64, answer.seconds / asked.parts as f64));
        } else if let Some((took, thought)) = single.get(&same) {
            let more = (took - thought) * asked.parts as f64;
            let predicted = (answer.seconds + more).max(took * asked.parts as f64);
            let interval = Some(answer.interval.scaled(predicted / answer.seconds));
            parts[2].cases.push(ComparedRow { predicted, interval, ..case.clone() });
        }
        parts[at].cases.push(case);
    }
    parts.into()
}

fn answer(row: &CsvRow, asked: &Asked, gpus: u32) -> Option<Estimate> {
    let cluster = Cluster::named(system(row.text("system"))?).ok()?;
    let software = match row.text("framework").to_lowercase().as_str() {
        "pytorch" => "pytorch",
        "tensorflow" => "tensorflow",
        "mxnet" => "mxnet",
        _ => return None,
    };
    let software = Software::named(software).ok()?;
    let batch = gpus.checked_mul(asked.micro_batch)?.checked_mul(asked.parts)?;
    let setting = Setting {
        precision: Precision::named(row.text("precision")).ok()?,
        states: asked.states,
        software: Software { update: asked.update.unwrap_or(software.update), ..software },
        ..Setting::new(batch).ok()?
    };
    let strategy = ClusterStrategy { data: gpus, ..ClusterStrategy::serial(asked.micro_batch) };
    estimate(&asked.workload, &cluster, &strategy, &setting).ok()
}

fn system(text: &str) -> Option<&'static str> {
    Some(match text {
        t if t.contains("H100") => "dgx-h100",
        t if t.contains("A100 80") => "dgx-a100",
        t if t.contains("A100") => "dgx-a100-40",
        t if t.contains("DGX-2H") => "dgx2h",
        t if t.contains("DGX-2") => "dgx2",
        t if t.contains("DGX-1") && t.contains("32G") => "dgx1-32",
        t if t.contains("DGX-1") => "dgx1-16",
        _ => return None,
    })
}

fn asked(row: &CsvRow) -> Option<Asked> {
    let mixed = row.text("precision") == "mixed";
    let batch = choose(row.text("batch_per_gpu"), mixed);
    let steps = choose(row.text("accum_steps"), mixed).unwrap_or(1);
    let length = row.number("seq_len").map(|s| s as u32);
    let plain = |workload, batch, units, states| Asked {
        workload,
        micro_batch: batch,
        parts: 1,
        units,
        states,
        update: None,
    };
    Some(match row.text("model") {
        m if m.starts_with("resnet50") => {
            // Tables without a batch: 256 for each device, 128 in full precision.
            let batch = batch.unwrap_or(if row.text("precision") == "fp32" { 128 } else { 256 });
            plain(resnet(&[3, 4, 6, 3], 224)?, batch, 1.0, 1.0)
        }
        "bert-large" => {
            // Sentences of fine-tuning have 384 tokens; a batch of thousands is the sum of its parts.
            let (length, predicted) = match length {
                Some(512) => (BINNED, Some(BINNED * 80 / 512)),
                Some(length) => (length, Some((length * 20 / 128).max(1))),
                None => (384, None),
            };
            let batch = batch?;
            let micro_batch = if batch >= 2048 { batch / steps } else { batch };
            Asked {
                workload: bert_large(length, predicted)?,
                micro_batch: micro_batch.max(1),
                parts: steps,
                units: 1.0,
                states: 2.0,
                update: None,
            }
        }
        "transformer-xl" => {
            let large = row.text("variant").starts_with("Large");
            let asked = plain(transformer_xl(large)?, batch?, if large { 384.0 } else { 192.0 }, 2.0);
            // LAMB, an operator after the other: 25 passes over 32-bit numbers.
            Asked { update: Some(100.0 / 30.0), ..asked }
        }
        "transformer-big" => plain(transformer_big(SENTENCE)?, batch? / SENTENCE, SENTENCE as f64, 2.0),
        "gnmt" => plain(gnmt(SENTENCE)?, batch?, 2.0 * SENTENCE as f64 * COUNTED, 2.0),
        _ => return None,
    })
}

/// The number for a precision of a field that has one for each: `128 and 256`, `5120/2560`,
/// `128 (FP32) / 256 (AMP)`. Of `a and b` the second is for mixed precision, of `a/b` the first.
fn choose(text: &str, mixed: bool) -> Option<u32> {
    let text = text.replace("(FP32)", "").replace("(AMP)", "|");
    let numbers: Vec<u32> =
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let first_is_mixed = text.contains('/') && !text.contains('|');
    match numbers.as_slice() {
        [] => None,
        [one] => Some(*one),
        [a, b, ..] => Some(if mixed == first_is_mixed { *a } else { *b }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_a_number_for_each_precision() {
        for (text, full, mixed) in [
            ("128 and 256", 128, 256),
            ("16  and 32", 16, 32),
            ("5120/2560", 2560, 5120),
            ("128 (FP32) / 256 (AMP)", 128, 256),
            ("64", 64, 64),
        ] {
            assert_eq!((choose(text, false), choose(text, true)), (Some(full), Some(mixed)), "{text}");
        }
        assert_eq!(choose("", true), None);
    }
}
