//! The search for a cut. Levels are solved from the outermost in, each given those above, then each again given all
//! others. Cuts by rule are further starts, so the result is never worse than they are.

use super::eliminate::{CostFactor, CostProblem, FORBIDDEN};
use super::evaluate::{CutCost, CutEvaluator};
use super::mesh::DeviceMesh;
use super::rule::{CutRule, Undivided, apply_rule};
use super::sized::SizedGraph;
use super::tables::{CostTables, CutState, MemoryPrices, cut_of};
use super::{
    CutDevice, CutError, CutObjective, CutOptions, GraphCut, MeshLevel, Sharding, check_levels, device_at,
};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use std::collections::HashMap;

/// A cut with its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundCut {
    /// The cut.
    pub cut: GraphCut,
    /// Its cost.
    pub cost: CutCost,
    /// Bytes beyond the memory of the device that lacks most.
    pub beyond: u64,
    /// Seconds that swapping or recomputing them takes.
    pub spill: f64,
    /// Whether no table passed the limit, so that each level is optimal given the others.
    pub exact: bool,
}

impl FoundCut {
    /// Seconds of a step, with transfers beside computing and bytes beyond memory included.
    pub fn step_seconds(&self) -> f64 {
        self.cost.beside + self.spill
    }
}

/// Choices made before the search.
#[derive(Clone, Debug, Default)]
pub(crate) struct FixedChoices {
    /// By value: the shardings of inputs.
    pub residences: HashMap<usize, Vec<Sharding>>,
    /// Whether no sum may be divided.
    pub whole_sums: bool,
}

impl FixedChoices {
    /// Forbids all other choices at a level.
    fn forbid(&self, tables: &CostTables, problem: &mut CostProblem, level: usize) {
        let cost = |allowed: bool| if allowed { 0.0 } else { FORBIDDEN };
        for (v, (variable, residence)) in &tables.residences {
            let Some(fixed) = self.residences.get(v) else { continue };
            let table = residence.shardings.iter().map(|s| cost(s[level] == fixed[level])).collect();
            problem.factors.push(CostFactor { scope: vec![*variable], table });
        }
        for (node, options) in tables.nodes.iter().enumerate().filter(|_| self.whole_sums) {
            let table = options.parts.iter().map(|p| cost(!is_partial(&p.shardings))).collect();
            problem.factors.push(CostFactor { scope: vec![node], table });
        }
    }

    /// Whether a cut respects them.
    pub fn allows(&self, cut: &GraphCut) -> bool {
        self.residences.iter().all(|(v, fixed)| cut.values[*v] == *fixed)
            && !(self.whole_sums && is_partial(&cut.values))
    }

    /// Sets the last level of a state to them.
    fn put(&self, state: &mut CutState) {
        for (v, fixed) in &self.residences {
            let level = state.residences[*v].len() - 1;
            state.residences[*v][level] = fixed[level];
        }
    }
}

fn is_partial(shardings: &[Vec<Sharding>]) -> bool {
    shardings.iter().flatten().any(|sharding| matches!(sharding, Sharding::Partial(_)))
}

/// The state of a search.
struct Search<'a> {
    sized: &'a SizedGraph<'a>,
    levels: &'a [MeshLevel],
    options: &'a CutOptions,
    fixed: &'a FixedChoices,
    prices: MemoryPrices,
    /// Over all levels.
    evaluator: CutEvaluator<'a>,
    exact: bool,
}

/// The best cut of a graph over the devices of these levels. It is optimal for one level, unlimited memory and no table
/// beyond [`CutOptions::limit`].
pub fn find_cut(
    graph: &Graph,
    sizes: &Bindings,
    levels: &[MeshLevel],
    options: &CutOptions,
) -> Result<FoundCut, CutError> {
    find_fixed_cut(&SizedGraph::new(graph, sizes)?, levels, options, &FixedChoices::default())
}

/// [`find_cut`] where some choices are fixed.
pub(crate) fn find_fixed_cut(
    sized: &SizedGraph,
    levels: &[MeshLevel],
    options: &CutOptions,
    fixed: &FixedChoices,
) -> Result<FoundCut, CutError> {
    Ok(cuts_for_memory(sized, levels, options, fixed)?.swap_remove(0))
}

/// Most prices of memory that are tried.
const PRICES: usize = 12;

/// Factor from one price of memory to the next while no cut fits.
const RAISE: f64 = 6.0;

/// The best cut regardless of memory, if it fits. Otherwise the best with bytes beyond memory included, then the best
/// regardless of memory: its plan may hide the transfers.
pub(crate) fn cuts_for_memory(
    sized: &SizedGraph,
    levels: &[MeshLevel],
    options: &CutOptions,
    fixed: &FixedChoices,
) -> Result<Vec<FoundCut>, CutError> {
    check_levels(levels)?;
    let free = search_at(sized, levels, options, fixed, 0.0)?;
    if free.beyond == 0 {
        return Ok(vec![free]);
    }
    let paid = |f: &FoundCut| (f.cost.of(options.objective) + f.spill, f.beyond);
    // Raise the price of a byte until a cut fits or swapping is cheaper, then lower it while a cut fits.
    let swapping = options.devices.iter().map(|device| device.spill).fold(0.0, f64::max);
    let (mut low, mut price) = (0.0, first_price(&free, options.objective).min(swapping));
    let mut fits = false;
    let mut best = free.clone();
    for _ in 0..PRICES {
        let found = search_at(sized, levels, options, fixed, price)?;
        let fit = found.beyond == 0;
        if paid(&found) < paid(&best) {
            best = found;
        }
        if fit {
            let near = price < 1.5 * low;
            (fits, price) = (true, (low * price).sqrt());
            if low == 0.0 || near {
                break;
            }
        } else {
            if price >= swapping {
                break;
            }
            low = price;
            price = if fits { 1.3 * price } else { (RAISE * price).min(swapping) };
        }
    }
    let other = best.cut != free.cut;
    Ok([best].into_iter().chain(other.then_some(free)).collect())
}

/// Cuts of ever less memory, whatever the limits, down to the least that is found.
pub(crate) fn cuts_of_falling_memory(
    sized: &SizedGraph,
    levels: &[MeshLevel],
    options: &CutOptions,
) -> Result<Vec<FoundCut>, CutError> {
    let fixed = FixedChoices::default();
    let most = |f: &FoundCut| f.cost.memory.iter().copied().max();
    let mut last = search_at(sized, levels, options, &fixed, 0.0)?;
    let mut price = first_price(&last, options.objective);
    let mut all = Vec::new();
    for _ in 0..PRICES / 2 {
        let found = search_at(sized, levels, options, &fixed, price)?;
        if most(&found) < most(&last) {
            all.push(found.clone());
            last = found;
        }
        price *= RAISE;
    }
    Ok(all)
}

/// The price of a byte at which the memory of a cut costs a hundredth of its other costs.
fn first_price(found: &FoundCut, objective: CutObjective) -> f64 {
    let most = found.cost.memory.iter().copied().max().unwrap_or(1).max(1);
    0.01 * found.cost.of(objective).max(1e-9) / most as f64
}

/// Seconds and bytes beyond the memory of devices, each of the device with most.
fn spill(memory: &[u64], devices: &[CutDevice]) -> (f64, u64) {
    let beyond = memory
        .iter()
        .enumerate()
        .map(|(d, needed)| (device_at(devices, d), device_at(devices, d).beyond(*needed)));
    let beyond = beyond.filter(|(_, bytes)| *bytes > 0);
    beyond.fold((0.0, 0), |(seconds, most), (device, bytes)| {
        (seconds.max(bytes as f64 * device.spill), most.max(bytes))
    })
}

fn search_at(
    sized: &SizedGraph,
    levels: &[MeshLevel],
    options: &CutOptions,
    fixed: &FixedChoices,
    price: f64,
) -> Result<FoundCut, CutError> {
    let devices = levels.iter().map(|l| l.shares.len()).product();
    let prices = MemoryPrices::new(price, &options.devices, devices);
    let mesh = DeviceMesh::new(levels);
    let evaluator = CutEvaluator::new(sized, &mesh, &options.devices);
    let mut search = Search { sized, levels, options, fixed, prices, evaluator, exact: true };
    let mut state = CutState::new(sized);
    for level in 0..levels.len() {
        state.push(sized);
        fixed.put(&mut state);
        let mut data = state.clone();
        let mesh = DeviceMesh::new(&levels[..=level]);
        apply_rule(sized, &mesh, &mut data, (level, CutRule::Data), Undivided::AnyAxis);
        state = search.best_of(vec![state, data], level, &levels[..=level]);
    }
    if levels.len() > 1 {
        state = search.refined(state);
    }
    let cut = cut_of(sized, &mesh, &state, &mut search.evaluator)?;
    let cost = search.evaluator.cost(&cut)?;
    let (spill, beyond) = spill(&cost.memory, &options.devices);
    Ok(FoundCut { cut, cost, beyond, spill, exact: search.exact })
}

impl Search<'_> {
    fn devices(&self) -> usize {
        self.levels.iter().map(|l| l.shares.len()).product()
    }

    /// Solves one level. Tables beyond the limit are solved from the best start.
    fn best_of(&mut self, starts: Vec<CutState>, level: usize, levels: &[MeshLevel]) -> CutState {
        let mesh = DeviceMesh::new(levels);
        let mut state = starts[0].clone();
        // While inner levels are missing, the first device of a group stands for the group.
        let stride = self.devices() / mesh.devices();
        let devices: Vec<CutDevice> =
            (0..mesh.devices()).map(|d| device_at(&self.options.devices, d * stride)).collect();
        let prices = MemoryPrices::new(self.prices.byte, &devices, devices.len());
        let options = CutOptions { devices, ..self.options.clone() };
        let tables = CostTables::new(self.sized, &mesh, &options, &prices, &state, level);
        let mut problem = tables.problem();
        self.fixed.forbid(&tables, &mut problem, level);
        let starts = starts.iter().map(|s| tables.start(s, level));
        let start = starts.min_by(|a, b| problem.sum(a).total_cmp(&problem.sum(b))).unwrap_or_default();
        let solution = problem.solve(&start, self.options.limit);
        self.exact &= solution.exact;
        tables.put(&solution.choices, &mut state, level);
        state
    }

    /// Solves every level again given the others, from the best of the state and the cuts by rule.
    fn refined(&mut self, state: CutState) -> CutState {
        let mesh = DeviceMesh::new(self.levels);
        let mut all = vec![state];
        all.extend(self.by_rules());
        let chopped = self.chopped();
        all.push(chopped);
        let costs: Vec<f64> = all.iter().map(|s| self.cost(s, &mesh)).collect();
        let best = (0..all.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b])).unwrap_or(0);
        let (mut state, mut cost) = (all.swap_remove(best), costs[best]);
        for level in 0..self.levels.len() {
            let new = self.best_of(vec![state.clone()], level, self.levels);
            let new_cost = self.cost(&new, &mesh);
            if new_cost < cost {
                (state, cost) = (new, new_cost);
            }
        }
        state
    }

    /// Every combination of rules for the first three levels; inner levels repeat the rule of the third.
    fn by_rules(&self) -> Vec<CutState> {
        let mut all = vec![(CutState::new(self.sized), CutRule::Data)];
        for level in 0..self.levels.len() {
            let rules =
                |last: CutRule| if level < 3 { vec![CutRule::Data, CutRule::Filter] } else { vec![last] };
            let mesh = DeviceMesh::new(&self.levels[..=level]);
            let more = |(state, last): (CutState, CutRule)| {
                let with = |rule: CutRule| {
                    let mut state = state.clone();
                    state.push(self.sized);
                    apply_rule(self.sized, &mesh, &mut state, (level, rule), Undivided::AnyAxis);
                    (state, rule)
                };
                rules(last).into_iter().map(with).collect::<Vec<_>>()
            };
            all = all.into_iter().flat_map(more).collect();
        }
        all.into_iter().map(|(state, _)| state).collect()
    }

    /// The best cut of one level over all devices, as the same choices at every level; it need not be legal.
    fn chopped(&mut self) -> CutState {
        let bandwidth = self.levels.iter().map(|l| l.bandwidth).fold(f64::INFINITY, f64::min);
        let one = [MeshLevel::even(self.devices(), bandwidth)];
        let mut state = CutState::new(self.sized);
        state.push(self.sized);
        let exact = self.exact;
        let mut state = self.best_of(vec![state], 0, &one);
        self.exact = exact;
        let repeat = self.levels.len();
        state.choices.iter_mut().for_each(|c| *c = vec![c[0]; repeat]);
        state.residences.iter_mut().filter(|h| !h.is_empty()).for_each(|h| *h = vec![h[0]; repeat]);
        state
    }

    /// The cost of a state over all levels, memory at its price included.
    fn cost(&mut self, state: &CutState, mesh: &DeviceMesh) -> f64 {
        let cut =
            cut_of(self.sized, mesh, state, &mut self.evaluator).ok().filter(|cut| self.fixed.allows(cut));
        let Some(Ok(cost)) = cut.map(|cut| self.evaluator.cost(&cut)) else { return FORBIDDEN };
        cost.of(self.options.objective) + self.prices.cost(cost.memory.into_iter())
    }
}
