//! Two engines that must agree: plans of all devices simulated together, and closed forms, for the same model,
//! the same device rates and the same links.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, NodeId, Phase, Value};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_oracle::cluster::Cluster;
use gulliver_oracle::estimate::Estimate;
use gulliver_oracle::from_graph::{KernelStyle, from_graph};
use gulliver_oracle::hardware::{Accelerator, Precision};
use gulliver_oracle::network::ClusterLink;
use gulliver_oracle::oracle::estimate;
use gulliver_oracle::setting::{Setting, Software};
use gulliver_oracle::strategy::{ClusterStrategy, Cut, Order};
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::devices::cut::{CutDevice, CutMachine, CutRule, partition, rule_cut};
use gulliver_plan::devices::pipeline::{Placement, Style, pipeline, spread, turns};
use gulliver_plan::devices::replicate::replica;
use gulliver_plan::document::links::Links;
use gulliver_plan::document::plan::Plan;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Topology};
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::step::order::PartialTurn;
use gulliver_plan::time::cost::Rates;
use gulliver_plan::time::simulate::{JointTiming, RankPlan, Unevenness, together};
use std::collections::HashMap;

const RATES: Rates = Rates { flops: 50e9, bytes: 20e9, call: 0.0 };
const BATCH: usize = 32;
const PARTIALS: u32 = 4;

struct Job {
    name: &'static str,
    graph: Graph,
    sizes: Bindings,
}

fn jobs() -> Vec<Job> {
    let int = |name: &str, v| (name.to_string(), ParamValue::Int(v));
    let ints = |name: &str, v: &[i64]| (name.to_string(), ParamValue::Ints(v.to_vec().into()));
    let gpt = [int("width", 128), int("heads", 4), int("layers", 4), int("vocab", 512), int("context", 64)];
    let mlp = [ints("sizes", &[256, 512, 512, 512, 256])];
    let vgg = [int("width", 32), int("hidden", 256), int("pool", 1), int("size", 32), int("classes", 16)];
    let text = Bindings::new().with("length", 64);
    let made = |name: &'static str, settings: &[(String, ParamValue)], sizes: Bindings| {
        let model = model(name, settings).unwrap();
        let graph = training_graph(&*model, &[Optimizer::new("adamw", &[]).unwrap()], None).unwrap();
        Job { name, graph, sizes }
    };
    vec![made("mlp", &mlp, Bindings::new()), made("gpt", &gpt, text), made("vgg11", &vgg, Bindings::new())]
}

/// What a device does, planned.
struct Planned {
    graph: Graph,
    plan: Plan,
    seconds: Vec<f64>,
}

fn planned(graph: Graph, sizes: &Bindings, partials: u32, turns: Option<&[PartialTurn]>) -> Planned {
    let persistent = Persistent::of(&graph).unwrap();
    let options = PlanOptions { rates: RATES, partials, turns, ..PlanOptions::new(&persistent) };
    let planner = StepPlanner::new(&graph, sizes, &options).unwrap();
    let plan = planner.plan(&graph, sizes, &options).unwrap();
    verify(&graph, &plan).unwrap();
    let bound = planner.outline.sizes(&graph, sizes, &options).unwrap();
    let meets = |node: usize| graph.nodes[node].op.def().meets();
    // What a collective takes is for the links to say.
    let seconds = (0..graph.nodes.len())
        .map(|node| if meets(node) { 0.0 } else { planner.outline.seconds(&bound, node) });
    let seconds = seconds.collect();
    Planned { graph, plan, seconds }
}

/// The plans of a strategy by its name.
fn plans(job: &Job, name: &str, devices: u32) -> Vec<Planned> {
    let sizes = job.sizes.clone().with("batch", BATCH);
    match name {
        "alone" => vec![planned(job.graph.clone(), &sizes, 1, None)],
        "data" => {
            let share = job.sizes.clone().with("batch", BATCH / devices as usize);
            let one = |rank| planned(replica(&job.graph, rank, devices, 1).unwrap(), &share, 1, None);
            (0..devices).map(one).collect()
        }
        "gpipe" | "1f1b" => {
            piped(job, devices, if name == "gpipe" { Style::Grouped } else { Style::OneByOne })
        }
        cut => {
            let units = vec![CutDevice { rates: RATES, ..CutDevice::default() }; devices as usize];
            let many = CutMachine { devices: units, ..CutMachine::new(devices as usize) };
            let rule = match cut {
                "filter" => CutRule::Filter,
                "channel" => CutRule::Channel,
                _ => CutRule::Spatial,
            };
            let cut = rule_cut(&job.graph, &sizes, &many, &[rule]).unwrap();
            let shares = partition(&job.graph, &sizes, &cut).unwrap();
            shares.into_iter().map(|share| planned(share.graph, &Bindings::new(), 1, None)).collect()
        }
    }
}

fn piped(job: &Job, devices: u32, style: Style) -> Vec<Planned> {
    let slice = job.sizes.clone().with("batch", BATCH / PARTIALS as usize);
    let graph = &job.graph;
    let seconds = |id: NodeId| {
        let node = &graph.nodes[id.index()];
        let bind = |dim: &gulliver_graph::dim::Dim| dim.bind(&slice).unwrap() as f64;
        let flops = graph.flops(node).as_ref().map_or(0.0, bind);
        if node.op.def().is_view() { 0.0 } else { RATES.seconds(flops, bind(&graph.bytes(node))) }
    };
    let bytes = |v: Value| graph.ty(v).bytes().bind(&slice).unwrap_or(0) as f64;
    let pack_of = spread(graph, devices as usize, seconds, bytes);
    let placement = Placement { devices, packs: (0..devices).collect(), pack_of, residences: HashMap::new() };
    let mut each = vec![[0.0; 2]; devices as usize];
    for (id, (node, pack)) in graph.nodes.iter().zip(&placement.pack_of).enumerate() {
        if node.phase != Phase::Update {
            each[*pack as usize][usize::from(node.phase == Phase::Backward)] += seconds(NodeId(id as u32));
        }
    }
    let lines = pipeline(graph, &placement).unwrap();
    let turns = turns(&lines, &placement, PARTIALS, style, &each).unwrap();
    let sizes = job.sizes.clone().with("batch", BATCH);
    lines
        .into_iter()
        .zip(turns)
        .map(|(line, turns)| planned(line.graph, &sizes, PARTIALS, Some(&turns)))
        .collect()
}

fn simulated(devices: &[Planned], topology: &Topology) -> (JointTiming, Vec<u64>) {
    let seconds: Vec<_> = devices.iter().map(|d| |id: NodeId| d.seconds[id.index()]).collect();
    let links = Links { to_device: 1e15, ..Links::default() };
    let ranks: Vec<RankPlan> = devices
        .iter()
        .zip(&seconds)
        .map(|(d, seconds)| RankPlan {
            graph: &d.graph,
            plan: &d.plan,
            seconds,
            alone: None,
            taken: None,
            uneven: Unevenness::default(),
            links: &links,
        })
        .collect();
    let joint = together(&ranks, topology).unwrap();
    let bytes = joint.links.iter().map(|link| link.bytes).collect();
    (joint, bytes)
}

/// What closed forms say of the same.
fn answered(job: &Job, name: &str, devices: u32, rate: f64) -> Estimate {
    let workload = from_graph(job.name, &job.graph, &job.sizes, KernelStyle::Nodes).unwrap();
    let link = ClusterLink::plain(0.0, 1.0 / rate);
    let cluster = Cluster::of(Accelerator::cpu(RATES, 1e12), (1, devices), link.clone(), link);
    let serial = ClusterStrategy::serial(BATCH as u32);
    let micro_batch = BATCH as u32 / PARTIALS;
    let strategy = match name {
        "alone" => serial,
        "data" => ClusterStrategy { data: devices, micro_batch: BATCH as u32 / devices, ..serial },
        "filter" => ClusterStrategy { ways: devices, cut: Cut::Filter, ..serial },
        "channel" => ClusterStrategy { ways: devices, cut: Cut::Channel, ..serial },
        "spatial" => ClusterStrategy { ways: devices, cut: Cut::Spatial, ..serial },
        "gpipe" => ClusterStrategy { stages: devices, order: Order::Gpipe, micro_batch, ..serial },
        _ => ClusterStrategy { stages: devices, order: Order::Alternating, micro_batch, ..serial },
    };
    let setting = Setting {
        precision: Precision::F32,
        software: Software::named("gulliver").unwrap(),
        ..Setting::new(BATCH as u32).unwrap()
    };
    estimate(&workload, &cluster, &strategy, &setting).unwrap()
}

/// What crosses in a pipeline beside activations and their gradients: of a weight that the first and the last pack
/// share, a gradient for every partial.
fn tied(job: &Job) -> f64 {
    if job.name == "gpt" { f64::from(PARTIALS) * 512.0 * 128.0 * 4.0 } else { 0.0 }
}

/// Serial steps are the same to a thousandth. Replicas may take as much longer or shorter as their exchange takes in
/// the form, which goes round a ring and hides nothing. Cuts by rule fetch other boxes than the forms gather, and packs
/// are cut between nodes where stages are cut between layers: their bounds are wide.
#[test]
fn closed_forms_and_simulation_agree() {
    let rate = 2e9;
    for job in jobs() {
        for (name, devices) in [
            ("alone", 1),
            ("data", 2),
            ("data", 4),
            ("filter", 2),
            ("channel", 2),
            ("spatial", 2),
            ("gpipe", 2),
            ("1f1b", 2),
        ] {
            if name == "spatial" && job.name != "vgg11" {
                continue;
            }
            let wiring = BoxWiring { peer: Some(rate), ..BoxWiring::default() };
            let topology = Topology::wired(vec![DeviceSpec::default(); devices as usize], &wiring).unwrap();
            let (found, bytes) = simulated(&plans(&job, name, devices), &topology);
            let closed = answered(&job, name, devices, rate);
            let bytes = bytes.iter().copied().max().unwrap_or(0) as f64;
            let off = found.seconds - closed.seconds;
            let said = format!(
                "{:6} {name:8}{devices} simulated {:8.3} ms, closed form {:8.3} ms; {bytes:9} and {:9} bytes",
                job.name,
                1e3 * found.seconds,
                1e3 * closed.seconds,
                closed.traffic.within,
            );
            println!("{said}");
            let close = |share: f64| off.abs() <= share * found.seconds;
            let ratio = bytes / closed.traffic.within;
            let (time, traffic) = match name {
                "alone" => (close(1e-3), bytes == 0.0 && closed.traffic.within == 0.0),
                // Small sums are fetched whole by everyone.
                "data" => (off.abs() <= closed.phases.exchange, (1.0..1.02).contains(&ratio)),
                "gpipe" | "1f1b" => {
                    let expected = closed.traffic.within + tied(&job);
                    (close(0.20), (expected..1.002 * expected).contains(&bytes))
                }
                _ => (close(0.10), (0.5..2.0).contains(&ratio)),
            };
            assert!(time && traffic, "{said}");
        }
    }
}
