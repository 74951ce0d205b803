//! What holds for schedules: bytes of weights as the paper counts them, bounds below simulations, peaks below
//! budgets, and chains that are their graphs.

use super::baseline::{Eviction, Request, WAYS, Way, best, sharded, virtualised};
use super::*;
use crate::time::cost::Rates;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin, Phase, Role};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{Clip, training_graph};
use std::ops::Range;

const W: u64 = 100;

fn layer(weights: u64) -> ChainLayer {
    ChainLayer {
        forward: SizeCurve::line(0.0, 1.0),
        backward: SizeCurve::line(0.0, 2.0),
        update: 0.1,
        update_on_host: 0.1,
        weights,
        gradients: weights,
        state: 2 * weights,
        input: 4,
        input_gradient: 4,
        forward_working: SizeCurve::line(0.0, 10.0),
        backward_kept: SizeCurve::line(0.0, 10.0),
        ..ChainLayer::default()
    }
}

/// Layers with weights between some that have none.
fn sandwich(inner: usize, ends: usize) -> LayerChain {
    let end = || (0..ends).map(|_| layer(0));
    let mut layers: Vec<ChainLayer> = end().chain((0..inner).map(|_| layer(W))).chain(end()).collect();
    layers[0].input_gradient = 0;
    LayerChain { layers, ..LayerChain::default() }
}

fn one_each(layers: Range<usize>) -> Vec<LayerPack> {
    layers.map(|l| LayerPack { layers: l..l + 1, device: 0 }).collect()
}

fn packs_of_one(
    mode: ScheduleMode,
    devices: usize,
    batch: u32,
    layers: usize,
    update: UpdateOn,
) -> PackSchedule {
    let mut schedule = PackSchedule {
        mode,
        devices,
        batch,
        forward_size: 1,
        backward_size: 1,
        forward: one_each(0..layers - 1),
        backward: one_each(0..layers),
        update,
    };
    schedule.place();
    schedule
}

const MODES: [ScheduleMode; 3] = [
    ScheduleMode::DataParallel,
    ScheduleMode::Pipeline(PackRotation::SameDevice),
    ScheduleMode::Pipeline(PackRotation::Continuing),
];

/// Weights pass three times: in for the forward pass, in for the backward pass, and out, as gradient if the host
/// updates them, as weight if the device does. Exactly so if no task leaves room for weights of another, and if
/// the first and the last pack of every device have none: the last of all runs forward and backward in one and
/// fetches once, what a device's last forward task has its first backward task may find there, and what it updates
/// at the end of a step is what it begins the next with.
#[test]
fn weights_pass_three_times_and_for_each_device_in_data_parallel() {
    for mode in MODES {
        for devices in [1, 2, 4] {
            let chain = sandwich(6, devices);
            let weights = chain.weights();
            for update in [UpdateOn::Device, UpdateOn::Host] {
                let schedule = packs_of_one(mode, devices, 8, chain.layers.len(), update);
                // Every task needs nearly all memory.
                let mut full = chain.clone();
                let tight = |weights: u64| SizeCurve::line((1000 - weights) as f64, 0.0);
                for layer in &mut full.layers {
                    layer.forward_working = tight(layer.weights);
                    layer.backward_working = tight(2 * layer.weights);
                    layer.backward_kept = SizeCurve::default();
                }
                let machine = ScheduleMachine::even(devices, 1000 + 30, 1e3);
                let outcome = simulate(&full, &machine, &schedule).unwrap().unwrap();
                let swapped = outcome.swapped(MovedKind::Weights) + outcome.swapped(MovedKind::Gradients);
                let times = if mode == ScheduleMode::DataParallel { devices as u64 } else { 1 };
                assert_eq!(swapped, 3 * times * weights, "{mode:?} {devices} {update:?}");
                let state = if update == UpdateOn::Device { 4 * times * weights } else { 0 };
                assert_eq!(outcome.swapped(MovedKind::State), state, "{mode:?} {devices} {update:?}");
            }
        }
    }
}

/// Virtual memory that writes on every eviction moves each weight in and out in the forward and in the backward
/// pass of each of m micro-batches, and in and out once more for the update. Exactly so if every layer's work
/// drives out the layer before, and if first and last layer have no weights: else a weight would be used twice in
/// a row where the passes turn.
#[test]
fn virtual_memory_moves_weights_for_every_micro_batch() {
    for (devices, m) in [(1, 1), (1, 3), (2, 4), (4, 2)] {
        let mut chain = sandwich(5, 1);
        for layer in &mut chain.layers {
            let beside = |weights: u64| SizeCurve::line((1000 - weights) as f64, 0.0);
            layer.forward_working = beside(layer.weights);
            layer.backward_working = beside(2 * layer.weights);
            layer.backward_kept = SizeCurve::default();
        }
        let machine = ScheduleMachine::even(devices, 1000 + 20, 1e3);
        let request = Request {
            devices,
            batch: m * devices as u32,
            size: 1,
            recompute: true,
            eviction: Eviction::AlwaysWritten,
        };
        let outcome = virtualised(&chain, &machine, Way::DataParallel, &request).unwrap();
        let expected = u64::from(4 * m + 2) * devices as u64 * chain.weights();
        assert_eq!(outcome.swapped(MovedKind::Weights), expected, "{devices} devices, {m} micro-batches");
        // Pages that have not changed need not be written.
        let clean = Request { eviction: Eviction::CleanDropped, ..request };
        let clean = virtualised(&chain, &machine, Way::DataParallel, &clean).unwrap();
        let expected = u64::from(2 * m + 2) * devices as u64 * chain.weights();
        assert_eq!(clean.swapped(MovedKind::Weights), expected);
    }
}

/// Numbers that only look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn random_chain(dice: &mut Dice) -> LayerChain {
    let layers = (0..3 + dice.below(12)).map(|l| {
        let weights = 10 + dice.below(200);
        let seconds = |dice: &mut Dice| 0.2 + dice.below(100) as f64 / 50.0;
        let (forward, each) = (seconds(dice) / 4.0, seconds(dice));
        ChainLayer {
            forward: SizeCurve::line(forward, each),
            backward: SizeCurve::line(forward, 2.0 * each),
            input: 1 + dice.below(20),
            input_gradient: if l == 0 { 0 } else { 1 + dice.below(20) },
            backward_kept: SizeCurve::line(0.0, dice.below(30) as f64),
            ..layer(weights)
        }
    });
    LayerChain { layers: layers.collect(), joint_update: dice.below(4) == 0, far: Vec::new() }
}

#[test]
fn what_is_found_is_simulated_fits_and_is_not_below_its_bound() {
    let mut dice = Dice(7);
    for case in 0..24 {
        let chain = random_chain(&mut dice);
        let devices = 1 + dice.below(4) as usize;
        let memory = 700 + dice.below(2500);
        let mut machine = ScheduleMachine::even(devices, memory, 20.0 + dice.below(400) as f64);
        machine.uplink = (dice.below(2) == 0).then_some(200.0);
        machine.peer = (dice.below(3) > 0).then_some(100.0);
        machine.per_task = dice.below(3) as f64 / 10.0;
        machine.devices[0].speed = 1.0 + dice.below(2) as f64;
        let options =
            ScheduleOptions { limit: 80, top: 1000, ..ScheduleOptions::new(1 + dice.below(9) as u32) };
        let found = match search(&chain, &machine, &options) {
            Ok(found) => found,
            Err(ScheduleError::TooLarge { .. }) => continue,
            Err(error) => panic!("case {case}: {error}"),
        };
        assert!(found.is_sorted_by(|a, b| a.outcome.seconds <= b.outcome.seconds), "case {case}");
        for RankedSchedule { schedule, outcome } in &found {
            schedule.check(&chain, &machine).unwrap();
            assert_eq!(simulate(&chain, &machine, schedule).unwrap().as_ref(), Some(outcome));
            assert!(outcome.seconds.is_finite() && outcome.peaks.iter().all(|peak| *peak <= memory));
            let mut prices = chain::ChainPrices::new(&chain);
            let largest = schedule.batch.max(schedule.forward_size);
            (1..=largest).for_each(|size| prices.prepare(size));
            let bound = bound::bound(&prices, &machine, schedule);
            assert!(bound <= outcome.seconds * (1.0 + 1e-9), "case {case}: {bound} above {outcome:?}");
            let work = task::tasks(&chain, &machine, schedule);
            let samples: u32 = work
                .iter()
                .filter(|t| t.kind == TaskPhase::Backward && t.pack == 0)
                .flat_map(|t| t.pieces.iter())
                .sum();
            assert_eq!(samples, options.batch);
        }
    }
}

#[test]
fn a_shared_uplink_slows_and_memory_stops_swapping() {
    let chain = sandwich(8, 1);
    let options = |mode| ScheduleOptions { modes: vec![mode], least_devices: 4, ..ScheduleOptions::new(8) };
    for mode in MODES {
        let seconds = |uplink| {
            let machine = ScheduleMachine { uplink, ..ScheduleMachine::even(4, 400, 40.0) };
            search(&chain, &machine, &options(mode)).unwrap()[0].outcome.seconds
        };
        assert!(seconds(Some(40.0)) > seconds(None), "{mode:?}");
        if mode == ScheduleMode::Pipeline(PackRotation::Continuing) {
            // Its weights have two residences, and pass between them.
            continue;
        }
        let ample = ScheduleMachine::even(4, 1 << 20, 40.0);
        let options = ScheduleOptions { updates: vec![UpdateOn::Device], ..options(mode) };
        let best = search(&chain, &ample, &options).unwrap().swap_remove(0);
        let data: u64 = chain.layers[0].input * 8;
        assert!(best.outcome.swap_load() <= 2 * data, "{mode:?}: {:?}", best.outcome);
    }
}

#[test]
fn swaps_less_than_virtual_memory_and_sharing_out() {
    let chain = sandwich(24, 1);
    let machine = ScheduleMachine { uplink: Some(400.0), ..ScheduleMachine::even(4, 700, 400.0) };
    let ours = search(&chain, &machine, &ScheduleOptions::new(32)).unwrap().swap_remove(0).outcome;
    for eviction in [Eviction::AlwaysWritten, Eviction::CleanDropped] {
        for way in WAYS {
            for recompute in [false, true] {
                let request = Request { devices: 4, batch: 32, size: 1, recompute, eviction };
                let Some((_, theirs)) = best(&chain, &machine, way, &request) else { continue };
                assert!(ours.swap_load() < theirs.swap_load(), "{way:?} {recompute} {eviction:?}");
                assert!(ours.seconds < theirs.seconds, "{way:?} {recompute} {eviction:?}");
            }
        }
    }
    let theirs = sharded(&chain, &machine, 4, 32, 8).unwrap();
    assert!(ours.seconds <= theirs.seconds);
}

#[test]
fn what_cannot_be_scheduled_is_said() {
    let (chain, machine, options) =
        (sandwich(2, 1), ScheduleMachine::even(2, 1 << 20, 10.0), ScheduleOptions::new(4));
    let slow = ScheduleMachine { uplink: Some(0.0), ..machine.clone() };
    let cases = [
        (search(&LayerChain::default(), &machine, &options), "the chain is empty"),
        (search(&chain, &ScheduleMachine::even(0, 1, 1.0), &options), "the machine is empty"),
        (search(&chain, &machine, &ScheduleOptions::new(0)), "the batch is empty"),
        (
            search(&chain, &machine, &ScheduleOptions { modes: vec![], ..options.clone() }),
            "the list of modes is empty",
        ),
        (search(&chain, &slow, &options), "the uplink is 0"),
        (search(&chain, &ScheduleMachine::even(2, 10, 1.0), &options), "layer 1"),
    ];
    for (result, want) in cases {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    }
    let mut wrong = packs_of_one(MODES[1], 2, 4, 4, UpdateOn::Host);
    wrong.backward.pop();
    assert!(simulate(&chain, &machine, &wrong).is_err());
}

fn graph(name: &str, settings: &[(&str, i64)], clip: Option<Clip>) -> Graph {
    let settings: Vec<_> = settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let optimizer = Optimizer::new("adam", &[]).unwrap();
    training_graph(model(name, &settings).unwrap().as_ref(), &[optimizer], clip).unwrap()
}

#[test]
fn a_graph_becomes_a_chain() {
    let text = Bindings::new().with("batch", 2).with("length", 16);
    let images = Bindings::new().with("batch", 2);
    for (name, settings, sizes, clip, least) in [
        ("gpt", &[("layers", 6)][..], &text, None, 8),
        ("gpt", &[("layers", 6)], &text, Some(Clip::Norm(1.0)), 8),
        ("mlp", &[], &images, None, 2),
        ("resnet18", &[], &images, None, 8),
        ("bert", &[("layers", 4)], &text, None, 4),
    ] {
        let graph = graph(name, settings, clip);
        let rates = Rates::default();
        let linear = linearise(&graph, sizes, &rates, &rates, 64).unwrap();
        let layers = &linear.chain.layers;
        assert!(layers.len() >= least && layers.len() <= 130, "{name}: {}", layers.len());
        assert_eq!(linear.chain.joint_update, clip.is_some(), "{name}");
        assert!(linear.layer_of.iter().all(|l| (*l as usize) < layers.len()));
        let mut one_way = true;
        for (n, node) in graph.nodes.iter().enumerate() {
            for v in &node.ins {
                let Origin::Node { node: maker, .. } = graph.value(*v).origin else { continue };
                let (from, to) = (linear.layer_of[maker.index()], linear.layer_of[n]);
                match (graph.nodes[maker.index()].phase, node.phase) {
                    (Phase::Forward, Phase::Forward) => one_way &= from <= to,
                    (Phase::Backward, Phase::Backward) => one_way &= from >= to,
                    _ => {}
                }
            }
        }
        assert!(one_way, "{name}: values go forward, gradients back");
        let bytes = |role: fn(&Role) -> bool| -> u64 {
            let all = graph.inputs().filter(|(_, r, _)| role(r));
            all.map(|(_, _, info)| info.ty.bytes().bind(sizes).unwrap() as u64).sum()
        };
        let sum = |of: fn(&ChainLayer) -> u64| layers.iter().map(of).sum::<u64>();
        let weights = bytes(|role| matches!(role, Role::Weight(_)));
        assert_eq!(sum(|l| l.gradients), weights, "{name}");
        assert!(sum(|l| l.weights) >= weights, "{name}");
        assert_eq!(sum(|l| l.state + l.buffers), bytes(|role| matches!(role, Role::State(_))), "{name}");
        assert!(layers.iter().all(|l| l.forward.at(2) > l.forward.at(1) || l.forward.at(1) == 0.0));
        let machine = ScheduleMachine::even(2, weights * 8, 1e9);
        search(&linear.chain, &machine, &ScheduleOptions { limit: 40, ..ScheduleOptions::new(4) }).unwrap();
    }
    let mlp = model("mlp", &[]).unwrap();
    let forward = gulliver_graph::training::evaluation_graph(mlp.as_ref()).unwrap();
    let rates = Rates::default();
    let error = linearise(&forward, &images, &rates, &rates, 8).unwrap_err();
    assert_eq!(error, ScheduleError::NotTrained);
}
