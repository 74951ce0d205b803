//! Four devices behind one uplink, with a quarter of the memory that weights and optimizer state need, and links as
//! slow against the devices as PCIe 3 is against a GTX 1080 Ti (11.3 TFLOP/s to 12 GB/s): schedules of ours against
//! virtual memory. Usage: `beyond_devices [PARTIALS [ROUNDS [WORKLOAD or WAY...]]]`.

// For its data alone.
#[allow(dead_code)]
#[path = "../tests/small_models/mod.rs"]
mod small_models;

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Role};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::comparator::paging::Eviction;
use gulliver_plan::cost::Rates;
use gulliver_plan::pipeline::Style;
use gulliver_plan::topology::Topology;
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::link::Throttle;
use gulliver_run::planner::Planner;
use gulliver_run::probe;
use gulliver_run::session::{
    Key, Pipelined, Session, SessionError, SessionOptions, foresee, pipelined, planners,
};
use gulliver_run::team::Team;
use std::sync::Arc;
use std::time::Instant;

const DEVICES: u32 = 4;
/// Floating-point operations of a device for each byte of the uplink.
const PER_BYTE: f64 = 11.3e12 / 12e9;

struct Workload {
    name: &'static str,
    model: &'static str,
    settings: &'static [(&'static str, i64)],
    length: usize,
    optimizer: &'static str,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "BERT",
        model: "bert",
        settings: &[("layers", 12), ("width", 96), ("heads", 2), ("vocab", 64), ("context", 32)],
        length: 32,
        optimizer: "adamw",
    },
    Workload {
        name: "GPT",
        model: "gpt",
        settings: &[("layers", 8), ("width", 128), ("heads", 2), ("vocab", 64), ("context", 32)],
        length: 32,
        optimizer: "adamw",
    },
    Workload {
        name: "ResNet-152",
        model: "resnet152",
        settings: &[("classes", 10), ("size", 32)],
        length: 0,
        optimizer: "sgd",
    },
    Workload {
        name: "VGG-16",
        model: "vgg16",
        settings: &[("classes", 10), ("size", 32)],
        length: 0,
        optimizer: "sgd",
    },
];

/// A way to train, with the options of one device.
type Way =
    (&'static str, Box<dyn Fn(&Graph, SessionOptions, &Bindings) -> Result<Vec<Planner>, SessionError>>);

fn ways(budget: u64) -> Vec<Way> {
    let each = |options: SessionOptions| vec![options; DEVICES as usize];
    let paged = move |options: SessionOptions| SessionOptions {
        paged: Some((budget, Eviction::AlwaysWritten)),
        memory: None,
        ..options
    };
    let limited = move |options: SessionOptions| SessionOptions { memory: Some(budget), ..options };
    let line = |packs: u32, style| Pipelined { packs: packs as usize, style };
    let mut ways: Vec<Way> = vec![
        ("data, paged", Box::new(move |g, o, _| planners(g, None, each(paged(o))))),
        (
            "gpipe, paged",
            Box::new(move |g, o, s| pipelined(g, None, each(paged(o)), s, line(DEVICES, Style::Grouped))),
        ),
        (
            "1f1b, paged",
            Box::new(move |g, o, s| pipelined(g, None, each(paged(o)), s, line(DEVICES, Style::OneByOne))),
        ),
        ("harmony-dp", Box::new(move |g, o, _| planners(g, None, each(limited(o))))),
    ];
    for (name, packs) in
        [("harmony-pp 5", 5), ("harmony-pp 9", 9), ("harmony-pp 13", 13), ("harmony-pp 17", 17)]
    {
        ways.push((
            name,
            Box::new(move |g, o, s| pipelined(g, None, each(limited(o)), s, line(packs, Style::Grouped))),
        ));
    }
    ways
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |otherwise: u32| arguments.next().and_then(|n| n.parse().ok()).unwrap_or(otherwise);
    let (partials, rounds) = (number(16), number(2));
    let chosen: Vec<String> = arguments.collect();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()) as f64;
    let team = Team::new(1);
    let share = (cores / f64::from(DEVICES)).min(1.0);
    let flops = 0.7 * share * probe::multiply_adds(&team, 0.1);
    let bytes = 0.8 * share * probe::copies(&team, 12 << 20, 0.1);
    let uplink = flops / PER_BYTE;
    println!(
        "{DEVICES} devices of {:.1} GFLOP/s, an uplink of {:.1} MB/s, {partials} partials",
        flops / 1e9,
        uplink / 1e6
    );
    let (known, asked): (Vec<String>, Vec<String>) =
        chosen.into_iter().partition(|name| WORKLOADS.iter().any(|w| w.name == name));
    for workload in WORKLOADS.iter().filter(|w| known.is_empty() || known.iter().any(|name| name == w.name)) {
        let settings = workload.settings.iter().map(|(name, n)| (name.to_string(), ParamValue::Int(*n)));
        let model = model(workload.model, &settings.collect::<Vec<_>>()).expect("a model of the table");
        let optimizer = Optimizer::new(workload.optimizer, &[]).expect("an optimizer of the table");
        let graph = training_graph(model.as_ref(), &[optimizer], None).expect("it can be trained");
        let sizes = Bindings::new().with("batch", partials as usize).with("length", workload.length);
        let kept = graph.inputs().filter(|(_, role, _)| matches!(role, Role::Weight(_) | Role::State(_)));
        let state: u64 =
            kept.map(|(_, _, info)| info.ty.bytes().bind(&Bindings::new()).unwrap_or(0) as u64).sum();
        let budget = state / 4 / u64::from(DEVICES);
        println!(
            "\n{}: weights and state {:.1} MB, {:.2} MB on each device",
            workload.name,
            state as f64 / 1e6,
            budget as f64 / 1e6
        );
        let options = SessionOptions {
            threads: 1,
            partials,
            largest: Some(sizes.clone()),
            rates: Rates { flops, bytes, ..Rates::default() },
            ..SessionOptions::default()
        };
        let batch = small_models::data(&graph, &sizes);
        let mut runs: Vec<(&str, f64, Session, Vec<f64>)> = Vec::new();
        for (name, plan) in ways(budget) {
            if !asked.is_empty() && !asked.iter().any(|part| name.contains(part.as_str())) {
                continue;
            }
            let topology = Topology::pcie(DEVICES, uplink, 0.0, 1).expect("a box");
            let throttle = Some(Arc::new(Throttle::new(topology)));
            let began = Instant::now();
            let own = SessionOptions { throttle, ..options.clone() };
            let mut planned = match plan(&graph, own, &sizes) {
                Ok(planned) => planned,
                Err(e) => {
                    println!("  {name:<14} {e}");
                    continue;
                }
            };
            let largest = planned[0].options().largest.clone().unwrap_or_else(|| sizes.clone());
            let foreseen = match foresee(&mut planned, &largest) {
                Ok(foreseen) => foreseen,
                Err(e) => {
                    println!("  {name:<14} {e}");
                    continue;
                }
            };
            let moved: u64 =
                foreseen.together.devices.iter().map(|d| d.moved.to_device + d.moved.to_host).sum();
            println!(
                "  {name:<14} planned in {:5.1} s: {:8.2} s a step, {:7.1} MB to and from the host",
                began.elapsed().as_secs_f64(),
                foreseen.together.seconds,
                moved as f64 / 1e6
            );
            runs.push((
                name,
                foreseen.together.seconds,
                Session::together(planned, 1).expect("memory for it"),
                Vec::new(),
            ));
        }
        // Of the wrapped pipelines only the one that is thought to be fastest runs.
        let fastest =
            runs.iter().filter(|run| run.0.starts_with("harmony-pp")).min_by(|a, b| a.1.total_cmp(&b.1));
        let fastest = fastest.map(|run| run.0);
        runs.retain(|run| !run.0.starts_with("harmony-pp") || Some(run.0) == fastest);
        let hyper = |name: &str| name.ends_with("step").then_some(1.0);
        for round in 0..=rounds {
            for (_, _, session, times) in &mut runs {
                let began = Instant::now();
                session.step(&batch, Key { seed: 1, step: u64::from(round) }, &hyper).expect("a step");
                // The first makes memory.
                if round > 0 {
                    times.push(began.elapsed().as_secs_f64());
                }
            }
        }
        let mut prints = Vec::new();
        for (name, thought, session, times) in &mut runs {
            times.sort_by(f64::total_cmp);
            let (median, moved) = (times[times.len() / 2], session.ledger());
            let each = (moved.to_device + moved.to_host) as f64 / f64::from(rounds + 1) / 1e6;
            println!(
                "  {name:<14} {median:8.2} s a step ({:.2}-{:.2}), simulated {thought:8.2} s ({:.0} %), {each:7.1} MB",
                times[0],
                times[times.len() - 1],
                100.0 * *thought / median
            );
            prints.push(fingerprint(&session.tensors().expect("tensors")));
        }
        println!("  all end with the same bits: {}", prints.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
