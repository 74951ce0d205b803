//! The choice of one level as a problem of tables: a variable for what every node does and for where every
//! weight and state lives, a cost for every value that is moved and every node that is computed.

use super::eliminate::{CostFactor, CostProblem, FORBIDDEN};
use super::evaluate::CutEvaluator;
use super::mesh::{DeviceMesh, area, contains, held_box};
use super::parts::{NeededBoxes, NodeCut, NodeParts, options_at, residences_at, seconds};
use super::price::{MovePrices, NeedPool};
use super::sized::SizedGraph;
use super::traffic::HeldBoxes;
use super::{CutDevice, CutError, CutObjective, CutOptions, GraphCut, MeshLevel, Sharding, unit};
use gulliver_graph::graph::Origin;
use gulliver_graph::spec::Region;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// What every node does and where every input with a residence lives, at every level.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CutState {
    /// By node, then level.
    pub choices: Vec<Vec<NodeCut>>,
    /// By value, then level; empty where there is no residence.
    pub residences: Vec<Vec<Sharding>>,
}

impl CutState {
    /// No levels.
    pub fn new(sized: &SizedGraph) -> CutState {
        let graph = sized.graph;
        CutState {
            choices: vec![Vec::new(); graph.nodes.len()],
            residences: vec![Vec::new(); graph.values.len()],
        }
    }

    /// One level more, at which every group does all.
    pub fn push(&mut self, sized: &SizedGraph) {
        self.choices.iter_mut().for_each(|c| c.push(NodeCut::Repeat));
        let residences = self.residences.iter_mut().enumerate().filter(|(v, _)| sized.persists(*v));
        residences.for_each(|(_, residence)| residence.push(Sharding::Replicated));
    }
}

/// What a kind of node can do at the level, given what it does at others.
#[derive(Debug)]
pub(crate) struct NodeOptions {
    pub choices: Vec<NodeCut>,
    pub parts: Vec<NodeParts>,
    pub seconds: Vec<f64>,
}

/// Where inputs of one type can live at the level.
#[derive(Debug)]
pub(crate) struct ResidenceOptions {
    pub shardings: Vec<Vec<Sharding>>,
    pub needs: Vec<NeededBoxes>,
}

/// What bytes of memory cost.
#[derive(Clone, Debug)]
pub(crate) struct MemoryPrices {
    /// A byte on the device with the least memory.
    pub byte: f64,
    /// By device: a byte there, against one on the device with the least memory.
    pub tightness: Vec<f64>,
}

impl MemoryPrices {
    /// At this price, on these devices.
    pub fn new(byte: f64, units: &[CutDevice], devices: usize) -> MemoryPrices {
        let limits = (0..devices).map(|d| unit(units, d).memory.map_or(f64::INFINITY, |m| m.max(1) as f64));
        let least = limits.clone().fold(f64::INFINITY, f64::min);
        let tight = |limit: f64| if limit.is_finite() { least / limit } else { 0.0 };
        MemoryPrices { byte, tightness: limits.map(tight).collect() }
    }

    /// The cost of so many bytes, by device.
    pub fn cost(&self, bytes: impl Iterator<Item = u64>) -> f64 {
        let each = bytes.zip(&self.tightness).map(|(bytes, tight)| bytes as f64 * tight);
        self.byte * each.fold(0.0, f64::max)
    }
}

/// What is settled before tables are made.
pub(crate) struct CostTables<'a> {
    pub sized: &'a SizedGraph<'a>,
    pub mesh: &'a DeviceMesh<'a>,
    pub options: &'a CutOptions,
    pub prices: &'a MemoryPrices,
    /// Cost of a second of work where seconds are not what counts: all of them together are less than a byte.
    pub tie: f64,
    pub nodes: Vec<Rc<NodeOptions>>,
    node_ids: Vec<usize>,
    /// By value, for those with a residence: the variable, and what it can be.
    pub residences: BTreeMap<usize, (usize, Rc<ResidenceOptions>)>,
    residence_ids: HashMap<usize, usize>,
}

/// A table with the variables it is over, as places among a value's source and readers.
type Shared = Rc<Vec<(Vec<usize>, Arc<[f64]>)>>;

/// One variable that has to do with a value.
struct ValueUser {
    variable: usize,
    /// The node, or the input whose residence it is.
    of: usize,
    key: UserKey,
}

/// Parties with equal keys have equal choices.
#[derive(Clone, PartialEq, Eq, Hash)]
enum UserKey {
    /// Options, and the operands through which it reads or the result that it makes.
    Node(usize, Vec<usize>),
    /// Options.
    Residence(usize),
}

impl<'a> CostTables<'a> {
    /// The options of every node and residence at one level.
    pub fn new(
        sized: &'a SizedGraph<'a>,
        mesh: &'a DeviceMesh<'a>,
        options: &'a CutOptions,
        prices: &'a MemoryPrices,
        state: &CutState,
        level: usize,
    ) -> CostTables<'a> {
        let mut ids: HashMap<(u32, bool, Vec<NodeCut>), usize> = HashMap::new();
        let mut known: Vec<Rc<NodeOptions>> = Vec::new();
        let mut node_ids = Vec::with_capacity(state.choices.len());
        for (node, choices) in state.choices.iter().enumerate() {
            let mut others = choices.clone();
            others[level] = NodeCut::Repeat;
            let repeat = sized.may_repeat(node, options.objective);
            let key = (sized.kinds.kind_of[node], repeat, others);
            let id = *ids.entry(key).or_insert_with_key(|(_, repeat, others)| {
                let kind = sized.kind(node);
                let all = options_at(kind, others, level, mesh, *repeat);
                let (choices, parts): (Vec<NodeCut>, Vec<NodeParts>) = all.into_iter().unzip();
                let seconds = parts.iter().map(|p| seconds(kind, p, &options.devices, mesh)).collect();
                known.push(Rc::new(NodeOptions { choices, parts, seconds }));
                known.len() - 1
            });
            node_ids.push(id);
        }
        let nodes: Vec<Rc<NodeOptions>> = node_ids.iter().map(|&id| known[id].clone()).collect();
        let mut home_kinds: HashMap<(u32, Vec<Sharding>), (usize, Rc<ResidenceOptions>)> = HashMap::new();
        let (mut residences, mut residence_ids) = (BTreeMap::new(), HashMap::new());
        for v in (0..state.residences.len()).filter(|v| sized.persists(*v)) {
            let mut others = state.residences[v].clone();
            others[level] = Sharding::Replicated;
            let new = home_kinds.len();
            let entry =
                home_kinds.entry((sized.kinds.type_of[v], others)).or_insert_with_key(|(_, others)| {
                    let (shardings, needs) =
                        residences_at(&sized.shapes[v], others, level, mesh).into_iter().unzip();
                    (new, Rc::new(ResidenceOptions { shardings, needs }))
                });
            residences.insert(v, (nodes.len() + residences.len(), entry.1.clone()));
            residence_ids.insert(v, entry.0);
        }
        let most: f64 = nodes.iter().map(|n| n.seconds.iter().copied().fold(0.0, f64::max)).sum();
        let tie = 0.5 / most.max(1e-30);
        CostTables { sized, mesh, options, prices, tie, nodes, node_ids, residences, residence_ids }
    }

    /// All variables and costs.
    pub fn problem(&self) -> CostProblem {
        let mut domains: Vec<usize> = self.nodes.iter().map(|n| n.choices.len()).collect();
        domains.resize(domains.len() + self.residences.len(), 0);
        for (variable, residence) in self.residences.values() {
            domains[*variable] = residence.shardings.len();
        }
        let mut factors = self.own_costs();
        let mut known: HashMap<(u32, Option<UserKey>, Vec<UserKey>), Shared> = HashMap::new();
        for v in 0..self.sized.graph.values.len() {
            let source = self.source(v);
            let readers = self.readers(v, source.as_ref());
            if readers.is_empty() {
                continue;
            }
            let key = (
                self.sized.kinds.type_of[v],
                source.as_ref().map(|s| s.key.clone()),
                readers.iter().map(|r| r.key.clone()).collect::<Vec<_>>(),
            );
            let tables =
                known.entry(key).or_insert_with(|| Rc::new(self.tables(v, source.as_ref(), &readers)));
            let variables: Vec<usize> = source.iter().chain(&readers).map(|p| p.variable).collect();
            for (places, table) in tables.iter() {
                let scope = places.iter().map(|&p| variables[p]).collect();
                factors.push(CostFactor { scope, table: table.clone() });
            }
        }
        CostProblem { domains, factors }
    }

    /// Work and memory, which depend on one variable each.
    fn own_costs(&self) -> Vec<CostFactor> {
        let work = if self.options.objective == CutObjective::Seconds { 1.0 } else { self.tie };
        let mut known: HashMap<(usize, Vec<bool>), Arc<[f64]>> = HashMap::new();
        let mut factors = Vec::new();
        for (node, options) in self.nodes.iter().enumerate() {
            let outs = &self.sized.graph.nodes[node].outs;
            let kept: Vec<bool> =
                outs.iter().map(|v| self.prices.byte > 0.0 && self.sized.kept[v.index()]).collect();
            let table = known.entry((self.node_ids[node], kept)).or_insert_with_key(|(_, kept)| {
                let cost = |(parts, seconds): (&NodeParts, &f64)| {
                    let held = parts.outs.iter().zip(outs).zip(kept).filter(|(_, kept)| **kept);
                    let held = held.map(|((boxes, v), _)| self.held_cost(boxes, v.index()));
                    seconds * work + held.sum::<f64>()
                };
                options.parts.iter().zip(&options.seconds).map(cost).collect()
            });
            factors.push(CostFactor { scope: vec![node], table: table.clone() });
        }
        if self.prices.byte > 0.0 {
            for (v, (variable, residence)) in &self.residences {
                let table = residence.needs.iter().map(|n| self.held_cost(&n.boxes, *v)).collect();
                factors.push(CostFactor { scope: vec![*variable], table });
            }
        }
        factors
    }

    /// The cost of having these boxes of a value, each on its device.
    fn held_cost(&self, boxes: &[Region], v: usize) -> f64 {
        self.prices.cost(boxes.iter().map(|b| area(b) * self.sized.element[v]))
    }

    /// Who decides where a value lies; none for data, which the host puts where it is needed.
    fn source(&self, v: usize) -> Option<ValueUser> {
        match self.sized.graph.values[v].origin {
            Origin::Node { node, output } => {
                let of = node.index();
                Some(ValueUser { variable: of, of, key: UserKey::Node(self.node_ids[of], vec![output]) })
            }
            Origin::Input(_) => self.residence(v),
        }
    }

    fn residence(&self, v: usize) -> Option<ValueUser> {
        let (variable, _) = self.residences.get(&v)?;
        Some(ValueUser { variable: *variable, of: v, key: UserKey::Residence(self.residence_ids[&v]) })
    }

    /// Who needs a value.
    fn readers(&self, v: usize, source: Option<&ValueUser>) -> Vec<ValueUser> {
        let nodes = self.sized.readers[v].iter().map(|(node, operands)| {
            let key = UserKey::Node(self.node_ids[*node], operands.clone());
            ValueUser { variable: *node, of: *node, key }
        });
        let carried = self.sized.carried_by[v].iter().filter_map(|input| self.residence(*input));
        let other = |p: &ValueUser| source.is_none_or(|s| s.variable != p.variable);
        nodes.chain(carried).filter(other).collect()
    }

    /// By choice of the source, where the value lies.
    fn shardings(&self, source: &ValueUser) -> Vec<&[Sharding]> {
        match &source.key {
            UserKey::Node(_, output) => {
                self.nodes[source.of].parts.iter().map(|p| p.shardings[output[0]].as_slice()).collect()
            }
            UserKey::Residence(_) => {
                self.residences[&source.of].1.shardings.iter().map(Vec::as_slice).collect()
            }
        }
    }

    /// By choice of a reader, what it needs.
    fn needs(&self, reader: &ValueUser) -> Vec<Vec<&NeededBoxes>> {
        match &reader.key {
            UserKey::Node(_, operands) => {
                let parts = &self.nodes[reader.of].parts;
                parts.iter().map(|p| operands.iter().map(|&i| &p.ins[i]).collect()).collect()
            }
            UserKey::Residence(_) => self.residences[&reader.of].1.needs.iter().map(|n| vec![n]).collect(),
        }
    }

    /// Costs of moving one value, over as few variables as decide them.
    fn tables(
        &self,
        v: usize,
        source: Option<&ValueUser>,
        readers: &[ValueUser],
    ) -> Vec<(Vec<usize>, Arc<[f64]>)> {
        let first = usize::from(source.is_some());
        // Only that no partial sums are wanted of data has to be seen to.
        let readers: Vec<Vec<Vec<&NeededBoxes>>> = readers.iter().map(|r| self.needs(r)).collect();
        let Some(source) = source else {
            let fine = |needs: &Vec<&NeededBoxes>| needs.iter().all(|n| n.unreduced == 0);
            let cost = |needs: &Vec<&NeededBoxes>| if fine(needs) { 0.0 } else { FORBIDDEN };
            let table = |r: &Vec<Vec<&NeededBoxes>>| r.iter().map(cost).collect::<Arc<[f64]>>();
            let all = readers.iter().enumerate().map(|(i, r)| (vec![i + first], table(r)));
            return all.filter(|(_, table)| table.iter().any(|c| *c > 0.0)).collect();
        };
        let source = self.shardings(source);
        let mut pool: Vec<&NeededBoxes> = Vec::new();
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
            let pool = NeedPool::new(pool, self.mesh);
            let mut table = Vec::with_capacity(size);
            for (choice, shardings) in source.iter().enumerate() {
                // Choices that leave the value alike cost the same.
                let like = source.iter().position(|s| s == shardings).unwrap_or(choice);
                let row = size / source.len();
                if like < choice {
                    table.extend_from_within(like * row..(like + 1) * row);
                    continue;
                }
                let priced = self.priced(v, shardings, &pool);
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
            let mut pool: Vec<&NeededBoxes> = Vec::new();
            let sets: Vec<u64> = reader.iter().map(|needs| pooled(&mut pool, needs)).collect();
            let pool = NeedPool::new(pool, self.mesh);
            let mut table = Vec::with_capacity(source.len() * reader.len());
            for shardings in &source {
                let priced = self.priced(v, shardings, &pool);
                table.extend(sets.iter().map(|&set| self.cost(&priced, set)));
            }
            all.push((vec![0, r + first], table.into()));
        }
        all
    }

    fn priced<'p>(&self, v: usize, shardings: &[Sharding], pool: &'p NeedPool<'p>) -> MovePrices<'p> {
        let weight = |level: &MeshLevel| match self.options.objective {
            CutObjective::Bytes => 1.0,
            CutObjective::Seconds => 1.0 / level.bandwidth.max(1.0),
        };
        let element = self.sized.element[v] as f64;
        let weights: Vec<f64> = self.mesh.levels.iter().map(|level| element * weight(level)).collect();
        MovePrices::new(pool, &HeldBoxes::new(&self.sized.shapes[v], shardings, self.mesh), &weights)
    }

    /// The cost of moving one value to where a set of needs has it.
    fn cost(&self, priced: &MovePrices, set: u64) -> f64 {
        let Some([sum, most]) = priced.of(set) else { return FORBIDDEN };
        match self.options.objective {
            CutObjective::Bytes => sum,
            CutObjective::Seconds => most,
        }
    }

    /// The variables' choices that are those of a state, where they are still to be had; the first otherwise.
    pub fn start(&self, state: &CutState, level: usize) -> Vec<usize> {
        let mut start = Vec::with_capacity(self.nodes.len() + self.residences.len());
        for (options, choices) in self.nodes.iter().zip(&state.choices) {
            start.push(options.choices.iter().position(|c| *c == choices[level]).unwrap_or(0));
        }
        start.resize(self.nodes.len() + self.residences.len(), 0);
        for (v, (variable, residence)) in &self.residences {
            start[*variable] =
                residence.shardings.iter().position(|s| *s == state.residences[*v]).unwrap_or(0);
        }
        start
    }

    /// Puts the variables' choices into a state.
    pub fn put(&self, choices: &[usize], state: &mut CutState, level: usize) {
        for (node, options) in self.nodes.iter().enumerate() {
            state.choices[node][level] = options.choices[choices[node]];
        }
        for (v, (variable, residence)) in &self.residences {
            state.residences[*v] = residence.shardings[choices[*variable]].clone();
        }
    }
}

/// The set of these needs, which are put into the pool where they are not there yet.
fn pooled<'a>(pool: &mut Vec<&'a NeededBoxes>, needs: &[&'a NeededBoxes]) -> u64 {
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
pub(crate) fn of_state(
    sized: &SizedGraph,
    levels: &[MeshLevel],
    state: &CutState,
) -> Result<GraphCut, CutError> {
    let mesh = DeviceMesh::new(levels);
    cut_of(sized, &mesh, state, &mut CutEvaluator::new(sized, &mesh, &[]))
}

/// The cut that a state says; data lies where it is needed, so that none is moved.
pub(crate) fn cut_of(
    sized: &SizedGraph,
    mesh: &DeviceMesh,
    state: &CutState,
    judge: &mut CutEvaluator,
) -> Result<GraphCut, CutError> {
    let mut cut = GraphCut::none(sized.graph, mesh.levels);
    let mut needs: HashMap<usize, Vec<NeededBoxes>> = HashMap::new();
    for (id, node) in sized.graph.nodes.iter().enumerate() {
        let divided = judge.divided(id, &state.choices[id])?;
        let parts = &divided.parts;
        let axis = |c: &NodeCut| if let NodeCut::Axis(a) = c { Some(*a) } else { None };
        cut.nodes[id] = state.choices[id].iter().map(axis).collect();
        for (v, shardings) in node.outs.iter().zip(&parts.shardings) {
            cut.values[v.index()].clone_from(shardings);
        }
        for (v, need) in node.ins.iter().zip(&parts.ins) {
            let input = matches!(sized.graph.value(*v).origin, Origin::Input(_));
            if input && !sized.persists(v.index()) {
                needs.entry(v.index()).or_default().push(need.clone());
            }
        }
    }
    for v in (0..cut.values.len()).filter(|v| sized.persists(*v)) {
        cut.values[v] = state.residences[v].clone();
    }
    for (v, needs) in needs {
        for level in 0..mesh.levels.len() {
            for d in 0..sized.shapes[v].len() {
                let mut shardings = cut.values[v].clone();
                shardings[level] = Sharding::Split(d);
                let there = |device: usize| {
                    let own = held_box(&sized.shapes[v], &shardings, mesh, device);
                    needs.iter().all(|n| contains(&own, &n.boxes[device]))
                };
                if (0..mesh.devices()).all(there) {
                    cut.values[v] = shardings;
                    break;
                }
            }
        }
    }
    Ok(cut)
}
