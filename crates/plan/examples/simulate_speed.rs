//! How many steps of plans are timed in a second, of one device and of several together:
//! `cargo run --release -p gulliver-plan --example simulate_speed`.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, NodeId};
use gulliver_graph::model::model;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_lab::comparator::traffic::pcie;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::devices::replicate::replica;
use gulliver_plan::document::links::Links;
use gulliver_plan::document::plan::Plan;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::topology::Topology;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::time::simulate::{RankPlan, Unevenness, simulate, together};
use std::time::Instant;

/// A device: its graph, its plan, and seconds by node.
type Device = (Graph, Plan, Vec<f64>);

fn device(graph: &Graph, rank: u32, ranks: u32) -> Device {
    let sizes = Bindings::new().with("batch", 8).with("length", 128);
    let graph = replica(graph, rank, ranks, 1).expect("gpt can be replicated");
    let persistent = Persistent::of(&graph).expect("weights have sizes");
    let options = PlanOptions::new(&persistent);
    let planner = StepPlanner::new(&graph, &sizes, &options).expect("sizes are given");
    let plan = planner.plan(&graph, &sizes, &options).expect("nothing is limited");
    let bound = planner.outline.sizes(&graph, &sizes, &options).expect("sizes are given");
    let seconds = (0..graph.nodes.len()).map(|node| planner.outline.seconds(&bound, node)).collect();
    (graph, plan, seconds)
}

/// Steps that do something, and how many of them are timed in a second.
fn rate(steps: usize, mut time: impl FnMut() -> f64) -> String {
    let (began, mut runs, mut sum) = (Instant::now(), 0usize, 0.0);
    while began.elapsed().as_secs_f64() < 0.5 {
        sum += time();
        runs += 1;
    }
    let rate = (steps * runs) as f64 / began.elapsed().as_secs_f64();
    format!("{steps:>8} steps {:>8.1} million/s   step {:>8.3} ms", rate / 1e6, 1e3 * sum / runs as f64)
}

fn main() {
    let links = Links::default();
    let model = model("gpt2", &[]).expect("there is such a model");
    let adamw = Optimizer::new("adamw", &[]).expect("there is such an optimizer");
    let graph = training_graph(model.as_ref(), &[adamw], None).expect("it can be trained");
    let (_, plan, seconds) = device(&graph, 0, 1);
    println!(
        "simulate     {}",
        rate(plan.steps.len(), || simulate(&plan, |id| seconds[id.index()], &links).seconds)
    );
    for (devices, rate_of_links) in [(1, None), (2, None), (8, None), (8, Some(12e9)), (8, Some(1e9))] {
        let all: Vec<Device> = (0..devices).map(|rank| device(&graph, rank, devices)).collect();
        let times: Vec<_> = all.iter().map(|(.., seconds)| |id: NodeId| seconds[id.index()]).collect();
        let pairs = all.iter().zip(&times);
        let ranks: Vec<RankPlan> = pairs
            .map(|((graph, plan, _), seconds)| RankPlan {
                graph,
                plan,
                seconds,
                alone: None,
                taken: None,
                uneven: Unevenness::default(),
                links: &links,
            })
            .collect();
        let topology = match rate_of_links {
            Some(rate) => pcie(devices, rate, 1e-5, 1).expect("a sound box"),
            None => Topology::alone(),
        };
        let steps = all.iter().map(|(_, plan, _)| plan.steps.len()).sum();
        let timed = rate(steps, || together(&ranks, &topology).expect("everyone comes").seconds);
        println!("together {devices:<3} {timed}   links {rate_of_links:?}");
    }
}
