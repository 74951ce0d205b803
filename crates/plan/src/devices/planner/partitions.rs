//! The device graphs of a cut, by input size: a cut graph has no symbols, so each size has graphs of its own. The first
//! device to ask for a size makes the graphs of all devices.

use crate::devices::cut::{CutError, DevicePart, GraphCut, InputBox, fit_cut, partition};
use crate::document::shard::Shard;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Sizes whose graphs are kept; those of other sizes are made anew when needed, to the same graphs.
const KEPT: usize = 32;

/// The graph of one device for inputs of one size.
#[derive(Clone)]
pub(crate) struct Partition {
    pub(crate) graph: Arc<Graph>,
    /// The device's shard of each input.
    pub(crate) shards: Arc<HashMap<Value, Shard>>,
}

/// A cut, with the device graphs of the input sizes met last.
pub(crate) struct Partitions {
    pub(crate) whole: Arc<Graph>,
    cut: GraphCut,
    /// By sizes of a partial, the last used at the end; then by device.
    known: Mutex<Vec<(Bindings, Vec<Partition>)>>,
}

impl Partitions {
    /// No graphs yet.
    pub(crate) fn new(whole: Graph, cut: GraphCut) -> Partitions {
        Partitions { whole: Arc::new(whole), cut, known: Mutex::default() }
    }

    /// The part of a device, for inputs of these sizes (of one partial). Shards of weights and states are the same for all
    /// sizes.
    pub(crate) fn share(&self, device: usize, sizes: &Bindings) -> Result<Partition, CutError> {
        // A panic leaves no entry half made.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match known.iter().position(|(other, _)| other == sizes) {
            Some(at) => known.remove(at),
            None => {
                let cut = fit_cut(&self.whole, sizes, &self.cut)?;
                let shares = partition(&self.whole, sizes, &cut)?;
                (sizes.clone(), shares.into_iter().map(Partition::new).collect())
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

impl Partition {
    fn new(DevicePart { graph, inputs }: DevicePart) -> Partition {
        let shard = |InputBox { value, region, whole }: InputBox| {
            (value, Shard::new(&whole, &region, graph.ty(value).dtype.size()))
        };
        let shards = Arc::new(inputs.into_iter().map(shard).collect());
        Partition { graph: Arc::new(graph), shards }
    }

    /// The shards of weights and states, by name.
    pub(crate) fn residences(&self) -> HashMap<String, Shard> {
        let stays = |v: &Value| matches!(self.graph.value(*v).origin, Origin::Input(role) if role.persists());
        let residences = self.shards.iter().filter(|(v, _)| stays(v));
        residences.map(|(v, shard)| (self.graph.value(*v).name.clone(), shard.clone())).collect()
    }
}
