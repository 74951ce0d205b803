//! Whole models against PyTorch: the loss, every gradient and the running statistics of one training
//! step, computed by the reference kernels in f64.

#[path = "../../../fixtures/torch/fixture.rs"]
#[allow(dead_code)]
mod fixture;

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Origin, Role, Value};
use gulliver_graph::interpret::interpret;
use gulliver_graph::model::model;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::tensor::Tensor;
use gulliver_graph::training::training_graph;
use std::collections::HashMap;

/// Both sides compute in f64; what remains are settings held in f32 and nine printed digits.
const TOLERANCE: f64 = 1e-6;

fn check(name: &str) {
    let fixture = fixture::read(name);
    let step = fixture.step().unwrap_or_else(|e| panic!("{name}: {e}"));
    let values = interpret(&step.graph, &step.sizes, |v, shape| {
        Tensor::new(shape, fixture.feed(&step.graph, v, shape))
    });
    let values = values.unwrap_or_else(|e| panic!("{name}: {e}"));
    fixture.compare(&step, TOLERANCE, |v| values[v.index()].data.clone());
}

#[test]
fn mlp() {
    for name in ["mlp", "mlp_regress", "mlp_weighted"] {
        check(name);
    }
}

#[test]
fn convolutional_networks() {
    for name in ["cnn", "cnn_rectangle", "vgg11", "vgg13", "cosmoflow"] {
        check(name);
    }
}

#[test]
fn resnets() {
    for name in ["resnet18", "wide_bottleneck"] {
        check(name);
    }
}

#[test]
fn resnet_for_large_images() {
    check("resnet50");
}

#[test]
fn mobilenet() {
    check("mobilenet_v2");
}

#[test]
fn generator_and_discriminator_in_turn() {
    check("dcgan");
}

#[test]
fn point_clouds() {
    for name in ["pointnet", "pointnet_transform"] {
        check(name);
    }
}

#[test]
fn recurrent_language_models() {
    for name in ["lstm", "gru"] {
        check(name);
    }
}

#[test]
fn one_result_per_text() {
    for name in ["lstm_classify", "gru_regress", "gpt_classify", "gpt_regress", "bert_regress"] {
        check(name);
    }
}

#[test]
fn transformers() {
    for name in ["gpt", "bert_mlm", "bert_classify"] {
        check(name);
    }
}

/// The reference kernels are slow; faster ones follow the whole run.
const STEPS: usize = 3;

#[test]
fn the_first_losses_of_a_training_run() {
    let fixture = fixture::read("gpt_training");
    let training = fixture.training.as_ref().unwrap();
    let ids = training.ids();
    let given: Vec<_> = fixture.parameters.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
    let adamw = Optimizer::new("adamw", &training.settings()).unwrap();
    let graph = training_graph(&*model("gpt", &given).unwrap(), &[adamw], None).unwrap();
    let sizes = Bindings::new().with("batch", training.batch).with("length", training.length);
    let mut carried: HashMap<Value, Tensor> = HashMap::new();
    for (step, &expected) in training.losses.iter().take(STEPS).enumerate() {
        let [x, y] = training.batch(&ids, step);
        let values = interpret(&graph, &sizes, |v, shape| {
            let info = graph.value(v);
            let data = match (info.name.as_str(), carried.get(&v)) {
                (_, Some(tensor)) => return tensor.clone(),
                ("x", _) => x.clone(),
                ("y", _) => y.clone(),
                ("hyper.step", _) => vec![step as f64 + 1.0],
                _ => match info.origin {
                    Origin::Input(Role::Hyper(_, default)) => vec![f64::from(default)],
                    _ => fixture.feed(&graph, v, shape),
                },
            };
            Tensor::new(shape, data)
        });
        let mut values = values.unwrap();
        let loss = values[graph.output("loss").unwrap().index()].data[0];
        assert!(
            (loss - expected).abs() <= TOLERANCE * expected,
            "step {step}: loss {loss}, PyTorch {expected}"
        );
        carried = graph
            .carries
            .iter()
            .map(|(v, next)| (*v, std::mem::replace(&mut values[next.index()], Tensor::scalar(0.0))))
            .collect();
    }
}

#[test]
fn every_fixture_is_tested() {
    let source = include_str!("torch.rs");
    // Longer training runs are followed by the executor's tests.
    for name in fixture::names().iter().filter(|n| !n.ends_with("_mini_training")) {
        assert!(source.contains(&format!("\"{name}\"")), "{name}");
    }
}

#[test]
fn fingerprints_notice_one_wrong_element_and_swapped_ones() {
    let mut tensor: Vec<f64> = (0..100).map(|i| f64::from(i % 7) - 3.0).collect();
    let json = r#"{"name":"w","norm":0,"projections":[0,0,0,0],"samples":[]}"#;
    let mut print: fixture::Fingerprint = serde_json::from_str(json).unwrap();
    print.take(&tensor);
    print.compare(&tensor, 1e-12, 0.0);
    let refuses = |tensor: &[f64]| std::panic::catch_unwind(|| print.compare(tensor, 1e-6, 0.0)).is_err();
    tensor.swap(40, 45);
    assert!(refuses(&tensor), "swapped");
    tensor.swap(40, 45);
    tensor[57] += 1e-3;
    assert!(refuses(&tensor), "changed");
}
