//! Every strategy of the table on every make of model and 1 to 8 devices: the bits of one device with as many
//! partials, or, where sums are divided, losses within 1e-5 of them and bits that depend on the strategy alone.
//! What is tried here covers every strategy with every count and every make; all of the product is tried with
//! `GULLIVER_ALL_STRATEGIES=1 cargo test --release -p gulliver --test strategies`.

#[path = "../../run/tests/makes/mod.rs"]
mod makes;
#[path = "../../run/tests/small_models/mod.rs"]
mod small_models;

use gulliver::setup::Graphs;
use gulliver::strategy::{AUTO, STRATEGIES, planned_as};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{Clip, evaluation_graph, training_graph};
use gulliver_plan::topology::{Device, Topology, Wiring};
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::link::Throttle;
use gulliver_run::session::{Key, Session, SessionError, SessionOptions};
use makes::MAKES;
use small_models::{data, small};
use std::sync::Arc;

const STEPS: u64 = 2;
const COUNTS: usize = 8;
const SEED: u64 = 11;

/// Slices of every batch: as many as data parallel on any number of devices can share, or few.
fn partials(strategy: &str, devices: usize) -> usize {
    match strategy {
        "data" | "harmony-dp" | "zero" => devices * (1 + devices % 2),
        _ => 2,
    }
}

fn options(partials: usize) -> SessionOptions {
    SessionOptions { threads: 1, partials: partials as u32, ..SessionOptions::default() }
}

/// The graphs of a make; optimizers and clipping differ from make to make.
fn graphs(make: &str, batch: usize) -> Graphs {
    let row = MODELS.iter().find(|row| row.name == make).unwrap();
    let at = MAKES.iter().position(|other| *other == make).unwrap();
    let model = model(make, &small(row)).unwrap();
    let optimizer = Optimizer::new(if at.is_multiple_of(2) { "adamw" } else { "sgd" }, &[]).unwrap();
    let clip = at.is_multiple_of(3).then_some(Clip::Norm(0.5));
    Graphs {
        train: training_graph(&*model, &[optimizer], clip).unwrap(),
        evaluation: evaluation_graph(&*model).unwrap(),
        largest: Bindings::new().with("batch", batch).with("length", 7),
    }
}

/// Losses of every step and what was evaluated at the end, and weights and states after.
#[derive(Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    evaluated: Vec<(String, u64)>,
    fingerprint: String,
}

fn run(mut session: Session, graph: &Graph, data: &Batch) -> Run {
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let number = |name: &str| name.ends_with("step").then_some((step + 1) as f32);
        let outcome = session.step(data, Key { seed: 1, step }, &number).unwrap();
        assert_eq!(outcome.not_finite, None);
        losses.extend(outcome.scalars.into_iter().filter(|(name, _)| name.ends_with("loss")).map(|(_, x)| x));
    }
    // Generators are only trained.
    let evaluates = graph.nodes.iter().all(|node| node.stage == 0);
    let evaluated = evaluates.then(|| session.evaluate(data, Key { seed: 1, step: STEPS }).unwrap());
    assert_eq!(session.take_alarms(), [], "bytes are as planned on every device");
    Run {
        losses,
        evaluated: evaluated.into_iter().flatten().map(|(name, x)| (name, x.to_bits())).collect(),
        fingerprint: fingerprint(&session.tensors().unwrap()),
    }
}

/// Trains a make on so many devices; whether it can be.
fn check(strategy: &str, make: &str, devices: usize) -> bool {
    let partials = if make == "dcgan" { 1 } else { partials(strategy, devices) };
    let graphs = graphs(make, 2 * partials);
    let label = format!("{strategy}: {make} on {devices} devices, {partials} partials");
    let data = data(&graphs.train, &graphs.largest);
    let planned = |each: SessionOptions| planned_as(strategy, &graphs, vec![each; devices]);
    let (planners, same_numbers) = match planned(options(partials)) {
        Ok(planned) => planned,
        Err(why) => {
            assert!(expected_to_fail(strategy, make, devices, &why), "{label}: {why}");
            return false;
        }
    };
    let alone = Session::new(graphs.train.clone(), Some(graphs.evaluation.clone()), options(partials), SEED);
    let expected = run(alone.unwrap(), &graphs.train, &data);
    let found = run(Session::together(planners, SEED).unwrap(), &graphs.train, &data);
    if same_numbers {
        assert_eq!(found, expected, "{label}");
        return true;
    }
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert!((found - expected).abs() <= 1e-5 * expected.abs(), "{label}: {found} {expected}");
    }
    // The same numbers whatever threads the devices have and how long links take.
    let wiring = Wiring { host: Some(5e9), peer: Some(2e9), latency: 2e-5, ..Wiring::default() };
    let topology = Topology::wired(vec![Device::default(); devices], &wiring).unwrap();
    let slow =
        SessionOptions { threads: 2, throttle: Some(Arc::new(Throttle::new(topology))), ..options(partials) };
    let again = planned(slow).unwrap().0;
    assert_eq!(run(Session::together(again, SEED).unwrap(), &graphs.train, &data), found, "{label}");
    true
}

/// What a strategy cannot do, and says.
fn expected_to_fail(strategy: &str, make: &str, devices: usize, why: &SessionError) -> bool {
    let why = why.to_string();
    let images =
        ["cnn", "resnet18", "resnet50", "vgg11", "mobilenet_v2", "dcgan", "cosmoflow"].contains(&make);
    match strategy {
        "data" | "harmony-dp" | "zero" => make == "dcgan" && why.contains("train.partials"),
        "pipeline" | "harmony-pp" => make == "dcgan" && why.contains("objective"),
        "data+filter" | "data+spatial" if why.contains("equal groups") => [1, 2, 3, 5, 7].contains(&devices),
        "spatial" | "data+spatial" => !images && why.contains("neither images nor volumes"),
        _ => false,
    }
}

/// Every strategy with every count and with every make: makes come in turn.
#[test]
fn every_strategy_gives_the_reference_numbers() {
    let all = std::env::var_os("GULLIVER_ALL_STRATEGIES").is_some();
    let mut done = 0;
    for (s, (strategy, _)) in STRATEGIES.iter().filter(|(name, _)| *name != AUTO).enumerate() {
        for (m, make) in MAKES.into_iter().enumerate() {
            for devices in 1..=COUNTS {
                if all
                    || (s + m + 1).is_multiple_of(COUNTS) == (devices == COUNTS)
                        && (s + m + 1) % COUNTS == devices % COUNTS
                {
                    done += usize::from(check(strategy, make, devices));
                }
            }
        }
    }
    assert!(done > 80, "{done}");
}
