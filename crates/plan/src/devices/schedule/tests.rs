//! Bytes of weights as the paper counts them, bounds below simulations, memory within budgets, and chains that match
//! their graphs.

use super::bound::bound;
use super::chain::{ChainLayer, ChainSums, LayerChain};
use super::memory::{PackNeeds, keep, tasks};
use super::search::RankedPacks;
use super::simulate::simulate;
use super::*;
use crate::time::cost::Rates;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin, Phase, Role};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{Clip, training_graph};

const W: u64 = 100;

fn layer(weights: u64) -> ChainLayer {
    ChainLayer {
        forward: 1.0,
        backward: 2.0,
        update: 0.1,
        weights,
        gradients: weights,
        state: 2 * weights,
        input: 4,
        input_gradient: 4,
        forward_working: 10,
        backward_kept: 10,
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

/// Equal devices, each with a link of this many bytes per second in each direction.
fn even(devices: usize, memory: u64, link: f64) -> ScheduleMachine {
    let device = ScheduleDevice { memory, speed: 1.0, to_device: link, to_host: link };
    ScheduleMachine { devices: vec![device; devices], uplink: link * devices as f64, peer: link }
}

/// Weights pass three times: in for the forward pass, in for the backward pass, and out after the update. Exactly so if
/// no task leaves room for the weights of another, and if the first and the last pack of every device have none: the last
/// pack runs forward and backward in one task and fetches once, and a device may find the weights of its last forward
/// task and of its last update where they were.
#[test]
fn weights_pass_three_times() {
    for devices in [1, 2, 4] {
        let mut chain = sandwich(6, devices);
        let weights: u64 = chain.layers.iter().map(|l| l.weights).sum();
        // Every task needs all memory, and nothing but weights moves.
        for layer in &mut chain.layers {
            layer.forward_working = 1000 - layer.weights;
            layer.backward_working = 1000 - 2 * layer.weights;
            (layer.backward_kept, layer.state, layer.input, layer.input_gradient) = (0, 0, 0, 0);
        }
        let packs = (0..chain.layers.len()).map(|l| l..l + 1).collect();
        let (_, swapped) = simulate(&ChainSums::new(&chain), &even(devices, 1030, 1e3), &packs, 8).unwrap();
        assert_eq!(swapped, 3 * weights, "{devices}");
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
        let seconds = 0.2 + dice.below(100) as f64 / 50.0;
        ChainLayer {
            forward: seconds,
            backward: 2.0 * seconds,
            input: 1 + dice.below(20),
            input_gradient: if l == 0 { 0 } else { 1 + dice.below(20) },
            backward_kept: dice.below(30),
            ..layer(weights)
        }
    });
    LayerChain { layers: layers.collect(), joint_update: dice.below(4) == 0, far: Vec::new() }
}

#[test]
fn found_packs_are_simulated_fit_and_are_not_below_their_bound() {
    let mut dice = Dice(7);
    let mut compared = 0;
    for case in 0..48 {
        let chain = random_chain(&mut dice);
        let devices = 1 + dice.below(4) as usize;
        let memory = 700 + dice.below(2500);
        let mut machine = even(devices, memory, 20.0 + dice.below(400) as f64);
        if dice.below(2) == 0 {
            machine.uplink = 200.0;
        }
        machine.devices[0].speed = 1.0 + dice.below(2) as f64;
        let partials = 1 + dice.below(9) as u32;
        let found = match search(&chain, &machine, partials, 80) {
            Ok(found) => found,
            Err(ScheduleError::TooLarge { .. }) => continue,
            Err(error) => panic!("case {case}: {error}"),
        };
        assert!(found.is_sorted_by(|a, b| a.seconds <= b.seconds), "case {case}");
        let sums = ChainSums::new(&chain);
        for RankedPacks { packs, seconds, swapped } in &found {
            assert!(packs[0].start == 0 && packs[packs.len() - 1].end == chain.layers.len());
            assert!(
                packs.windows(2).all(|pair| pair[0].end == pair[1].start)
                    && packs.iter().all(|p| !p.is_empty())
            );
            assert_eq!(simulate(&sums, &machine, packs, partials), Some((*seconds, *swapped)));
            let tasks = tasks(packs, devices, chain.joint_update);
            let kept = keep(&PackNeeds { sums: &sums, machine: &machine }, packs, &tasks, partials).unwrap();
            assert!(seconds.is_finite() && kept.used.iter().all(|used| *used <= memory));
            let bound = bound(&sums, &machine, packs, partials);
            // An update may overlap the end of other devices' backward passes.
            let update = packs.iter().map(|pack| sums.update.of(pack)).fold(0.0, f64::max);
            assert!(bound <= seconds * (1.0 + 1e-9) + update, "case {case}: {bound} above {seconds}");
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn a_shared_uplink_slows_and_memory_stops_swapping() {
    let chain = sandwich(8, 1);
    let seconds = |uplink| {
        let machine = ScheduleMachine { uplink, ..even(4, 400, 40.0) };
        search(&chain, &machine, 8, 400).unwrap()[0].seconds
    };
    assert!(seconds(40.0) > seconds(160.0));
    let best = search(&chain, &even(4, 1 << 20, 40.0), 8, 400).unwrap().swap_remove(0);
    let data: u64 = chain.layers[0].input * 8;
    assert!(best.swapped <= 2 * data, "{best:?}");
}

#[test]
fn errors_say_why_there_is_no_schedule() {
    let (chain, machine) = (sandwich(2, 1), even(2, 1 << 20, 10.0));
    let slow = ScheduleMachine { uplink: 0.0, ..machine };
    for (machine, expected) in [(slow, "the uplink is 0"), (even(2, 10, 1.0), "layer 1")] {
        let error = search(&chain, &machine, 4, 400).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
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
        let linear = linearise(&graph, sizes, &rates, 64).unwrap();
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
        search(&linear.chain, &even(2, weights * 8, 1e9), 4, 40).unwrap();
    }
    let mlp = model("mlp", &[]).unwrap();
    let forward = gulliver_graph::training::evaluation_graph(mlp.as_ref()).unwrap();
    let rates = Rates::default();
    let error = linearise(&forward, &images, &rates, 8).unwrap_err();
    assert_eq!(error, ScheduleError::NotTrained);
}
