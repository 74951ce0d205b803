//! The lower bound of device memory is one: no plan that is found needs less, for small models of every make, with
//! other tiers and without, with partials, with recomputation allowed and not.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{evaluation_graph, training_graph};
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::budget::residences::all_away;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::time::cost::TierLimits;

const TIERS: [TierLimits; 3] = [
    TierLimits { host: Some(0), disk: None },
    TierLimits { host: None, disk: None },
    TierLimits { host: Some(0), disk: Some(1 << 30) },
];

fn graphs(name: &str, settings: &[(&str, i64)], optimizer: &str) -> [Graph; 2] {
    let settings: Vec<(String, ParamValue)> =
        settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let model = model(name, &settings).unwrap();
    let optimizer = Optimizer::new(optimizer, &[]).unwrap();
    [training_graph(model.as_ref(), &[optimizer], None).unwrap(), evaluation_graph(model.as_ref()).unwrap()]
}

fn small_models() -> Vec<(&'static str, [Graph; 2])> {
    let transformer = |width| vec![(width, 16), ("layers", 2), ("heads", 2), ("vocab", 30), ("context", 16)];
    vec![
        ("mlp", graphs("mlp", &[], "sgd")),
        ("cnn", graphs("cnn", &[("size", 8)], "adamw")),
        ("gpt", graphs("gpt", &transformer("width"), "adamw")),
        ("bert", graphs("bert", &transformer("hidden"), "adam")),
        ("resnet18", graphs("resnet18", &[("width", 4), ("size", 8)], "sgd")),
        ("lstm", graphs("lstm", &[("width", 12), ("layers", 2), ("vocab", 30)], "rmsprop")),
        ("pointnet", graphs("pointnet", &[("points", 16)], "adam")),
    ]
}

#[test]
fn no_plan_needs_less_than_the_bound() {
    let sizes = Bindings::new().with("batch", 4).with("length", 16);
    for (name, graphs) in small_models() {
        for (training, graph) in [true, false].into_iter().zip(&graphs) {
            for (beside, partials, recompute) in TIERS
                .into_iter()
                .flat_map(|tiers| [(tiers, 1, true), (tiers, 2, true)])
                .chain([(TIERS[0], 1, false)])
            {
                let case = format!(
                    "{name}, training {training}, {beside:?}, {partials} partials, recompute {recompute}"
                );
                let here = Persistent::of(graph).unwrap();
                let scratch = |_: &Graph, node: &gulliver_graph::graph::Node, _: &Bindings| {
                    Ok(64 * node.ins.len() as u64)
                };
                let options =
                    PlanOptions { beside, partials, recompute, scratch: &scratch, ..PlanOptions::new(&here) };
                let planner = StepPlanner::new(graph, &sizes, &options).unwrap();
                let bound = planner.bound(graph, &sizes, &options).unwrap();
                let held: u64 = bound.holders.iter().map(|(_, bytes)| bytes).sum();
                assert_eq!(held, bound.bytes, "{case}: what has to be there is what is named");
                let away = all_away(graph, &options).unwrap();
                let mut least = u64::MAX;
                for persistent in [Some(&here), away.as_ref()].into_iter().flatten() {
                    let options = PlanOptions { persistent, ..options };
                    let smallest = planner.smallest(graph, &sizes, &options).unwrap();
                    let all = planner.plan(graph, &sizes, &options).unwrap().spaces[0].bytes;
                    assert!(bound.bytes <= smallest.min(all), "{case}: {} of {smallest}", bound.bytes);
                    least = least.min(smallest);
                }
                // It is not so low that it says nothing.
                assert!(bound.bytes >= least / 5 * 2, "{case}: {} of {least}", bound.bytes);
            }
        }
    }
}

/// A budget just below the bound is refused without a search, and one at which a plan is known is not.
#[test]
fn budgets_below_the_bound_are_refused_at_once() {
    let sizes = Bindings::new().with("batch", 4).with("length", 16);
    let (_, [graph, _]) = small_models().swap_remove(1);
    let here = Persistent::of(&graph).unwrap();
    let rounds = std::cell::Cell::new(0);
    let observe = |_| {
        rounds.set(rounds.get() + 1);
        std::ops::ControlFlow::Continue(())
    };
    let options = PlanOptions { beside: TIERS[0], observe: &observe, ..PlanOptions::new(&here) };
    let planner = StepPlanner::new(&graph, &sizes, &options).unwrap();
    let bound = planner.bound(&graph, &sizes, &options).unwrap();
    rounds.set(0);
    for memory in [0, 1, bound.bytes / 2, bound.bytes - 1] {
        let options = PlanOptions { memory: Some(memory), ..options };
        for error in [
            planner.plan(&graph, &sizes, &options).map(drop).unwrap_err(),
            planner.place_weights(&graph, &sizes, &options).map(drop).unwrap_err(),
        ] {
            let PlanError::DoesNotFit { needed, proven, budget, holders } = error else { panic!("{error}") };
            assert_eq!((needed, proven, budget), (bound.bytes, true, memory));
            assert_eq!(holders.0, bound.holders[..3]);
        }
    }
    assert_eq!(rounds.get(), 0, "nothing was searched");
    let smallest = planner.smallest(&graph, &sizes, &options).unwrap();
    assert!(planner.plan(&graph, &sizes, &PlanOptions { memory: Some(smallest), ..options }).is_ok());
}
