//! Planning can be stopped wherever it tells how far it is, and says so.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::step::progress::{Activity, Progress};
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;

fn mlp() -> Graph {
    let sizes = ParamValue::Ints(vec![32, 48, 48, 10].into());
    let model = model("mlp", &[("sizes".to_string(), sizes)]).unwrap();
    training_graph(model.as_ref(), &[Optimizer::new("sgd", &[]).unwrap()], None).unwrap()
}

/// All that is done under a budget: an planner, where weights are, a plan, and plans for smaller inputs.
fn all(graph: &Graph, sizes: &Bindings, options: &PlanOptions) -> Result<u64, PlanError> {
    let mut planner = StepPlanner::new(graph, sizes, options)?;
    let persistent = planner.place_weights(graph, sizes, options)?;
    let options = PlanOptions { persistent: &persistent, ..*options };
    let plan = planner.plan(graph, sizes, &options)?;
    planner.learn(graph, sizes, &options)?;
    planner.smallest(graph, sizes, &options)?;
    Ok(plan.spaces[0].bytes)
}

#[test]
fn a_stop_at_any_call_is_an_interruption() {
    let (graph, sizes) = (mlp(), Bindings::new().with("batch", 32));
    let here = Persistent::of(&graph).unwrap();
    let free = PlanOptions::new(&here);
    let whole = StepPlanner::new(&graph, &sizes, &free).unwrap().resident(&graph, &sizes, &free).unwrap();
    let limited = PlanOptions { memory: Some(whole / 5 * 4), ..free };

    let seen: RefCell<Vec<Progress>> = RefCell::new(Vec::new());
    let observe = |progress| {
        seen.borrow_mut().push(progress);
        ControlFlow::Continue(())
    };
    let bytes = all(&graph, &sizes, &PlanOptions { observe: &observe, ..limited }).unwrap();
    assert_eq!(all(&graph, &sizes, &limited).unwrap(), bytes, "what is seen changes nothing");
    let seen = seen.into_inner();
    assert!(
        seen.iter().all(|progress| progress.done < progress.of),
        "{:?}",
        seen.iter().max_by_key(|p| p.done)
    );
    for activity in [Activity::Order, Activity::Choose, Activity::Polish, Activity::Layout, Activity::Prepare]
    {
        assert!(seen.iter().any(|progress| progress.activity == activity), "{activity:?}");
    }

    // The first calls one by one, and the others at longer and longer distances. A stop is asked for once only: it must
    // not be forgotten on the way.
    let mut at = 0;
    while at < seen.len() {
        let calls = Cell::new(0);
        let observe = |_| {
            calls.set(calls.get() + 1);
            if calls.get() == at + 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let stopped = all(&graph, &sizes, &PlanOptions { observe: &observe, ..limited });
        assert_eq!(stopped, Err(PlanError::Interrupted), "call {at} of {}: {:?}", seen.len(), seen[at]);
        assert_eq!(calls.get(), at + 1, "nothing is done after the stop");
        at += 1 + at / 2;
    }
}
