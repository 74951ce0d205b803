//! The graphs that a cut is dealt into, by the sizes of inputs: a dealt graph has no symbols, so each size has its
//! own. All devices ask here, and the first to ask deals for all.

use crate::boxed::Boxed;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin, Role, Value};
use gulliver_plan::devices::cut::{CutError, DeviceGraph, GraphCut, InputBox, fit_cut, partition};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Sizes whose graphs are kept; those of others are dealt again when they are met again, to the same graphs.
const KEPT: usize = 32;

/// What one device does of a graph, for inputs of one size.
#[derive(Clone)]
pub(crate) struct Dealt {
    pub(crate) graph: Arc<Graph>,
    /// Its box of every input.
    pub(crate) boxes: Arc<HashMap<Value, Boxed>>,
}

/// See the top of this file.
pub(crate) struct Deals {
    pub(crate) whole: Arc<Graph>,
    cut: GraphCut,
    /// By sizes of a partial, the last used at the end; then by device.
    known: Mutex<Vec<(Bindings, Vec<Dealt>)>>,
}

impl Deals {
    /// None dealt yet.
    pub(crate) fn new(whole: Graph, cut: GraphCut) -> Deals {
        Deals { whole: Arc::new(whole), cut, known: Mutex::default() }
    }

    /// A device's share, for inputs of these sizes (of one partial). Weights and states are the same boxes for
    /// all sizes.
    pub(crate) fn share(&self, device: usize, sizes: &Bindings) -> Result<Dealt, CutError> {
        // Nothing is left half done by one who panics.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match known.iter().position(|(other, _)| other == sizes) {
            Some(at) => known.remove(at),
            None => {
                let cut = fit_cut(&self.whole, sizes, &self.cut)?;
                let shares = partition(&self.whole, sizes, &cut)?;
                (sizes.clone(), shares.into_iter().map(dealt).collect())
            }
        };
        let share = entry.1[device].clone();
        if known.len() == KEPT {
            known.remove(0);
        }
        known.push(entry);
        Ok(share)
    }
}

fn dealt(DeviceGraph { graph, inputs }: DeviceGraph) -> Dealt {
    let boxed = |InputBox { value, region, whole }: InputBox| {
        (value, Boxed::new(&whole, &region, graph.ty(value).dtype.size()))
    };
    let boxes = Arc::new(inputs.into_iter().map(boxed).collect());
    Dealt { graph: Arc::new(graph), boxes }
}

impl Dealt {
    /// The boxes of weights and states, by name.
    pub(crate) fn residences(&self) -> HashMap<String, Boxed> {
        let stays = |v: &Value| match self.graph.value(*v).origin {
            Origin::Input(role) => matches!(role, Role::Weight(_) | Role::State(_)),
            Origin::Node { .. } => false,
        };
        let residences = self.boxes.iter().filter(|(v, _)| stays(v));
        residences.map(|(v, boxed)| (self.graph.value(*v).name.clone(), boxed.clone())).collect()
    }
}
