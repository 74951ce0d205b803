//! The choice of one level as a problem of tables: a variable for what every node does and for where every
//! weight and state lives, a cost for every value that is moved and every node that is computed.

use super::bound::Bound;
use super::eliminate::{FORBIDDEN, Factor, Problem};
use super::judge::Judge;
use super::part::{Choice, Need, Parts, options_at, residences_at, seconds};
use super::price::{Pool, Priced};
use super::region::{Grid, area, contains, held};
use super::traffic::Lying;
use super::{Cut, CutError, Level, Objective, Options, Spread, Unit, unit};
use gulliver_graph::graph::Origin;
use gulliver_graph::spec::Region;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// What every node does and where every input with a residence lives, at every level.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    /// By node, then level.
    pub choices: Vec<Vec<Choice>>,
    /// By value, then level; empty where there is no residence.
    pub residences: Vec<Vec<Spread>>,
}

impl State {
    /// No levels.
    pub fn new(bound: &Bound) -> State {
        let graph = bound.graph;
        State {
            choices: vec![Vec::new(); graph.nodes.len()],
            residences: vec![Vec::new(); graph.values.len()],
        }
    }

    /// One level more, at which every group does all.
    pub fn push(&mut self, bound: &Bound) {
        self.choices.iter_mut().for_each(|c| c.push(Choice::All));
        let residences = self.residences.iter_mut().enumerate().filter(|(v, _)| bound.has_home(*v));
        residences.for_each(|(_, residence)| residence.push(Spread::Whole));
    }
}

/// What a kind of node can do at the level, given what it does at others.
#[derive(Debug)]
pub(crate) struct NodeOptions {
    pub choices: Vec<Choice>,
    pub parts: Vec<Parts>,
    pub seconds: Vec<f64>,
}

/// Where inputs of one type can live at the level.
#[derive(Debug)]
pub(crate) struct HomeOptions {
    pub spreads: Vec<Vec<Spread>>,
    pub needs: Vec<Need>,
}

/// What bytes of memory cost.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// A byte on the device with the least memory.
    pub byte: f64,
    /// By device: a byte there, against one on the device with the least memory.
    pub tightness: Vec<f64>,
}

impl Prices {
    /// At this price, on these devices.
    pub fn new(byte: f64, units: &[Unit], devices: usize) -> Prices {
        let limits = (0..devices).map(|d| unit(units, d).memory.map_or(f64::INFINITY, |m| m.max(1) as f64));
        let least = limits.clone().fold(f64::INFINITY, f64::min);
        let tight = |limit: f64| if limit.is_finite() { least / limit } else { 0.0 };
        Prices { byte, tightness: limits.map(tight).collect() }
    }

    /// The cost of so many bytes, by device.
    pub fn held(&self, bytes: impl Iterator<Item = u64>) -> f64 {
        let each = bytes.zip(&self.tightness).map(|(bytes, tight)| bytes as f64 * tight);
        self.byte * each.fold(0.0, f64::max)
    }
}

/// What is settled before tables are made.
pub(crate) struct Tables<'a> {
    pub bound: &'a Bound<'a>,
    pub grid: &'a Grid<'a>,
    pub options: &'a Options,
    pub prices: &'a Prices,
    /// Cost of a second of work where seconds are not what counts: all of them together are less than a byte.
    pub tie: f64,
    pub nodes: Vec<Rc<NodeOptions>>,
    node_ids: Vec<usize>,
    /// By value, for those with a residence: the variable, and what it can be.
    pub residences: BTreeMap<usize, (usize, Rc<HomeOptions>)>,
    home_ids: HashMap<usize, usize>,
}

/// A table with the variables it is over, as places among a value's source and readers.
type Shared = Rc<Vec<(Vec<usize>, Arc<[f64]>)>>;

/// One variable that has to do with a value.
struct RankPlan {
    variable: usize,
    /// The node, or the input whose residence it is.
    of: usize,
    key: PartyKey,
}

/// Parties with equal keys have equal choices.
#[derive(Clone, PartialEq, Eq, Hash)]
enum PartyKey {
    /// Options, and the operands through which it reads or the result that it makes.
    Node(usize, Vec<usize>),
    /// Options.
    Residence(usize),
}

impl<'a> Tables<'a> {
    /// The options of every node and residence at one level.
    pub fn new(
        bound: &'a Bound<'a>,
        grid: &'a Grid<'a>,
        options: &'a Options,
        prices: &'a Prices,
        state: &State,
        level: usize,
    ) -> Tables<'a> {
        let mut ids: HashMap<(u32, bool, Vec<Choice>), usize> = HashMap::new();
        let mut known: Vec<Rc<NodeOptions>> = Vec::new();
        let mut node_ids = Vec::with_capacity(state.choices.len());
        for (node, choices) in state.choices.iter().enumerate() {
            let mut others = choices.clone();
            others[level] = Choice::All;
            let repeat = bound.may_repeat(node, options.objective);
            let key = (bound.kinds.kind_of[node], repeat, others);
            let id = *ids.entry(key).or_insert_with_key(|(_, repeat, others)| {
                let kind = bound.kind(node);
                let all = options_at(kind, others, level, grid, *repeat);
                let (choices, parts): (Vec<Choice>, Vec<Parts>) = all.into_iter().unzip();
                let seconds = parts.iter().map(|p| seconds(kind, p, &options.units, grid)).collect();
                known.push(Rc::new(NodeOptions { choices, parts, seconds }));
                known.len() - 1
            });
            node_ids.push(id);
        }
        let nodes: Vec<Rc<NodeOptions>> = node_ids.iter().map(|&id| known[id].clone()).collect();
        let mut home_kinds: HashMap<(u32, Vec<Spread>), (usize, Rc<HomeOptions>)> = HashMap::new();
        let (mut residences, mut home_ids) = (BTreeMap::new(), HashMap::new());
        for v in (0..state.residences.len()).filter(|v| bound.has_home(*v)) {
            let mut others = state.residences[v].clone();
            others[level] = Spread::Whole;
            let new = home_kinds.len();
            let entry =
                home_kinds.entry((bound.kinds.type_of[v], others)).or_insert_with_key(|(_, others)| {
                    let (spreads, needs) =
                        residences_at(&bound.shapes[v], others, level, grid).into_iter().unzip();
                    (new, Rc::new(HomeOptions { spreads, needs }))
                });
            residences.insert(v, (nodes.len() + residences.len(), entry.1.clone()));
            home_ids.insert(v, entry.0);
        }
        let most: f64 = nodes.iter().map(|n| n.seconds.iter().copied().fold(0.0, f64::max)).sum();
        let tie = 0.5 / most.max(1e-30);
        Tables { bound, grid, options, prices, tie, nodes, node_ids, residences, home_ids }
    }

    /// All variables and costs.
    pub fn problem(&self) -> Problem {
        let mut domains: Vec<usize> = self.nodes.iter().map(|n| n.choices.len()).collect();
        domains.resize(domains.len() + self.residences.len(), 0);
        for (variable, residence) in self.residences.values() {
            domains[*variable] = residence.spreads.len();
        }
        let mut factors = self.own_costs();
        let mut known: HashMap<(u32, Option<PartyKey>, Vec<PartyKey>), Shared> = HashMap::new();
        for v in 0..self.bound.graph.values.len() {
            let source = self.source(v);
            let readers = self.readers(v, source.as_ref());
            if readers.is_empty() {
                continue;
            }
            let key = (
                self.bound.kinds.type_of[v],
                source.as_ref().map(|s| s.key.clone()),
                readers.iter().map(|r| r.key.clone()).collect::<Vec<_>>(),
            );
            let tables =
                known.entry(key).or_insert_with(|| Rc::new(self.tables(v, source.as_ref(), &readers)));
            let variables: Vec<usize> = source.iter().chain(&readers).map(|p| p.variable).collect();
            for (places, table) in tables.iter() {
                let scope = places.iter().map(|&p| variables[p]).collect();
                factors.push(Factor { scope, table: table.clone() });
            }
        }
        Problem { domains, factors }
    }

    /// Work and memory, which depend on one variable each.
    fn own_costs(&self) -> Vec<Factor> {
        let work = if self.options.objective == Objective::Seconds { 1.0 } else { self.tie };
        let mut known: HashMap<(usize, Vec<bool>), Arc<[f64]>> = HashMap::new();
        let mut factors = Vec::new();
        for (node, options) in self.nodes.iter().enumerate() {
            let outs = &self.bound.graph.nodes[node].outs;
            let kept: Vec<bool> =
                outs.iter().map(|v| self.prices.byte > 0.0 && self.bound.kept[v.index()]).collect();
            let table = known.entry((self.node_ids[node], kept)).or_insert_with_key(|(_, kept)| {
                let cost = |(parts, seconds): (&Parts, &f64)| {
                    let held = parts.outs.iter().zip(outs).zip(kept).filter(|(_, kept)| **kept);
                    let held = held.map(|((boxes, v), _)| self.held(boxes, v.index()));
                    seconds * work + held.sum::<f64>()
                };
                options.parts.iter().zip(&options.seconds).map(cost).collect()
            });
            factors.push(Factor { scope: vec![node], table: table.clone() });
        }
        if self.prices.byte > 0.0 {
            for (v, (variable, residence)) in &self.residences {
                let table = residence.needs.iter().map(|n| self.held(&n.boxes, *v)).collect();
                factors.push(Factor { scope: vec![*variable], table });
            }
        }
        factors
    }

    /// The cost of having these boxes of a value, each on its device.
    fn held(&self, boxes: &[Region], v: usize) -> f64 {
        self.prices.held(boxes.iter().map(|b| area(b) * self.bound.element[v]))
    }

    /// Who decides where a value lies; none for data, which the host puts where it is needed.
    fn source(&self, v: usize) -> Option<RankPlan> {
        match self.bound.graph.values[v].origin {
            Origin::Node { node, output } => {
                let of = node.index();
                Some(RankPlan { variable: of, of, key: PartyKey::Node(self.node_ids[of], vec![output]) })
            }
            Origin::Input(_) => self.residence(v),
        }
    }

    fn residence(&self, v: usize) -> Option<RankPlan> {
        let (variable, _) = self.residences.get(&v)?;
        Some(RankPlan { variable: *variable, of: v, key: PartyKey::Residence(self.home_ids[&v]) })
    }

    /// Who needs a value.
    fn readers(&self, v: usize, source: Option<&RankPlan>) -> Vec<RankPlan> {
        let nodes = self.bound.readers[v].iter().map(|(node, operands)| {
            let key = PartyKey::Node(self.node_ids[*node], operands.clone());
            RankPlan { variable: *node, of: *node, key }
        });
        let carried = self.bound.carried_by[v].iter().filter_map(|input| self.residence(*input));
        let other = |p: &RankPlan| source.is_none_or(|s| s.variable != p.variable);
        nodes.chain(carried).filter(other).collect()
    }

    /// By choice of the source, where the value lies.
    fn spreads(&self, source: &RankPlan) -> Vec<&[Spread]> {
        match &source.key {
            PartyKey::Node(_, output) => {
                self.nodes[source.of].parts.iter().map(|p| p.spreads[output[0]].as_slice()).collect()
            }
            PartyKey::Residence(_) => {
                self.residences[&source.of].1.spreads.iter().map(Vec::as_slice).collect()
            }
        }
    }

    /// By choice of a reader, what it needs.
    fn needs(&self, reader: &RankPlan) -> Vec<Vec<&Need>> {
        match &reader.key {
            PartyKey::Node(_, operands) => {
                let parts = &self.nodes[reader.of].parts;
                parts.iter().map(|p| operands.iter().map(|&i| &p.ins[i]).collect()).collect()
            }
            PartyKey::Residence(_) => self.residences[&reader.of].1.needs.iter().map(|n| vec![n]).collect(),
        }
    }

    /// Costs of moving one value, over as few variables as decide them.
    fn tables(
        &self,
        v: usize,
        source: Option<&RankPlan>,
        readers: &[RankPlan],
    ) -> Vec<(Vec<usize>, Arc<[f64]>)> {
        let first = usize::from(source.is_some());
        // Only that no partial sums are wanted of data has to be seen to.
        let readers: Vec<Vec<Vec<&Need>>> = readers.iter().map(|r| self.needs(r)).collect();
        let Some(source) = source else {
            let fine = |needs: &Vec<&Need>| needs.iter().all(|n| n.unreduced == 0);
            let cost = |needs: &Vec<&Need>| if fine(needs) { 0.0 } else { FORBIDDEN };
            let table = |r: &Vec<Vec<&Need>>| r.iter().map(cost).collect::<Arc<[f64]>>();
            let all = readers.iter().enumerate().map(|(i, r)| (vec![i + first], table(r)));
            return all.filter(|(_, table)| table.iter().any(|c| *c > 0.0)).collect();
        };
        let source = self.spreads(source);
        let mut pool: Vec<&Need> = Vec::new();
        let mut sets: Vec<Vec<u64>> = Vec::new();
        for reader in &readers {
            sets.push(reader.iter().map(|needs| pooled(&mut pool, needs)).collect());
        }
        // A reader that needs the same whatever it does decides nothing.
        let constant = |set: &[u64]| set.iter().all(|s| *s == set[0]);
        let base = sets.iter().filter(|s| constant(s)).fold(0, |bits, s| bits | s[0]);
        let deciding: Vec<usize> = (0..sets.len()).filter(|&r| !constant(&sets[r])).collect();
        let size = deciding.iter().fold(source.len(), |n, &r| n.saturating_mul(sets[r].len()));
        if size <= self.options.limit && pool.len() <= 64 {
            let pool = Pool::new(pool, self.grid);
            let mut table = Vec::with_capacity(size);
            for (choice, spreads) in source.iter().enumerate() {
                // Choices that leave the value alike cost the same.
                let like = source.iter().position(|s| s == spreads).unwrap_or(choice);
                let row = size / source.len();
                if like < choice {
                    table.extend_from_within(like * row..(like + 1) * row);
                    continue;
                }
                let priced = self.priced(v, spreads, &pool);
                let mut all = vec![base];
                for &r in &deciding {
                    all = all.iter().flat_map(|bits| sets[r].iter().map(move |s| bits | s)).collect();
                }
                table.extend(all.into_iter().map(|set| self.cost(&priced, set)));
            }
            let places = std::iter::once(0).chain(deciding.iter().map(|r| r + first)).collect();
            return vec![(places, table.into())];
        }
        // Too many readers to be seen together: each is counted as if it were alone, which is never too little.
        let mut all = Vec::with_capacity(readers.len());
        for (r, reader) in readers.iter().enumerate() {
            let mut pool: Vec<&Need> = Vec::new();
            let sets: Vec<u64> = reader.iter().map(|needs| pooled(&mut pool, needs)).collect();
            let pool = Pool::new(pool, self.grid);
            let mut table = Vec::with_capacity(source.len() * reader.len());
            for spreads in &source {
                let priced = self.priced(v, spreads, &pool);
                table.extend(sets.iter().map(|&set| self.cost(&priced, set)));
            }
            all.push((vec![0, r + first], table.into()));
        }
        all
    }

    fn priced<'p>(&self, v: usize, spreads: &[Spread], pool: &'p Pool<'p>) -> Priced<'p> {
        let weight = |level: &Level| match self.options.objective {
            Objective::Bytes => 1.0,
            Objective::Seconds => 1.0 / level.bandwidth.max(1.0),
        };
        let element = self.bound.element[v] as f64;
        let weights: Vec<f64> = self.grid.levels.iter().map(|level| element * weight(level)).collect();
        Priced::new(pool, &Lying::new(&self.bound.shapes[v], spreads, self.grid), &weights)
    }

    /// The cost of moving one value to where a set of needs has it.
    fn cost(&self, priced: &Priced, set: u64) -> f64 {
        let Some([sum, most]) = priced.of(set) else { return FORBIDDEN };
        match self.options.objective {
            Objective::Bytes => sum,
            Objective::Seconds => most,
        }
    }

    /// The variables' choices that are those of a state, where they are still to be had; the first otherwise.
    pub fn start(&self, state: &State, level: usize) -> Vec<usize> {
        let mut start = Vec::with_capacity(self.nodes.len() + self.residences.len());
        for (options, choices) in self.nodes.iter().zip(&state.choices) {
            start.push(options.choices.iter().position(|c| *c == choices[level]).unwrap_or(0));
        }
        start.resize(self.nodes.len() + self.residences.len(), 0);
        for (v, (variable, residence)) in &self.residences {
            start[*variable] = residence.spreads.iter().position(|s| *s == state.residences[*v]).unwrap_or(0);
        }
        start
    }

    /// Puts the variables' choices into a state.
    pub fn put(&self, choices: &[usize], state: &mut State, level: usize) {
        for (node, options) in self.nodes.iter().enumerate() {
            state.choices[node][level] = options.choices[choices[node]];
        }
        for (v, (variable, residence)) in &self.residences {
            state.residences[*v] = residence.spreads[choices[*variable]].clone();
        }
    }
}

/// The set of these needs, which are put into the pool where they are not there yet.
fn pooled<'a>(pool: &mut Vec<&'a Need>, needs: &[&'a Need]) -> u64 {
    let mut set = 0u64;
    for &need in needs {
        let at = pool.iter().position(|n| *n == need).unwrap_or_else(|| {
            pool.push(need);
            pool.len() - 1
        });
        set |= 1 << at.min(63);
    }
    set
}

/// The cut over the devices of these levels that a state says.
pub(crate) fn of_state(bound: &Bound, levels: &[Level], state: &State) -> Result<Cut, CutError> {
    let grid = Grid::new(levels);
    cut_of(bound, &grid, state, &mut Judge::new(bound, &grid, &[]))
}

/// The cut that a state says; data lies where it is needed, so that none is moved.
pub(crate) fn cut_of(bound: &Bound, grid: &Grid, state: &State, judge: &mut Judge) -> Result<Cut, CutError> {
    let mut cut = Cut::none(bound.graph, grid.levels);
    let mut needs: HashMap<usize, Vec<Need>> = HashMap::new();
    for (id, node) in bound.graph.nodes.iter().enumerate() {
        let divided = judge.divided(id, &state.choices[id])?;
        let parts = &divided.parts;
        let axis = |c: &Choice| if let Choice::Axis(a) = c { Some(*a) } else { None };
        cut.nodes[id] = state.choices[id].iter().map(axis).collect();
        for (v, spreads) in node.outs.iter().zip(&parts.spreads) {
            cut.values[v.index()].clone_from(spreads);
        }
        for (v, need) in node.ins.iter().zip(&parts.ins) {
            let input = matches!(bound.graph.value(*v).origin, Origin::Input(_));
            if input && !bound.has_home(v.index()) {
                needs.entry(v.index()).or_default().push(need.clone());
            }
        }
    }
    for v in (0..cut.values.len()).filter(|v| bound.has_home(*v)) {
        cut.values[v] = state.residences[v].clone();
    }
    for (v, needs) in needs {
        for level in 0..grid.levels.len() {
            for d in 0..bound.shapes[v].len() {
                let mut spreads = cut.values[v].clone();
                spreads[level] = Spread::Along(d);
                let there = |device: usize| {
                    let own = held(&bound.shapes[v], &spreads, grid, device);
                    needs.iter().all(|n| contains(&own, &n.boxes[device]))
                };
                if (0..grid.devices()).all(there) {
                    cut.values[v] = spreads;
                    break;
                }
            }
        }
    }
    Ok(cut)
}
