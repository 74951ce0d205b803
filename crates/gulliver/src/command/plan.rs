//! `gulliver plan JOB`: how a job would run, before anything runs.

mod explain;
mod passes;

use super::JobArguments;
use super::several::{as_json, devices_table, ranking_table, write_trace};
use crate::error::{Error, Proposal};
use crate::interrupt;
use crate::local::{LocalDevice, device_set};
use crate::machine::KnownMachine;
use crate::setup::{How, Setup, measured, setup};
use crate::units;
use clap::Args;
use explain::explain;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::devices::options::DeviceOptions;
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::strategy::{AUTO, Candidate, JobGraphs, Strategy, ranking};
use gulliver_plan::document::collectives::exchanged;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Act, Choice, Plan, STREAMS, Stream, Tier};
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::outline::slice_of;
use gulliver_plan::time::simulate::Timing;
use passes::passes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
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

/// What a plan comes to.
#[derive(Clone, Debug, Serialize)]
struct Summary {
    /// Sizes of the input it is for.
    sizes: BTreeMap<String, usize>,
    /// Bytes of each space, and most of them in use at once.
    spaces: BTreeMap<String, [u64; 2]>,
    /// Predicted.
    timing: Timing,
    /// Values that do not stay, by what is done with them.
    decided: BTreeMap<String, usize>,
}

impl Summary {
    fn of(plan: &Plan, sizes: &Bindings, timing: Timing) -> Summary {
        let mut decided = BTreeMap::new();
        for d in &plan.decisions {
            *decided.entry(word(d.choice).to_string()).or_default() += 1;
        }
        Summary {
            sizes: sizes.iter().map(|(symbol, size)| (symbol.to_string(), size)).collect(),
            spaces: plan.spaces.iter().map(|s| (s.name.clone(), [s.bytes, s.live])).collect(),
            timing,
            decided,
        }
    }
}

/// A point of the budget curve.
#[derive(Clone, Debug, Serialize)]
struct Point {
    budget: u64,
    #[serde(flatten)]
    summary: Summary,
}

/// Runs the command.
pub fn run(arguments: &PlanArguments) -> Result<(), Error> {
    let job = arguments.job.load([])?;
    let stop = interrupt::install()?;
    let KnownMachine { profile, about } = arguments.job.machine()?;
    let how = How { thorough: arguments.fit, ..How::watched(&job, &stop, arguments.json) };
    let Setup { mut planners, largest, graphs, devices, .. } = match setup(&job, None, profile.as_ref(), &how)
    {
        Err(Error::DoesNotFit(advice)) if arguments.fit => match &advice.change {
            Some(Proposal { field, value, .. }) => {
                let job = arguments.job.load([(field.as_str(), "--fit", value.clone())])?;
                eprintln!("{field} = {value} makes it fit");
                print!("{}", job.to_toml());
                return Ok(());
            }
            None => return Err(Error::DoesNotFit(advice)),
        },
        made => made?,
    };
    if arguments.fit {
        eprintln!("it fits as it is");
        print!("{}", job.to_toml());
        return Ok(());
    }
    let mut planner = planners.remove(0);
    // Without a budget nothing had to be weighed, and nothing was measured.
    if planner.options().memory.is_none() && profile.is_none() {
        planner.set_rates(measured(planner.options().threads));
    }
    planner.set_watch(how.watch);
    let mut out = io::stdout().lock();
    if arguments.budget_curve {
        let points = curve(&mut planner, &largest)?;
        let text = if arguments.json { json(&points)? } else { curve_table(&points) };
        return Ok(out.write_all(text.as_bytes())?);
    }
    if job.devices.count > 1 && arguments.explain.is_none() {
        let forced = arguments.job.strategy.is_some() && job.train.strategy != AUTO;
        return several(arguments, job.train.strategy, forced, (&graphs, &devices), &mut out);
    }
    let plan = planner.plan_with_passes(Purpose::Train, &largest)?;
    verify(planner.graph(Purpose::Train), &plan).map_err(JobPlanError::from)?;
    let timing = planner.timing(Purpose::Train, &largest, &plan)?;
    let summary = Summary::of(&plan, &largest, timing);
    let graph = planner.graph(Purpose::Train);
    let met = collectives(graph, &plan, &largest)?;
    let text = match &arguments.explain {
        _ if arguments.json => {
            let (devices, (_, from_peers)) = (job.devices.count, met);
            json(&serde_json::json!({
                "devices": devices, "from_peers": from_peers, "machine": about, "summary": summary, "plan": plan
            }))?
        }
        Some(value) => explain(graph, &plan, value)?,
        None => {
            let budget = planner.options().memory;
            table(graph, &plan, &summary, budget) + &about + "\n"
        }
    };
    Ok(out.write_all(text.as_bytes())?)
}

/// Says how strategies rank, unless one is asked for, and what the devices do with the one that is chosen.
fn several(
    arguments: &PlanArguments,
    name: &'static str,
    forced: bool,
    (graphs, devices): (&JobGraphs, &[LocalDevice]),
    out: &mut impl Write,
) -> Result<(), Error> {
    let set = device_set(devices);
    let (able, mut unable) = match forced {
        true => {
            let strategy = Strategy::named(name).expect("job files name known strategies");
            (vec![Candidate::new(strategy, graphs, &set)?], Vec::new())
        }
        false => ranking(graphs, &set)?,
    };
    let Some(chosen) = able.iter().find(|candidate| forced || candidate.same_numbers) else {
        return Err(unable.swap_remove(0).1.into());
    };
    if let Some(path) = &arguments.trace {
        write_trace(path, chosen)?;
    }
    let text = match arguments.json {
        true => json(&as_json(chosen, &able, &unable))?,
        false if forced => devices_table(chosen),
        false => ranking_table(&able, &unable) + "\n" + &devices_table(chosen),
    };
    Ok(out.write_all(text.as_bytes())?)
}

fn json(value: &impl Serialize) -> Result<String, Error> {
    Ok(serde_json::to_string(value).map_err(io::Error::from)? + "\n")
}

fn word(choice: Choice) -> &'static str {
    match choice {
        Choice::Keep => "kept",
        Choice::Recompute => "recomputed",
        Choice::Host => "moved to host memory",
        Choice::Disk => "moved to disk",
    }
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

/// How often a device exchanges values with others in a step, and the bytes it takes from them.
fn collectives(graph: &Graph, plan: &Plan, sizes: &Bindings) -> Result<(usize, u64), PlanError> {
    let collectives = graph.nodes.iter().filter(|node| node.op.def().meets()).count();
    Ok((collectives, exchanged(graph, &slice_of(sizes, plan.partials)?, plan.partials)?))
}

/// The passes, what holds the memory at the peak, and what moves.
fn table(graph: &Graph, plan: &Plan, summary: &Summary, budget: Option<u64>) -> String {
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
        let _ = writeln!(text, "{} {}", place(space.tier), units::bytes(space.bytes));
    }
    let _ = writeln!(text, "a step moves {}", links(&Ledger::of(plan)));
    let busy = |stream: Stream| summary.timing.busy[stream as usize];
    let streams: Vec<String> = STREAMS
        .iter()
        .filter(|s| busy(**s) > 0.0)
        .map(|s| format!("{} {}", doing(*s), time(busy(*s))))
        .collect();
    let _ = writeln!(text, "busy in a step, side by side: {}", streams.join(", "));
    text += "peak: most bytes in use at once; each row: what it and the step time were after that pass of the planner\n";
    text
}

/// The kind of memory of a tier.
fn place(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "device memory",
        Tier::Host => "host memory",
        Tier::Disk => "disk",
    }
}

/// What a stream does.
fn doing(stream: Stream) -> &'static str {
    match stream {
        Stream::Compute => "computing",
        Stream::In => "copying to the device",
        Stream::Out => "copying to host memory",
        Stream::Read => "reading from disk",
        Stream::Write => "writing to disk",
        Stream::Exchange => "exchanging with other devices",
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

/// Plans for budgets from the least that will do to all that could be used.
fn curve(planner: &mut Planner, sizes: &Bindings) -> Result<Vec<Point>, Error> {
    let [graph, evaluation] = [Purpose::Train, Purpose::Evaluate].map(|which| planner.graph(which).clone());
    let options = planner.options().clone();
    let least = planner.smallest(sizes)?;
    let most = planner.unlimited(Purpose::Train, sizes)?.spaces[0].bytes;
    let mut points = Vec::new();
    for part in 0..=8 {
        let budget = least + (most - least.min(most)) * part / 8;
        let limited = DeviceOptions { memory: Some(budget), largest: Some(sizes.clone()), ..options.clone() };
        let mut planner = Planner::new(graph.clone(), Some(evaluation.clone()), limited)?;
        let plan = planner.plan(Purpose::Train, sizes)?;
        let timing = planner.timing(Purpose::Train, sizes, &plan)?;
        points.push(Point { budget, summary: Summary::of(&plan, sizes, timing) });
    }
    Ok(points)
}

fn curve_table(points: &[Point]) -> String {
    let mut text = format!("{:>11} {:>11} {:>11}  a step moves\n", "budget", "step time", "recompute");
    for p in points {
        let timing = &p.summary.timing;
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
