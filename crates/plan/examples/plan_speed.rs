//! How long a plan for a new size of input takes under a budget, after start-up:
//! `cargo run --release -p gulliver-plan --example plan_speed [MODEL] [PERCENT]`.
//!
//! Start-up outlines the graph and plans its largest input. Each row then plans inputs of several other sizes,
//! each for the first time, with a share of what that size needs beyond weights and states: from sizes to the
//! plan with every offset (lifetimes and layout included), and beside that its verification and what is
//! computed again. Arguments select the models whose names begin with the first, and one share.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::plan::Plan;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::time::cost::TierLimits;
use gulliver_plan::time::simulate::simulate;
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

const SHARES: [u64; 4] = [80, 60, 40, 30];

fn graph(name: &str, settings: &[(&str, i64)]) -> Result<Graph, Failure> {
    let settings: Vec<(String, ParamValue)> =
        settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let optimizer = Optimizer::new("adam", &[])?;
    Ok(training_graph(model(name, &settings)?.as_ref(), &[optimizer], None)?)
}

/// Milliseconds of a call, and its result.
fn timed<T>(call: impl FnOnce() -> T) -> (f64, T) {
    let begin = Instant::now();
    let made = call();
    (begin.elapsed().as_secs_f64() * 1e3, made)
}

/// The middle, the least and the most of some numbers, with three digits.
fn spread(mut all: Vec<f64>) -> String {
    all.sort_by(f64::total_cmp);
    match all[..] {
        [] => "-".into(),
        [least, ..] => format!("{:8.3} ({least:.3} to {:.3})", all[all.len() / 2], all[all.len() - 1]),
    }
}

fn rows(label: &str, graph: &Graph, largest: &Bindings, others: &[Bindings]) -> Result<(), Failure> {
    if std::env::args().nth(1).is_some_and(|only| !label.starts_with(&only)) {
        return Ok(());
    }
    let one: Option<u64> = std::env::args().nth(2).map(|share| share.parse()).transpose()?;
    let persistent = Persistent::of(graph)?;
    let beside = TierLimits { host: Some(0), disk: None };
    let options = PlanOptions { beside, ..PlanOptions::new(&persistent) };
    let state = persistent.ends[0];
    for share in SHARES.into_iter().filter(|share| one.is_none_or(|one| one == *share)) {
        let budget = |planner: &StepPlanner, sizes: &Bindings| -> Result<u64, Failure> {
            let moving = planner.plan(graph, sizes, &options)?.spaces[0].bytes - state;
            Ok(state + moving / 100 * share)
        };
        let (start_up, planner) = timed(|| -> Result<StepPlanner, Failure> {
            let mut planner = StepPlanner::new(graph, largest, &options)?;
            let memory = Some(budget(&planner, largest)?);
            planner.learn(graph, largest, &PlanOptions { memory, ..options })?;
            Ok(planner)
        });
        let planner = planner?;
        let (mut plan_times, mut verify_times, mut again) = (Vec::new(), Vec::new(), Vec::new());
        let mut known: HashMap<Bindings, Plan> = HashMap::new();
        for sizes in others {
            let options = PlanOptions { memory: Some(budget(&planner, sizes)?), ..options };
            let (took, plan) = timed(|| planner.plan(graph, sizes, &options));
            plan_times.push(took);
            let Ok(plan) = plan else { continue };
            let (took, verified) = timed(|| verify(graph, &plan));
            verified?;
            verify_times.push(took);
            let bound = planner.outline.sizes(graph, sizes, &options)?;
            let timing = simulate(&plan, |id| planner.outline.seconds(&bound, id.index()), &options.links);
            again.push(100.0 * timing.again / (timing.seconds - timing.again));
            known.insert(sizes.clone(), plan);
        }
        let (looked_up, _) = timed(|| {
            for k in 0..10_000 {
                black_box(known.get(black_box(&others[k % others.len()])));
            }
        });
        println!(
            "{label:<10} {:>6} nodes {share:>3} %  start {start_up:>6.0}  plan {:<26}  verify {:<26}  again % {:<24}  {} of {} fit  cached {:.0} ns",
            graph.nodes.len(),
            spread(plan_times),
            spread(verify_times),
            spread(again),
            known.len(),
            others.len(),
            looked_up * 100.0,
        );
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    println!("milliseconds: middle (least to most) over sizes met for the first time");
    let text = |batch, length| Bindings::new().with("batch", batch).with("length", length);
    let lengths = |batch, all: &[usize]| all.iter().map(|l| text(batch, *l)).collect::<Vec<_>>();
    rows(
        "bert-base",
        &graph("bert-base", &[])?,
        &text(16, 256),
        &lengths(16, &[248, 64, 232, 96, 200, 176, 112, 144, 160]),
    )?;
    let gpt = [("width", 1600), ("heads", 25), ("layers", 48), ("vocab", 50257), ("context", 1024)];
    rows("gpt2-48", &graph("gpt", &gpt)?, &text(1, 1024), &lengths(1, &[960, 256, 384, 768, 640, 512, 896]))?;
    let batches: Vec<Bindings> = [14, 4, 12, 6, 10, 9, 11].map(|b| text(b, 1)).into();
    rows("resnet152", &graph("resnet152", &[])?, &text(16, 1), &batches)?;
    for layers in [12, 24, 48, 96] {
        let gpt = [("width", 256), ("heads", 4), ("layers", layers), ("vocab", 1000), ("context", 256)];
        let graph = graph("gpt", &gpt)?;
        rows(
            &format!("gpt, {layers}"),
            &graph,
            &text(4, 256),
            &lengths(4, &[240, 64, 208, 96, 192, 128, 160]),
        )?;
    }
    Ok(())
}
