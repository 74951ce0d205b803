//! The search for cuts against every cut there is, on small graphs, and against cuts by rule, on the
//! reference models.

use gulliver_graph::autodiff::differentiate;
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::{Graph, GraphError, Init, Phase, Value};
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::random::RandomStream;
use gulliver_graph::training::training_graph;
use gulliver_graph::windows::ConvOptions;
use gulliver_plan::devices::cut::comparator::{
    by_rule, data, equal_chop, exhaustive, filter, hybrid, largest_first,
};
use gulliver_plan::devices::cut::{
    CutDevice, CutMachine, CutObjective, CutOptions, CutRule, MeshLevel, SizedGraph,
};
use gulliver_plan::devices::cut::{
    best_cut, cut_candidates, cut_traffic, find_cut, levels_of, low_memory_cuts,
};
use gulliver_plan::document::topology::{Device, Topology, Wiring};
use gulliver_plan::time::cost::Rates;

fn fewest_bytes() -> CutOptions {
    CutOptions { objective: CutObjective::Bytes, ..CutOptions::default() }
}

/// A stream of small numbers.
struct Dice(RandomStream, u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        self.0.below(self.1, n as u64) as usize
    }

    fn extent(&mut self) -> usize {
        [2, 3, 4, 5, 6, 8][self.below(6)]
    }
}

/// A few nodes of any kind on data and weights, some with their gradients and an update.
fn random_graph(seed: u64) -> Result<Graph, GraphError> {
    let dice = &mut Dice(RandomStream::new(seed, 7, 0), 0);
    let g = &mut Builder::new(true);
    let init = Init::Constant(1.0);
    let trains = dice.below(2) == 0;
    let mut made: Vec<Value> = Vec::new();
    let rank = if dice.below(3) == 0 { 3 } else { 2 };
    let shape: Vec<usize> = (0..rank).map(|_| dice.extent()).collect();
    made.push(match dice.below(2) {
        0 => g.data("x", DType::F32, &shape)?,
        _ => g.weight("x", &shape, init)?,
    });
    for i in 0..if trains { 1 + dice.below(2) } else { 2 + dice.below(4) } {
        let x = made[made.len() - 1 - dice.below(made.len().min(2))];
        let shape: Vec<usize> = g.shape(x).iter().map(|d| d.as_const().unwrap_or(1) as usize).collect();
        let y = match (dice.below(8), shape.as_slice()) {
            (0 | 1, [.., n]) => {
                let w = g.weight(&format!("w{i}"), &[dice.extent(), *n], init)?;
                g.project(x, w)?
            }
            (2, [_, c, n]) if *n > 2 => {
                let w = g.weight(&format!("w{i}"), &[dice.extent(), *c, 3], init)?;
                g.conv(x, w, &ConvOptions { padding: vec![1], ..ConvOptions::new(1) })?
            }
            (3, [_, ..]) => g.softmax(x, 0)?,
            (4, [_, ..]) => g.sum(x, &[dice.below(shape.len())], false)?,
            (5, [a, b, c]) => g.reshape(x, &[a * b, *c])?,
            (6, [_, _]) => g.softmax(x, 1)?,
            (6, [_, _, _]) => g.transpose(x, &[1, 2, 0])?,
            (7, _) => {
                let other = *made.iter().rfind(|v| g.shape(**v) == g.shape(x)).unwrap_or(&x);
                g.add(x, other)?
            }
            _ => g.tanh(x)?,
        };
        made.push(y);
    }
    let last = made[made.len() - 1];
    if trains {
        let loss = g.sum_all(last)?;
        let weights: Vec<Value> = g.graph().weights().map(|(v, _)| v).collect();
        let grads = differentiate(g, loss, &weights, 0)?;
        g.enter(Phase::Update, 0);
        let optimizer = Optimizer::new("sgd", &[])?;
        for (weight, grad) in weights.into_iter().zip(grads) {
            if let Some(grad) = grad {
                optimizer.apply(g, weight, grad)?;
            }
        }
    } else if dice.below(2) == 0
        && g.graph().weights().next().is_some_and(|(w, _)| g.shape(w) == g.shape(last))
    {
        let first = g.graph().weights().next().map(|(w, _)| w);
        first.into_iter().for_each(|w| g.carry(w, last));
    }
    Ok(std::mem::replace(g, Builder::new(true)).finish())
}

/// Compares random graphs with at most `most` cuts, until so many were seen of which something must be moved.
fn search_is_exhaustive(wanted: usize, most: u64) {
    let (mut moving, mut trained) = (0, 0);
    for seed in 0.. {
        if moving == wanted {
            break;
        }
        let graph = random_graph(seed).unwrap();
        let shares = [vec![1, 1], vec![1, 1, 1], vec![1, 2], vec![1; 4]][seed as usize % 4].clone();
        let level = MeshLevel { shares, bandwidth: 1e9 };
        let sizes = Bindings::new();
        let Some((best, total)) = exhaustive(&graph, &sizes, &level, most).unwrap() else { continue };
        assert_eq!(cut_traffic(&graph, &sizes, &best).unwrap().total(), total, "seed {seed}");
        let found = find_cut(&graph, &sizes, &[level], &fewest_bytes()).unwrap();
        assert!(found.exact, "seed {seed}");
        assert_eq!(found.bytes.total(), total, "seed {seed}");
        moving += usize::from(total > 0);
        trained += usize::from(total > 0 && graph.nodes.iter().any(|n| n.phase == Phase::Update));
    }
    assert!(trained * 10 > wanted, "{trained} of {wanted}");
}

#[test]
fn the_search_finds_the_best_of_all_cuts() {
    search_is_exhaustive(3000, 1000);
    search_is_exhaustive(50, 20_000);
}

fn trained(name: &str, settings: &[(&str, i64)]) -> Graph {
    let settings: Vec<_> = settings.iter().map(|(n, v)| (n.to_string(), ParamValue::Int(*v))).collect();
    let model = model(name, &settings).unwrap();
    let optimizers = model.objectives().into_iter().map(|_| Optimizer::new("adam", &[]).unwrap());
    training_graph(model.as_ref(), &optimizers.collect::<Vec<_>>(), None).unwrap()
}

fn models() -> Vec<(&'static str, Graph, Bindings)> {
    let batch = |n: usize| Bindings::new().with("batch", n);
    let text = |n: usize, length: usize| batch(n).with("length", length);
    vec![
        ("mlp", trained("mlp", &[]), batch(64)),
        ("resnet18", trained("resnet18", &[]), batch(32)),
        ("resnet50", trained("resnet50", &[("size", 64), ("width", 32)]), batch(16)),
        ("resnet152", trained("resnet152", &[("size", 32), ("width", 8)]), batch(16)),
        ("wide resnet", trained("resnet50", &[("size", 32), ("width", 256)]), batch(8)),
        ("vgg16", trained("vgg16", &[]), batch(8)),
        ("mobilenet_v2", trained("mobilenet_v2", &[("size", 32)]), batch(16)),
        ("dcgan", trained("dcgan", &[]), batch(16)),
        ("gpt-nano", trained("gpt-nano", &[]), text(8, 64)),
        ("gpt-mini", trained("gpt-mini", &[]), text(8, 128)),
        ("bert-tiny", trained("bert-tiny", &[]), text(16, 64)),
        ("lstm", trained("lstm", &[]), text(16, 32)),
        ("pointnet", trained("pointnet", &[]), batch(16)),
        ("cosmoflow", trained("cosmoflow", &[]), batch(8)),
    ]
}

#[test]
fn no_cut_by_rule_moves_less() {
    for (name, graph, sizes) in models() {
        for devices in 2..=8 {
            let mut ways = vec![vec![MeshLevel::even(devices, 1e9)]];
            let factors = levels_of(devices, 1e9);
            if factors.len() > 1 {
                ways.push(factors);
            }
            let mut chop = u64::MAX;
            for levels in ways {
                let found = find_cut(&graph, &sizes, &levels, &fewest_bytes()).unwrap();
                let total = found.bytes.total();
                let count = |c| cut_traffic(&graph, &sizes, &c).unwrap().total();
                let ruled = |rule| by_rule(&graph, &sizes, &levels, &vec![rule; levels.len()]).unwrap();
                let rules = [
                    ("data", count(data(&graph, &sizes, &levels).unwrap())),
                    ("filter", count(filter(&graph, &sizes, &levels).unwrap())),
                    ("hybrid", count(hybrid(&graph, &sizes, &levels).unwrap())),
                    ("channel", count(ruled(CutRule::Channel))),
                    ("spatial", count(ruled(CutRule::Spatial))),
                    ("largest first", count(largest_first(&graph, &sizes, &levels).unwrap())),
                    ("one cut into as many parts", chop),
                ];
                chop = total;
                for (rule, others) in rules {
                    assert!(total <= others, "{name} on {devices}: {total} against {others} of {rule}");
                }
            }
        }
    }
}

#[test]
fn the_same_chop_is_found_by_its_name() {
    let (graph, sizes) = (trained("mlp", &[]), Bindings::new().with("batch", 64));
    let one = find_cut(&graph, &sizes, &[MeshLevel::even(6, 1e9)], &fewest_bytes()).unwrap();
    let chop = equal_chop(&graph, &sizes, &levels_of(6, 1e9), &fewest_bytes()).unwrap();
    assert_eq!(chop, one);
}

#[test]
fn slow_links_are_not_worth_a_second_device() {
    let graph = trained("mlp", &[]);
    let sizes = Bindings::new().with("batch", 64);
    for count in [2, 4, 7] {
        let worthy = |bandwidth: f64| -> Vec<usize> {
            let devices = CutMachine { bandwidth, ..CutMachine::new(count) };
            let found = cut_candidates(&graph, &sizes, &devices).unwrap();
            found.iter().map(|found| found.cut.devices()).collect()
        };
        assert_eq!(worthy(1e3), [1]);
        assert_eq!(worthy(1e12).last(), Some(&count));
    }
}

/// Whoever is faster has more to do, whoever has less memory holds less, and slow links carry less.
#[test]
fn devices_need_not_be_alike() {
    let graph = trained("mlp", &[]);
    let sizes = Bindings::new().with("batch", 512);
    let fast = CutDevice::default();
    let slow = CutDevice { rates: Rates { flops: fast.rates.flops / 3.0, ..fast.rates }, ..fast };
    let uneven = |devices: Vec<CutDevice>| CutMachine { devices, bandwidth: 1e12, topology: None };
    let bound = SizedGraph::new(&graph, &sizes).unwrap();
    for units in [vec![fast, slow], vec![slow, fast, fast], vec![fast, fast, slow, slow]] {
        let found = best_cut(&bound, &uneven(units.clone())).unwrap();
        let even = find_cut(&graph, &sizes, &[MeshLevel::even(units.len(), 1e12)], &of(&units)).unwrap();
        assert!(found.seconds < 0.8 * even.seconds, "{} against {}", found.seconds, even.seconds);
    }
    // One of the devices has room for less than half of what the other holds: with shares by speed it does not fit.
    let free = best_cut(&bound, &uneven(vec![fast, fast])).unwrap().memory;
    let tight = CutDevice { memory: Some(free[0] / 2), ..fast };
    let roomy = CutDevice { memory: Some(2 * free[0]), ..fast };
    let found = best_cut(&bound, &uneven(vec![roomy, tight])).unwrap();
    assert!(found.memory[1] <= free[0] / 2 && found.memory[0] <= 2 * free[0], "{:?}", found.memory);
    let nothing = CutDevice { memory: Some(1000), ..fast };
    let found = best_cut(&bound, &uneven(vec![roomy, nothing])).unwrap();
    assert!(found.beyond > 0 && found.memory[1] == found.beyond + 1000, "{:?}", found.memory);
}

fn of(units: &[CutDevice]) -> CutOptions {
    CutOptions { devices: units.to_vec(), ..CutOptions::default() }
}

/// Four devices on two sockets: what passes between the sockets is less than if links were alike.
#[test]
fn slow_links_carry_less() {
    for (name, sizes) in [
        ("mlp", Bindings::new().with("batch", 64)),
        ("gpt-nano", Bindings::new().with("batch", 8).with("length", 64)),
    ] {
        let graph = trained(name, &[]);
        let bound = SizedGraph::new(&graph, &sizes).unwrap();
        let across = |between: Option<f64>| {
            let sockets = [0, 0, 1, 1].map(|socket| Device { socket, ..Device::default() });
            let wiring = Wiring { peer: Some(2e9), sockets: between, ..Wiring::default() };
            let topology = Some(Topology::wired(sockets.to_vec(), &wiring).unwrap());
            let found = best_cut(&bound, &CutMachine { topology, ..CutMachine::new(4) }).unwrap();
            let pairs = &found.bytes.pairs;
            let passed = |to: usize| [2, 3].map(|from| pairs[to][from] + pairs[from][to]).iter().sum::<u64>();
            (passed(0) + passed(1), found.bytes.total())
        };
        let (slow, even) = (across(Some(2e7)), across(None));
        assert!(slow.0 < even.0 && slow.0 * 2 < slow.1, "{name}: {slow:?} against {even:?}");
    }
}

#[test]
fn cuts_fit_into_memory_if_they_can() {
    let graph = trained("mlp", &[]);
    let sizes = Bindings::new().with("batch", 4096);
    let levels = [MeshLevel::even(4, 1e9)];
    let limited = |memory, spill| {
        let devices = vec![CutDevice { memory, spill, ..CutDevice::default() }];
        find_cut(&graph, &sizes, &levels, &CutOptions { devices, ..CutOptions::default() }).unwrap()
    };
    let free = limited(None, f64::INFINITY);
    let most = |memory: &[u64]| memory.iter().copied().max().unwrap();
    let (all, least) = (most(&free.memory), most(&limited(Some(1), f64::INFINITY).memory));
    assert!(least < all);
    for limit in [all, (all + least) / 2, least] {
        let found = limited(Some(limit), f64::INFINITY);
        assert!(found.beyond == 0 && most(&found.memory) <= limit, "{limit}: {:?}", found.memory);
        assert!(
            found.seconds >= free.seconds * 0.999,
            "{} within {limit}, free {}",
            found.seconds,
            free.seconds
        );
        // The faster bytes beyond memory are swapped, the less is done to avoid them.
        let costs = [1e-6, 1e-9, 1e-12].map(|spill| limited(Some(limit), spill));
        for cheaper in costs.windows(2) {
            assert!(cheaper[0].seconds >= cheaper[1].seconds && cheaper[0].beyond <= cheaper[1].beyond);
        }
        assert!(costs[2].seconds <= free.seconds * 1.001, "{} {}", costs[2].seconds, free.seconds);
    }
    let devices = vec![CutDevice { memory: Some(least / 2), ..CutDevice::default() }; 4];
    let tried = low_memory_cuts(&graph, &sizes, &CutMachine { devices, ..CutMachine::new(4) }).unwrap();
    assert!(tried.len() > 2, "cuts that hold less and less, and two by rule");
}
