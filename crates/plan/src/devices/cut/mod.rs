//! Cuts of a training graph over several devices (Tofu): the axis along which each node is divided, and the sharding
//! of each value. [`find_cut`] searches for one, [`rule_cut`] follows a rule, [`cut_cost`] evaluates one, [`fit_cut`]
//! adapts one to other sizes, [`partition`](partition()) makes the graph of each device.

mod candidates;
mod eliminate;
mod evaluate;
mod fit;
mod machine;
mod mesh;
mod partition;
mod parts;
mod price;
mod rule;
mod search;
mod sized;
mod tables;
#[cfg(test)]
mod tests;
mod traffic;

pub use candidates::{WORTH, best_cut, cut_candidates, low_memory_cuts};
pub use evaluate::{CutCost, CutTraffic, cut_cost, cut_traffic};
pub use fit::{cut_like, fit_cut};
pub use machine::CutMachine;
pub(crate) use mesh::whole_box;
pub use mesh::{DeviceMesh, held_box, split_range};
pub use partition::{DevicePart, InputBox, partition};
pub use parts::{NeededBoxes, NodeCut, NodeParts, node_parts};
pub use rule::{CutRule, Undivided, cut_by_rules, rule_cut};
pub use search::{FoundCut, find_cut};
pub use sized::{NodeKind, SizedGraph};

use crate::document::error::PlanError;
use crate::time::cost::Rates;
use gulliver_graph::dim::DimError;
use gulliver_graph::graph::op::OpError;
use gulliver_graph::graph::{Graph, GraphError};
use gulliver_graph::spec::{AxisId, ReduceKind};

/// How a value is spread over the groups of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharding {
    /// Every group holds the whole value.
    Replicated,
    /// Every group holds its part along this dimension.
    Split(usize),
    /// Every group holds a partial result of the whole value, still to be reduced.
    Partial(ReduceKind),
}

/// One level of the mesh: each group of the level above is divided into groups. Outer levels have the slower links.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshLevel {
    /// The share of the work of each group, relative to the others.
    pub shares: Vec<u64>,
    /// Bytes per second that a device receives over the links of this level.
    pub bandwidth: f64,
}

impl MeshLevel {
    /// A level of groups with equal shares.
    pub fn even(groups: usize, bandwidth: f64) -> MeshLevel {
        MeshLevel { shares: vec![1; groups], bandwidth }
    }
}

/// A cut of a graph over the devices of a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphCut {
    /// The levels of the mesh, outermost first. Devices are numbered in that order: the group of the last level changes
    /// fastest.
    pub levels: Vec<MeshLevel>,
    /// By node, then level: the axis of the node's spec that is divided. `None` with a partial result: the node takes
    /// unreduced operands. `None` otherwise: every group repeats the node.
    pub nodes: Vec<Vec<Option<AxisId>>>,
    /// By value, then level: the sharding of an input between steps, or of a result as its node leaves it.
    pub values: Vec<Vec<Sharding>>,
}

/// The cost that the search minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutObjective {
    /// Seconds of a step.
    Seconds,
    /// Bytes moved, when every node is divided that can be. Updates and nodes on single numbers may be repeated.
    Bytes,
}

/// A device as the search sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CutDevice {
    /// Speed of its kernels.
    pub rates: Rates,
    /// Bytes of device memory; `None` is no limit.
    pub memory: Option<u64>,
    /// Seconds that a step takes longer per byte beyond `memory`, for swapping or recompute. Infinite: cuts that fit are
    /// always preferred.
    pub spill: f64,
}

impl Default for CutDevice {
    /// A device of usual speed, without a memory limit.
    fn default() -> CutDevice {
        CutDevice { rates: Rates::default(), memory: None, spill: f64::INFINITY }
    }
}

impl CutDevice {
    /// How many of `needed` bytes are beyond the memory.
    pub(crate) fn beyond(&self, needed: u64) -> u64 {
        self.memory.map_or(0, |memory| needed.saturating_sub(memory))
    }
}

/// A device of a list whose last entry stands for all devices after it.
pub(crate) fn device_at(devices: &[CutDevice], number: usize) -> CutDevice {
    devices.get(number).or(devices.last()).copied().unwrap_or_default()
}

/// Options of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct CutOptions {
    /// The cost to minimise.
    pub objective: CutObjective,
    /// By device; the last entry stands for all devices after it.
    pub devices: Vec<CutDevice>,
    /// Entries of the largest table of the exact search. Beyond it, some variables are fixed and the rest is solved.
    pub limit: usize,
}

impl Default for CutOptions {
    fn default() -> CutOptions {
        CutOptions { objective: CutObjective::Seconds, devices: vec![CutDevice::default()], limit: 1 << 16 }
    }
}

/// Why a graph cannot be cut.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CutError {
    /// A size is missing or invalid.
    #[error(transparent)]
    Size(#[from] DimError),
    /// The operands of a node do not fit its operator.
    #[error("node {node} ({op}): {source}")]
    Node {
        /// The node.
        node: usize,
        /// Its operator.
        op: &'static str,
        /// The error of the operator.
        source: Box<OpError>,
    },
    /// A level has no group, too many groups, or a share out of range.
    #[error(
        "level {level} has {groups} groups; give from 1 to 64, each with a share above 0, and at most 64 devices"
    )]
    Level {
        /// The level, counted from the outermost.
        level: usize,
        /// Its groups.
        groups: usize,
    },
    /// The cut is illegal for a node.
    #[error("node {node} cannot be cut so: {why}")]
    Illegal {
        /// The node.
        node: usize,
        /// The reason.
        why: String,
    },
    /// Partial results of a value that is not a sum of f32.
    #[error("partial results of `{0}` cannot be put together")]
    Partial(String),
    /// A device's graph breaks a rule of graphs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A rule that cannot be followed.
    #[error("strategy `{name}`: {why}")]
    Rule {
        /// The rules, joined by `+`.
        name: String,
        /// The reason.
        why: String,
    },
}

/// Most devices of a cut.
const MOST_DEVICES: usize = 64;

impl From<CutError> for PlanError {
    fn from(e: CutError) -> PlanError {
        match e {
            CutError::Size(e) => PlanError::Size(e),
            e => PlanError::Cut(e.to_string()),
        }
    }
}

/// Checks the levels of a mesh.
pub(crate) fn check_levels(levels: &[MeshLevel]) -> Result<(), CutError> {
    let mut devices = 1usize;
    for (level, MeshLevel { shares, .. }) in levels.iter().enumerate() {
        devices = devices.saturating_mul(shares.len());
        let fine = !shares.is_empty() && shares.iter().all(|&s| s > 0 && s < 1 << 20);
        if !fine || devices > MOST_DEVICES {
            return Err(CutError::Level { level, groups: shares.len() });
        }
    }
    Ok(())
}

/// The prime factors of a number, largest first.
fn primes(number: usize) -> Vec<usize> {
    let (mut rest, mut factor, mut all) = (number, 2, Vec::new());
    while rest > 1 {
        if rest.is_multiple_of(factor) {
            all.push(factor);
            rest /= factor;
        } else {
            factor += 1;
        }
    }
    all.reverse();
    all
}

impl GraphCut {
    /// The cut that divides nothing.
    pub fn none(graph: &Graph, levels: &[MeshLevel]) -> GraphCut {
        GraphCut {
            levels: levels.to_vec(),
            nodes: vec![vec![None; levels.len()]; graph.nodes.len()],
            values: vec![vec![Sharding::Replicated; levels.len()]; graph.values.len()],
        }
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.levels.iter().map(|l| l.shares.len()).product()
    }

    /// How a node is cut at each level.
    pub fn choices(&self, graph: &Graph, node: usize) -> Vec<NodeCut> {
        let outs = &graph.nodes[node].outs;
        let partial =
            |level: usize| outs.iter().any(|v| matches!(self.values[v.index()][level], Sharding::Partial(_)));
        let at = |(level, axis): (usize, &Option<AxisId>)| match axis {
            Some(axis) => NodeCut::Axis(*axis),
            None if partial(level) => NodeCut::Unreduced,
            None => NodeCut::Repeat,
        };
        self.nodes[node].iter().enumerate().map(at).collect()
    }
}
