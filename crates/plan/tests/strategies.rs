//! What the table of strategies says of each.

use gulliver_graph::dim::Bindings;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{evaluation_graph, training_graph};
use gulliver_plan::devices::options::DeviceOptions;
use gulliver_plan::devices::strategy::{DeviceSet, JobGraphs, STRATEGIES};

/// A small model whose batch is in four partials.
fn graphs(name: &str, settings: &[(&str, i64)]) -> JobGraphs {
    let settings: Vec<_> = settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let model = model(name, &settings).unwrap();
    let optimizer = Optimizer::new("sgd", &[]).unwrap();
    JobGraphs {
        train: training_graph(model.as_ref(), &[optimizer], None).unwrap(),
        evaluation: evaluation_graph(model.as_ref()).unwrap(),
        largest: Bindings::new().with("batch", 16).with("length", 6),
    }
}

#[test]
fn strategies_that_may_divide_a_sum_say_so() {
    let jobs = [
        graphs("cnn", &[("width", 8), ("size", 16)]),
        graphs("gpt", &[("width", 16), ("layers", 2), ("heads", 2), ("vocab", 32), ("context", 8)]),
    ];
    for strategy in STRATEGIES {
        let mut divides = false;
        for job in &jobs {
            let device = DeviceOptions { partials: 4, ..DeviceOptions::default() };
            match (strategy.plan)(job, &DeviceSet::new(vec![device; 4])) {
                Ok(planned) => divides |= !planned.same_numbers,
                Err(e) => {
                    assert!(e.to_string().contains("neither images nor volumes"), "{}: {e}", strategy.name)
                }
            }
        }
        assert_eq!(divides, strategy.divides_sums, "{}", strategy.name);
    }
}
