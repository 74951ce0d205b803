//! Several devices train one job, data parallel or as a pipeline. The bits are those of one device with as many partials,
//! also within budgets. Bytes between devices are those planned. A device that fails stops all with one error.

mod families;
mod small_models;

use families::FAMILIES;
use gulliver::local::{LocalDevice, LocalError, device_set, session, together};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Phase};
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::role::HyperRole;
use gulliver_graph::training::{Clip, training_graph};
use gulliver_lab::comparator::traffic::over_links;
use gulliver_plan::devices::pipeline::Style;
use gulliver_plan::devices::predict::{PredictedStep, predict};
use gulliver_plan::devices::replicate::ShardedValues;
use gulliver_plan::devices::strategy::{Pipelined, pipelined, replicated, sharded};
use gulliver_plan::document::collectives::inline_collectives;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Act, Plan, PlanStream, Tier};
use gulliver_plan::document::topology::{BoxWiring, DeviceSpec, Topology};
use gulliver_run::checkpoint::fingerprint;
use gulliver_run::data::Batch;
use gulliver_run::host::HostData;
use gulliver_run::peers::link::Throttle;
use gulliver_run::session::{Session, StepKey};
use gulliver_run::team::cores;
use gulliver_run::team::side_by_side;
use small_models::{data, small};
use std::sync::Arc;

const STEPS: u64 = 2;

fn graph(name: &str, optimizer: &str, clip: Option<Clip>) -> Graph {
    let row = MODELS.iter().find(|row| row.name == name).unwrap();
    let model = model(name, &small(row)).unwrap_or_else(|e| panic!("{name}: {e}"));
    training_graph(&*model, &[Optimizer::new(optimizer, &[]).unwrap()], clip).unwrap()
}

fn options(partials: usize) -> LocalDevice {
    LocalDevice { threads: 1, partials: partials as u32, ..LocalDevice::default() }
}

fn on_devices(graph: &Graph, devices: Vec<LocalDevice>) -> Result<Session, LocalError> {
    together("data", replicated(graph, None, &device_set(&devices))?, &devices, 11)
}

/// Weights and states after some steps, and every scalar of these steps.
fn train(session: &mut Session, batch: &Batch) -> (String, Vec<(String, u64)>) {
    let mut scalars = Vec::new();
    for step in 0..STEPS {
        let number = |role: HyperRole, _: &str| (role == HyperRole::Step).then_some((step + 1) as f32);
        let outcome = session.step(batch, StepKey { seed: 1, step }, &number).unwrap();
        assert_eq!(outcome.not_finite, None);
        scalars.extend(outcome.scalars.iter().map(|(name, x)| (name.to_string(), x.value.to_bits())));
    }
    assert_eq!(session.take_alarms(), [], "bytes are as planned on every device");
    (fingerprint(&session.tensors().unwrap()), scalars)
}

#[test]
fn every_make_of_model_trains_to_the_same_bits_on_any_number_of_devices() {
    for (i, name) in FAMILIES.into_iter().enumerate() {
        let optimizer = if i.is_multiple_of(2) { "adamw" } else { "sgd" };
        let clip = i.is_multiple_of(3).then_some(Clip::Norm(0.5));
        let graph = graph(name, optimizer, clip);
        for devices in 1..=8 {
            let sizes = Bindings::new().with("batch", 2 * devices).with("length", 7);
            let data = data(&graph, &sizes);
            let mut alone = session(graph.clone(), None, &options(devices), 11).unwrap();
            let expected = train(&mut alone, &data);
            let mut several = on_devices(&graph, vec![options(devices); devices]).unwrap();
            assert_eq!(train(&mut several, &data), expected, "{name} on {devices} devices");
        }
    }
}

#[test]
fn devices_may_take_several_partials_each() {
    for (i, name) in FAMILIES.into_iter().enumerate() {
        let optimizer = if i.is_multiple_of(2) { "sgd" } else { "adamw" };
        let clip = i.is_multiple_of(3).then_some(Clip::Norm(0.5));
        let graph = graph(name, optimizer, clip);
        for (devices, partials) in [(2, 4), (3, 9)] {
            let sizes = Bindings::new().with("batch", 2 * partials).with("length", 7);
            let data = data(&graph, &sizes);
            let mut alone = session(graph.clone(), None, &options(partials), 11).unwrap();
            let expected = train(&mut alone, &data);
            for grouped in [false, true] {
                let each = LocalDevice { grouped, ..options(partials) };
                let mut several = on_devices(&graph, vec![each; devices]).unwrap();
                let found = train(&mut several, &data);
                assert_eq!(found, expected, "{name}: {partials} on {devices} devices, grouped: {grouped}");
            }
        }
    }
}

/// Each device receives at most twice the bytes of a gradient, however many devices there are.
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
        // Every device fetches small gradients whole, with one collective instead of two.
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
        let mut alone = session(graph.clone(), None, &options(2), 11).unwrap();
        let expected = train(&mut alone, &data);
        let half = Bindings::new().with("batch", 2).with("length", 7);
        let mut free = replicated(&graph, None, &device_set(&vec![options(2); 2])).unwrap();
        let whole = free[0].unlimited(Purpose::Train, &half).unwrap().spaces[0].bytes;
        let within = |percent: u64, threads| LocalDevice {
            memory: Some(whole * percent / 100),
            largest: Some(sizes.clone()),
            threads,
            ..options(2)
        };
        let mut several = on_devices(&graph, vec![within(100, 1), within(70, 2)]).unwrap();
        assert_eq!(train(&mut several, &data), expected, "{name}");
        let peaks: Vec<u64> = several.ranks().iter().map(|device| device.peak_of(Tier::Device)).collect();
        assert!(peaks[1] <= whole * 70 / 100 && peaks[1] < peaks[0], "{name}: {peaks:?} of {whole}");
    }
}

#[test]
fn partials_are_those_of_one_device() {
    let graph = graph("mlp", "sgd", None);
    let refused = |devices: Vec<LocalDevice>| on_devices(&graph, devices).err().unwrap().to_string();
    assert_eq!(
        refused(vec![options(3); 2]),
        "train.partials = 3, and there are 2 devices: data parallel needs as many for each, 1 or more"
    );
    let largest = Some(Bindings::new().with("batch", 7));
    assert_eq!(
        refused(vec![LocalDevice { largest, ..options(2) }; 2]),
        "a batch of 7 cannot be divided into 2 equal partials"
    );
    let mut session = on_devices(&graph, vec![options(2); 2]).unwrap();
    let odd = data(&graph, &Bindings::new().with("batch", 7));
    let said = session.step(&odd, StepKey { seed: 0, step: 0 }, &|_, _| None).unwrap_err().to_string();
    assert_eq!(said, "a batch of 7 cannot be divided into 2 equal partials");
}

/// The batch with one wrong number, in the share of the second of two devices.
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
    let mut alone = session(graph.clone(), None, &options(2), 11).unwrap();
    let mut several = on_devices(&graph, vec![options(2); 2]).unwrap();
    let mut ends = Vec::new();
    for session in [&mut alone, &mut several] {
        train(session, &good);
        let before = fingerprint(&session.tensors().unwrap());
        let outcome = session.step(&bad, StepKey { seed: 1, step: STEPS }, &|_, _| None).unwrap();
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
        let said = session.step(&bad, StepKey { seed: 0, step: 6 }, &|_, _| None).unwrap_err().to_string();
        let last = devices - 1;
        assert!(said.starts_with(&format!("step 7, device {last}: ")), "{said}");
        assert!(said.contains("is not below"), "{said}");
        // It stays stopped, and no device hangs.
        assert!(session.step(&bad, StepKey { seed: 0, step: 7 }, &|_, _| None).is_err());
    }
}

/// Throttled links and recording change no bit; the bytes over each link are those planned.
#[test]
fn links_are_passed_as_planned() {
    let graph = graph("mlp", "sgd", None);
    let sizes = Bindings::new().with("batch", 8);
    let data = data(&graph, &sizes);
    let mut alone = session(graph.clone(), None, &options(2), 11).unwrap();
    let expected = train(&mut alone, &data);
    let wiring = BoxWiring { host: Some(2e9), peer: Some(1e9), latency: 1e-5, ..BoxWiring::default() };
    let whole = replicated(&graph, None, &device_set(&vec![options(2); 2])).unwrap()[0]
        .unlimited(Purpose::Train, &Bindings::new().with("batch", 4))
        .unwrap();
    for percent in [100, 80] {
        let topology = Topology::wired(vec![DeviceSpec::default(); 2], &wiring).unwrap();
        let throttle = Arc::new(Throttle::new(topology.clone()));
        let device = LocalDevice {
            throttle: Some(Arc::clone(&throttle)),
            memory: Some(whole.spaces[0].bytes * percent / 100),
            largest: Some(sizes.clone()),
            ..options(2)
        };
        let mut devices = replicated(&graph, None, &device_set(&vec![device.clone(); 2])).unwrap();
        let mut several = on_devices(&graph, vec![device; 2]).unwrap();
        several.record();
        assert_eq!(train(&mut several, &data), expected, "{percent} %");
        let spans = several.recorded();
        let half = Bindings::new().with("batch", 4);
        let plans: Vec<Plan> = devices.iter_mut().map(|d| d.plan(Purpose::Train, &half).unwrap()).collect();
        let pairs: Vec<(&Graph, &Plan)> =
            devices.iter().map(|d| d.graph(Purpose::Train)).zip(&plans).collect();
        let planned: Vec<u64> = over_links(&pairs, &topology).iter().map(|bytes| STEPS * bytes).collect();
        assert_eq!(throttle.bytes(), planned, "{percent} %");
        assert!(planned.iter().any(|bytes| *bytes > 0));
        // Every step with an effect was recorded once.
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

/// A single message on shared links has their full speed: two links carry it at once from one device to the other.
#[test]
fn a_message_alone_on_shared_links_takes_as_long_as_its_bytes() {
    let graph = graph("mlp", "sgd", None);
    let sizes = Bindings::new().with("batch", 8);
    let rate = 1e5;
    let wiring = BoxWiring { host: Some(rate), shared: true, ..BoxWiring::default() };
    let topology = Topology::wired(vec![DeviceSpec::default(); 2], &wiring).unwrap();
    let device = LocalDevice {
        throttle: Some(Arc::new(Throttle::new(topology.clone()))),
        largest: Some(sizes.clone()),
        ..options(1)
    };
    let how = Pipelined { packs: 2, style: Style::Grouped };
    let mut line = pipelined(&graph, None, &device_set(&vec![device; 2]), &sizes, how).unwrap();
    let PredictedStep { together, .. } = predict(&side_by_side, &mut line, &sizes).unwrap();
    let met = together.spans.iter().filter(|span| span.device == 0 && span.stream == PlanStream::Exchange);
    let met: f64 = met.map(|span| span.end - span.start).sum();
    let bytes = together.links.iter().map(|link| link.bytes).max().unwrap();
    assert!(bytes > 0 && (met * rate / bytes as f64 - 1.0).abs() < 0.01, "{met} s for {bytes} bytes");
}

/// A pipeline on this many devices.
fn in_line(
    graph: &Graph,
    devices: Vec<LocalDevice>,
    sizes: &Bindings,
    how: Pipelined,
) -> Result<Session, LocalError> {
    together("pipeline", pipelined(graph, None, &device_set(&devices), sizes, how)?, &devices, 11)
}

#[test]
fn every_make_of_model_trains_to_the_same_bits_in_a_pipeline() {
    for (i, name) in FAMILIES.into_iter().enumerate() {
        let optimizer = if i.is_multiple_of(2) { "adamw" } else { "sgd" };
        let clip = i.is_multiple_of(3).then_some(Clip::Norm(0.5));
        let graph = graph(name, optimizer, clip);
        let sizes = Bindings::new().with("batch", 4).with("length", 7);
        let data = data(&graph, &sizes);
        for (devices, packs, partials, style) in [
            (1, 3, 2, Style::Grouped),
            (2, 2, 1, Style::Grouped),
            (2, 2, 4, Style::OneByOne),
            (2, 5, 4, Style::Grouped),
            (3, 3, 4, Style::OneByOne),
            (3, 7, 2, Style::Grouped),
            (5, 5, 4, Style::Grouped),
            (8, 8, 4, Style::OneByOne),
        ] {
            let how = Pipelined { packs, style };
            let several = in_line(&graph, vec![options(partials); devices], &sizes, how);
            let mut alone = session(graph.clone(), None, &options(partials), 11).unwrap();
            let expected = train(&mut alone, &data);
            let found = train(&mut several.unwrap(), &data);
            assert_eq!(found, expected, "{name} on {devices} devices in {packs} packs, {partials} partials");
        }
    }
}

/// A stage sends before it updates: others wait for its messages, but not for its updates.
#[test]
fn gradients_leave_a_stage_before_its_updates() {
    let graph = graph("mlp", "sgd", None);
    let sizes = Bindings::new().with("batch", 8);
    for partials in [1, 2, 4] {
        let how = Pipelined { packs: 2, style: Style::OneByOne };
        let mut line =
            pipelined(&graph, None, &device_set(&vec![options(partials); 2]), &sizes, how).unwrap();
        let PredictedStep { plans, .. } = predict(&side_by_side, &mut line, &sizes).unwrap();
        for (device, (planner, plan)) in line.iter().zip(&plans).enumerate() {
            let graph = planner.graph(Purpose::Train);
            let phases: Vec<(bool, Phase)> = (plan.steps.iter())
                .filter_map(|step| match &step.act {
                    Act::Exchange { node, .. } => Some((true, graph.nodes[node.index()].phase)),
                    Act::Run { node, .. } => Some((false, graph.nodes[node.index()].phase)),
                    _ => None,
                })
                .collect();
            let update = phases.iter().position(|(_, phase)| *phase == Phase::Update).unwrap();
            let collective = phases.iter().rposition(|(meets, phase)| *meets && *phase != Phase::Update);
            assert!(collective.unwrap() < update, "device {device}, {partials} partials: {phases:?}");
        }
    }
}

/// If devices use all cores and there are no links, collectives run inline, because a thread beside the computation would
/// only take a core from it. Over links, and in pipelines, they run beside it.
#[test]
fn devices_that_use_all_cores_hold_their_collectives_themselves() {
    let graph = graph("mlp", "sgd", None);
    let sizes = Bindings::new().with("batch", 8);
    let wiring = BoxWiring { host: Some(1e9), ..BoxWiring::default() };
    let links = Topology::wired(vec![DeviceSpec::default(); 2], &wiring).unwrap();
    let links = Arc::new(Throttle::new(links));
    for (throttle, line, expected) in [(None, false, true), (Some(links), false, false), (None, true, false)]
    {
        let options = LocalDevice { threads: cores(), throttle, ..options(2) };
        let devices = vec![options; 2];
        let how = Pipelined { packs: 2, style: Style::OneByOne };
        let mut planners = match line {
            true => pipelined(&graph, None, &device_set(&devices), &sizes, how).unwrap(),
            false => replicated(&graph, None, &device_set(&devices)).unwrap(),
        };
        let own = if line { sizes.clone() } else { Bindings::new().with("batch", 4) };
        let PredictedStep { plans, .. } = predict(&side_by_side, &mut planners, &own).unwrap();
        let here = plans.iter().all(|plan| {
            let steps = inline_collectives(plan).into_iter().zip(&plan.steps);
            steps.filter(|(_, step)| matches!(step.act, Act::Exchange { .. })).all(|(here, _)| here)
        });
        assert_eq!(here, expected, "a pipeline: {line}");
    }
}

/// Sharded weights and states, gathered once or twice in a step, give the bits of one device.
#[test]
fn shards_of_weights_give_the_same_bits() {
    for (i, name) in FAMILIES.into_iter().enumerate() {
        let optimizer = if i.is_multiple_of(2) { "adamw" } else { "sgd" };
        let clip = i.is_multiple_of(3).then_some(Clip::Norm(0.5));
        let graph = graph(name, optimizer, clip);
        for (devices, partials, keep) in [(2, 2, false), (3, 3, true), (3, 6, false), (8, 8, false)] {
            let sizes = Bindings::new().with("batch", 2 * partials).with("length", 7);
            let data = data(&graph, &sizes);
            let each = vec![options(partials); devices];
            let several =
                sharded(&graph, None, &device_set(&each), ShardedValues::WeightsAndStates { keep }).unwrap();
            let mut alone = session(graph.clone(), None, &options(partials), 11).unwrap();
            let expected = train(&mut alone, &data);
            let mut several = together("zero", several, &each, 11).unwrap();
            assert_eq!(
                train(&mut several, &data),
                expected,
                "{name}: {partials} on {devices} devices, {keep}"
            );
        }
    }
}
