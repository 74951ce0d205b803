//! Plans under budgets: every model, made small, from the least that will do to more than is needed, with
//! the other tiers and without. What a plan says is checked by the verifier; here, that there is a plan.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Choice, Plan};
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::time::cost::TierLimits;
use gulliver_plan::time::simulate::simulate;

const NO_OTHER: TierLimits = TierLimits { host: Some(0), disk: None };

fn graph(name: &str, settings: &[(&str, i64)], optimizer: &str) -> Graph {
    let settings: Vec<(String, ParamValue)> =
        settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let optimizer = Optimizer::new(optimizer, &[]).unwrap();
    training_graph(model(name, &settings).unwrap().as_ref(), &[optimizer], None).unwrap()
}

fn models() -> Vec<(&'static str, Graph, Bindings)> {
    let sizes = |batch| Bindings::new().with("batch", batch).with("length", 32);
    vec![
        ("mlp", graph("mlp", &[], "sgd"), sizes(256)),
        (
            "gpt",
            graph(
                "gpt",
                &[("width", 32), ("layers", 6), ("heads", 2), ("vocab", 50), ("context", 32)],
                "adam",
            ),
            sizes(8),
        ),
        (
            "bert",
            graph(
                "bert",
                &[("hidden", 32), ("layers", 4), ("heads", 2), ("vocab", 50), ("context", 32)],
                "adam",
            ),
            sizes(4),
        ),
        ("resnet18", graph("resnet18", &[("width", 8), ("size", 16)], "sgd"), sizes(8)),
        ("lstm", graph("lstm", &[("width", 24), ("layers", 2), ("vocab", 50)], "sgd"), sizes(4)),
    ]
}

fn count(plan: &Plan, what: Choice) -> usize {
    plan.decisions.iter().filter(|d| d.choice == what).count()
}

#[test]
fn every_budget_from_the_least_up_has_a_verified_plan() {
    for (name, graph, sizes) in models() {
        for (beside, partials) in [(NO_OTHER, 1), (TierLimits { host: None, disk: None }, 2), (NO_OTHER, 2)] {
            let persistent = Persistent::of(&graph).unwrap();
            let options = PlanOptions { beside, partials, ..PlanOptions::new(&persistent) };
            let planner = StepPlanner::new(&graph, &sizes, &options).unwrap();
            let all = planner.plan(&graph, &sizes, &options).unwrap();
            let whole = all.spaces[0].bytes;
            let smallest = planner.smallest(&graph, &sizes, &options).unwrap();
            assert!(smallest <= whole, "{name}: {smallest} of {whole}");
            for part in 0..=4 {
                let memory = smallest + (whole - smallest) * part / 4;
                let options = PlanOptions { memory: Some(memory), ..options };
                let plan =
                    planner.plan(&graph, &sizes, &options).unwrap_or_else(|e| panic!("{name} {part}: {e}"));
                verify(&graph, &plan).unwrap_or_else(|e| panic!("{name} {part}: {e}"));
                assert!(plan.spaces[0].bytes <= memory);
                let held: u64 = plan.at_peak().1.iter().map(|b| plan.buffer(*b).bytes).sum();
                assert_eq!(held, plan.spaces[0].live, "{name} {part}: what is in use at the peak");
                let (moves, links) = (count(&plan, Choice::Host), Ledger::of(&plan));
                assert_eq!(moves > 0, links.to_device > 0, "{name} {part}: {links:?}");
                assert!(beside != NO_OTHER || moves == 0, "{name} {part}");
                let bound = planner.outline.sizes(&graph, &sizes, &options).unwrap();
                let timing =
                    simulate(&plan, |id| planner.outline.seconds(&bound, id.index()), &options.links);
                let again = count(&plan, Choice::Recompute) > 0;
                assert_eq!(again, timing.again > 0.0, "{name} {part}: {timing:?}");
            }
            let options = PlanOptions { memory: Some(smallest / 2), ..options };
            match planner.plan(&graph, &sizes, &options) {
                Err(PlanError::DoesNotFit { needed, budget, .. }) => assert!(needed > budget),
                other => panic!("{name}: {:?}", other.map(|p| p.spaces)),
            }
        }
    }
}

#[test]
fn weights_and_states_leave_the_device_when_they_must() {
    for (name, graph, sizes) in models().into_iter().filter(|(name, ..)| ["gpt", "resnet18"].contains(name)) {
        for beside in [
            TierLimits { host: None, disk: None },
            TierLimits { host: Some(0), disk: Some(1 << 30) },
            TierLimits { host: Some(100_000), disk: Some(1 << 30) },
        ] {
            let here = Persistent::of(&graph).unwrap();
            let options = PlanOptions { beside, ..PlanOptions::new(&here) };
            let planner = StepPlanner::new(&graph, &sizes, &options).unwrap();
            let mut budget = planner.plan(&graph, &sizes, &options).unwrap().spaces[0].bytes;
            let mut fitted = 0;
            for _ in 0..3 {
                budget = budget * 2 / 3;
                let options = PlanOptions { memory: Some(budget), ..options };
                let persistent = match planner.place_weights(&graph, &sizes, &options) {
                    Ok(persistent) => persistent,
                    Err(PlanError::DoesNotFit { .. }) => break,
                    Err(e) => panic!("{name}: {e}"),
                };
                fitted += 1;
                let options = PlanOptions { persistent: &persistent, ..options };
                let plan =
                    planner.plan(&graph, &sizes, &options).unwrap_or_else(|e| panic!("{name} {budget}: {e}"));
                verify(&graph, &plan).unwrap_or_else(|e| panic!("{name} {budget}: {e}"));
                assert!(plan.spaces[0].bytes <= budget);
            }
            assert!(fitted > 0, "{name} {fitted}");
        }
    }
}
