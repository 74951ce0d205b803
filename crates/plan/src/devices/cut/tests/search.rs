//! The search for cuts against all cuts of small graphs, and against cuts by rule of the reference models.

use super::by_rules;
use super::comparator::{exhaustive, largest_first};
use crate::devices::cut::machine::ShareBy;
use crate::devices::cut::{CutMachine, CutObjective, CutOptions, CutRule, MeshLevel, cut_traffic, find_cut};
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

/// Compares random graphs with at most `most` cuts, until `wanted` of them had to move bytes.
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
        assert_eq!(found.cost.bytes.total(), total, "seed {seed}");
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
            let factors = CutMachine { bandwidth: 1e9, ..CutMachine::new(devices) }.levels(ShareBy::Speed);
            if factors.len() > 1 {
                ways.push(factors);
            }
            let mut chop = u64::MAX;
            for levels in ways {
                let found = find_cut(&graph, &sizes, &levels, &fewest_bytes()).unwrap();
                let total = found.cost.bytes.total();
                let count = |c| cut_traffic(&graph, &sizes, &c).unwrap().total();
                let ruled = |first, others| count(by_rules(&graph, &sizes, &levels, [first, others]));
                let rules = [
                    ("data", ruled(CutRule::Data, CutRule::Data)),
                    ("filter", ruled(CutRule::Filter, CutRule::Filter)),
                    ("hybrid", ruled(CutRule::Data, CutRule::Filter)),
                    ("channel", ruled(CutRule::Channel, CutRule::Channel)),
                    ("spatial", ruled(CutRule::Spatial, CutRule::Spatial)),
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
