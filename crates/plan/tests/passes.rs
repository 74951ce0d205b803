//! The record of a plan's passes: every row is what held after that pass, and the rows lead to the plan.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, NodeId};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::links::Links;
use gulliver_plan::document::pass::{PassChange, PlanPass};
use gulliver_plan::document::plan::Plan;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::time::cost::Beside;
use gulliver_plan::time::simulate::simulate;

/// A small GPT and its sizes.
fn gpt() -> (Graph, Bindings) {
    let params = [("width", 32), ("heads", 2), ("layers", 4), ("vocab", 50), ("context", 32)];
    let params = params.map(|(name, value)| (name.to_string(), ParamValue::Int(value)));
    let optimizer = Optimizer::new("adam", &[]).unwrap();
    let graph = training_graph(model("gpt", &params).unwrap().as_ref(), &[optimizer], None).unwrap();
    (graph, Bindings::new().with("batch", 4).with("length", 32))
}

/// What may be done about a budget of this share of what is needed, in hundredths.
struct Case {
    share: u64,
    recompute: bool,
    host: Option<u64>,
    /// Bytes a second between device and host.
    link: f64,
    partials: u32,
}

const ALL: Case = Case { share: 100, recompute: true, host: None, link: 8e9, partials: 1 };

/// The plan of a case with its passes, held against the same plan without.
fn planned(case: &Case) -> Plan {
    let (graph, sizes) = gpt();
    let here = Persistent::of(&graph).unwrap();
    let beside = Beside { host: case.host, disk: None };
    let Case { recompute, partials, .. } = *case;
    let links = Links { to_device: case.link, to_host: case.link, ..Links::default() };
    let free = PlanOptions { beside, recompute, partials, links, ..PlanOptions::new(&here) };
    let planner = StepPlanner::new(&graph, &sizes, &free).unwrap();
    let need = planner.resident(&graph, &sizes, &free).unwrap();
    let memory = (case.share < 100).then_some(need * case.share / 100);
    let options = PlanOptions { memory, ..free };
    let persistent = planner.place_weights(&graph, &sizes, &options).unwrap();
    let options = PlanOptions { persistent: &persistent, ..options };
    let plan = planner.plan_with_passes(&graph, &sizes, &options).unwrap();
    verify(&graph, &plan).unwrap();
    let unrecorded = planner.plan(&graph, &sizes, &options).unwrap();
    assert_eq!(Plan { passes: Vec::new(), ..plan.clone() }, unrecorded);
    let bound = planner.outline.sizes(&graph, &sizes, &options).unwrap();
    let seconds = |id: NodeId| planner.outline.seconds_over(&graph, &bound, &options.links, id.index());
    let timing = simulate(&plan, seconds, &options.links);
    let last = plan.passes.last().unwrap();
    assert_eq!((last.peak, last.seconds), (plan.spaces[0].bytes, timing.seconds));
    plan
}

fn names(plan: &Plan) -> Vec<&'static str> {
    plan.passes.iter().map(|pass| pass.change.name()).collect()
}

fn find<'a>(plan: &'a Plan, name: &str) -> Option<&'a PlanPass> {
    plan.passes.iter().find(|pass| pass.change.name() == name)
}

/// That every pass did what it is for, and that the rows add up to the arena.
fn check(plan: &Plan) {
    let text = format!("{:#?}", plan.passes);
    for pair in plan.passes.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        match &after.change {
            PassChange::Graph { .. } => panic!("the graph comes first: {text}"),
            PassChange::Order { .. } => assert!(after.peak <= before.peak, "{text}"),
            PassChange::Recompute { values, seconds } => {
                assert!(*values > 0 && after.peak < before.peak, "{text}");
                // Nothing moves yet, so the step takes as much longer as is recomputed.
                let longer = after.seconds - before.seconds;
                assert!((longer - seconds).abs() <= 1e-6 * after.seconds, "{longer} {text}");
            }
            PassChange::Swap { moved, .. } => {
                assert!(after.peak < before.peak, "{text}");
                assert_eq!(*moved, Ledger::of(plan), "{text}");
            }
            PassChange::Overlap { fetches, stores, collectives } => {
                assert!(fetches + stores + collectives > 0, "{text}");
                assert!(after.peak >= before.peak && after.seconds <= before.seconds, "{text}");
            }
            PassChange::Layout { gaps } => {
                assert_eq!((before.peak + gaps, before.seconds), (after.peak, after.seconds), "{text}");
            }
        }
    }
}

#[test]
fn recompute_and_swap_are_told_apart() {
    let alone = planned(&Case { share: 60, host: Some(0), ..ALL });
    let swap = planned(&Case { share: 40, recompute: false, ..ALL });
    for (plan, has, has_not) in [(&alone, "recompute", "swap"), (&swap, "swap", "recompute")] {
        check(plan);
        assert!(find(plan, has).is_some() && find(plan, has_not).is_none(), "{:?}", names(plan));
    }
    // Over a slow link both are worth it, and neither is credited with what the other does.
    let both = planned(&Case { share: 30, link: 1e9, ..ALL });
    check(&both);
    let [recompute, swap] = ["recompute", "swap"].map(|name| find(&both, name).unwrap());
    assert!(recompute.peak > swap.peak + swap.peak / 2, "{:#?}", both.passes);
}

#[test]
fn passes_that_change_nothing_are_left_out() {
    for (partials, expected) in [(1, &["graph", "order", "layout"][..]), (4, &["graph", "layout"])] {
        let plan = planned(&Case { partials, ..ALL });
        check(&plan);
        assert_eq!(names(&plan), expected);
    }
}

#[test]
fn passes_are_part_of_the_document() {
    let plan = planned(&Case { share: 50, ..ALL });
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["passes"][0]["name"], "graph");
    assert!(json["passes"][0]["changed"]["operators"].as_u64().is_some_and(|count| count > 0));
    assert_eq!(serde_json::from_value::<Plan>(json).unwrap(), plan);
}
