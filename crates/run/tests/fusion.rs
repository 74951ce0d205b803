//! Fusion changes no bit and needs no more memory: every model of the table, made small, is trained fused and unfused.

mod small_models;

use gulliver::local::{LocalDevice, session};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::HyperRole;
use gulliver_graph::training::{Clip, plain_training_graph, training_graph};
use gulliver_plan::document::job::Purpose;
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::session::{Session, StepKey};
use small_models::{data, small};
use std::collections::HashSet;

fn started(graph: &Graph, threads: usize, partials: u32) -> Session {
    let options = LocalDevice { threads, partials, ..LocalDevice::default() };
    session(graph.clone(), None, &options, 11).unwrap()
}

/// Weights and states after some steps, and every scalar of these steps.
fn train(graph: &Graph, threads: usize, partials: u32, sizes: &Bindings) -> (String, Vec<(String, u64)>) {
    let batch = data(graph, sizes);
    let mut session = started(graph, threads, partials);
    let mut scalars = Vec::new();
    for step in 0..2u64 {
        let number = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some((step + 1) as f32);
        let outcome = session.step(&batch, StepKey { seed: 1, step }, &number).unwrap();
        assert_eq!(outcome.not_finite, None);
        scalars.extend(outcome.scalars.iter().map(|(name, x)| (name.to_string(), x.value.to_bits())));
    }
    assert!(session.slow_operators().is_empty(), "{:?}", session.slow_operators());
    (fingerprint(&session.tensors().unwrap()), scalars)
}

/// Bytes of device memory that a step needs.
fn arena(graph: &Graph, threads: usize, partials: u32, sizes: &Bindings) -> u64 {
    started(graph, threads, partials).plan(Purpose::Train, sizes).unwrap().spaces[0].bytes
}

#[test]
fn every_model_trains_to_the_same_bits_in_no_more_memory() {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    let mut seen = HashSet::new();
    for (i, row) in MODELS.iter().enumerate() {
        let model = model(row.name, &small(row)).unwrap_or_else(|e| panic!("{}: {e}", row.name));
        // Made small, many rows of a family are the same model.
        if !seen.insert(format!("{model:?}")) {
            continue;
        }
        let adam = || [Optimizer::new("adamw", &[]).unwrap()];
        let clip = Some(if i % 2 == 0 { Clip::Norm(1.0) } else { Clip::Value(0.1) });
        let plain = plain_training_graph(&*model, &adam(), clip).unwrap();
        let fused = training_graph(&*model, &adam(), clip).unwrap();
        assert_ne!(plain.nodes.len(), fused.nodes.len(), "{}", row.name);
        let partials = if i % 3 == 0 { 2 } else { 1 };
        assert_eq!(train(&plain, 1, partials, &sizes), train(&fused, 2, partials, &sizes), "{}", row.name);
        for threads in [1, 2] {
            let (before, after) =
                (arena(&plain, threads, partials, &sizes), arena(&fused, threads, partials, &sizes));
            // For models this small, scratch and alignment may cost a few bytes more.
            let spare = before / 100;
            assert!(
                after <= before + spare,
                "{} with {threads} threads: {before} -> {after} bytes",
                row.name
            );
        }
    }
}
