//! Bytes lost to layout: how much larger than what is in use at once the arena of a squeezed plan is, weights
//! and states left out.

#[path = "small_graphs/choice.rs"]
mod choice;

use choice::recompute;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_lab::comparator::ComparedStep;
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::plan::Tier;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::step::base::Base;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::time::cost::TierLimits;

fn graph(name: &str, settings: &[(&str, i64)]) -> Graph {
    let settings: Vec<(String, ParamValue)> =
        settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let optimizer = Optimizer::new("sgd", &[]).unwrap();
    training_graph(model(name, &settings).unwrap().as_ref(), &[optimizer], None).unwrap()
}

/// The plan of what is chosen for a target of bytes in use, however many more it takes to lay it out.
fn chosen(
    graph: &Graph,
    planner: &StepPlanner,
    sizes: &Bindings,
    options: &PlanOptions,
    target: u64,
) -> Option<(u64, u64)> {
    let bound = planner.outline.sizes(graph, sizes, options).unwrap();
    let write = |base: &Base| {
        let start = Choices::keep(base, vec![Tier::Device; base.script.versions.len()]);
        let case = ComparedStep::new(&planner.outline, base, &bound);
        Some(recompute(&case, &start, target, false).ok()?.rewritten.script)
    };
    let plan = planner.plan_script(graph, sizes, options, write).unwrap()?;
    Some((plan.spaces[0].bytes, plan.spaces[0].live))
}

#[test]
fn little_is_lost_when_memory_is_short() {
    let sizes = |batch, length| Bindings::new().with("batch", batch).with("length", length);
    let text = [("width", 64), ("layers", 6), ("heads", 2), ("vocab", 100), ("context", 64)];
    let models = [
        ("mlp", graph("mlp", &[]), sizes(256, 1)),
        ("gpt", graph("gpt", &text), sizes(8, 64)),
        ("bert", graph("bert", &[&text[..], &[("hidden", 256)]].concat()), sizes(8, 64)),
        ("lstm", graph("lstm", &[("width", 24), ("layers", 2), ("vocab", 50)]), sizes(4, 32)),
        ("resnet18", graph("resnet18", &[("width", 8), ("size", 32)]), sizes(8, 1)),
        ("resnet50", graph("resnet50", &[("width", 8), ("size", 64), ("classes", 10)]), sizes(8, 1)),
    ];
    let mut losses = Vec::new();
    for (name, graph, sizes) in models {
        let persistent = Persistent::of(&graph).unwrap();
        let beside = TierLimits { host: Some(0), disk: None };
        let free = PlanOptions { beside, ..PlanOptions::new(&persistent) };
        let planner = StepPlanner::new(&graph, &sizes, &free).unwrap();
        let state = persistent.ends[0];
        let whole = planner.plan(&graph, &sizes, &free).unwrap().spaces[0].live;
        for share in [90, 80, 70, 60, 50, 40, 30, 25, 20, 15] {
            let target = state + (whole - state) / 100 * share;
            let Some((bytes, live)) = chosen(&graph, &planner, &sizes, &free, target) else { break };
            let loss = 100.0 * (bytes - live) as f64 / (live - state) as f64;
            println!("{name:<9} {share:>3} % {loss:6.2} % lost");
            losses.push(loss);
        }
    }
    let (count, most) = (losses.len() as f64, losses.iter().copied().fold(0.0, f64::max));
    let mean = losses.iter().sum::<f64>() / count;
    println!("{mean:.2} % on average, {most:.2} % at most");
    assert!(mean < 1.5 && most < 8.0, "{mean} {most}");
}
