//! The order of a step decides how much memory it needs, never what it computes.

mod direct;

use direct::{Direct, cpu};
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Node, Role};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::RandomStream;
use gulliver_graph::training::{Clip, training_graph};
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::plan::Tier;
use gulliver_plan::document::residence::{Persistent, Residence};
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::step::order::{RULES, Rule};
use gulliver_run::device::Device;
use gulliver_run::host::initial::pieces;
use gulliver_run::lower::{Kernels, lower_node};

const THREADS: usize = 2;
const BATCH: usize = 8;
const LENGTH: usize = 6;

fn graph(name: &str, params: &[(&str, i64)], clip: Option<Clip>) -> Graph {
    let params: Vec<_> = params.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let optimizer = Optimizer::new("adamw", &[]).unwrap();
    training_graph(model(name, &params).unwrap().as_ref(), &[optimizer], clip).unwrap()
}

/// Weights, states and outputs after two steps in this order.
fn results(graph: &Graph, rule: Rule, partials: u32) -> (Vec<u8>, Vec<Vec<u8>>) {
    let persistent = Persistent::of(graph).unwrap();
    let scratch =
        |g: &Graph, n: &Node, s: &Bindings| Ok(lower_node(g, n, s, THREADS, &Kernels::default())?.scratch);
    let options = PlanOptions { partials, scratch: &scratch, ..PlanOptions::new(&persistent) };
    let sizes = Bindings::new().with("batch", BATCH).with("length", LENGTH);
    let planner = StepPlanner::with_rule(graph, &sizes, &options, rule).unwrap();
    let plan = planner.plan(graph, &sizes, &options).unwrap();
    verify(graph, &plan).unwrap();
    let mut direct = Direct::new(cpu(THREADS), graph, &plan);
    for (_, role, info) in graph.inputs() {
        if let Role::Weight(init) | Role::State(init) = role {
            let Residence { tier, offset, bytes } = persistent.residences[&info.name];
            let write = |first: usize, piece: &[f32]| {
                direct.write_floats(tier, offset + 4 * first as u64, piece);
            };
            pieces(5, &info.name, init, bytes as usize / 4, write);
        }
    }
    let mut outputs = Vec::new();
    for step in 0..2i64 {
        for (value, role, info) in graph.inputs() {
            let stream = RandomStream::new(9, u64::from(value.0), step as u64);
            let bytes: Vec<u8> = match role {
                Role::Weight(_) | Role::State(_) => continue,
                Role::Hyper(_, default) => default.to_le_bytes().to_vec(),
                Role::Random => {
                    (0..i64::from(partials)).flat_map(|p| [3, step, p]).flat_map(i64::to_le_bytes).collect()
                }
                Role::Data(_) => {
                    let count: usize = info.ty.bind(&sizes).unwrap().iter().product();
                    let all = 0..count as u64;
                    match info.ty.dtype {
                        DType::F32 => all.flat_map(|i| stream.normal_at(i).to_le_bytes()).collect(),
                        _ => all.flat_map(|i| (stream.below(i, 10) as i64).to_le_bytes()).collect(),
                    }
                }
            };
            direct.feed(value, &bytes).unwrap();
        }
        direct.run_all().unwrap();
        let names = direct.output_names();
        outputs.extend(names.iter().map(|n| direct.output(n).unwrap().as_bytes().to_vec()));
    }
    let mut kept = vec![0; persistent.ends[0] as usize];
    direct.device.read(Tier::Device, 0, &mut kept).unwrap();
    (kept, outputs)
}

#[test]
fn every_order_gives_the_same_bits() {
    for (name, params) in [
        ("mlp-tiny", &[][..]),
        ("resnet18", &[("width", 4), ("size", 16)]),
        ("gpt", &[("width", 16), ("heads", 2), ("layers", 2)]),
        ("lstm", &[("width", 8), ("vocab", 20)]),
        ("dcgan", &[("generator", 2), ("discriminator", 2)]),
    ] {
        for clip in [None, Some(Clip::Norm(0.5)), Some(Clip::Value(0.01))] {
            let graph = graph(name, params, clip);
            for partials in [1, 2] {
                let plain = results(&graph, Rule::Plain, partials);
                for rule in RULES {
                    let other = results(&graph, rule, partials);
                    assert!(plain == other, "{name}, {rule:?}, {clip:?}, {partials} partials");
                }
            }
        }
    }
}
