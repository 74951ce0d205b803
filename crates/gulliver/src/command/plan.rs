//! `gulliver plan JOB`: how a job would run, before anything runs.

mod explain;
mod passes;

use super::JobArguments;
use super::several::{devices_table, ranking_table, write_trace};
use crate::error::{Error, Proposal};
use crate::event::{Event, EventHandler};
use crate::interrupt;
use crate::job::Job;
use crate::planning::{
    BudgetPoint, PlanRequest, Planned, PlannedDevice, budget_curve, cheapest_change, plan_first_device,
    plan_with,
};
use crate::report::terminal::{OutputMode, TerminalReporter};
use crate::units;
use clap::Args;
use explain::explain;
use gulliver_graph::graph::Graph;
use gulliver_plan::devices::strategy::AUTO;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Act, Plan, PlanStream, STREAMS};
use passes::passes;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

/// Show how a job would run: memory, time and transfers.
#[derive(Args)]
pub struct PlanArguments {
    #[command(flatten)]
    job: JobArguments,
    /// Explain why values with this in their name are kept, recomputed or moved.
    #[arg(long, value_name = "VALUE")]
    explain: Option<String>,
    /// Show the step time for budgets from the smallest possible to no limit.
    #[arg(long)]
    budget_curve: bool,
    /// If the job does not fit, print a job file with the cheapest change that makes it fit.
    #[arg(long)]
    fit: bool,
    /// Write a trace of the simulated step of several devices, for Chrome or Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print everything as JSON, the plan included.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &PlanArguments) -> Result<(), Error> {
    let job = arguments.job.load([])?;
    let request = PlanRequest {
        profile: arguments.job.profile.clone(),
        one_strategy: arguments.job.strategy.is_some() && job.train.strategy != AUTO,
        stop: interrupt::install()?,
    };
    let mut reporter = TerminalReporter::new(OutputMode::choose(arguments.json), Box::new(io::stdout()));
    let mut report = |event: Event| match reporter.report(&event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    let text = text(arguments, &job, &request, &mut report)?;
    drop(reporter);
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// The output of the command.
fn text(
    arguments: &PlanArguments,
    job: &Job,
    request: &PlanRequest,
    on_event: &mut EventHandler<'_>,
) -> Result<String, Error> {
    if arguments.fit {
        return Ok(match cheapest_change(job, request, on_event)? {
            Some(Proposal { field, value, .. }) => {
                eprintln!("{field} = {value} makes it fit");
                arguments.job.load([(field.as_str(), "--fit", value.clone())])?.to_toml()
            }
            None => {
                eprintln!("it fits as it is");
                job.to_toml()
            }
        });
    }
    if arguments.budget_curve {
        let points = budget_curve(job, request, on_event)?;
        return if arguments.json { json(&points) } else { Ok(curve_table(&points)) };
    }
    let planned = match &arguments.explain {
        Some(_) => Planned::Device(Box::new(plan_first_device(job, request, on_event)?)),
        None => plan_with(job, request, on_event)?,
    };
    if let (Planned::Devices(planned), Some(path)) = (&planned, &arguments.trace) {
        write_trace(path, planned.chosen())?;
    }
    match (&planned, &arguments.explain) {
        _ if arguments.json => json(&planned.to_json()),
        (Planned::Device(planned), Some(value)) => explain(&planned.graph, &planned.plan, value),
        (Planned::Device(planned), None) => Ok(table(planned) + &planned.machine + "\n"),
        (Planned::Devices(planned), _) if request.one_strategy => Ok(devices_table(planned.chosen())),
        (Planned::Devices(planned), _) => {
            let ranking = ranking_table(&planned.candidates, &planned.impossible);
            Ok(ranking + "\n" + &devices_table(planned.chosen()))
        }
    }
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    Ok(serde_json::to_string(value).map_err(io::Error::from)? + "\n")
}

fn time(seconds: f64) -> String {
    units::duration(Duration::from_secs_f64(seconds.max(0.0)))
}

fn links(moved: &Ledger) -> String {
    let all = [
        ("host to device", moved.to_device),
        ("device to host", moved.to_host),
        ("from disk", moved.disk_read),
        ("to disk", moved.disk_written),
    ];
    let some: Vec<String> = all
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(link, bytes)| format!("{} {link}", units::bytes(*bytes)))
        .collect();
    if some.is_empty() { "nothing".into() } else { some.join(", ") }
}

/// The passes, the largest values at the peak, and transfers.
fn table(planned: &PlannedDevice) -> String {
    let PlannedDevice { graph, plan, figures, budget, .. } = planned;
    let mut text = passes(&plan.passes);
    let (at, held) = plan.at_peak();
    let of = budget.map_or("no limit".to_string(), |bytes| format!("budget {}", units::bytes(bytes)));
    let _ = writeln!(
        text,
        "\npeak {} in use at once ({of}), at {}; the largest then:",
        units::bytes(plan.spaces[0].live),
        running(graph, plan, at)
    );
    for b in held.iter().take(8) {
        let buffer = plan.buffer(*b);
        let name = buffer.value.map_or("working memory of a kernel", |v| graph.value(v).name.as_str());
        let _ = writeln!(text, "  {:<48} {:>11}", name, units::bytes(buffer.bytes));
    }
    for space in plan.spaces.iter().skip(1).filter(|space| space.bytes > 0) {
        let _ = writeln!(text, "{} {}", space.tier, units::bytes(space.bytes));
    }
    let _ = writeln!(text, "a step moves {}", links(&Ledger::of(plan)));
    let busy = |stream: PlanStream| figures.timing.busy[stream as usize];
    let streams: Vec<String> = STREAMS
        .iter()
        .filter(|s| busy(**s) > 0.0)
        .map(|s| format!("{} {}", doing(*s), time(busy(*s))))
        .collect();
    let _ = writeln!(text, "busy in a step, side by side: {}", streams.join(", "));
    text += "peak: most bytes in use at once; each row: what it and the step time were after that pass of the planner\n";
    text
}

/// The work of a stream.
fn doing(stream: PlanStream) -> &'static str {
    match stream {
        PlanStream::Compute => "computing",
        PlanStream::In => "copying to the device",
        PlanStream::Out => "copying to host memory",
        PlanStream::Read => "reading from disk",
        PlanStream::Write => "writing to disk",
        PlanStream::Exchange => "exchanging with other devices",
    }
}

/// The instruction that runs at a step of the plan or next after it, counted from one.
fn running(graph: &Graph, plan: &Plan, at: usize) -> String {
    let next = plan.steps[at..].iter().enumerate().find_map(|(i, step)| match &step.act {
        Act::Run { node, .. } | Act::Exchange { node, .. } => Some((i, graph.nodes[node.index()].outs[0])),
        _ => None,
    });
    let of = plan.steps.len();
    next.map_or("the end of the step".into(), |(i, v)| {
        format!("instruction {} of {of}, which computes {}", at + i + 1, graph.value(v).name)
    })
}

/// The step time within every budget.
fn curve_table(points: &[BudgetPoint]) -> String {
    let mut text = format!("{:>11} {:>11} {:>11}  a step moves\n", "budget", "step time", "recompute");
    for p in points {
        let timing = &p.figures.timing;
        let _ = writeln!(
            text,
            "{:>11} {:>11} {:>11}  {}",
            units::bytes(p.budget),
            time(timing.seconds),
            time(timing.again),
            links(&timing.moved),
        );
    }
    text
}
