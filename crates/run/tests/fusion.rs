//! Fusion changes no bit: every model of the table, made small, trained fused and unfused through the
//! executor; and it needs no more memory.

use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Role};
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, ModelRow, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::{Stream, hash_name};
use gulliver_graph::training::{Clip, plain_training_graph, training_graph};
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::host::{HostData, HostTensor};
use gulliver_run::session::{Key, Session, SessionOptions, Which};

/// Settings that make a model small, where it has them.
fn small(row: &ModelRow) -> Vec<(String, ParamValue)> {
    let number = |name: &str| match name {
        "width" => Some(16),
        "size" => Some(32),
        "hidden" | "context" | "vocab" => Some(20),
        "layers" | "heads" | "generator" | "discriminator" => Some(2),
        "classes" => Some(5),
        "pool" => Some(1),
        "points" => Some(40),
        _ => None,
    };
    let setting = |name: &str, default: &ParamValue| match default {
        ParamValue::Int(_) => number(name).map(ParamValue::Int),
        ParamValue::Ints(sizes) if name == "sizes" => Some(ParamValue::Ints(vec![sizes[0], 24, 5].into())),
        ParamValue::Ints(stages) => Some(ParamValue::Ints(vec![1; stages.len()].into())),
        ParamValue::Float(_) if name == "dropout" => Some(ParamValue::Float(0.1)),
        ParamValue::Float(_) if name == "width" => Some(ParamValue::Float(0.25)),
        _ => None,
    };
    let given =
        row.params().into_iter().filter_map(|p| Some((p.name.to_string(), setting(p.name, &p.default)?)));
    given.collect()
}

fn data(graph: &Graph, sizes: &Bindings) -> Batch {
    let inputs = graph.inputs().filter(|(_, role, _)| *role == Role::Data);
    let fields = inputs.map(|(_, _, info)| {
        let shape = info.ty.bind(sizes).unwrap();
        let stream = Stream::new(3, hash_name(&info.name), 0);
        let elements = 0..shape.iter().product::<usize>() as u64;
        let data = match info.ty.dtype {
            DType::F32 => HostData::F32(elements.map(|i| stream.normal_at(i)).collect()),
            DType::I64 => HostData::I64(elements.map(|i| stream.below(i, 2) as i64).collect()),
            DType::Bool => HostData::Bool(elements.map(|i| stream.below(i, 2) as u8).collect()),
            other => panic!("no model has {other}"),
        };
        (info.name.clone(), HostTensor::new(&shape, data).unwrap())
    });
    Batch { fields: fields.collect() }
}

fn session(graph: &Graph, threads: usize, partials: u32) -> Session {
    let options = SessionOptions { threads, partials, ..SessionOptions::default() };
    Session::new(graph.clone(), None, options, 11).unwrap()
}

/// Weights and states after some steps, and every scalar on the way.
fn train(graph: &Graph, threads: usize, partials: u32, sizes: &Bindings) -> (String, Vec<(String, u64)>) {
    let batch = data(graph, sizes);
    let mut session = session(graph, threads, partials);
    let mut scalars = Vec::new();
    for step in 0..2u64 {
        let number = |name: &str| name.ends_with("step").then_some((step + 1) as f32);
        let outcome = session.step(&batch, Key { seed: 1, step }, &number).unwrap();
        assert_eq!(outcome.not_finite, None);
        scalars.extend(outcome.scalars.into_iter().map(|(name, x)| (name, x.to_bits())));
    }
    assert!(session.slow_operators().is_empty(), "{:?}", session.slow_operators());
    (fingerprint(&session.tensors().unwrap()), scalars)
}

/// Bytes of device memory that a step needs.
fn arena(graph: &Graph, threads: usize, partials: u32, sizes: &Bindings) -> u64 {
    session(graph, threads, partials).plan(Which::Train, sizes).unwrap().spaces[0].bytes
}

#[test]
fn every_model_trains_to_the_same_bits_in_no_more_memory() {
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    for (i, row) in MODELS.iter().enumerate() {
        let model = model(row.name, &small(row)).unwrap_or_else(|e| panic!("{}: {e}", row.name));
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
            // Models this small: a few lanes of scratch, and where the packing happens to end.
            let spare = before / 100;
            assert!(
                after <= before + spare,
                "{} with {threads} threads: {before} -> {after} bytes",
                row.name
            );
        }
    }
}
