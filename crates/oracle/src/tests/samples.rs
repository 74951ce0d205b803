//! Models for the tests of this crate, as frameworks run them.

use crate::from_graph::{KernelStyle, from_graph, from_model};
use crate::workload::Workload;
use gulliver_graph::dim::{Bindings, Dim};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::model::classifier::Classifier;
use gulliver_graph::model::model;
use gulliver_graph::model::param::{ParamValue, int};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_graph::windows::ConvOptions;

/// A model of the table for samples of this length.
pub(crate) fn framework(name: &str, settings: &[(&str, ParamValue)], length: usize) -> Workload {
    let settings: Vec<_> = settings.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    let sizes = Bindings::new().with("length", length);
    from_model(name, model(name, &settings).unwrap().as_ref(), &sizes, KernelStyle::Framework).unwrap()
}

/// A GPT of the table whose context is 2048.
pub(crate) fn gpt(name: &str) -> Workload {
    framework(name, &[], 2048)
}

/// A GPT of 10 billion weights, whose context is 1024.
pub(crate) fn gpt_10b() -> Workload {
    framework("gpt-10b", &[], 1024)
}

/// ResNet-50.
pub(crate) fn resnet50() -> Workload {
    framework("resnet50", &[], 0)
}

/// VGG-16.
pub(crate) fn vgg16() -> Workload {
    framework("vgg16", &[], 0)
}

/// A model of the table on Gulliver's kernels, not folded.
pub(crate) fn nodes(name: &str, length: usize) -> Workload {
    let built = model(name, &[]).unwrap();
    let graph = training_graph(built.as_ref(), &[Optimizer::new("adam", &[]).unwrap()], None).unwrap();
    from_graph(name, &graph, &Bindings::new().with("length", length), KernelStyle::Nodes).unwrap()
}

/// CosmoFlow for cubes of 128.
pub(crate) fn cosmoflow() -> Workload {
    framework("cosmoflow", &[("size", int(128)), ("layers", int(5))], 0)
}

/// A few convolutions, then large linear layers: AlexNet.
pub(crate) fn alexnet() -> Workload {
    let build = |g: &mut Builder| {
        let mut x = g.data("x", DType::F32, &[Dim::symbol("batch"), 3.into(), 224.into(), 224.into()])?;
        for (filters, kernel, stride, padding) in [(96, 11, 4, 2), (256, 5, 1, 2), (256, 3, 1, 1)] {
            let options = ConvOptions::new(2).stride(stride).padding(padding);
            let name = format!("features.{kernel}");
            x = g.scope(name, |g| g.conv_layer(x, filters, &[kernel, kernel], &options, true))?;
            x = g.relu(x)?;
            x = g.max_pool(x, &[3, 3], &[2, 2], &[0, 0])?;
        }
        x = g.flatten(x)?;
        for (i, width) in [4096, 4096, 1000].into_iter().enumerate() {
            x = g.scope(format!("classifier.{i}"), |g| g.linear(x, width, true))?;
            x = if width > 1000 { g.relu(x)? } else { x };
        }
        Ok(x)
    };
    from_model("alexnet", &Classifier(build), &Bindings::new(), KernelStyle::Framework).unwrap()
}
