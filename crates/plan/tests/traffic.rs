//! Bytes of weights over the link when none of them stay on the device: fetched once for the forward and
//! once for the backward pass of all partials together, and stored once (give or take a twentieth); demand
//! paging moves them again for every partial.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin, Role};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_lab::comparator::ComparedStep;
use gulliver_lab::comparator::paging::{self, Eviction};
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Act, Plan, PlanStream, Tier};
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::document::verify::verify;
use gulliver_plan::step::base::Base;
use gulliver_plan::step::options::PlanOptions;
use gulliver_plan::step::order::OrderRule;

/// Bytes of weights into and out of the device.
fn weight_traffic(graph: &Graph, plan: &Plan) -> [u64; 2] {
    let mut bytes = [0; 2];
    for step in &plan.steps {
        let Act::Move { from, to } = &step.act else { continue };
        let (inward, residence) = match plan.stream(&step.act) {
            Some(PlanStream::In) => (0, from),
            _ => (1, to),
        };
        let value = plan.buffer(residence.buffer).value.unwrap();
        if matches!(graph.value(value).origin, Origin::Input(Role::Weight(_))) {
            bytes[inward] += from.bytes;
        }
    }
    bytes
}

fn gpt(width: i64, layers: i64) -> Graph {
    let settings = [("width", width), ("layers", layers), ("heads", 2), ("vocab", 40), ("context", 16)];
    let settings = settings.map(|(name, value)| (name.to_string(), ParamValue::Int(value)));
    let optimizer = Optimizer::new("sgd", &[]).unwrap();
    training_graph(model("gpt", &settings).unwrap().as_ref(), &[optimizer], None).unwrap()
}

/// A script too long to weigh every choice: half of the weights have room on the device, and still each is fetched about
/// twice and stored once.
#[test]
fn weights_of_deep_models_cross_as_seldom() {
    let (graph, partials) = (gpt(32, 40), 8);
    let all: u64 =
        graph.weights().map(|(v, _)| graph.ty(v).bytes().bind(&Bindings::new()).unwrap() as u64).sum();
    let sizes = Bindings::new().with("batch", 8).with("length", 16);
    let away = Persistent::with(&graph, |_| Tier::Host).unwrap();
    let options = PlanOptions { partials, grouped: true, memory: Some(all / 2), ..PlanOptions::new(&away) };
    let planner = StepPlanner::new(&graph, &sizes, &options).unwrap();
    assert!(planner.is_long());
    let plan = planner.plan(&graph, &sizes, &options).unwrap();
    verify(&graph, &plan).unwrap();
    assert!(plan.spaces[0].bytes <= all / 2);
    let [fetched, stored] = weight_traffic(&graph, &plan);
    println!("fetched {fetched}, stored {stored} of {all}; {:?}", Ledger::of(&plan));
    assert!(fetched <= 2 * all + all / 5 && stored <= all + all / 10, "{fetched} {stored} of {all}");
}

#[test]
fn weights_cross_three_times_however_many_partials() {
    let graph = gpt(64, 8);
    let bytes = |v| graph.ty(v).bytes().bind(&Bindings::new()).unwrap() as u64;
    let all: u64 = graph.weights().map(|(v, _)| bytes(v)).sum();
    // Where a pack ends between two uses of a weight, it is fetched once more.
    let more = all / 20;
    for partials in [1u32, 2, 4] {
        let sizes = Bindings::new().with("batch", 8).with("length", 16);
        let away = Persistent::with(&graph, |_| Tier::Host).unwrap();
        let free = PlanOptions { partials, grouped: partials > 1, ..PlanOptions::new(&away) };
        let planner = StepPlanner::new(&graph, &sizes, &free).unwrap();
        assert!(partials == 1 || planner.outline.rule == OrderRule::Grouped);
        let least = planner.smallest(&graph, &sizes, &free).unwrap();
        let options = PlanOptions { memory: Some(least + all / 2), ..free };
        let plan = planner.plan(&graph, &sizes, &options).unwrap();
        verify(&graph, &plan).unwrap();
        let [fetched, stored] = weight_traffic(&graph, &plan);
        assert!(fetched <= 2 * all + more && stored == all, "{partials}: {fetched} {stored} of {all}");

        // Partials one after the other and all updates last, as frameworks do.
        let ordinary = PlanOptions { grouped: false, ..free };
        let planner = StepPlanner::with_rule(&graph, &sizes, &ordinary, OrderRule::Plain).unwrap();
        let bound = planner.outline.sizes(&graph, &sizes, &ordinary).unwrap();
        let budget = least + all / 2;
        let [dropped, written] = [Eviction::CleanDropped, Eviction::AlwaysWritten].map(|eviction| {
            let write = |base: &Base| {
                paging::script(&ComparedStep::new(&planner.outline, base, &bound), budget, eviction)
            };
            let paged = planner.plan_script(&graph, &sizes, &ordinary, write).unwrap().unwrap();
            verify(&graph, &paged).unwrap();
            let moved = Ledger::of(&paged);
            (weight_traffic(&graph, &paged).iter().sum::<u64>(), moved.to_device + moved.to_host)
        });
        let times = |bytes: u64| bytes as f64 / all as f64;
        println!(
            "{partials} partials: weights cross {:.2} times; paged {:.2} times, {:.2} with all else; {:.2} and {:.2} if \
             evictions are always written",
            times(fetched + stored),
            times(dropped.0),
            times(dropped.1),
            times(written.0),
            times(written.1)
        );
        // Whenever a pass ends, what was used last is still there for the next: a device full at most.
        let m = u64::from(partials);
        let kept = 2 * m * budget;
        assert!(dropped.0 + kept >= (2 * m + 2) * all, "{partials}: {dropped:?} of {all}");
        assert!(written.0 + 2 * kept >= (4 * m + 2) * all, "{partials}: {written:?} of {all}");
        assert!(written.1 >= (4 * m + 2) * all, "{partials}: {written:?} of {all}");
    }
}
