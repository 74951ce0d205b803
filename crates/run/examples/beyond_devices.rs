//! Compares our schedules with virtual memory on four devices behind one uplink, with a quarter of the memory that weights
//! and optimizer states need, and a ratio of compute to link speed as for a GTX 1080 Ti on PCIe 3 (11.3 TFLOP/s to
//! 12 GB/s). Usage: `beyond_devices [PARTIALS [ROUNDS [WORKLOAD or METHOD...]]]`.

// Used for its data only.
#[allow(dead_code)]
#[path = "../tests/small_models/mod.rs"]
mod small_models;

use gulliver::local::{LocalDevice, device_set, together};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Role};
use gulliver_graph::model::model;
use gulliver_graph::model::param::{ParamValue, flag, int, ints};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::HyperRole;
use gulliver_graph::training::training_graph;
use gulliver_lab::comparator::paging::{Eviction, Paged};
use gulliver_lab::comparator::traffic::pcie;
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::devices::pipeline::Style;
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::predict::predict;
use gulliver_plan::devices::replicate::ShardedValues;
use gulliver_plan::devices::strategy::{Pipelined, packs, pipelined, pipelined_as, replicated, sharded};
use gulliver_plan::time::cost::Rates;
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::peers::link::Throttle;
use gulliver_run::profile::roofline;
use gulliver_run::session::{Session, StepKey};
use gulliver_run::team::Team;
use gulliver_run::team::side_by_side;
use std::sync::Arc;
use std::time::Instant;

const DEVICES: u32 = 4;
/// Pipelines that are planned; the one predicted to be fastest runs.
const CANDIDATES: usize = 2;
/// Floating-point operations of a device per byte of the uplink.
const PER_BYTE: f64 = 11.3e12 / 12e9;

struct Workload {
    name: &'static str,
    model: &'static str,
    settings: &'static [(&'static str, ParamValue)],
    length: usize,
    /// Number of blocks whose inputs are kept under recomputation.
    blocks: usize,
    optimizer: &'static str,
    hypers: &'static [(&'static str, f32)],
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "BERT-96",
        model: "bert",
        settings: &[
            ("layers", int(96)),
            ("width", int(64)),
            ("hidden", int(256)),
            ("heads", int(2)),
            ("vocab", int(64)),
            ("context", int(32)),
        ],
        length: 32,
        blocks: 96,
        optimizer: "adamw",
        hypers: &[],
    },
    Workload {
        name: "GPT-48",
        model: "gpt",
        settings: &[
            ("layers", int(48)),
            ("width", int(96)),
            ("heads", int(2)),
            ("vocab", int(64)),
            ("context", int(32)),
        ],
        length: 32,
        blocks: 48,
        optimizer: "adamw",
        hypers: &[],
    },
    Workload {
        name: "ResNet-326",
        model: "resnet18",
        settings: &[
            ("blocks", ints(&[36, 36, 36])),
            ("bottleneck", flag(true)),
            ("width", int(16)),
            ("classes", int(10)),
            ("size", int(8)),
        ],
        length: 0,
        blocks: 108,
        optimizer: "sgd",
        hypers: &[("momentum", 0.9)],
    },
    Workload {
        name: "VGG-416",
        model: "vgg16",
        settings: &[
            ("convolutions", ints(&[138, 138, 137])),
            ("width", int(16)),
            ("hidden", int(64)),
            ("pool", int(1)),
            ("classes", int(10)),
            ("size", int(8)),
        ],
        length: 0,
        blocks: 138,
        optimizer: "sgd",
        hypers: &[("momentum", 0.9)],
    },
];

/// A method of training: its name, and planners from the options of one device.
type Way = (String, Box<dyn Fn(&Graph, LocalDevice, &Bindings) -> Result<Vec<Planner>, JobPlanError>>);

fn ways(budget: u64, blocks: usize) -> Vec<Way> {
    let each = |options: LocalDevice| vec![options; DEVICES as usize];
    let limited = move |options: LocalDevice| LocalDevice { memory: Some(budget), ..options };
    let mut ways: Vec<Way> = Vec::new();
    for again in [false, true] {
        // Every block of the model is a segment; a device has a quarter of them.
        let paged = move |options: LocalDevice, of: u32| {
            let segments = again.then_some(blocks.div_ceil(of as usize));
            let paged = Paged { memory: budget, eviction: Eviction::AlwaysWritten, segments };
            LocalDevice { writer: Some(Arc::new(paged)), memory: None, ..options }
        };
        let name = |way: &str| format!("{way} paged{}", if again { ", recompute" } else { "" });
        ways.push((
            name("data"),
            Box::new(move |g, o, _| replicated(g, None, &device_set(&each(paged(o, 1))))),
        ));
        for (way, style) in [("gpipe", Style::Grouped), ("1f1b", Style::OneByOne)] {
            let line = Pipelined { packs: DEVICES as usize, style };
            let way = name(way);
            ways.push((
                way,
                Box::new(move |g, o, s| pipelined(g, None, &device_set(&each(paged(o, DEVICES))), s, line)),
            ));
        }
    }
    ways.push((
        "zero".into(),
        Box::new(move |g, o, _| {
            sharded(g, None, &device_set(&each(limited(o))), ShardedValues::WeightsAndStates { keep: false })
        }),
    ));
    let grouped = move |options| LocalDevice { grouped: true, ..limited(options) };
    ways.push((
        "harmony-dp".into(),
        Box::new(move |g, o, _| replicated(g, None, &device_set(&each(grouped(o))))),
    ));
    for candidate in 0..CANDIDATES {
        let plan = move |g: &Graph, o: LocalDevice, s: &Bindings| {
            let devices = each(limited(o));
            let Some(packs) = packs(g, &device_set(&devices), s, CANDIDATES)?.into_iter().nth(candidate)
            else {
                return Ok(Vec::new());
            };
            pipelined_as(g, None, &device_set(&devices), s, (packs, Style::Grouped))
        };
        ways.push((format!("harmony-pp {}", candidate + 1), Box::new(plan)));
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
    let flops = 0.7 * share * roofline::multiply_adds(&team, 0.1);
    let bytes = 0.8 * share * roofline::copies(&team, 12 << 20, 0.1);
    let uplink = flops / PER_BYTE;
    println!(
        "{DEVICES} devices of {:.1} GFLOP/s, an uplink of {:.1} MB/s, {partials} partials",
        flops / 1e9,
        uplink / 1e6
    );
    let (known, asked): (Vec<String>, Vec<String>) =
        chosen.into_iter().partition(|name| WORKLOADS.iter().any(|w| w.name == name));
    for workload in WORKLOADS.iter().filter(|w| known.is_empty() || known.iter().any(|name| name == w.name)) {
        let settings = workload.settings.iter().map(|(name, value)| (name.to_string(), value.clone()));
        let model = model(workload.model, &settings.collect::<Vec<_>>()).expect("a model of the table");
        let optimizer =
            Optimizer::new(workload.optimizer, workload.hypers).expect("an optimizer of the table");
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
        let options = LocalDevice {
            threads: 1,
            partials,
            largest: Some(sizes.clone()),
            rates: Rates { flops, bytes, ..Rates::default() },
            ..LocalDevice::default()
        };
        let batch = small_models::data(&graph, &sizes);
        let mut runs: Vec<(String, f64, Session, Vec<f64>)> = Vec::new();
        for (name, plan) in ways(budget, workload.blocks) {
            if !asked.is_empty() && !asked.iter().any(|part| name.contains(part.as_str())) {
                continue;
            }
            let topology = pcie(DEVICES, uplink, 0.0, 1).expect("a box");
            let throttle = Some(Arc::new(Throttle::new(topology)));
            let began = Instant::now();
            let own = LocalDevice { throttle, ..options.clone() };
            let mut planned = match plan(&graph, own.clone(), &sizes) {
                Ok(planned) => planned,
                Err(e) => {
                    println!("  {name:<24} {e}");
                    continue;
                }
            };
            let largest = planned[0].options().largest.clone().unwrap_or_else(|| sizes.clone());
            let foreseen = match predict(&side_by_side, &mut planned, &largest) {
                Ok(foreseen) => foreseen,
                Err(e) => {
                    println!("  {name:<24} {e}");
                    continue;
                }
            };
            let moved: u64 =
                foreseen.together.devices.iter().map(|d| d.moved.to_device + d.moved.to_host).sum();
            println!(
                "  {name:<24} planned in {:5.1} s: {:8.2} s a step, {:7.1} MB to and from the host",
                began.elapsed().as_secs_f64(),
                foreseen.together.seconds,
                moved as f64 / 1e6
            );
            if rounds == 0 {
                continue;
            }
            runs.push((
                name.clone(),
                foreseen.together.seconds,
                together(&name, planned, &vec![own; DEVICES as usize], 1).expect("memory for it"),
                Vec::new(),
            ));
        }
        // Only the wrapped pipeline that is predicted to be fastest runs.
        let fastest =
            runs.iter().filter(|run| run.0.starts_with("harmony-pp")).min_by(|a, b| a.1.total_cmp(&b.1));
        let fastest = fastest.map(|run| run.0.clone());
        runs.retain(|run| !run.0.starts_with("harmony-pp") || Some(&run.0) == fastest.as_ref());
        let hyper = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some(1.0);
        for round in 0..=rounds {
            for (_, _, session, times) in &mut runs {
                let began = Instant::now();
                session.step(&batch, StepKey { seed: 1, step: u64::from(round) }, &hyper).expect("a step");
                // The first step allocates memory.
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
                "  {name:<24} {median:8.2} s a step ({:.2}-{:.2}), simulated {thought:8.2} s ({:.0} %), {each:7.1} MB",
                times[0],
                times[times.len() - 1],
                100.0 * *thought / median
            );
            prints.push(fingerprint(&session.tensors().expect("tensors")));
        }
        println!("  all end with the same bits: {}", prints.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
