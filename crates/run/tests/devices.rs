//! Several devices train one job. Data parallel, the bits are those of one device with as many partials, within
//! budgets too; with nodes cut into parts, those of the whole wherever no sum is divided. Bytes between devices
//! are those planned, and a device that fails stops all of them with one error.

mod makes;
mod small_models;

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{Clip, training_graph};
use gulliver_plan::cut::{Bound, Choice, Cut, Grid, Level, Objective, Options, Spread};
use gulliver_plan::cut::{cut, deal, parts_of};
use gulliver_plan::plan::Plan;
use gulliver_plan::simulate::over_links;
use gulliver_plan::topology::{Device, Topology, Wiring};
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::host::HostData;
use gulliver_run::link::Throttle;
use gulliver_run::session::{Key, Ledger, Parts, Session, SessionError, SessionOptions, Which, planners};
use makes::MAKES;
use small_models::{data, small};
use std::sync::Arc;

const STEPS: u64 = 2;

fn graph(name: &str, optimizer: &str, clip: Option<Clip>) -> Graph {
    let row = MODELS.iter().find(|row| row.name == name).unwrap();
    let model = model(name, &small(row)).unwrap_or_else(|e| panic!("{name}: {e}"));
    training_graph(&*model, &[Optimizer::new(optimizer, &[]).unwrap()], clip).unwrap()
}

fn options(partials: usize) -> SessionOptions {
    SessionOptions { threads: 1, partials: partials as u32, ..SessionOptions::default() }
}

fn on_devices(graph: &Graph, devices: Vec<SessionOptions>) -> Result<Session, SessionError> {
    Session::together(planners(graph, None, devices)?, 11)
}

/// Weights and states after some steps, and every scalar on the way.
fn train(session: &mut Session, batch: &Batch) -> (String, Vec<(String, u64)>) {
    let mut scalars = Vec::new();
    for step in 0..STEPS {
        let number = |name: &str| name.ends_with("step").then_some((step + 1) as f32);
        let outcome = session.step(batch, Key { seed: 1, step }, &number).unwrap();
        assert_eq!(outcome.not_finite, None);
        scalars.extend(outcome.scalars.into_iter().map(|(name, x)| (name, x.to_bits())));
    }
    assert_eq!(session.take_alarms(), [], "bytes are as planned on every device");
    (fingerprint(&session.tensors().unwrap()), scalars)
}

#[test]
fn every_make_of_model_trains_to_the_same_bits_on_any_number_of_devices() {
    for (i, name) in MAKES.into_iter().enumerate() {
        let optimizer = if i.is_multiple_of(2) { "adamw" } else { "sgd" };
        let clip = i.is_multiple_of(3).then_some(Clip::Norm(0.5));
        let graph = graph(name, optimizer, clip);
        let batch = if name == "mlp" || name == "gpt" { 24 } else { 8 };
        let sizes = Bindings::new().with("batch", batch).with("length", 7);
        let data = data(&graph, &sizes);
        for devices in (1..=8).filter(|n| batch.is_multiple_of(*n)) {
            // Running statistics of a model with several objectives are not kept over partials.
            if name == "dcgan" && devices > 1 {
                assert!(matches!(
                    on_devices(&graph, vec![options(devices); devices]),
                    Err(SessionError::Replicate(_))
                ));
                continue;
            }
            let mut alone = Session::new(graph.clone(), None, options(devices), 11).unwrap();
            let expected = train(&mut alone, &data);
            let mut several = on_devices(&graph, vec![options(devices); devices]).unwrap();
            assert_eq!(train(&mut several, &data), expected, "{name} on {devices} devices");
            for device in several.devices() {
                // Every device ends with the same.
                assert_eq!(device.graph().parameters(), graph.parameters());
            }
        }
    }
}

#[test]
fn every_device_ends_with_all_weights() {
    let graph = graph("resnet18", "sgd", None);
    let sizes = Bindings::new().with("batch", 6).with("length", 7);
    let mut session = on_devices(&graph, vec![options(3); 3]).unwrap();
    let (expected, _) = train(&mut session, &data(&graph, &sizes));
    for mut device in session.apart() {
        assert_eq!(fingerprint(&device.tensors().unwrap()), expected);
    }
}

/// Bytes that each device takes of a gradient are at most twice its size, however many devices there are.
#[test]
fn gradients_are_added_up_with_least_traffic() {
    let graph = graph("gpt", "sgd", None);
    let sizes = Bindings::new().with("batch", 8).with("length", 7);
    let weights = 4 * graph.parameters().bind(&Bindings::new()).unwrap() as u64;
    for devices in [2, 4, 8] {
        let mut session = on_devices(&graph, vec![options(devices); devices]).unwrap();
        train(&mut session, &data(&graph, &sizes));
        let Ledger { from_peers, .. } = session.ledger();
        let n = devices as u64;
        let least = STEPS * 2 * (n - 1) * weights;
        // Small ones are fetched by everyone, with one meeting instead of two.
        let most = STEPS * n * (n - 1) * weights;
        assert!((least..=most).contains(&from_peers), "{devices}: {least} <= {from_peers} <= {most}");
        assert!(devices > 2 || from_peers == least);
    }
}

#[test]
fn devices_may_have_budgets_of_their_own() {
    for name in ["gpt", "resnet18", "lstm"] {
        let graph = graph(name, "adamw", None);
        let sizes = Bindings::new().with("batch", 4).with("length", 7);
        let data = data(&graph, &sizes);
        let mut alone = Session::new(graph.clone(), None, options(2), 11).unwrap();
        let expected = train(&mut alone, &data);
        let half = Bindings::new().with("batch", 2).with("length", 7);
        let mut free = planners(&graph, None, vec![options(2); 2]).unwrap();
        let whole = free[0].unlimited(Which::Train, &half).unwrap().spaces[0].bytes;
        let within = |percent: u64, threads| SessionOptions {
            memory: Some(whole * percent / 100),
            largest: Some(sizes.clone()),
            threads,
            ..options(2)
        };
        let mut several = on_devices(&graph, vec![within(100, 1), within(70, 2)]).unwrap();
        assert_eq!(train(&mut several, &data), expected, "{name}");
        let peaks: Vec<u64> = several.devices().map(|device| device.peak()).collect();
        assert!(peaks[1] <= whole * 70 / 100 && peaks[1] < peaks[0], "{name}: {peaks:?} of {whole}");
    }
}

#[test]
fn partials_are_those_of_one_device() {
    let graph = graph("mlp", "sgd", None);
    let refused = |devices: Vec<SessionOptions>| on_devices(&graph, devices).err().unwrap().to_string();
    assert_eq!(
        refused(vec![options(3); 2]),
        "train.partials = 3, and there are 2 devices: data parallel needs a partial for each"
    );
    let largest = Some(Bindings::new().with("batch", 7));
    assert_eq!(
        refused(vec![SessionOptions { largest, ..options(2) }; 2]),
        "a batch of 7 cannot be divided into 2 equal partials"
    );
    let mut session = on_devices(&graph, vec![options(2); 2]).unwrap();
    let odd = data(&graph, &Bindings::new().with("batch", 7));
    let said = session.step(&odd, Key { seed: 0, step: 0 }, &|_| None).unwrap_err().to_string();
    assert_eq!(said, "a batch of 7 cannot be divided into 2 equal partials");
}

/// The batch with one number that is wrong, in the share of the second of two devices.
fn spoiled(mut batch: Batch, spoil: impl Fn(&mut HostData)) -> Batch {
    batch.fields.iter_mut().for_each(|(_, tensor)| spoil(tensor.data_mut()));
    batch
}

#[test]
fn a_loss_that_is_not_finite_on_one_device_changes_nothing_on_any() {
    let graph = graph("resnet18", "sgd", None);
    let sizes = Bindings::new().with("batch", 4);
    let good = data(&graph, &sizes);
    let bad = spoiled(good.clone(), |data| {
        if let HostData::F32(numbers) = data {
            *numbers.last_mut().unwrap() = f32::NAN;
        }
    });
    let mut alone = Session::new(graph.clone(), None, options(2), 11).unwrap();
    let mut several = on_devices(&graph, vec![options(2); 2]).unwrap();
    let mut ends = Vec::new();
    for session in [&mut alone, &mut several] {
        train(session, &good);
        let before = fingerprint(&session.tensors().unwrap());
        let outcome = session.step(&bad, Key { seed: 1, step: STEPS }, &|_| None).unwrap();
        assert_eq!(fingerprint(&session.tensors().unwrap()), before);
        ends.push((outcome.not_finite, train(session, &good)));
    }
    assert_eq!(ends[0].1, ends[1].1);
    assert_eq!(ends[0].0, ends[1].0, "both name the same value");
}

#[test]
fn a_device_that_fails_stops_all_with_one_error() {
    let graph = graph("gpt", "sgd", None);
    let sizes = Bindings::new().with("batch", 4).with("length", 7);
    let bad = spoiled(data(&graph, &sizes), |data| {
        if let HostData::I64(tokens) = data {
            *tokens.last_mut().unwrap() = 1 << 40;
        }
    });
    for devices in [2, 4] {
        let mut session = on_devices(&graph, vec![options(devices); devices]).unwrap();
        let said = session.step(&bad, Key { seed: 0, step: 6 }, &|_| None).unwrap_err().to_string();
        let last = devices - 1;
        assert!(said.starts_with(&format!("step 7, device {last}: ")), "{said}");
        assert!(said.contains("is not below"), "{said}");
        // It stays stopped, and nobody hangs.
        assert!(session.step(&bad, Key { seed: 0, step: 7 }, &|_| None).is_err());
    }
}

/// Links of stated speeds and notes of when things happen change no bit; what passes each link is what was
/// planned.
#[test]
fn links_are_passed_as_planned() {
    let graph = graph("mlp", "sgd", None);
    let sizes = Bindings::new().with("batch", 8);
    let data = data(&graph, &sizes);
    let mut alone = Session::new(graph.clone(), None, options(2), 11).unwrap();
    let expected = train(&mut alone, &data);
    let wiring = Wiring { host: Some(2e9), peer: Some(1e9), latency: 1e-5, ..Wiring::default() };
    let whole = planners(&graph, None, vec![options(2); 2]).unwrap()[0]
        .unlimited(Which::Train, &Bindings::new().with("batch", 4))
        .unwrap();
    for percent in [100, 80] {
        let topology = Topology::wired(vec![Device::default(); 2], &wiring).unwrap();
        let throttle = Arc::new(Throttle::new(topology.clone()));
        let device = SessionOptions {
            throttle: Some(Arc::clone(&throttle)),
            memory: Some(whole.spaces[0].bytes * percent / 100),
            largest: Some(sizes.clone()),
            record: true,
            ..options(2)
        };
        let mut several = on_devices(&graph, vec![device; 2]).unwrap();
        assert_eq!(train(&mut several, &data), expected, "{percent} %");
        let spans = several.recorded();
        let mut devices = several.apart();
        let half = Bindings::new().with("batch", 4);
        let plans: Vec<Plan> =
            devices.iter_mut().map(|d| d.planner().plan(Which::Train, &half).unwrap()).collect();
        let pairs: Vec<(&Graph, &Plan)> = devices.iter().map(|d| d.graph()).zip(&plans).collect();
        let planned: Vec<u64> = over_links(&pairs, &topology).iter().map(|bytes| STEPS * bytes).collect();
        assert_eq!(throttle.bytes(), planned, "{percent} %");
        assert!(planned.iter().any(|bytes| *bytes > 0));
        // Everything that does something was noted, once.
        for (device, plan) in plans.iter().enumerate() {
            let does = |step: &u32| plan.stream(&plan.steps[*step as usize].act).is_some();
            let all: Vec<u32> = (0..plan.steps.len() as u32).filter(does).collect();
            let noted = spans.iter().filter(|span| span.device == device as u32);
            let mut noted: Vec<u32> = noted.map(|span| span.step).collect();
            noted.sort_unstable();
            assert_eq!(noted, all);
        }
    }
    assert!(alone.recorded().is_empty());
}

/// How nodes are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// Each along the first, or last, axis that divides no sum.
    First,
    Last,
    /// Each along the last axis there is.
    Any,
    /// As the search says that moves least.
    Searched,
}

fn cut_so(graph: &Graph, sizes: &Bindings, devices: usize, how: How) -> Cut {
    let levels = [Level::even(devices, 1e9)];
    if how == How::Searched {
        let options = Options { objective: Objective::Bytes, ..Options::default() };
        return cut(graph, sizes, &levels, &options).unwrap().cut;
    }
    let bound = Bound::new(graph, sizes).unwrap();
    let grid = Grid::new(&levels);
    let mut cut = Cut::none(graph, &levels);
    for (v, _, _) in graph.inputs().filter(|(v, ..)| bound.has_home(v.index())) {
        let shape = &bound.shapes[v.index()];
        if let Some(d) = (0..shape.len()).find(|d| shape[*d] >= 2 * devices) {
            cut.values[v.index()] = vec![Spread::Along(d)];
        }
    }
    for (id, node) in graph.nodes.iter().enumerate() {
        let kind = bound.kind(id);
        let mut axes = kind.axes.clone();
        axes.retain(|a| parts_of(kind, &[Choice::Axis(*a)], &grid).is_ok());
        axes.retain(|a| how == How::Any || kind.spec.cut(*a).is_some_and(|cut| cut.keeps_bits()));
        let axis = if how == How::First { axes.first() } else { axes.last() }.copied();
        cut.nodes[id] = vec![axis];
        let parts = parts_of(kind, &[axis.map_or(Choice::All, Choice::Axis)], &grid).unwrap();
        for (v, spreads) in node.outs.iter().zip(parts.spreads) {
            cut.values[v.index()] = spreads;
        }
    }
    cut
}

#[test]
fn parts_of_nodes_on_several_devices_are_the_whole() {
    let mut exchanged = 0;
    for (i, name) in MAKES.into_iter().enumerate().filter(|(_, name)| *name != "dcgan") {
        let partials = if i.is_multiple_of(3) && name != "resnet18" { 2 } else { 1 };
        let slice = Bindings::new().with("batch", 4).with("length", 7);
        let sizes = Bindings::new().with("batch", 4 * partials).with("length", 7);
        for (devices, how) in [(2, How::First), (3, How::Last), (2, How::Any), (2, How::Searched)] {
            let exact = matches!(how, How::First | How::Last);
            // Where sums are divided, gradients near zero must not be divided by themselves.
            let graph = graph(name, if exact { "adamw" } else { "sgd" }, Some(Clip::Norm(0.5)));
            let data = data(&graph, &sizes);
            let mut alone = Session::new(graph.clone(), None, options(partials), 11).unwrap();
            let cut = cut_so(&graph, &slice, devices, how);
            let shares = deal(&graph, &slice, &cut).unwrap_or_else(|e| panic!("{name}: {e}"));
            let mut several = Parts::new(shares, vec![options(partials); devices], 11).unwrap();
            let at_first = fingerprint(&alone.tensors().unwrap());
            assert_eq!(fingerprint(&several.tensors().unwrap()), at_first, "{name}");
            for step in 0..STEPS {
                let number = |name: &str| name.ends_with("step").then_some((step + 1) as f32);
                let key = Key { seed: 1, step };
                let expected = alone.step(&data, key, &number).unwrap();
                let found = several.step(&data, key, &number).unwrap();
                assert_eq!(several.take_alarms(), [], "{name}");
                if exact {
                    assert_eq!(found, expected, "{name} on {devices}");
                }
                for (scalar, x) in &expected.scalars {
                    let off = (x - found.scalars[scalar]).abs();
                    // Norms of gradients through statistics of few examples lose more digits than losses.
                    let close = if scalar.ends_with("loss") { 1e-5 } else { 1e-3 };
                    assert!(off <= close * (1.0 + x.abs()), "{name} {how:?}: {scalar} is {x}, off by {off}");
                }
            }
            if exact {
                let expected = fingerprint(&alone.tensors().unwrap());
                assert_eq!(fingerprint(&several.tensors().unwrap()), expected, "{name} on {devices}");
            }
            exchanged += several.ledger().from_peers;
        }
    }
    assert!(exchanged > 1 << 20, "{exchanged}");
}
