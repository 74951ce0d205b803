//! Our search and Harmony's on the layers Harmony's authors measured, and what others would swap on them:
//! `cargo run --release -p gulliver-plan --example harmony_profiles DIR [rows|swaps]`.
//!
//! The directory has `harmony_layers.csv`, `harmony_layer_profiles.csv` and `harmony_search_summary.csv`.

use gulliver_plan::devices::schedule::baseline::{Eviction, Request, WAYS, Way, best, sharded};
use gulliver_plan::devices::schedule::{
    ChainLayer, LayerChain, LayerPack, PackRotation, PackSchedule, RankedSchedule, ScheduleMachine,
    ScheduleMode, ScheduleOptions, ScheduleOutcome, SizeCurve, UpdateOn, search, simulate,
};
use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

const GIB: f64 = (1u64 << 30) as f64;

/// The rows of a file, each as its fields.
fn rows(dir: &Path, name: &str) -> Result<Vec<Vec<String>>, Failure> {
    let path = dir.join(name);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(text.lines().skip(1).map(|line| line.split(',').map(str::to_string).collect()).collect())
}

type Points = HashMap<(String, bool, usize), Vec<(u32, f64, f64)>>;

/// Micro-batch size, seconds and bytes, by model, pass and layer.
fn points(dir: &Path) -> Result<Points, Failure> {
    let mut points = Points::new();
    for row in rows(dir, "harmony_layer_profiles.csv")? {
        let key = (row[0].clone(), row[1] == "BWD", row[3].parse()?);
        points.entry(key).or_default().push((row[2].parse()?, row[4].parse()?, row[5].parse()?));
    }
    Ok(points)
}

/// The layers of a model. Memory of a pack is the sum of its layers' peaks, as Harmony counts it.
fn chain(dir: &Path, points: &Points, model: &str) -> Result<LayerChain, Failure> {
    let mut chain = LayerChain::default();
    for row in rows(dir, "harmony_layers.csv")?.iter().filter(|row| row[0] == model) {
        let l: usize = row[1].parse()?;
        let pass = |backward| points.get(&(model.to_string(), backward, l)).cloned().unwrap_or_default();
        let (forward, backward) = (pass(false), pass(true));
        let seconds =
            |points: &[(u32, f64, f64)]| SizeCurve::new(points.iter().map(|p| (p.0, p.1)).collect());
        let (weights, buffers): (u64, u64) = (row[2].parse()?, row[3].parse()?);
        let beside = |points: &[(u32, f64, f64)], fixed: u64| {
            SizeCurve::new(points.iter().map(|p| (p.0, (p.2 - fixed as f64).max(0.0))).collect())
        };
        // Where the file has no bytes of a layer's input: half of what its forward pass grows by a sample.
        let growth = |points: &[(u32, f64, f64)]| match points {
            [first, .., last] => (last.2 - first.2).max(0.0) / f64::from(last.0 - first.0),
            _ => 0.0,
        };
        let input = row[5].parse().unwrap_or((growth(&forward) / 2.0) as u64);
        let forward_seconds = seconds(&forward);
        // The backward pass was measured with the forward pass computed again.
        let alone = backward.iter().map(|p| (p.0, (p.1 - forward_seconds.at(p.0)).max(0.0)));
        chain.layers.push(ChainLayer {
            name: format!("{model}.{l}"),
            backward: SizeCurve::new(alone.collect()),
            forward: forward_seconds,
            // Not measured: Adam reads and writes seven times the weights, at 484 GB/s.
            update: 7.0 * weights as f64 / 484e9,
            update_on_host: row[6].parse()?,
            weights,
            buffers,
            gradients: weights,
            state: row[4].parse()?,
            input,
            input_gradient: if l == 0 { 0 } else { input },
            forward_kept: beside(&forward, weights + buffers),
            backward_kept: beside(&backward, 2 * weights + buffers),
            ..ChainLayer::default()
        });
    }
    Ok(chain)
}

/// The machine as Harmony's planner sees it: the host's link in equal parts, 40 ms lost with every task, and no
/// room counted for what is fetched ahead.
fn machine(devices: usize) -> ScheduleMachine {
    let share = 11.5 * GIB / devices as f64;
    ScheduleMachine {
        peer: Some(8.2 * GIB),
        between_hosts: Some(16.0 * GIB / devices as f64),
        per_task: 0.04,
        counts_buffers: false,
        ..ScheduleMachine::even(devices, 10 << 30, share)
    }
}

fn full_name(model: &str) -> String {
    if model.starts_with("bert") { format!("{model}_seqlen512") } else { model.to_string() }
}

fn describe(best: &RankedSchedule) -> String {
    let s = &best.schedule;
    let mode = match s.mode {
        ScheduleMode::DataParallel => "dp",
        ScheduleMode::Pipeline(PackRotation::SameDevice) => "pp",
        ScheduleMode::Pipeline(PackRotation::Continuing) => "pp continuing",
    };
    let (f, b) = (s.forward.len(), s.backward.len());
    format!("{mode} on {}, {f} packs of {}, {b} of {}", s.devices, s.forward_size, s.backward_size)
}

/// A schedule with the sizes and numbers of packs that Harmony chose, its packs equal in seconds.
fn theirs(chain: &LayerChain, machine: &ScheduleMachine, row: &[String]) -> Result<Option<f64>, Failure> {
    let number = |field: usize| row[field].parse::<usize>();
    let (forward_size, backward_size) = (number(10)? as u32, number(12)? as u32);
    let seconds = |l: &ChainLayer, backward: bool| {
        let (u, curve) =
            if backward { (backward_size, l.backward.at(backward_size)) } else { (forward_size, 0.0) };
        l.forward.at(u) + curve
    };
    let cut = |layers: usize, packs: usize, backward: bool| -> Vec<LayerPack> {
        let sums: Vec<f64> = chain.layers[..layers]
            .iter()
            .scan(0.0, |sum, l| {
                *sum += seconds(l, backward);
                Some(*sum)
            })
            .collect();
        let end = |i: usize| match i {
            _ if i == packs => layers,
            _ => sums.partition_point(|s| *s < sums[layers - 1] * i as f64 / packs as f64),
        };
        (0..packs).map(|i| LayerPack { layers: end(i)..end(i + 1), device: 0 }).collect()
    };
    let backward = cut(chain.layers.len(), number(13)?, true);
    let rest = backward[backward.len() - 1].layers.start;
    let forward = if rest > 0 { cut(rest, number(11)?, false) } else { Vec::new() };
    let mode = if row[2] == "vDP" {
        ScheduleMode::DataParallel
    } else {
        ScheduleMode::Pipeline(PackRotation::Continuing)
    };
    // What fits on one device Harmony leaves on one.
    let devices = if backward.len() == 1 && mode != ScheduleMode::DataParallel { 1 } else { number(3)? };
    let (batch, update) = (number(1)? as u32, UpdateOn::Host);
    let mut schedule =
        PackSchedule { mode, devices, batch, forward_size, backward_size, forward, backward, update };
    schedule.place();
    // Harmony's packs fit by its own account of memory.
    let mut roomy = machine.clone();
    roomy.devices.iter_mut().for_each(|d| d.memory += d.memory / 2);
    Ok(simulate(chain, &roomy, &schedule)?.map(|outcome| outcome.seconds))
}

fn compare(dir: &Path, points: &Points) -> Result<(), Failure> {
    println!(
        "| model, batch, devices | Harmony, s | the same here, s | ours, s | | one residence, s | buffers counted, s | \
         our schedule | search, s |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|---|--:|");
    for row in rows(dir, "harmony_search_summary.csv")? {
        let (batch, devices): (u32, usize) = (row[1].parse()?, row[3].parse()?);
        let chain = chain(dir, points, &full_name(&row[0]))?;
        let modes = match row[2].as_str() {
            "vDP" => vec![ScheduleMode::DataParallel],
            _ => vec![
                ScheduleMode::Pipeline(PackRotation::SameDevice),
                ScheduleMode::Pipeline(PackRotation::Continuing),
            ],
        };
        // Seconds of updates on the device were not measured.
        let options = ScheduleOptions { modes, updates: vec![UpdateOn::Host], ..ScheduleOptions::new(batch) };
        let begin = Instant::now();
        let best = search(&chain, &machine(devices), &options)?.swap_remove(0);
        let took = begin.elapsed().as_secs_f64();
        let again = self::theirs(&chain, &machine(devices), &row)?;
        let residence = ScheduleOptions { modes: options.modes[..1].to_vec(), ..options.clone() };
        let residence = search(&chain, &machine(devices), &residence)?.swap_remove(0);
        let strict = ScheduleMachine { counts_buffers: true, ..machine(devices) };
        let strict = search(&chain, &strict, &options)?.swap_remove(0);
        let theirs: f64 = row[5].parse()?;
        println!(
            "| {}, {batch}, {devices}, {} #{} | {theirs:.2} | {} | {:.2} | {:+.1} % | {:.2} | {:.2} | {} | {took:.2} |",
            row[0],
            row[2],
            row[4],
            again.map_or("–".to_string(), |seconds| format!("{seconds:.2}")),
            best.outcome.seconds,
            100.0 * (best.outcome.seconds / theirs - 1.0),
            residence.outcome.seconds,
            strict.outcome.seconds,
            describe(&best),
        );
    }
    Ok(())
}

/// Swap load and seconds of others on four devices that share the host's link. Beside each the schedule of ours that
/// swaps least of those that take no longer, or the fastest if none does.
fn swaps(dir: &Path, points: &Points) -> Result<(), Failure> {
    let machine = ScheduleMachine {
        uplink: Some(11.5 * GIB),
        peer: Some(8.2 * GIB),
        ..ScheduleMachine::even(4, 10 << 30, 11.5 * GIB)
    };
    println!(
        "| model, batch | way (micro-batch) | GiB | s | ours, GiB | s | ratio, GiB | s | our schedule |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|--:|---|");
    for model in ["bert_96", "gpt2_xl", "resnet1026", "vgg416"] {
        let chain = chain(dir, points, &full_name(model))?;
        for batch in [16, 64, 256] {
            let all = ScheduleOptions { top: usize::MAX, ..ScheduleOptions::new(batch) };
            let same_device = vec![ScheduleMode::Pipeline(PackRotation::SameDevice)];
            let residence = ScheduleOptions {
                modes: same_device,
                updates: vec![UpdateOn::Device],
                slack: 9.0,
                ..all.clone()
            };
            let mut ours = search(&chain, &machine, &all)?;
            ours.extend(search(&chain, &machine, &residence)?);
            let line = |way: &str, size: u32, theirs: &ScheduleOutcome| {
                let seconds = |r: &RankedSchedule| r.outcome.seconds;
                let as_fast = ours.iter().filter(|r| seconds(r) <= theirs.seconds);
                let least = as_fast.min_by_key(|r| (r.outcome.swap_load(), (seconds(r) * 1e6) as u64));
                let least = least.unwrap_or(&ours[0]);
                let (load, own) = (theirs.swap_load() as f64, least.outcome.swap_load() as f64);
                println!(
                    "| {model}, {batch} | {way} ({size}) | {:.2} | {:.1} | {:.2} | {:.1} | {:.1} | {:.2} | {} |",
                    load / GIB,
                    theirs.seconds,
                    own / GIB,
                    least.outcome.seconds,
                    load / own,
                    theirs.seconds / least.outcome.seconds,
                    describe(least),
                );
            };
            line("our fastest", ours[0].schedule.backward_size, &ours[0].outcome);
            for way in WAYS {
                let name = match way {
                    Way::DataParallel => "data parallel",
                    Way::GPipe => "GPipe",
                    Way::OneForwardOneBackward => "1F1B",
                };
                for recompute in [false, true] {
                    let eviction = Eviction::AlwaysWritten;
                    let request = Request { devices: 4, batch, size: 1, recompute, eviction };
                    let Some((size, outcome)) = best(&chain, &machine, way, &request) else { continue };
                    line(&format!("{name}{}", if recompute { ", recompute" } else { "" }), size, &outcome);
                }
            }
            let sizes = (0..).map(|p| (batch / 4) >> p).take_while(|size| *size > 0);
            let tries = sizes.filter_map(|size| Some((size, sharded(&chain, &machine, 4, batch, size)?)));
            if let Some((size, outcome)) = tries.min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds)) {
                line("sharded data parallel", size, &outcome);
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let dir = std::env::args().nth(1).ok_or("give the directory of the profiles")?;
    let part = std::env::args().nth(2).unwrap_or_default();
    let dir = Path::new(&dir);
    let points = points(dir)?;
    if part != "swaps" {
        compare(dir, &points)?;
    }
    if part != "rows" {
        swaps(dir, &points)?;
    }
    Ok(())
}
