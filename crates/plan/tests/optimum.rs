//! How far our choices are from the best there is, on graphs small enough to know it: the cheapest way to
//! get through the acts in order, over all ways to drop and compute again what the forward pass makes, any
//! number of times, is a shortest path from set to set of what is in memory. Where what the backward pass makes
//! may be computed again too, the paths take minutes to find and are the same on all but the last graph, where
//! they were not found. An integer program finds the same least, in a way that has nothing in common with the
//! search but bytes and seconds.

mod small_graphs;

use good_lp::{Expression, ProblemVariables, ResolutionError, Solution, SolverModel, microlp, variable};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Init};
use gulliver_lab::comparator::ComparedStep;
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::document::plan::Tier;
use small_graphs::choice::recompute;
use small_graphs::problem::Problem;
use small_graphs::program::Program;
use small_graphs::{Outlined, chain, layer, residual, trained};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Shares at which the integer program is solved too: the solver takes a minute for all of them.
const SOLVED: [u64; 3] = [93, 65, 51];

fn graphs() -> Vec<(&'static str, Graph)> {
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
        ("residual", residual(3)),
        ("skips", skips),
        ("cheap and dear", dear),
    ]
}

/// Sets of values as bits, for the search.
struct Small<'a> {
    problem: &'a Problem,
    reads: Vec<u64>,
    writes: Vec<u64>,
    /// Values that are needed at or after each act; outputs always.
    needed: Vec<u64>,
    forward: u64,
}

fn bits(values: &[usize]) -> u64 {
    values.iter().fold(0, |set, v| set | 1 << v)
}

impl Small<'_> {
    fn new(problem: &Problem) -> Small<'_> {
        assert!(problem.sizes.len() <= 64);
        let reads: Vec<u64> = problem.moves.iter().map(|m| bits(&m.reads)).collect();
        let writes: Vec<u64> = problem.moves.iter().map(|m| bits(&m.writes)).collect();
        let outputs = bits(&problem.outputs);
        let needed = (0..reads.len()).map(|t| reads[t..].iter().fold(outputs, |m, r| m | r)).collect();
        let forward = problem.moves.iter().zip(&writes).filter(|(m, _)| m.forward);
        let forward = forward.fold(0, |all, (_, w)| all | w) & !outputs;
        Small { problem, reads, writes, needed, forward }
    }

    fn bytes(&self, set: u64) -> u64 {
        let sizes = &self.problem.sizes;
        (0..sizes.len()).filter(|i| set >> i & 1 == 1).map(|i| sizes[i]).sum()
    }

    /// What is in memory after act `k`, which runs before act `at` or is it: with the result beside its
    /// operands, or in the place of one.
    fn after(&self, set: u64, k: usize, at: usize, budget: u64) -> Vec<u64> {
        if self.reads[k] & !set != 0 || self.writes[k] & !set == 0 {
            return Vec::new();
        }
        let act = &self.problem.moves[k];
        let next = set | self.writes[k];
        let during = self.bytes(set) + act.bytes + self.problem.inputs[at];
        let beside = (during <= budget).then_some(next);
        let instead = act.in_place.iter().filter(|v| during - self.problem.sizes[**v] <= budget);
        beside.into_iter().chain(instead.map(|v| next & !(1 << v))).collect()
    }

    /// The fewest seconds of computing again within a budget, if it can be met.
    fn best(&self, budget: u64) -> Option<f64> {
        let moves = &self.problem.moves;
        let mut known: HashMap<(usize, u64), f64> = HashMap::from([((0, 0), 0.0)]);
        let mut open = BinaryHeap::from([(Reverse(0u64), 0usize, 0u64)]);
        while let Some((Reverse(bits), at, set)) = open.pop() {
            // Seconds are not negative, so their bits are in their order.
            let seconds = f64::from_bits(bits);
            if known[&(at, set)] < seconds {
                continue;
            }
            if at == moves.len() {
                return Some(seconds);
            }
            let mut reach = |at: usize, set: u64, seconds: f64| {
                let best = known.entry((at, set)).or_insert(f64::INFINITY);
                if seconds < *best {
                    *best = seconds;
                    open.push((Reverse(seconds.to_bits()), at, set));
                }
            };
            for next in self.after(set, at, at, budget) {
                let needed = self.needed.get(at + 1).copied().unwrap_or(next);
                reach(at + 1, next & (needed | self.forward), seconds);
            }
            for k in (0..at).filter(|k| moves[*k].forward) {
                for next in self.after(set, k, at, budget) {
                    reach(at, next, seconds + moves[k].seconds);
                }
            }
            for i in (0..self.problem.sizes.len()).filter(|i| set & self.forward & 1 << i != 0) {
                reach(at, set & !(1 << i), seconds);
            }
        }
        None
    }
}

/// The fewest microseconds by the integer program; none if the budget cannot be met.
fn solved(program: &Program) -> Option<f64> {
    if program.impossible {
        return None;
    }
    let mut variables = ProblemVariables::new();
    let columns: Vec<_> = program
        .whole
        .iter()
        .map(|whole| variables.add(if *whole { variable().binary() } else { variable().min(0.0).max(1.0) }))
        .collect();
    let cost: Expression = program.costs.iter().zip(&columns).map(|(cost, x)| *cost * *x).sum();
    let mut model = variables.minimise(cost.clone()).using(microlp);
    for (terms, most) in &program.rows {
        let sum: Expression = terms.iter().map(|(column, factor)| *factor * columns[*column]).sum();
        model.add_constraint(sum.leq(*most));
    }
    match model.solve() {
        Ok(solution) => Some(solution.eval(cost)),
        Err(ResolutionError::Infeasible) => None,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn what_is_computed_again_is_close_to_the_least_possible() {
    let (mut close, mut all) = (0, 0);
    for (name, graph) in graphs() {
        let outlined = Outlined::new(graph, &Bindings::new());
        let base = outlined.outline.base(&outlined.graph);
        let case = ComparedStep::new(&outlined.outline, &base, &outlined.sizes);
        let problem = Problem::new(&case);
        let small = Small::new(&problem);
        let start = Choices::keep(&base, vec![Tier::Device; base.script.versions.len()]);
        let whole = case.outcome(base.script).peak;
        println!(
            "{name}: {} acts, {} beyond weights; microseconds again: ours, least",
            problem.moves.len(),
            whole - outlined.state
        );
        for share in (51..=100).rev().step_by(7) {
            let budget = outlined.budget(whole, share);
            let least = small.best(budget);
            if SOLVED.contains(&share) {
                let program = Program::new(&problem, budget, |act| act.forward && act.again);
                let solved = solved(&program);
                let same = match (least, solved) {
                    (Some(a), Some(b)) => (1e6 * a - b).abs() <= 1e-6 * b + 1e-9,
                    (a, b) => a.is_none() && b.is_none(),
                };
                assert!(same, "{name} at {share} %: {least:?} by search, {solved:?} microseconds by program");
            }
            // The best path does not lay its bytes out, so neither do we.
            let within = |target| {
                let chosen = recompute(&case, &start, target, true).ok()?;
                let outcome = case.outcome(&chosen.rewritten.script);
                assert!(outcome.peak <= target, "{name}");
                Some(outcome.again)
            };
            let ours = within(budget);
            let eased = ours.or_else(|| within(budget + (budget - outlined.state) / 50));
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
