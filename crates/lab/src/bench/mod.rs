//! `lab bench`: speed and memory of the reference workloads on this machine, or where the time of a step goes.
//! `bench/compare` compares them with other programs.

pub mod array;
pub mod measure;
pub mod parts;
pub mod profile;
pub mod scaling;

use crate::error::LabError;
use crate::traffic::explain;
use crate::workload::{BenchWorkload, WORKLOADS, workloads};
use clap::Args;
use gulliver::report::table::{self, Column};
use gulliver::setup::{measured, measured_links};
use gulliver::units;
use gulliver_graph::dim::DimError;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::nearest::suggestion;
use gulliver_run::profile::roofline;
use gulliver_run::team::{Team, cores};
use measure::{BenchResult, BenchRunner, BenchVariant, measure};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Measures training speed and memory on the reference workloads.
#[derive(Args)]
pub struct BenchArguments {
    /// Which workloads; those that are compared with peers if none is named.
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// Threads of a device; all cores, shared evenly, unless told otherwise.
    #[arg(long)]
    threads: Option<usize>,
    /// Trains so many jobs together, as an array on one batch: members take turns in as many lanes as there
    /// are threads.
    #[arg(long, value_name = "N", conflicts_with_all = ["scaling", "fusion"])]
    members: Option<std::num::NonZeroUsize>,
    /// With --members: as one graph with an axis of members, operator by operator.
    #[arg(long, requires = "members")]
    fused: bool,
    /// Trains on so many devices, each with all weights and an equal share of every batch.
    #[arg(long, value_name = "N", conflicts_with_all = ["members", "scaling", "fusion", "profile", "parts"])]
    devices: Option<std::num::NonZeroUsize>,
    /// How long each workload runs, after two steps to warm up.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// JSON lines: `first_step` and `workload` per workload, then `machine`; of arrays on lanes `array`.
    #[arg(long)]
    json: bool,
    /// Leaves out the measurement of the machine's own speed.
    #[arg(long)]
    no_probe: bool,
    /// Another setting of the model, e.g. --set width=512.
    #[arg(long = "set", value_name = "SETTING=NUMBER", requires = "workloads")]
    sets: Vec<String>,
    /// Samples of a step.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), requires = "workloads")]
    batch: Option<u32>,
    /// Tokens of a sample, for workloads that are text.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), requires = "workloads")]
    length: Option<u32>,
    /// Hard budget of the device.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes, requires = "workloads")]
    memory: Option<u64>,
    /// With --memory: hard budget of host memory for what does not fit on the device.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes, requires = "memory")]
    host_memory: Option<u64>,
    /// With --memory: hard budget of a file for what fits neither on the device nor in host memory.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes, requires = "memory")]
    disk: Option<u64>,
    /// With --disk: where the file is made.
    #[arg(long, value_name = "DIR", requires = "disk")]
    disk_dir: Option<PathBuf>,
    /// With --memory: measures what a step consists of, its kernels and its moves.
    #[arg(long, requires = "memory")]
    parts: bool,
    /// Shows where the time of a step goes, by operator.
    #[arg(long)]
    profile: bool,
    /// With --profile: tells operators apart by the shapes of their operands too.
    #[arg(long, requires = "profile")]
    shapes: bool,
    /// Shows instead how the cost of planning and running grows with layers, samples and nodes.
    #[arg(long, conflicts_with_all = ["workloads", "profile", "no_probe"])]
    scaling: bool,
    /// Measures nothing; shows what element-wise fusion does to the graph: before, after, and every chain.
    #[arg(long, conflicts_with_all = ["profile", "json", "sets", "batch", "length", "memory", "seconds", "threads", "no_probe"])]
    fusion: bool,
}

impl BenchArguments {
    /// What a process that measures one of several workloads is told, beside its name and threads.
    fn passed_on(&self) -> Vec<String> {
        let BenchArguments { members, devices, seconds, sets, batch, length, .. } = self;
        let mut all = vec![format!("--seconds={seconds}")];
        all.extend(members.map(|n| format!("--members={n}")));
        all.extend(self.fused.then(|| "--fused".into()));
        all.extend(devices.map(|n| format!("--devices={n}")));
        all.extend(sets.iter().map(|set| format!("--set={set}")));
        all.extend(batch.map(|n| format!("--batch={n}")));
        all.extend(length.map(|n| format!("--length={n}")));
        for (flag, size) in [("memory", self.memory), ("host-memory", self.host_memory), ("disk", self.disk)]
        {
            all.extend(size.map(|bytes| format!("--{flag}={bytes}")));
        }
        all.extend(self.disk_dir.iter().map(|dir| format!("--disk-dir={}", dir.display())));
        all.extend(self.parts.then(|| "--parts".into()));
        all
    }

    /// A workload as it is to be measured.
    fn variant(&self, workload: &BenchWorkload, threads: usize) -> Result<BenchVariant, LabError> {
        let mut variant = BenchVariant::plain(workload, threads);
        variant.members = self.members.map(|n| n.get());
        variant.devices = self.devices.map_or(1, |n| n.get());
        variant.workload.batch = self.batch.map_or(workload.batch, |n| n as usize);
        variant.workload.length = match self.length {
            Some(_) if workload.length == 0 => {
                return Err(LabError::Argument(format!("--length: {} does not read tokens", workload.name)));
            }
            length => length.map_or(workload.length, |n| n as usize),
        };
        for set in &self.sets {
            let parsed = set.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let (name, value) = parsed.ok_or_else(|| {
                LabError::Argument(format!("--set {set}: expected a setting and a whole number"))
            })?;
            variant.settings.push((name.into(), ParamValue::Int(value)));
        }
        if let Some(memory) = self.memory {
            variant.parts = self.parts;
            variant.options.memory = Some(memory);
            variant.options.host_memory = self.host_memory;
            variant.options.disk = self.disk;
            variant.options.disk_dir = self.disk_dir.clone();
            variant.options.rates = measured(threads);
            let dir = self.disk.map(|_| self.disk_dir.clone().unwrap_or_else(std::env::temp_dir));
            variant.options.links = measured_links(dir.as_deref());
        }
        Ok(variant)
    }
}

/// Copied by the probe of memory speed: beyond the caches of most machines.
const COPIED: usize = 128 << 20;
/// How long each probe runs, in seconds.
const PROBE: f64 = 0.5;

/// What the machine can do at best.
struct Machine {
    flops_per_second: f64,
    copy_bytes_per_second: f64,
}

/// Runs the command.
pub fn run(arguments: &BenchArguments) -> Result<(), LabError> {
    let start = Instant::now();
    let chosen = choose(&arguments.workloads)?;
    let devices = arguments.devices.map_or(1, |n| n.get());
    let threads = arguments.threads.unwrap_or_else(|| cores() / devices).clamp(1, 1024);
    if !arguments.seconds.is_finite() || !(0.0..=1e6).contains(&arguments.seconds) {
        return Err(LabError::Argument(format!("--seconds {}: expected 0 to 1000000", arguments.seconds)));
    }
    let mut out = io::stdout().lock();
    if arguments.scaling {
        return show_scaling(&mut out, arguments, threads);
    }
    if arguments.fusion {
        return chosen.iter().try_for_each(|workload| show_fusion(&mut out, workload));
    }
    if arguments.profile {
        return chosen.iter().try_for_each(|workload| show_profile(&mut out, arguments, workload, threads));
    }
    let members = arguments.members.map(|n| n.get());
    if let (Some(members), false) = (members, arguments.fused) {
        let BenchArguments { sets, batch, length, memory, .. } = arguments;
        if !sets.is_empty() || batch.or(*length).is_some() || memory.is_some() {
            let problem = "--members trains workloads as they are; add --fused to change one with --set, --batch, \
                           --length or --memory";
            return Err(LabError::Argument(problem.into()));
        }
        return show_arrays(&mut out, arguments, &chosen, threads, members);
    }
    let mut all = Vec::new();
    for workload in &chosen {
        // Peak memory and starting time belong to a process: each workload has one of its own.
        all.push(if chosen.len() == 1 {
            let mut first = |seconds: f64| match arguments.json {
                true => line(&json!({"event": "first_step", "workload": workload.name, "seconds": seconds})),
                false => Ok(()),
            };
            measure(arguments.variant(workload, threads)?, arguments.seconds, start, &mut first)?
        } else {
            measure_apart(workload, threads, arguments)?
        });
        if let (true, Some(measured)) = (arguments.json, all.last()) {
            writeln!(
                out,
                "{}",
                tagged("workload", serde_json::to_value(measured).map_err(io::Error::from)?)
            )?;
            out.flush()?;
        }
    }
    // Last, as its buffers would count as the workload's memory.
    let machine = (!arguments.no_probe).then(|| probe_machine(threads));
    match (arguments.json, &machine) {
        (true, Some(m)) => {
            let event = json!({"event": "machine", "threads": threads, "flops_per_second": m.flops_per_second,
                "copy_bytes_per_second": m.copy_bytes_per_second});
            writeln!(out, "{event}")?;
        }
        (true, None) => {}
        (false, _) => show(&mut out, &all, machine.as_ref(), threads)?,
    }
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<&'static BenchWorkload>, LabError> {
    if names.is_empty() {
        return Ok(WORKLOADS.iter().collect());
    }
    let find = |name: &String| {
        workloads().find(|w| w.name == name).ok_or_else(|| {
            let hint = suggestion(name, workloads().map(|w| w.name), "there are");
            LabError::Argument(format!("there is no workload `{name}`{hint}"))
        })
    };
    names.iter().map(find).collect()
}

fn probe_machine(threads: usize) -> Machine {
    let team = Team::new(threads);
    Machine {
        flops_per_second: roofline::multiply_adds(&team, PROBE),
        copy_bytes_per_second: roofline::copies(&team, COPIED, PROBE),
    }
}

/// One line of JSON, seen at once by whoever reads.
fn line(value: &Value) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{value}")?;
    out.flush()
}

fn tagged(event: &str, mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.insert("event".into(), event.into());
    }
    value
}

/// Runs this command for one workload in a process of its own.
fn measure_apart(
    workload: &BenchWorkload,
    threads: usize,
    arguments: &BenchArguments,
) -> Result<BenchResult, LabError> {
    let failed = |problem: String| LabError::Workload { workload: workload.name.into(), problem };
    let output = Command::new(std::env::current_exe()?)
        .args(["bench", workload.name, "--json", "--no-probe"])
        .args(["--threads", &threads.to_string()])
        .args(arguments.passed_on())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(failed(format!("its process ended with {}", output.status)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let event = events.into_iter().find(|event| event["event"] == "workload");
    event
        .and_then(|event| serde_json::from_value(event).ok())
        .ok_or_else(|| failed("its process gave no result".into()))
}

fn show(
    out: &mut impl Write,
    all: &[BenchResult],
    machine: Option<&Machine>,
    threads: usize,
) -> io::Result<()> {
    let columns = [
        Column::Left("workload"),
        Column::Right("parameters"),
        Column::Right("samples/s"),
        Column::Right("step ms"),
        Column::Right("spread"),
        Column::Right("GFLOP/s"),
        Column::Right("of peak"),
        Column::Right("arena"),
        Column::Right("resident"),
        Column::Right("first step"),
    ];
    let cells = all.iter().map(|m| {
        let share = machine.map(|machine| 100.0 * m.flops_per_second / machine.flops_per_second);
        vec![
            m.workload.clone(),
            units::count(m.parameters),
            format!("{:.1}", m.samples_per_second),
            format!("{:.3}", 1e3 * m.step_seconds),
            format!("{:.3}–{:.3}", 1e3 * m.step_seconds_low, 1e3 * m.step_seconds_high),
            format!("{:.1}", m.flops_per_second / 1e9),
            share.map_or("-".into(), |share| format!("{share:.1}%")),
            units::bytes(m.peak_bytes),
            m.resident_bytes.map_or("-".into(), units::bytes),
            units::duration(Duration::from_secs_f64(m.first_step_seconds)),
        ]
    });
    write!(out, "{}", table::render(&columns, &cells.collect::<Vec<_>>()))?;
    for parts in all.iter().filter_map(|m| m.parts.as_ref()) {
        write!(out, "{}", parts.render())?;
    }
    if let Some(machine) = machine {
        let (flops, bytes) = (machine.flops_per_second / 1e9, machine.copy_bytes_per_second / 1e9);
        writeln!(out, "this machine at best, {threads} threads: {flops:.1} GFLOP/s, copies {bytes:.1} GB/s")?;
    }
    Ok(())
}

fn show_arrays(
    out: &mut impl Write,
    arguments: &BenchArguments,
    chosen: &[&'static BenchWorkload],
    threads: usize,
    members: usize,
) -> Result<(), LabError> {
    let columns = [
        Column::Left("workload"),
        Column::Right("members"),
        Column::Right("lanes"),
        Column::Right("samples/s"),
        Column::Right("memory"),
    ];
    let mut rows = Vec::new();
    for workload in chosen {
        let measured = array::measure(workload, threads, members, arguments.seconds)?;
        rows.push(vec![
            workload.name.to_string(),
            members.to_string(),
            measured.lanes.to_string(),
            format!("{:.1}", measured.samples_per_second),
            units::bytes(measured.bytes),
        ]);
        if arguments.json {
            line(&tagged("array", serde_json::to_value(measured).map_err(io::Error::from)?))?;
        }
    }
    if !arguments.json {
        write!(out, "{}", table::render(&columns, &rows))?;
    }
    Ok(())
}

fn show_fusion(out: &mut impl Write, workload: &'static BenchWorkload) -> Result<(), LabError> {
    let (before, after) = (workload.plain_graph()?, workload.graph()?);
    let problem = |e: DimError| LabError::Workload { workload: workload.name.into(), problem: e.to_string() };
    let text = explain(&before, &after, &workload.sizes()).map_err(problem)?;
    writeln!(out, "{}\n{text}", workload.name)?;
    Ok(())
}

fn show_profile(
    out: &mut impl Write,
    arguments: &BenchArguments,
    workload: &'static BenchWorkload,
    threads: usize,
) -> Result<(), LabError> {
    let mut runner = BenchRunner::new(arguments.variant(workload, threads)?)?;
    let profile = profile::profile(&mut runner, arguments.seconds, arguments.shapes)?;
    if arguments.json {
        let value = serde_json::to_value(&profile).map_err(io::Error::from)?;
        writeln!(out, "{}", tagged("profile", value))?;
    } else {
        write!(out, "{}", profile.render())?;
    }
    Ok(())
}

fn show_scaling(out: &mut impl Write, arguments: &BenchArguments, threads: usize) -> Result<(), LabError> {
    let mut rows = Vec::new();
    scaling::measure(threads, arguments.seconds, |row| {
        if arguments.json {
            let value = serde_json::to_value(row).map_err(io::Error::from)?;
            writeln!(out, "{}", tagged("scaling", value))?;
            out.flush()?;
        }
        rows.push(row.clone());
        Ok(())
    })?;
    if !arguments.json {
        write!(out, "{}", scaling::render(&rows))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_chosen_by_name() {
        assert_eq!(choose(&[]).unwrap().len(), WORKLOADS.len());
        let chosen = choose(&["gpt2".into(), "cnn".into()]).unwrap();
        assert_eq!(chosen.iter().map(|w| w.name).collect::<Vec<_>>(), ["gpt2", "cnn"]);
        let error = choose(&["gpt-min".into()]).unwrap_err().to_string();
        assert_eq!(error, "there is no workload `gpt-min`; did you mean `gpt-mini`?");
    }

    #[test]
    fn fusion_is_shown_before_and_after() {
        let workload = choose(&["mlp-tiny".into()]).unwrap()[0];
        let mut text = Vec::new();
        show_fusion(&mut text, workload).unwrap();
        let text = String::from_utf8(text).unwrap();
        let [name, before, after, chain, program, ..] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        assert!(name == "mlp-tiny" && before.starts_with("before ") && after.starts_with("after "), "{text}");
        assert!(chain.contains("f32[batch,32]") && program.contains("b = relu(a) -> b"), "{text}");
    }

    #[test]
    fn a_measurement_fills_the_table_and_its_json() {
        let workload = choose(&["mlp-tiny".into()]).unwrap()[0];
        let mut first = None;
        let mut note = |seconds| {
            first = Some(seconds);
            Ok(())
        };
        let measured = measure(BenchVariant::plain(workload, 1), 0.0, Instant::now(), &mut note).unwrap();
        assert_eq!(first, Some(measured.first_step_seconds));
        assert_eq!((measured.parameters, measured.steps), (2_410, 1));
        assert!(measured.peak_bytes >= 3 * 4 * measured.parameters);
        let event = tagged("workload", serde_json::to_value(&measured).unwrap());
        assert_eq!(event["event"], "workload");
        assert_eq!(serde_json::from_value::<BenchResult>(event).unwrap(), measured);

        let mut text = Vec::new();
        let machine = Machine { flops_per_second: 1e9, copy_bytes_per_second: 2e9 };
        show(&mut text, &[measured], Some(&machine), 1).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.ends_with("at best, 1 threads: 1.0 GFLOP/s, copies 2.0 GB/s\n"), "{text}");
    }
}
