//! One graph of a job on one device. The graph serves inputs of all sizes; where nodes are cut it serves one size, and is
//! replaced for another.

use super::partitions::{Partition, Partitions};
use crate::budget::planner::StepPlanner;
use crate::document::error::PlanError;
use crate::document::shard::Shard;
use crate::step::order::PartialTurn;
use crate::step::outline::slice_of;
use crate::time::cost::MeasuredKinds;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// A graph, with its step planner and measured times.
#[derive(Clone)]
pub(crate) struct Side {
    pub(crate) graph: Arc<Graph>,
    pub(crate) partials: u32,
    /// The turns of its nodes, if a schedule has them.
    pub(super) turns: Option<Vec<PartialTurn>>,
    /// The job's graph, if several devices share it.
    pub(super) whole: Option<Arc<Graph>>,
    /// Made for the first sizes: they decide which order needs least memory.
    pub(super) steps: Option<StepPlanner>,
    /// Measured times of kernels, for later plans.
    pub(super) measured: MeasuredKinds,
    /// The source of graphs, if each serves one size.
    cut: Option<CutSide>,
}

/// One device's share of a cut: a graph for every input size.
#[derive(Clone)]
struct CutSide {
    partitions: Arc<Partitions>,
    device: usize,
    /// The sizes of one partial that the present graph serves.
    sizes: Bindings,
    /// The device's shard of each input.
    shards: Arc<HashMap<Value, Shard>>,
    /// Outlines and measured times of graphs for other sizes, the last used at the end.
    shelf: Vec<(Bindings, Option<StepPlanner>, MeasuredKinds)>,
}

/// Sizes whose outlines and measured times are kept.
const SHELF: usize = 16;

impl Side {
    pub(super) fn new(graph: Graph, partials: u32) -> Side {
        let graph = Arc::new(graph);
        let (steps, measured) = (None, MeasuredKinds::default());
        Side { graph, partials, turns: None, whole: None, steps, measured, cut: None }
    }

    /// A device's share of a cut, ready for inputs of these sizes (of one partial).
    pub(super) fn of_cut(
        partitions: Arc<Partitions>,
        device: usize,
        sizes: Bindings,
        partials: u32,
    ) -> Result<Side, PlanError> {
        let Partition { graph, shards } = partitions.share(device, &sizes)?;
        let whole = Some(Arc::clone(&partitions.whole));
        let (steps, measured) = (None, MeasuredKinds::default());
        let cut = Some(CutSide { partitions, device, sizes, shards, shelf: Vec::new() });
        Ok(Side { graph, partials, turns: None, whole, steps, measured, cut })
    }

    /// Replaces the graph by the one for these sizes, where graphs serve one size.
    pub(super) fn fit_to(&mut self, sizes: &Bindings) -> Result<(), PlanError> {
        let Some(cut) = &mut self.cut else { return Ok(()) };
        let slice = slice_of(sizes, self.partials.max(1))?;
        if cut.sizes == slice {
            return Ok(());
        }
        let Partition { graph, shards } = cut.partitions.share(cut.device, &slice)?;
        let known = cut.shelf.iter().position(|(sizes, ..)| *sizes == slice);
        let (_, steps, measured) = known.map(|at| cut.shelf.remove(at)).unwrap_or_default();
        if cut.shelf.len() == SHELF {
            cut.shelf.remove(0);
        }
        let before = std::mem::replace(&mut cut.sizes, slice);
        let had = (self.steps.take(), std::mem::replace(&mut self.measured, measured));
        cut.shelf.push((before, had.0, had.1));
        cut.shards = shards;
        (self.graph, self.steps) = (graph, steps);
        Ok(())
    }

    /// Whether the graph serves inputs of one size only.
    pub(super) fn is_for_one_size(&self) -> bool {
        self.cut.is_some()
    }

    /// The device's shard of each input, where nodes are cut.
    pub(super) fn shards(&self) -> Arc<HashMap<Value, Shard>> {
        self.cut.as_ref().map_or_else(Arc::default, |cut| Arc::clone(&cut.shards))
    }

    /// The job's graph.
    pub(crate) fn whole(&self) -> &Graph {
        self.whole.as_deref().unwrap_or(&self.graph)
    }
}
