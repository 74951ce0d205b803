//! How far our choices are from the best there is, on graphs small enough to know it: the cheapest way to
//! get through the acts in order, over all ways to drop and compute again what the forward pass makes, any
//! number of times, is a shortest path from set to set of what is in memory. Where what the backward pass makes
//! may be computed again too, the paths take minutes to find and are the same on all but the last graph, where
//! they were not found.

use gulliver_graph::autodiff::differentiate;
use gulliver_graph::build::Builder;
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, GraphError, Init, Phase, Value};
use gulliver_plan::base::Base;
use gulliver_plan::budget::{Terms, fit};
use gulliver_plan::comparator::Case;
use gulliver_plan::cost::{Beside, Rates};
use gulliver_plan::make::{Options, Persistent};
use gulliver_plan::outline::Outline;
use gulliver_plan::plan::Tier;
use gulliver_plan::script::{VersionId, What};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

const ROWS: usize = 64;

/// A product with weights of so many columns, and a function of it.
fn layer(g: &mut Builder, k: usize, x: Value, width: usize) -> Result<Value, GraphError> {
    g.scope(format!("layer.{k}"), |g| {
        let y = g.linear_from(x, width, Init::Normal(0.1), None)?;
        g.tanh(y)
    })
}

/// The loss of `body` and the gradient of the first weight, so that backward goes all the way.
fn trained(body: impl Fn(&mut Builder, Value) -> Result<Value, GraphError>) -> Graph {
    let mut g = Builder::new(true);
    let x = g.data("x", DType::F32, &[ROWS, 4]).unwrap();
    let y = body(&mut g, x).unwrap();
    let y = g.square(y).unwrap();
    let loss = g.mean_all(y).unwrap();
    let (first, _) = g.graph().weights().next().unwrap();
    let grads = differentiate(&mut g, loss, &[first], 0).unwrap();
    g.output("loss", loss);
    g.output("gradient", grads[0].unwrap());
    g.finish()
}

fn graphs() -> Vec<(&'static str, Graph)> {
    let chain = |widths: &'static [usize]| {
        trained(move |g, x| widths.iter().enumerate().try_fold(x, |x, (k, w)| layer(g, k, x, *w)))
    };
    let residual = trained(|g, x| {
        let mut x = layer(g, 0, x, 64)?;
        for k in 1..4 {
            let y = layer(g, k, x, 64)?;
            x = g.add(x, y)?;
        }
        Ok(x)
    });
    let skips = trained(|g, x| {
        let a = layer(g, 0, x, 64)?;
        let b = layer(g, 1, a, 32)?;
        let c = layer(g, 2, b, 16)?;
        let d = layer(g, 3, c, 32)?;
        let d = g.mul(d, b)?;
        let e = layer(g, 4, d, 64)?;
        g.mul(e, a)
    });
    let dear = trained(|g, x| {
        let mut x = layer(g, 0, x, 96)?;
        x = g.scope("narrow", |g| g.linear_from(x, 16, Init::Normal(0.1), None))?;
        for k in 1..4 {
            x = g.exp(x)?;
            x = layer(g, k, x, [0, 96, 48, 24][k])?;
        }
        Ok(x)
    });
    vec![
        ("even chain", chain(&[32, 32, 32, 32, 32])),
        ("uneven chain", chain(&[64, 16, 128, 32, 64])),
        ("residual", residual),
        ("skips", skips),
        ("cheap and dear", dear),
    ]
}

/// One act for the search: what it touches, as bits of non-input versions.
struct Move {
    reads: u64,
    writes: u64,
    bytes: u64,
    seconds: f64,
    forward: bool,
    /// Operands whose place the result may take, with their bytes.
    in_place: Vec<(u64, u64)>,
}

struct Small {
    moves: Vec<Move>,
    sizes: Vec<u64>,
    /// Versions that are needed at or after each act; outputs always.
    needed: Vec<u64>,
    forward: u64,
    inputs: u64,
}

impl Small {
    fn new(case: &Case) -> Small {
        let base = case.base;
        let tracked: Vec<VersionId> = (0..base.script.versions.len() as u32)
            .filter(|&v| !base.script.versions[v as usize].input)
            .collect();
        assert!(tracked.len() <= 64);
        let bits = |all: &[VersionId]| {
            all.iter().filter_map(|v| tracked.iter().position(|w| w == v)).fold(0u64, |m, i| m | 1 << i)
        };
        let acts = 0..base.script.acts.len();
        let moves: Vec<Move> = acts.clone().map(|t| one(case, t, &bits)).collect();
        let outputs = bits(&base.script.outputs);
        let needed = acts.map(|t| moves[t..].iter().fold(outputs, |m, act| m | act.reads)).collect();
        let forward = moves.iter().filter(|m| m.forward).fold(0, |all, m| all | m.writes) & !outputs;
        let inputs = (0..base.script.versions.len() as u32)
            .filter(|v| base.script.versions[*v as usize].input)
            .map(|v| case.size(v))
            .sum();
        let sizes = tracked.iter().map(|&v| case.size(v)).collect();
        Small { moves, sizes, needed, forward, inputs }
    }

    fn bytes(&self, set: u64) -> u64 {
        (0..self.sizes.len()).filter(|i| set >> i & 1 == 1).map(|i| self.sizes[i]).sum::<u64>() + self.inputs
    }

    /// What is in memory after an act: with the result beside its operands, or in the place of one.
    fn after(&self, set: u64, act: &Move, budget: u64) -> Vec<u64> {
        let fresh = act.writes & !set;
        if act.reads & !set != 0 || fresh == 0 {
            return Vec::new();
        }
        let during = self.bytes(set) + act.bytes;
        let beside = (during <= budget).then_some(set | act.writes);
        let instead = act.in_place.iter().filter(|(_, bytes)| during - bytes <= budget);
        beside.into_iter().chain(instead.map(|(operand, _)| (set | act.writes) & !operand)).collect()
    }

    /// The fewest seconds of computing again within a budget, if it can be met.
    fn best(&self, budget: u64) -> Option<f64> {
        let mut known: HashMap<(usize, u64), f64> = HashMap::from([((0, 0), 0.0)]);
        let mut open = BinaryHeap::from([(Reverse(0u64), 0usize, 0u64)]);
        while let Some((Reverse(bits), at, set)) = open.pop() {
            // Seconds are not negative, so their bits are in their order.
            let seconds = f64::from_bits(bits);
            if known[&(at, set)] < seconds {
                continue;
            }
            if at == self.moves.len() {
                return Some(seconds);
            }
            let mut reach = |at: usize, set: u64, seconds: f64| {
                let best = known.entry((at, set)).or_insert(f64::INFINITY);
                if seconds < *best {
                    *best = seconds;
                    open.push((Reverse(seconds.to_bits()), at, set));
                }
            };
            for next in self.after(set, &self.moves[at], budget) {
                let needed = self.needed.get(at + 1).copied().unwrap_or(next);
                reach(at + 1, next & (needed | self.forward), seconds);
            }
            for act in self.moves[..at].iter().filter(|m| m.forward) {
                for next in self.after(set, act, budget) {
                    reach(at, next, seconds + act.seconds);
                }
            }
            for i in (0..self.sizes.len()).filter(|i| set & self.forward & 1 << i != 0) {
                reach(at, set & !(1 << i), seconds);
            }
        }
        None
    }
}

fn one(case: &Case, t: usize, bits: &dyn Fn(&[VersionId]) -> u64) -> Move {
    let base: &Base = case.base;
    let (reads, writes) = base.script.split(t);
    let What::Run(id, _) = base.script.acts[t].what else { panic!("nothing is updated") };
    let node = &base.graph.nodes[id.index()];
    let may = |&(i, o): &(usize, usize)| {
        let alone = reads.iter().filter(|&&r| r == reads[i]).count() == 1;
        let input = base.script.versions[reads[i] as usize].input;
        alone && !input && base.graph.ty(node.ins[i]) == base.graph.ty(node.outs[o])
    };
    let pairs = node.op.def().in_place();
    Move {
        reads: bits(reads),
        writes: bits(writes),
        bytes: writes.iter().map(|&w| case.size(w)).sum(),
        seconds: case.seconds(t as u32),
        forward: node.phase == Phase::Forward,
        in_place: pairs
            .iter()
            .filter(|p| may(p))
            .map(|p| (bits(&[reads[p.0]]), case.size(reads[p.0])))
            .collect(),
    }
}

#[test]
fn what_is_computed_again_is_close_to_the_least_possible() {
    let (mut close, mut all) = (0, 0);
    for (name, graph) in graphs() {
        let persistent = Persistent::of(&graph).unwrap();
        let beside = Beside { host: Some(0), disk: None };
        // Calls that cost nothing, so that small kernels differ as large ones do.
        let rates = Rates { call: 0.0, ..Rates::default() };
        let options = Options { beside, rates, ..Options::new(&persistent) };
        let none = Bindings::new();
        let outline = Outline::new(&graph, &none, &options).unwrap();
        let sizes = outline.sizes(&graph, &none, &options).unwrap();
        let state = persistent.ends[0];
        let base = outline.base(&graph);
        let case = Case::new(&outline, &base, &sizes);
        let small = Small::new(&case);
        let start = base.keep(vec![Tier::Device; base.script.versions.len()]);
        let seconds: Vec<f64> = (0..base.script.acts.len() as u32).map(|act| case.seconds(act)).collect();
        let terms = Terms {
            sharing: &outline.sharing,
            bytes: &case.bytes,
            scratch: &|_| 0,
            seconds: &seconds,
            node: &|node| case.node[node],
            away: [None, None],
            recompute: true,
            room: [0, 0],
        };
        let whole = case.outcome(&outline.script).peak;
        println!(
            "{name}: {} acts, {} beyond weights; microseconds again: ours, least",
            small.moves.len(),
            whole - state
        );
        for share in (51..=100).rev().step_by(7) {
            let budget = state + (whole - state) / 100 * share;
            let least = small.best(budget);
            // The best path does not lay its bytes out, so neither do we; but the inputs it keeps throughout
            // we may drop.
            let within = |target| {
                let chosen = fit(&base, &terms, &start, target, true).ok()?;
                let outcome = case.outcome(&chosen.known.script);
                assert!(outcome.peak <= target, "{name}");
                Some(outcome.again)
            };
            let ours = within(budget);
            let eased = ours.or_else(|| within(budget + (budget - state) / 50));
            let show = |x: Option<f64>| x.map_or("       -".into(), |x| format!("{:8.3}", 1e6 * x));
            println!(
                "  {share:>3} % {} {} {}",
                show(ours),
                show(least),
                if ours.is_none() && eased.is_some() { "eased" } else { "" }
            );
            if let Some(least) = least {
                all += 1;
                close += usize::from(eased.is_some_and(|ours| ours <= least * 1.05 + 1e-12));
            }
        }
    }
    println!("within a twentieth of the least for {close} of {all} budgets that can be met");
    assert_eq!(close, all);
}
