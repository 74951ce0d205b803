//! One graph of a job on one device, with what is known about it: for inputs of all sizes, or, if nodes are divided,
//! for those of one size, and turned to another when it is met.

use crate::boxed::Boxed;
use crate::deals::{Deals, Dealt};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Role, Value};
use gulliver_plan::budget::planner::StepPlanner;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::step::order::Turn;
use gulliver_plan::step::outline::slice_of;
use gulliver_plan::time::cost::Measured;
use std::collections::HashMap;
use std::sync::Arc;

/// A graph with what does not depend on the sizes of a batch.
#[derive(Clone)]
pub(crate) struct Side {
    pub(crate) graph: Arc<Graph>,
    /// Inputs that every step is fed with.
    pub(crate) fed: Vec<Value>,
    pub(crate) partials: u32,
    /// The turns of its nodes, if a schedule has given them any.
    pub(super) turns: Option<Vec<Turn>>,
    /// The job's graph, if this is one of several devices' shares of it.
    pub(super) whole: Option<Arc<Graph>>,
    /// Made for the first sizes met, as they decide which order needs least memory.
    pub(super) outline: Option<StepPlanner>,
    /// How long kernels took, for plans made from then on.
    pub(super) measured: Measured,
    /// Where the graph comes from, if it is for inputs of one size.
    parted: Option<CutSide>,
}

/// One device's share of a cut: another graph for every size of input.
#[derive(Clone)]
struct CutSide {
    deals: Arc<Deals>,
    device: usize,
    /// Of a partial of the input that the side's graph is for.
    sizes: Bindings,
    /// Its box of every input.
    boxes: Arc<HashMap<Value, Boxed>>,
    /// What was found out about the graphs for other sizes, the last used at the end.
    shelf: Vec<(Bindings, Option<StepPlanner>, Measured)>,
}

/// Sizes of which more is remembered than their graphs.
const SHELF: usize = 16;

impl Side {
    pub(super) fn new(graph: Graph, partials: u32) -> Side {
        let (fed, graph) = (fed(&graph), Arc::new(graph));
        let (outline, measured) = (None, Measured::default());
        Side { graph, fed, partials, turns: None, whole: None, outline, measured, parted: None }
    }

    /// A device's share of a cut, ready for inputs of these sizes (of one partial).
    pub(super) fn of_cut(
        deals: Arc<Deals>,
        device: usize,
        sizes: Bindings,
        partials: u32,
    ) -> Result<Side, PlanError> {
        let Dealt { graph, boxes } = deals.share(device, &sizes)?;
        let whole = Some(Arc::clone(&deals.whole));
        let (outline, measured) = (None, Measured::default());
        let fed = fed(&graph);
        let parted = Some(CutSide { deals, device, sizes, boxes, shelf: Vec::new() });
        Ok(Side { graph, fed, partials, turns: None, whole, outline, measured, parted })
    }

    /// Makes the graph that for inputs of these sizes, if it is not.
    pub(super) fn turn_to(&mut self, sizes: &Bindings) -> Result<(), PlanError> {
        let Some(parted) = &mut self.parted else { return Ok(()) };
        let slice = slice_of(sizes, self.partials.max(1))?;
        if parted.sizes == slice {
            return Ok(());
        }
        let Dealt { graph, boxes } = parted.deals.share(parted.device, &slice)?;
        let known = parted.shelf.iter().position(|(sizes, ..)| *sizes == slice);
        let (_, outline, measured) = known.map(|at| parted.shelf.remove(at)).unwrap_or_default();
        if parted.shelf.len() == SHELF {
            parted.shelf.remove(0);
        }
        let before = std::mem::replace(&mut parted.sizes, slice);
        let had = (self.outline.take(), std::mem::replace(&mut self.measured, measured));
        parted.shelf.push((before, had.0, had.1));
        parted.boxes = boxes;
        (self.fed, self.graph, self.outline) = (fed(&graph), graph, outline);
        Ok(())
    }

    /// Whether the graph is for inputs of one size.
    pub(super) fn is_parted(&self) -> bool {
        self.parted.is_some()
    }

    /// The box that this device has of an input, if nodes are divided.
    pub(crate) fn boxed(&self, input: Value) -> Option<&Boxed> {
        self.parted.as_ref().and_then(|parted| parted.boxes.get(&input))
    }

    /// The job's graph.
    pub(crate) fn whole(&self) -> &Graph {
        self.whole.as_deref().unwrap_or(&self.graph)
    }
}

/// Inputs that every step is fed with.
fn fed(graph: &Graph) -> Vec<Value> {
    let fed = graph.inputs().filter(|(_, role, _)| !matches!(role, Role::Weight(_) | Role::State(_)));
    fed.map(|(value, ..)| value).collect()
}
