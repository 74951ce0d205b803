//! Whole models against PyTorch: the loss, every gradient and the running statistics of one training
//! step, computed by the reference kernels in f64.

#[path = "../../../fixtures/torch/fixture.rs"]
#[allow(dead_code)]
mod fixture;

use gulliver_graph::interpret::interpret;
use gulliver_graph::tensor::Tensor;

fn check(name: &str) {
    let fixture = fixture::read(name);
    let step = fixture.step().unwrap_or_else(|e| panic!("{name}: {e}"));
    let values = interpret(&step.graph, &step.sizes, |v, shape| {
        Tensor::new(shape, fixture.feed(&step.graph, v, shape))
    });
    let values = values.unwrap_or_else(|e| panic!("{name}: {e}"));
    fixture.compare(&step, 1e-4, |v| values[v.index()].data.clone());
}

#[test]
fn mlp() {
    check("mlp");
}

#[test]
fn convolutional_networks() {
    ["cnn", "vgg11", "vgg13", "cosmoflow"].map(check);
}

#[test]
fn resnets() {
    ["resnet18", "wide_resnet50_2"].map(check);
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
    ["pointnet", "pointnet_transform"].map(check);
}

#[test]
fn recurrent_language_models() {
    ["lstm", "gru"].map(check);
}

#[test]
fn transformers() {
    ["gpt", "bert_mlm", "bert_classify"].map(check);
}
