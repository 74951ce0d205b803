//! The plan of a job: how its devices share the work, where weights and states reside, and a source of plans for
//! every input size. A runner obeys it and decides nothing.

mod stored;

pub use stored::StoredJobPlan;

use crate::document::error::PlanError;
use crate::document::ledger::Ledger;
use crate::document::plan::{Plan, Tier};
use crate::document::residence::Persistent;
use crate::document::shard::Shard;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Value};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// What a graph of a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A training step.
    Train,
    /// The evaluation of a batch.
    Evaluate,
}

/// What the devices of a job divide among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkSharing {
    /// The batch: each device has all weights and takes partials of its own.
    Batch,
    /// The batch, and weights or states: each device holds shards of them.
    Shards,
    /// Every node: each device computes its part of it in all partials.
    Nodes,
    /// The layers: each device runs some nodes, in all partials.
    Layers,
}

impl WorkSharing {
    /// Whether each device takes partials of its own.
    pub fn divides_batch(self) -> bool {
        matches!(self, WorkSharing::Batch | WorkSharing::Shards)
    }

    /// Whether devices exchange values before the updates, so that no device can rerun part of a step alone.
    pub fn exchanges_within(self) -> bool {
        self != WorkSharing::Batch
    }
}

/// The place of one device among those that train a job together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Its number, from zero.
    pub rank: u32,
    /// The number of devices.
    pub ranks: u32,
    /// What they divide.
    pub sharing: WorkSharing,
}

/// Examples that each device takes of a batch.
pub fn share_of_batch(batch: usize, ranks: u32) -> Result<usize, PlanError> {
    if batch == 0 || !batch.is_multiple_of(ranks as usize) {
        return Err(PlanError::Partials { batch, partials: ranks });
    }
    Ok(batch / ranks as usize)
}

/// Hard limits of a device's tiers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Device memory; unlimited without one.
    pub device: Option<u64>,
    /// Host memory for what leaves the device; unlimited without one.
    pub host: Option<u64>,
    /// Disk; there is no disk tier without one.
    pub disk: Option<u64>,
}

impl Limits {
    /// The limit of a tier; none is no limit.
    pub fn of(&self, tier: Tier) -> Option<u64> {
        match tier {
            Tier::Device => self.device,
            Tier::Host => self.host,
            Tier::Disk => Some(self.disk.unwrap_or(0)),
        }
    }
}

/// A plan for inputs of one size, with all a runner needs beside it.
#[derive(Clone)]
pub struct SizedPlan {
    /// The device's graph, which the plan runs.
    pub graph: Arc<Graph>,
    /// The device's shard of each input, where nodes are divided.
    pub shards: Arc<HashMap<Value, Shard>>,
    /// What happens.
    pub plan: Arc<Plan>,
    /// Bytes over the links when it runs once.
    pub ledger: Ledger,
    /// Predicted seconds; zero where nothing had to be weighed.
    pub seconds: f64,
    /// Whether measured times of its kernels would improve later plans.
    pub learns: bool,
}

/// Gives the plans of one device, by input size.
pub trait PlanSource: Send {
    /// The plan for inputs of these sizes. A source may hand out a plan it has made before.
    fn plan(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<SizedPlan, PlanError>;

    /// Notes how long the steps of a plan took, for plans made from now on; steps without a time are zero.
    fn measured(&mut self, purpose: Purpose, sizes: &Bindings, plan: &Plan, seconds: &[f64]);

    /// A source of the same plans.
    fn duplicate(&self) -> Box<dyn PlanSource>;

    /// The plans that are ready to be handed out, with their purposes and sizes.
    fn ready(&self) -> Vec<(Purpose, Bindings, SizedPlan)>;
}

impl Clone for Box<dyn PlanSource> {
    fn clone(&self) -> Box<dyn PlanSource> {
        self.duplicate()
    }
}

/// What one device does of a job.
#[derive(Clone)]
pub struct DevicePlan {
    /// Its place among the devices; none if it trains alone.
    pub rank: Option<Rank>,
    /// Slices of a training batch that this device takes.
    pub partials: u32,
    /// Hard limits of its tiers.
    pub limits: Limits,
    /// Device bytes to begin with.
    pub first_bytes: u64,
    /// The training graph of this device; where nodes are divided, for one input size.
    pub graph: Arc<Graph>,
    /// Where weights and states reside between steps.
    pub residences: Persistent,
    /// The shards of weights and states that reside here, by name; those not listed are whole.
    pub shards: HashMap<String, Shard>,
    /// The plans.
    pub source: Box<dyn PlanSource>,
}

impl DevicePlan {
    /// Slices of a training batch on all devices together.
    pub fn all_partials(&self) -> u32 {
        let divided = self.rank.filter(|rank| rank.sharing.divides_batch());
        self.partials * divided.map_or(1, |rank| rank.ranks)
    }
}

/// What all devices do of a job.
#[derive(Clone)]
pub struct JobPlan {
    /// The name of the strategy.
    pub strategy: String,
    /// The job's training graph, undivided.
    pub train: Arc<Graph>,
    /// The job's evaluation graph, undivided.
    pub evaluate: Option<Arc<Graph>>,
    /// By rank; at least one.
    pub devices: Vec<DevicePlan>,
}

impl JobPlan {
    /// A graph of the job; evaluation without a graph of its own uses that of training.
    pub fn graph(&self, purpose: Purpose) -> &Arc<Graph> {
        match (purpose, &self.evaluate) {
            (Purpose::Evaluate, Some(graph)) => graph,
            _ => &self.train,
        }
    }
}
