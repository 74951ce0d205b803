//! `gulliver bench`: training speed and memory on the reference workloads, beside what the machine can do
//! at best.

use super::CommandError;
use crate::report::table::{self, Column};
use crate::report::units;
use crate::workload::{WORKLOADS, Workload, step_flops};
use clap::Args;
use gulliver_graph::nearest::suggestion;
use gulliver_run::executor::Work;
use gulliver_run::probe;
use gulliver_run::session::{Key, Session, SessionOptions};
use gulliver_run::team::Team;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// Measures training speed and memory on the reference workloads.
#[derive(Args)]
pub struct Arguments {
    /// Which to run; all of them if none is named.
    workloads: Vec<String>,
    /// Threads; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Seconds of steps for each workload.
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// As JSON, one line per workload.
    #[arg(long)]
    json: bool,
    /// Shows where the time of one step goes, by operator.
    #[arg(long)]
    profile: bool,
}

/// What was measured of one workload.
struct Measured {
    workload: &'static Workload,
    first_step: Duration,
    steps: Vec<Duration>,
    flops: u64,
    arena: u64,
}

impl Measured {
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted: Vec<f64> = self.steps.iter().map(Duration::as_secs_f64).collect();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * share).round() as usize]
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let began = Instant::now();
    let names: Vec<&str> = WORKLOADS.iter().map(|w| w.name).collect();
    let mut chosen: Vec<&'static Workload> = Vec::new();
    for name in &arguments.workloads {
        let found = WORKLOADS.iter().find(|w| w.name == name);
        let unknown = || {
            format!(
                "there is no workload `{name}`; {}",
                suggestion(name, names.iter().copied(), &names.join(", "))
            )
        };
        chosen.push(found.ok_or_else(|| CommandError::Unknown(unknown()))?);
    }
    if chosen.is_empty() {
        chosen = WORKLOADS.iter().collect();
    }
    let threads = match arguments.threads {
        Some(0) => return Err(CommandError::Unknown("--threads must be at least 1".into())),
        Some(n) => n,
        None => std::thread::available_parallelism().map_or(1, |n| n.get()),
    };
    let mut out = std::io::stdout().lock();
    if arguments.profile {
        for workload in chosen {
            profile(&mut out, workload, threads)?;
        }
        return Ok(());
    }
    // One workload in a process of its own, as the peer's program runs, starts without the probes.
    let mut measured = Vec::new();
    for workload in chosen {
        measured.push(measure(workload, threads, arguments.seconds, began)?);
    }
    let resident = probe::peak_resident().unwrap_or(0);
    let team = Team::new(threads);
    let peak = probe::multiply_adds(&team, 0.5);
    let copy = probe::copies(&team, 256 << 20, 0.5);
    if arguments.json {
        for m in &measured {
            let step = m.quantile(0.5);
            let line = json!({
                "workload": m.workload.name, "threads": threads, "parameters": m.workload.parameters,
                "samples_per_second": m.workload.batch as f64 / step, "steps": m.steps.len(),
                "step_ms": {"median": step * 1e3, "low": m.quantile(0.1) * 1e3, "high": m.quantile(0.9) * 1e3},
                "gflops": m.flops as f64 / step / 1e9, "peak_gflops": peak / 1e9, "copy_gb_per_second": copy / 1e9,
                "arena_bytes": m.arena, "resident_bytes": resident,
                "first_step_seconds": m.first_step.as_secs_f64(),
            });
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    let cells: Vec<Vec<String>> = measured.iter().map(|m| cells(m, peak)).collect();
    let columns = [
        Column::Left("workload"),
        Column::Right("parameters"),
        Column::Right("samples/s"),
        Column::Right("step ms"),
        Column::Right("10-90 %"),
        Column::Right("GFLOP/s"),
        Column::Right("of peak"),
        Column::Right("memory"),
    ];
    write!(out, "{}", table::render(&columns, &cells))?;
    let (peak, copy) = (peak / 1e9, copy / 1e9);
    writeln!(
        out,
        "{threads} threads: peak {peak:.0} GFLOP/s, copy {copy:.1} GB/s; process {}",
        units::bytes(resident)
    )?;
    Ok(())
}

fn cells(m: &Measured, peak: f64) -> Vec<String> {
    let step = m.quantile(0.5);
    let rate = m.flops as f64 / step;
    vec![
        m.workload.name.to_string(),
        units::count(m.workload.parameters),
        format!("{:.1}", m.workload.batch as f64 / step),
        format!("{:.2}", step * 1e3),
        format!("{:.2}-{:.2}", m.quantile(0.1) * 1e3, m.quantile(0.9) * 1e3),
        format!("{:.1}", rate / 1e9),
        format!("{:.0} %", 100.0 * rate / peak),
        units::bytes(m.arena),
    ]
}

fn hyper(step: u64) -> impl Fn(&str) -> Option<f32> {
    move |name| name.ends_with("step").then_some((step + 1) as f32)
}

/// Two steps to warm up, then steps for so many seconds, at least three.
fn measure(
    workload: &'static Workload,
    threads: usize,
    seconds: f64,
    began: Instant,
) -> Result<Measured, CommandError> {
    let graph = workload.graph()?;
    let flops = step_flops(&graph, &workload.sizes())?;
    let batch = workload.data(&graph)?;
    let mut session = Session::new(graph, None, SessionOptions { threads, ..SessionOptions::default() }, 0)?;
    let mut step = |number: u64| -> Result<Duration, CommandError> {
        let start = Instant::now();
        session.step(&batch, Key { seed: 0, step: number }, &hyper(number))?;
        Ok(start.elapsed())
    };
    step(0)?;
    let first_step = began.elapsed();
    step(1)?;
    let start = Instant::now();
    let mut steps = Vec::new();
    while steps.len() < 3 || start.elapsed().as_secs_f64() < seconds {
        steps.push(step(2 + steps.len() as u64)?);
    }
    Ok(Measured { workload, first_step, steps, flops, arena: session.peak() })
}

/// Time of one warm step by operator, most first.
fn profile(out: &mut impl Write, workload: &Workload, threads: usize) -> Result<(), CommandError> {
    let graph = workload.graph()?;
    let batch = workload.data(&graph)?;
    let nodes = graph.clone();
    let mut session = Session::new(graph, None, SessionOptions { threads, ..SessionOptions::default() }, 0)?;
    let mut times = Vec::new();
    for step in 0..3 {
        times = session.profile(&batch, Key { seed: 0, step }, &hyper(step))?;
    }
    let total: f64 = times.iter().map(|(_, t)| t.as_secs_f64()).sum();
    let mut rows: BTreeMap<&str, (u64, f64, f64, f64)> = BTreeMap::new();
    for (work, time) in times {
        let (name, flops, bytes) = match work {
            Work::Node(id) => {
                let node = &nodes.nodes[id.index()];
                let flops = nodes.flops(node).ok().and_then(|f| f.bind(&workload.sizes()).ok()).unwrap_or(0);
                let bytes = nodes.bytes(node).bind(&workload.sizes()).unwrap_or(0);
                (node.op.def().name(), flops as f64, bytes as f64)
            }
            Work::Copy(bytes) => ("(copy)", 0.0, 2.0 * bytes as f64),
            Work::Add(bytes) => ("(add)", bytes as f64 / 4.0, 3.0 * bytes as f64),
        };
        let row = rows.entry(name).or_default();
        *row = (row.0 + 1, row.1 + time.as_secs_f64(), row.2 + flops, row.3 + bytes);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    let cell = |(name, (calls, time, flops, bytes)): (&str, (u64, f64, f64, f64))| {
        vec![
            name.to_string(),
            calls.to_string(),
            format!("{:.3}", time * 1e3),
            format!("{:.1} %", 100.0 * time / total),
            format!("{:.1}", flops / time / 1e9),
            format!("{:.1}", bytes / time / 1e9),
        ]
    };
    let cells: Vec<Vec<String>> = rows.into_iter().map(cell).collect();
    let columns = [
        Column::Left("operator"),
        Column::Right("calls"),
        Column::Right("ms"),
        Column::Right("of step"),
        Column::Right("GFLOP/s"),
        Column::Right("GB/s"),
    ];
    writeln!(out, "{}, {threads} threads, {:.2} ms", workload.name, total * 1e3)?;
    write!(out, "{}", table::render(&columns, &cells))?;
    Ok(())
}
