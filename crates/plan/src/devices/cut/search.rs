//! The search: levels from the outermost in, each solved as a problem of tables given those above, then each
//! again given all others; with cuts by rule as further places to start from, so none of them is better.

use super::bound::Bound;
use super::comparator::{Rule, ruled};
use super::eliminate::{FORBIDDEN, Factor, Problem};
use super::judge::{Bytes, Judge, Judged};
use super::region::Grid;
use super::tables::{Prices, State, Tables, cut_of};
use super::{Cut, CutError, Level, Objective, Options, Spread, Unit, check_levels, unit};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use std::collections::HashMap;

/// A cut and what it means.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What is decided.
    pub cut: Cut,
    /// Seconds of a step: work, then bytes, with nothing at the same time.
    pub seconds: f64,
    /// The same where values move beside nodes that do not wait for them.
    pub beside: f64,
    /// Of these, work.
    pub work: f64,
    /// Bytes that are moved.
    pub bytes: Bytes,
    /// By device, bytes of weights, states, kept results and the largest node.
    pub memory: Vec<u64>,
    /// No table passed the limit, so each level is best given the others.
    pub exact: bool,
}

/// What is decided before the search.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fixed {
    /// By value: where inputs live, at every level.
    pub residences: HashMap<usize, Vec<Spread>>,
    /// No sum is divided.
    pub whole_sums: bool,
}

impl Fixed {
    /// Forbids every other choice.
    fn forbid(&self, tables: &Tables, problem: &mut Problem, level: usize) {
        let cost = |allowed: bool| if allowed { 0.0 } else { FORBIDDEN };
        for (v, (variable, residence)) in &tables.residences {
            let Some(fixed) = self.residences.get(v) else { continue };
            let table = residence.spreads.iter().map(|s| cost(s[level] == fixed[level])).collect();
            problem.factors.push(Factor { scope: vec![*variable], table });
        }
        for (node, options) in tables.nodes.iter().enumerate().filter(|_| self.whole_sums) {
            let table = options.parts.iter().map(|p| cost(!is_partial(&p.spreads))).collect();
            problem.factors.push(Factor { scope: vec![node], table });
        }
    }

    /// Whether a cut is as decided.
    pub fn allows(&self, cut: &Cut) -> bool {
        self.residences.iter().all(|(v, fixed)| cut.values[*v] == *fixed)
            && !(self.whole_sums && is_partial(&cut.values))
    }

    /// Puts what is decided about the last level into a state.
    fn put(&self, state: &mut State) {
        for (v, fixed) in &self.residences {
            let level = state.residences[*v].len() - 1;
            state.residences[*v][level] = fixed[level];
        }
    }
}

fn is_partial(spreads: &[Vec<Spread>]) -> bool {
    spreads.iter().flatten().any(|spread| matches!(spread, Spread::Partial(_)))
}

/// Where the search is.
struct Search<'a> {
    bound: &'a Bound<'a>,
    levels: &'a [Level],
    options: &'a Options,
    fixed: &'a Fixed,
    prices: Prices,
    /// Of all levels.
    judge: Judge<'a>,
    exact: bool,
}

/// The best cut of a graph over the devices of these levels. With one level it is the best there is, as long
/// as no table passes [`Options::limit`].
pub fn cut(graph: &Graph, sizes: &Bindings, levels: &[Level], options: &Options) -> Result<Found, CutError> {
    cut_fixed(&Bound::new(graph, sizes)?, levels, options, &Fixed::default())
}

/// The same where some things are decided.
pub(crate) fn cut_fixed(
    bound: &Bound,
    levels: &[Level],
    options: &Options,
    fixed: &Fixed,
) -> Result<Found, CutError> {
    check_levels(levels)?;
    within_memory(bound, levels, options, fixed)
}

/// Raises the price of memory until what is found fits, then lowers it as far as it still does.
fn within_memory(
    bound: &Bound,
    levels: &[Level],
    options: &Options,
    fixed: &Fixed,
) -> Result<Found, CutError> {
    let free = searched(bound, levels, options, fixed, 0.0)?;
    if over(&free, &options.units).is_none() {
        return Ok(free);
    }
    let most = free.memory.iter().copied().max().unwrap_or(1);
    let cost = |f: &Found| match options.objective {
        Objective::Seconds => f.seconds,
        Objective::Bytes => f.bytes.total() as f64,
    };
    let (mut low, mut price) = (0.0, 0.01 * cost(&free).max(1e-9) / most.max(1) as f64);
    let mut best: Option<Found> = None;
    let mut least = free;
    for _ in 0..12 {
        let found = searched(bound, levels, options, fixed, price)?;
        let nearer = |f: &Found| over(f, &options.units).map_or(0.0, |o| o.0);
        if nearer(&found) < nearer(&least) {
            least = found.clone();
        }
        if over(&found, &options.units).is_none() {
            let near = price < 1.5 * low;
            if best.as_ref().is_none_or(|b| cost(&found) < cost(b)) {
                best = Some(found);
            }
            if low == 0.0 || near {
                break;
            }
            price = (low * price).sqrt();
        } else {
            low = price;
            price *= if best.is_some() { 1.3 } else { 6.0 };
        }
    }
    best.ok_or_else(|| {
        let (_, device, limit) = over(&least, &options.units).unwrap_or_default();
        CutError::Memory { device, needed: least.memory[device], limit }
    })
}

/// The device whose limit is passed by most, how many times it is needed, and the limit.
fn over(found: &Found, units: &[Unit]) -> Option<(f64, usize, u64)> {
    let limits = found.memory.iter().enumerate().filter_map(|(d, m)| Some((d, m, unit(units, d).memory?)));
    let passed = limits.filter(|(_, needed, limit)| *needed > limit);
    let times = passed.map(|(d, needed, limit)| (*needed as f64 / limit.max(1) as f64, d, limit));
    times.max_by(|a, b| a.0.total_cmp(&b.0))
}

fn searched(
    bound: &Bound,
    levels: &[Level],
    options: &Options,
    fixed: &Fixed,
    price: f64,
) -> Result<Found, CutError> {
    let devices = levels.iter().map(|l| l.shares.len()).product();
    let prices = Prices::new(price, &options.units, devices);
    let grid = Grid::new(levels);
    let judge = Judge::new(bound, &grid, &options.units);
    let mut search = Search { bound, levels, options, fixed, prices, judge, exact: true };
    let mut state = State::new(bound);
    for level in 0..levels.len() {
        state.push(bound);
        fixed.put(&mut state);
        let starts = vec![state.clone(), ruled(bound, &levels[..=level], &state, level, Rule::Data)];
        state = search.best_of(starts, level, &levels[..=level]);
    }
    if levels.len() > 1 {
        state = search.refined(state);
    }
    let cut = cut_of(bound, &grid, &state, &mut search.judge)?;
    let Judged { bytes, work, moving, beside, memory } = search.judge.judge(&cut)?;
    Ok(Found { cut, seconds: work + moving, beside, work, bytes, memory, exact: search.exact })
}

impl Search<'_> {
    fn devices(&self) -> usize {
        self.levels.iter().map(|l| l.shares.len()).product()
    }

    /// Solves one level, from the best of some starts where the limit is passed.
    fn best_of(&mut self, starts: Vec<State>, level: usize, levels: &[Level]) -> State {
        let grid = Grid::new(levels);
        let mut state = starts[0].clone();
        // Where not all levels are there yet, the first device of a group stands for it.
        let stride = self.devices() / grid.devices();
        let units: Vec<Unit> = (0..grid.devices()).map(|d| unit(&self.options.units, d * stride)).collect();
        let prices = Prices::new(self.prices.byte, &units, units.len());
        let options = Options { units, ..self.options.clone() };
        let tables = Tables::new(self.bound, &grid, &options, &prices, &state, level);
        let mut problem = tables.problem();
        self.fixed.forbid(&tables, &mut problem, level);
        let starts = starts.iter().map(|s| tables.start(s, level));
        let start = starts.min_by(|a, b| problem.sum(a).total_cmp(&problem.sum(b))).unwrap_or_default();
        let solution = problem.solve(&start, self.options.limit);
        self.exact &= solution.exact;
        tables.put(&solution.choices, &mut state, level);
        state
    }

    /// Every level again given the others, from the best of what was found and the cuts by rule.
    fn refined(&mut self, state: State) -> State {
        let grid = Grid::new(self.levels);
        let mut all = vec![state];
        all.extend(self.by_rules());
        let chopped = self.chopped();
        all.push(chopped);
        let costs: Vec<f64> = all.iter().map(|s| self.cost(s, &grid)).collect();
        let best = (0..all.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b])).unwrap_or(0);
        let (mut state, mut cost) = (all.swap_remove(best), costs[best]);
        for _ in 0..self.options.rounds {
            let before = cost;
            for level in 0..self.levels.len() {
                let new = self.best_of(vec![state.clone()], level, self.levels);
                let new_cost = self.cost(&new, &grid);
                if new_cost < cost {
                    (state, cost) = (new, new_cost);
                }
            }
            if cost >= before {
                break;
            }
        }
        state
    }

    /// Every way to follow a rule at each of the first three levels, and the last of these rules at the others.
    fn by_rules(&self) -> Vec<State> {
        let mut all = vec![(State::new(self.bound), Rule::Data)];
        for level in 0..self.levels.len() {
            let rules = |last: Rule| if level < 3 { vec![Rule::Data, Rule::Filter] } else { vec![last] };
            let more = |(state, last): (State, Rule)| {
                let with = |rule: Rule| {
                    let mut state = state.clone();
                    state.push(self.bound);
                    (ruled(self.bound, &self.levels[..=level], &state, level, rule), rule)
                };
                rules(last).into_iter().map(with).collect::<Vec<_>>()
            };
            all = all.into_iter().flat_map(more).collect();
        }
        all.into_iter().map(|(state, _)| state).collect()
    }

    /// One cut into as many parts as there are devices, as the same choice at every level, which need not be legal.
    fn chopped(&mut self) -> State {
        let bandwidth = self.levels.iter().map(|l| l.bandwidth).fold(f64::INFINITY, f64::min);
        let one = [Level::even(self.devices(), bandwidth)];
        let mut state = State::new(self.bound);
        state.push(self.bound);
        let exact = self.exact;
        let mut state = self.best_of(vec![state], 0, &one);
        self.exact = exact;
        let repeat = self.levels.len();
        state.choices.iter_mut().for_each(|c| *c = vec![c[0]; repeat]);
        state.residences.iter_mut().filter(|h| !h.is_empty()).for_each(|h| *h = vec![h[0]; repeat]);
        state
    }

    /// What is made small, of all levels.
    fn cost(&mut self, state: &State, grid: &Grid) -> f64 {
        let cut = cut_of(self.bound, grid, state, &mut self.judge).ok().filter(|cut| self.fixed.allows(cut));
        let judged = cut.map(|cut| self.judge.judge(&cut));
        let Some(Ok(judged)) = judged else { return FORBIDDEN };
        let main = match self.options.objective {
            Objective::Seconds => judged.work + judged.moving,
            Objective::Bytes => judged.bytes.total() as f64,
        };
        main + self.prices.held(judged.memory.into_iter())
    }
}
