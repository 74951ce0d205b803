//! Where weights and states reside between steps: a tier and an offset each, the same in all plans of a job.

use crate::document::plan::{TIERS, Tier};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::{Graph, Value};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Where a persistent value is between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residence {
    /// In which kind of memory.
    pub tier: Tier,
    /// First byte there.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Where persistent values are between steps: the same in every plan of a job, whatever the input sizes,
/// and shared by the training and the evaluation graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persistent {
    /// By input name.
    pub residences: HashMap<String, Residence>,
    /// First byte after them in each tier.
    pub ends: [u64; TIERS.len()],
}

impl Persistent {
    /// Lays out the weights and states of a graph on the device, in order.
    pub fn of(graph: &Graph) -> Result<Persistent, DimError> {
        Persistent::with(graph, |_| Tier::Device)
    }

    /// Lays out the weights and states of a graph, each in its tier, in order.
    pub fn with(graph: &Graph, tier: impl Fn(Value) -> Tier) -> Result<Persistent, DimError> {
        let mut layout = Persistent::default();
        for (v, role, info) in graph.inputs() {
            if role.persists() {
                let bytes = info.ty.bytes().bind(&Bindings::new())? as u64;
                let tier = tier(v);
                let end = &mut layout.ends[tier as usize];
                layout.residences.insert(info.name.clone(), Residence { tier, offset: *end, bytes });
                *end += bytes.next_multiple_of(tier.grain());
            }
        }
        Ok(layout)
    }
}
