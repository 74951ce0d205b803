//! Events about a run as a whole: its plan in a few words, predictions against measurements, and its end.

use crate::event::{Event, PlanUse, SizeSummary};
use crate::units;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::plan::{Act, Choice, Plan, TIERS};
use gulliver_run::collector::{Amounts, Record, total};
use gulliver_run::host::resident;
use gulliver_run::session::Reuse;
use gulliver_run::train::Done;
use std::collections::BTreeMap;
use std::time::Duration;

/// Names of the tiers of a device.
pub fn tier_names(device: &str) -> [String; TIERS.len()] {
    [device, "host", "disk"].map(String::from)
}

/// Bytes by name of the tier, for tiers that are used.
pub fn peaks(device: &str, bytes: impl IntoIterator<Item = u64>) -> BTreeMap<String, u64> {
    tier_names(device).into_iter().zip(bytes).filter(|(_, bytes)| *bytes > 0).collect()
}

/// A plan in a few words.
pub fn describe(plan: &Plan) -> String {
    let count = |choice: Choice| plan.decisions.iter().filter(|d| d.choice == choice).count();
    let moves = plan.steps.iter().filter(|step| matches!(step.act, Act::Move { .. })).count();
    match (count(Choice::Recompute), moves) {
        (0, 0) => "everything resident".into(),
        (again, 0) => format!("{again} values recomputed"),
        (0, moves) => format!("{moves} moves"),
        (again, moves) => format!("{again} values recomputed, {moves} moves"),
    }
}

/// Peaks, bytes and times, planned and measured.
pub fn compared(done: &Done, memory: u64) -> Event {
    let (_, planned, measured) = total(&done.sizes);
    let (runs, thought, took) = total(done.sizes.iter().filter(|record| record.purpose == Purpose::Train));
    let pairs = planned.bytes().into_iter().zip(measured.bytes());
    let used = pairs.filter(|((_, planned), (_, measured))| planned + measured > 0);
    let row = |((what, planned), (_, measured)): ((&str, u64), (&str, u64))| {
        (what.to_string(), planned.to_string(), measured.to_string())
    };
    let mut rows: Vec<(String, String, String)> = used.map(row).collect();
    let per_step = |seconds: f64| units::duration(Duration::from_secs_f64(seconds / runs.max(1) as f64));
    rows.push(("step time".into(), per_step(thought.seconds), per_step(took.seconds)));
    if let Some(resident) = resident::peak() {
        let most = format!("<= {}", memory + resident::BESIDE_TIERS);
        rows.push(("memory of the process".into(), most, resident.to_string()));
    }
    Event::Compared { rows, sizes: done.sizes.iter().map(summary).collect() }
}

/// The runs with inputs of one size.
fn summary(record: &Record) -> SizeSummary {
    let bytes = |amounts: &Amounts| -> BTreeMap<String, u64> {
        let used = amounts.bytes().into_iter().filter(|(_, bytes)| *bytes > 0);
        used.map(|(what, bytes)| (what.to_string(), bytes)).collect()
    };
    let each = |seconds: f64| seconds / record.runs.max(1) as f64;
    SizeSummary {
        phase: match record.purpose {
            Purpose::Train => "train",
            Purpose::Evaluate => "eval",
        },
        sizes: record.sizes.iter().map(|(symbol, size)| (symbol.to_string(), size)).collect(),
        runs: record.runs,
        planned_seconds: each(record.planned.seconds),
        measured_seconds: each(record.measured.seconds),
        planned_bytes: bytes(&record.planned),
        measured_bytes: bytes(&record.measured),
    }
}

/// The end of a run.
pub fn finished(done: Done, device: &str, classes: Vec<String>) -> Event {
    let kind = device.trim_end_matches(|c: char| c.is_ascii_digit());
    let Reuse { hits, misses, dropped, seconds } = done.plans;
    Event::Done {
        steps: done.steps,
        loss: done.loss,
        metrics: done.metrics,
        best: done.best,
        stopped_early: done.early,
        samples_per_second: done.samples_per_second,
        peak_bytes: peaks(device, done.peaks),
        link_bytes: BTreeMap::from([
            (format!("host-{device}"), done.ledger.to_device),
            (format!("{device}-host"), done.ledger.to_host),
            (format!("disk-{device}"), done.ledger.disk_read),
            (format!("{device}-disk"), done.ledger.disk_written),
            (format!("{kind}-{kind}"), done.ledger.from_peers),
        ]),
        plans: PlanUse { hits, misses, dropped, seconds },
        alarms: done.alarms,
        resident_bytes: resident::peak(),
        fingerprint: done.fingerprint,
        classes,
        confusion: done.confusion,
    }
}
