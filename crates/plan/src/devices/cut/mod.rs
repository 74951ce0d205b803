//! One training step over several devices: along which axis every node is divided at every level of groups
//! of devices, where every value then lies, and the bytes that this moves. [`cut`] finds the cut, [`cut_traffic()`]
//! counts what any cut moves, [`comparator`] holds cuts by rule, [`named_cut()`] those people ask for, [`fitted`] takes
//! one over to other sizes, [`deal`](partition()) makes a graph for each device.

pub mod comparator;
mod eliminate;
mod evaluate;
mod fit;
mod machine;
mod mesh;
mod named;
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

pub use evaluate::{CutCost, CutTraffic, cut_cost, cut_traffic};
pub use fit::{cut_like, fit_cut};
pub use machine::CutMachine;
pub(crate) use mesh::whole_box;
pub use mesh::{DeviceMesh, held_box, split_range};
pub use named::{CUT_NAMES, WORTH, best_cut, cut_candidates, low_memory_cuts, named_cut};
pub use partition::{DeviceGraph, InputBox, partition};
pub use parts::{NeededBoxes, NodeCut, NodeParts, node_parts, same_axis};
pub use rule::CutRule;
pub use search::{FoundCut, find_cut};
pub use sized::{NodeKind, SizedGraph};
pub use traffic::fetches;

use crate::document::error::PlanError;
use crate::time::cost::Rates;
use gulliver_graph::dim::DimError;
use gulliver_graph::graph::op::OpError;
use gulliver_graph::graph::{Graph, GraphError};
use gulliver_graph::spec::{AxisId, ReduceKind};

/// How a value lies over the groups of devices of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharding {
    /// Every group has all of it.
    Replicated,
    /// Divided along this dimension.
    Split(usize),
    /// Every group has a partial result of all of it.
    Partial(ReduceKind),
}

/// One level: the devices of a group of the level above are divided into groups. First levels are over the
/// slowest links.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshLevel {
    /// Each group's share of the work; equal numbers are even.
    pub shares: Vec<u64>,
    /// Bytes a second that a device receives over this level's links.
    pub bandwidth: f64,
}

impl MeshLevel {
    /// So many groups with equal shares.
    pub fn even(groups: usize, bandwidth: f64) -> MeshLevel {
        MeshLevel { shares: vec![1; groups], bandwidth }
    }
}

/// What is decided.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphCut {
    /// The groups of devices, outermost first. Device numbers count in the same order: the last level's
    /// group changes fastest.
    pub levels: Vec<MeshLevel>,
    /// By node, then level: the axis of the node's spec that is divided; none: every group does all of it.
    /// Where there is none and a result is partial, the node's operands are taken unreduced.
    pub nodes: Vec<Vec<Option<AxisId>>>,
    /// By value, then level: for inputs where they live, for results the sharding their node leaves them in.
    pub values: Vec<Vec<Sharding>>,
}

/// What the search is after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutObjective {
    /// Least seconds of a step.
    Seconds,
    /// Fewest bytes moved, with every node divided that can be. Updates need not be, nor what is made of
    /// single numbers: with all of a gradient, everyone may do all of its update.
    Bytes,
}

/// A device as a cut sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CutDevice {
    /// How fast it is.
    pub rates: Rates,
    /// Bytes of device memory; none is no limit.
    pub memory: Option<u64>,
    /// Seconds a step takes longer for every byte beyond `memory`, which is swapped or recomputed. Infinite: only cuts
    /// that fit are wanted, if there are any.
    pub spill: f64,
}

impl Default for CutDevice {
    /// A device of usual speed without a limit of memory.
    fn default() -> CutDevice {
        CutDevice { rates: Rates::default(), memory: None, spill: f64::INFINITY }
    }
}

impl CutDevice {
    /// Bytes beyond the memory when `needed` are needed.
    pub(crate) fn beyond(&self, needed: u64) -> u64 {
        self.memory.map_or(0, |memory| needed.saturating_sub(memory))
    }
}

/// The unit of a device among units of which the last stands for all that follow.
pub(crate) fn unit(units: &[CutDevice], device: usize) -> CutDevice {
    units.get(device).or(units.last()).copied().unwrap_or_default()
}

/// How to search.
#[derive(Clone, Debug, PartialEq)]
pub struct CutOptions {
    /// What is made small.
    pub objective: CutObjective,
    /// By device; the last stands for all that follow.
    pub devices: Vec<CutDevice>,
    /// Largest table of the exact search; beyond it variables are fixed in turn and the rest is solved.
    pub limit: usize,
    /// How often the levels are chosen anew after all have been, each given the others.
    pub rounds: usize,
}

impl Default for CutOptions {
    fn default() -> CutOptions {
        CutOptions {
            objective: CutObjective::Seconds,
            devices: vec![CutDevice::default()],
            limit: 1 << 16,
            rounds: 1,
        }
    }
}

/// Why there is no cut.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CutError {
    /// A size is missing or makes no sense.
    #[error(transparent)]
    Size(#[from] DimError),
    /// A node's operands do not fit its operator.
    #[error("node {node} ({op}): {source}")]
    Node {
        /// Which node.
        node: usize,
        /// Its operator.
        op: &'static str,
        /// What it said.
        source: Box<OpError>,
    },
    /// Levels that cannot be.
    #[error(
        "level {level} has {groups} groups; give from 1 to 64, each with a share above 0, and at most 64 devices"
    )]
    Level {
        /// Which, outermost first.
        level: usize,
        /// Groups it was given.
        groups: usize,
    },
    /// Not a cut of this graph.
    #[error("node {node} cannot be cut so: {why}")]
    Illegal {
        /// Which node.
        node: usize,
        /// What forbids it.
        why: String,
    },
    /// Partial results that are not sums of f32.
    #[error("partial results of `{0}` cannot be put together")]
    Partial(String),
    /// A device's graph breaks a rule of graphs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A name that cannot be followed.
    #[error("strategy `{name}`: {why}")]
    Name {
        /// What was asked for.
        name: String,
        /// What forbids it, and what to do.
        why: String,
    },
}

/// Largest number of devices of a cut.
pub const MOST_DEVICES: usize = 64;

impl From<CutError> for PlanError {
    fn from(e: CutError) -> PlanError {
        match e {
            CutError::Size(e) => PlanError::Size(e),
            e => PlanError::Cut(e.to_string()),
        }
    }
}

/// Refuses levels that cannot be.
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

/// Levels of prime numbers of groups, largest first, for so many equal devices with one kind of link.
pub fn levels_of(devices: usize, bandwidth: f64) -> Vec<MeshLevel> {
    primes(devices).into_iter().map(|groups| MeshLevel::even(groups, bandwidth)).collect()
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
    /// Everything everywhere: the cut that divides nothing.
    pub fn none(graph: &Graph, levels: &[MeshLevel]) -> GraphCut {
        GraphCut {
            levels: levels.to_vec(),
            nodes: vec![vec![None; levels.len()]; graph.nodes.len()],
            values: vec![vec![Sharding::Replicated; levels.len()]; graph.values.len()],
        }
    }

    /// How many devices.
    pub fn devices(&self) -> usize {
        self.levels.iter().map(|l| l.shares.len()).product()
    }

    /// What a node does at every level.
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
