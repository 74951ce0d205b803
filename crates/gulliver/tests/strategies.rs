//! Every strategy of the table on every make of model and 1 to 8 devices: the bits of one device with as many
//! partials, or, where sums are divided, losses within 1e-5 of them and bits that depend on the strategy alone.
//! What is tried here covers every strategy with every count and every make; all of the product is tried with
//! `GULLIVER_ALL_STRATEGIES=1 cargo test --release -p gulliver --test strategies`.

#[path = "../../run/tests/families/mod.rs"]
mod families;
#[path = "../../run/tests/nets/mod.rs"]
mod nets;
#[path = "../../run/tests/small_models/mod.rs"]
mod small_models;

use families::FAMILIES;
use gulliver::graph::role::HyperRole;
use gulliver::local::LocalDevice;
use gulliver::local::{session, shared, together};
use gulliver::plan::devices::error::JobPlanError;
use gulliver::plan::devices::strategy::{DevicePlanners, STRATEGIES};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::op::map::Function;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{Clip, evaluation_graph, training_graph};
use gulliver_plan::devices::strategy::JobGraphs;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Topology};
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::host::HostTensor;
use gulliver_run::peers::link::Throttle;
use gulliver_run::session::{Evaluated, Session, StepKey};
use nets::{Net, layer};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use small_models::{data, small};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

const STEPS: u64 = 2;
const COUNTS: usize = 8;
const SEED: u64 = 11;

/// Whether a strategy divides nodes.
fn named(strategy: &str) -> bool {
    ["filter", "channel", "spatial", "data+filter", "data+spatial", "cut"].contains(&strategy)
}

/// Whether every device takes partials of its own.
fn divides_batch(strategy: &str) -> bool {
    gulliver::plan::devices::strategy::Strategy::named(strategy)
        .is_some_and(|strategy| strategy.divides_batch)
}

/// Slices of every batch: as many as data parallel on any number of devices can share, or few.
fn partials(strategy: &str, devices: usize) -> usize {
    match strategy {
        _ if divides_batch(strategy) => devices * (1 + devices % 2),
        "pipeline" | "harmony-pp" => 2,
        _ => 1,
    }
}

fn options(partials: usize) -> LocalDevice {
    LocalDevice { threads: 1, partials: partials as u32, ..LocalDevice::default() }
}

/// The graphs of a make. Optimizers and clipping differ from make to make, unless sums may be divided: what
/// divides by roots of small gradients makes much of their last digits.
fn graphs(make: &str, batch: usize, divided: bool) -> JobGraphs {
    let row = MODELS.iter().find(|row| row.name == make).unwrap();
    let at = FAMILIES.iter().position(|other| *other == make).unwrap();
    let model = model(make, &small(row)).unwrap();
    let adaptive = at.is_multiple_of(2) && !divided;
    let optimizer = Optimizer::new(if adaptive { "adamw" } else { "sgd" }, &[]).unwrap();
    let clip = (divided || at.is_multiple_of(3)).then_some(Clip::Norm(0.5));
    JobGraphs {
        train: training_graph(&*model, &[optimizer], clip).unwrap(),
        evaluation: evaluation_graph(&*model).unwrap(),
        largest: Bindings::new().with("batch", batch).with("length", 7),
    }
}

/// Losses of every step, what was evaluated and predicted at the end, and weights and states after.
#[derive(Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    evaluated: Vec<(String, u64)>,
    predicted: Option<HostTensor>,
    fingerprint: String,
}

fn run(mut session: Session, data: &Batch, evaluated: &Batch) -> Run {
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let number = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some((step + 1) as f32);
        let outcome = session.step(data, StepKey { seed: 1, step }, &number).unwrap();
        assert_eq!(outcome.not_finite, None);
        losses.extend(outcome.scalars.losses().map(|(_, loss)| loss));
    }
    let Evaluated { scalars, predicted } =
        session.evaluate_fully(evaluated, StepKey { seed: 1, step: STEPS }).unwrap();
    assert_eq!(session.take_alarms(), [], "bytes are as planned on every device");
    Run {
        losses,
        evaluated: scalars.iter().map(|(name, x)| (name.to_string(), x.value.to_bits())).collect(),
        predicted,
        fingerprint: fingerprint(&session.tensors().unwrap()),
    }
}

/// What one device came to, by make and partials; and whether sums may be divided.
type Known = HashMap<(String, usize, bool), Run>;

/// Trains a make on so many devices, and once more if asked to; whether it can be.
fn check(known: &mut Known, strategy: &str, make: &str, devices: usize, twice: bool) -> bool {
    let partials = partials(strategy, devices);
    // Statistics over next to no examples would make much of a last digit.
    let examples = if named(strategy) { 12 } else { 2 };
    let graphs = graphs(make, examples * partials, named(strategy));
    let label = format!("{strategy}: {make} on {devices} devices, {partials} partials");
    let data = data(&graphs.train, &graphs.largest);
    let planned = |each: LocalDevice| shared(strategy, &graphs, &vec![each; devices]);
    let DevicePlanners { planners, same_numbers } = match planned(options(partials)) {
        Ok(planned) => planned,
        Err(why) => {
            assert!(expected_to_fail(strategy, make, devices, &why), "{label}: {why}");
            return false;
        }
    };
    let expected = known.entry((make.to_string(), partials, named(strategy))).or_insert_with(|| {
        let (train, evaluation) = (graphs.train.clone(), graphs.evaluation.clone());
        run(session(train, Some(evaluation), &options(partials), SEED).unwrap(), &data, &data)
    });
    let opened = vec![options(partials); devices];
    let found = run(together(strategy, planners, &opened, SEED).unwrap(), &data, &data);
    println!("{label}");
    if same_numbers {
        assert_eq!(found, *expected, "{label}");
        return true;
    }
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{label}: {found} {expected}");
    }
    if !twice {
        return true;
    }
    // The same numbers whatever threads the devices have and how long links take.
    let wiring = BoxWiring { host: Some(5e9), peer: Some(2e9), latency: 2e-5, ..BoxWiring::default() };
    let topology = Topology::wired(vec![DeviceSpec::default(); devices], &wiring).unwrap();
    let slow = |threads| {
        let throttle = Some(Arc::new(Throttle::new(topology.clone())));
        let each = LocalDevice { threads, throttle, ..options(partials) };
        let planners = planned(each.clone()).unwrap().planners;
        run(together(strategy, planners, &vec![each; devices], SEED).unwrap(), &data, &data)
    };
    // The search for cuts looks at links: over others it may find another cut.
    let found = if strategy == "cut" { slow(1) } else { found };
    assert_eq!(slow(2), found, "{label}");
    true
}

/// What a strategy cannot do, and says.
fn expected_to_fail(strategy: &str, make: &str, devices: usize, why: &JobPlanError) -> bool {
    let why = why.to_string();
    let images =
        ["cnn", "resnet18", "resnet50", "vgg11", "mobilenet_v2", "dcgan", "cosmoflow"].contains(&make);
    match strategy {
        "data+filter" | "data+spatial" if why.contains("equal groups") => [1, 2, 3, 5, 7].contains(&devices),
        "spatial" | "data+spatial" => !images && why.contains("neither images nor volumes"),
        _ => false,
    }
}

/// Whether to try all there is, which takes long.
fn everything() -> bool {
    std::env::var_os("GULLIVER_ALL_STRATEGIES").is_some()
}

/// Every strategy with every count and with every make: makes come in turn.
#[test]
fn every_strategy_gives_the_reference_numbers() {
    let all = everything();
    let (mut done, mut known) = (0, Known::new());
    for (s, strategy) in STRATEGIES.iter().map(|strategy| strategy.name).enumerate() {
        for (m, make) in FAMILIES.into_iter().enumerate() {
            for devices in (1..=COUNTS).filter(|devices| all || (s + m) % COUNTS + 1 == *devices) {
                let twice = all || (s + m).is_multiple_of(3);
                done += usize::from(check(&mut known, strategy, make, devices, twice));
            }
        }
    }
    assert!(done > 80, "{done}");
}

/// Objectives that are trained, and evaluated, in turn.
#[test]
fn several_objectives_give_the_reference_numbers_by_every_strategy() {
    let mut known = Known::new();
    for strategy in STRATEGIES.map(|strategy| strategy.name) {
        check(&mut known, strategy, "dcgan", 3, false);
    }
    assert!(!known.is_empty());
}

/// How nodes of the evaluation are divided is no matter of links either.
#[test]
fn what_is_evaluated_does_not_depend_on_links() {
    for (strategy, make, devices) in
        [("filter", "resnet18", 5), ("filter", "pointnet", 7), ("channel", "resnet18", 5)]
    {
        assert!(check(&mut Known::new(), strategy, make, devices, true));
    }
}

/// Where a cut by rule fits with host memory beside the devices, the search finds a cut that fits too.
#[test]
fn searched_cuts_fit_where_cuts_by_rule_do() {
    for make in ["gpt", "lstm", "vgg11"] {
        let graphs = graphs(make, 24, true);
        // Budgets are for evaluations of as many examples as a partial has.
        let few = data(&graphs.train, &Bindings::new().with("batch", 12).with("length", 7));
        let data = data(&graphs.train, &graphs.largest);
        let alone = session(graphs.train.clone(), Some(graphs.evaluation.clone()), &options(2), SEED);
        let expected = run(alone.unwrap(), &data, &few);
        let mut free = shared("filter", &graphs, &vec![options(2); 2]).unwrap().planners;
        let sizes = free[0].options().largest.clone().unwrap_or_else(|| graphs.largest.clone());
        let needed = free[0].unlimited(Purpose::Train, &sizes).unwrap().spaces[0].bytes;
        let mut fitted = 0;
        for percent in [80, 60, 45] {
            let memory = Some(needed * percent / 100);
            let within = || {
                let largest = Some(graphs.largest.clone());
                vec![LocalDevice { memory, largest, ..options(2) }; 2]
            };
            let rule = |name| shared(name, &graphs, &within()).is_ok();
            if !rule("filter") && !rule("channel") {
                continue;
            }
            fitted += 1;
            let label = format!("{make} within {percent} %");
            let planned = shared("cut", &graphs, &within());
            let planners = planned.unwrap_or_else(|why| panic!("{label}: {why}")).planners;
            let found = run(together("cut", planners, &within(), SEED).unwrap(), &data, &few);
            for (found, expected) in found.losses.iter().zip(&expected.losses) {
                assert!(
                    (found - expected).abs() <= 1e-5 * (1.0 + expected.abs()),
                    "{label}: {found} {expected}"
                );
            }
        }
        assert!(fitted > 1, "{make}: {fitted}");
    }
}

fn random_net() -> impl Strategy<Value = Net> {
    let function = prop::sample::select(vec![Function::Relu, Function::Tanh, Function::GeluTanh]);
    let dropout = prop::sample::select(vec![0.0f32, 0.2]);
    let layers = (3..40usize, function, any::<bool>(), dropout, any::<bool>());
    let layers = layers.prop_map(|(width, function, norm, dropout, residual)| nets::Layer {
        function,
        norm,
        dropout,
        residual,
        ..layer(width)
    });
    (2..70usize, prop::collection::vec(layers, 1..5), 2..9usize).prop_map(|(input, layers, classes)| Net {
        input,
        layers,
        classes,
    })
}

/// Random networks, strategies, numbers of devices and budgets: the numbers of the plain run, bytes as planned.
#[test]
fn random_networks_train_to_the_same_numbers_on_any_devices_within_any_budget() {
    let names: Vec<&str> = STRATEGIES.iter().map(|strategy| strategy.name).collect();
    let optimizers = prop::sample::select(vec!["sgd", "adamw", "lion"]);
    let cases = (
        random_net(),
        prop::sample::select(names),
        1..9usize,
        1..3usize,
        40..110u64,
        optimizers,
        any::<bool>(),
    );
    let tried = if everything() { 200 } else { 12 };
    let config = ProptestConfig { cases: tried, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let limited = Cell::new(0);
    let mut runner = TestRunner::new_with_rng(config, rng);
    runner
        .run(&cases, |(net, strategy, devices, each, percent, optimizer, clipped)| {
            let partials = if named(strategy) { each } else { devices * each };
            let clip = clipped.then_some(Clip::Norm(0.5));
            let train = net.graph(optimizer, clip);
            let largest = Bindings::new().with("batch", 4 * partials);
            let graphs = JobGraphs { evaluation: evaluation_graph(&net).unwrap(), train, largest };
            // Budgets are for evaluations of as many examples as a partial has.
            let few = data(&graphs.train, &Bindings::new().with("batch", 4));
            let data = data(&graphs.train, &graphs.largest);
            let free = options(partials);
            let Ok(DevicePlanners { mut planners, same_numbers }) =
                shared(strategy, &graphs, &vec![free.clone(); devices])
            else {
                return Ok(());
            };
            let alone = session(graphs.train.clone(), Some(graphs.evaluation.clone()), &free, SEED);
            let expected = run(alone.unwrap(), &data, &few);
            // Each device within a share of what it would take.
            let within: Vec<LocalDevice> = planners
                .iter_mut()
                .map(|planner| {
                    let own = planner.options().largest.clone().unwrap_or_else(|| {
                        let mut own = graphs.largest.clone();
                        if divides_batch(strategy) {
                            own.set("batch", 4 * each);
                        }
                        own
                    });
                    let whole = planner.unlimited(Purpose::Train, &own).unwrap().spaces[0].bytes;
                    let memory = Some(whole * percent / 100);
                    LocalDevice { memory, largest: Some(graphs.largest.clone()), ..free.clone() }
                })
                .collect();
            let planned = match shared(strategy, &graphs, &within) {
                Ok(planned) => {
                    limited.set(limited.get() + 1);
                    planned
                }
                // Too little for anything.
                Err(JobPlanError::Plan(_)) => DevicePlanners { planners, same_numbers },
                Err(why) => panic!("{strategy} on {devices}: {why}"),
            };
            let found = run(together(strategy, planned.planners, &within, SEED).unwrap(), &data, &few);
            if planned.same_numbers {
                prop_assert_eq!(&found, &expected, "{} on {} devices", strategy, devices);
            }
            for (found, expected) in found.losses.iter().zip(&expected.losses) {
                prop_assert!(
                    (found - expected).abs() <= 1e-5 * (1.0 + expected.abs()),
                    "{} {}",
                    found,
                    expected
                );
            }
            Ok(())
        })
        .unwrap();
    assert!(limited.get() >= tried / 4, "{} of {tried} within budgets", limited.get());
}

#[test]
fn the_help_of_train_describes_every_strategy() {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_gulliver")).args(["train", "--help"]).output();
    let words: Vec<String> = String::from_utf8(output.unwrap().stdout)
        .map(|text| text.split_whitespace().map(String::from).collect())
        .unwrap();
    let text = words.join(" ");
    for strategy in STRATEGIES {
        assert!(text.contains(&format!("{} {}", strategy.name, strategy.help)), "{}: {text}", strategy.name);
    }
}
