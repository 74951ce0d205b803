//! A job plan as a file: graphs as text and the plans that were ready. What is read back runs inputs of those sizes
//! and refuses others.

use super::{DevicePlan, JobPlan, Limits, PlanSource, Purpose, Rank, SizedPlan};
use crate::document::error::PlanError;
use crate::document::ledger::Ledger;
use crate::document::plan::Plan;
use crate::document::residence::Persistent;
use crate::document::shard::Shard;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, GraphError, Value};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The serialised form of a [`JobPlan`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredJobPlan {
    /// The name of the strategy.
    pub strategy: String,
    /// The job's training graph, as text.
    pub train: String,
    /// The job's evaluation graph, as text.
    pub evaluate: Option<String>,
    /// By rank.
    pub devices: Vec<StoredDevicePlan>,
}

/// The serialised form of a [`DevicePlan`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredDevicePlan {
    rank: Option<Rank>,
    partials: u32,
    limits: Limits,
    first_bytes: u64,
    graph: String,
    residences: Persistent,
    shards: BTreeMap<String, Shard>,
    plans: Vec<StoredPlan>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredPlan {
    purpose: Purpose,
    sizes: BTreeMap<String, usize>,
    graph: String,
    shards: Vec<(Value, Shard)>,
    plan: Plan,
    ledger: Ledger,
    seconds: f64,
}

impl From<&JobPlan> for StoredJobPlan {
    /// The job plan with the plans that its sources have ready.
    fn from(job: &JobPlan) -> StoredJobPlan {
        StoredJobPlan {
            strategy: job.strategy.clone(),
            train: job.train.to_string(),
            evaluate: job.evaluate.as_ref().map(|graph| graph.to_string()),
            devices: job.devices.iter().map(StoredDevicePlan::from).collect(),
        }
    }
}

impl From<&DevicePlan> for StoredDevicePlan {
    fn from(device: &DevicePlan) -> StoredDevicePlan {
        let stored = |(purpose, sizes, made): (Purpose, Bindings, SizedPlan)| {
            let mut shards: Vec<_> = made.shards.iter().map(|(v, shard)| (*v, shard.clone())).collect();
            shards.sort_by_key(|(value, _)| *value);
            StoredPlan {
                purpose,
                sizes: sizes.iter().map(|(symbol, size)| (symbol.to_string(), size)).collect(),
                graph: made.graph.to_string(),
                shards,
                plan: (*made.plan).clone(),
                ledger: made.ledger,
                seconds: made.seconds,
            }
        };
        StoredDevicePlan {
            rank: device.rank,
            partials: device.partials,
            limits: device.limits,
            first_bytes: device.first_bytes,
            graph: device.graph.to_string(),
            residences: device.residences.clone(),
            shards: device.shards.iter().map(|(name, shard)| (name.clone(), shard.clone())).collect(),
            plans: device.source.ready().into_iter().map(stored).collect(),
        }
    }
}

impl StoredJobPlan {
    /// The job plan, for inputs of the sizes that were planned.
    pub fn load(self) -> Result<JobPlan, GraphError> {
        let graph = |text: &str| text.parse::<Graph>().map(Arc::new);
        Ok(JobPlan {
            strategy: self.strategy,
            train: graph(&self.train)?,
            evaluate: self.evaluate.as_deref().map(graph).transpose()?,
            devices: self.devices.into_iter().map(StoredDevicePlan::load).collect::<Result<_, _>>()?,
        })
    }
}

impl StoredDevicePlan {
    fn load(self) -> Result<DevicePlan, GraphError> {
        let load = |one: StoredPlan| -> Result<_, GraphError> {
            let sizes = one.sizes.iter().fold(Bindings::new(), |all, (symbol, size)| all.with(symbol, *size));
            let made = SizedPlan {
                graph: Arc::new(one.graph.parse()?),
                shards: Arc::new(one.shards.into_iter().collect::<HashMap<_, _>>()),
                plan: Arc::new(one.plan),
                ledger: one.ledger,
                seconds: one.seconds,
                learns: false,
            };
            Ok((one.purpose, sizes, made))
        };
        let plans = self.plans.into_iter().map(load).collect::<Result<Vec<_>, _>>()?;
        Ok(DevicePlan {
            rank: self.rank,
            partials: self.partials,
            limits: self.limits,
            first_bytes: self.first_bytes,
            graph: Arc::new(self.graph.parse()?),
            residences: self.residences,
            shards: self.shards.into_iter().collect(),
            source: Box::new(FixedPlans { plans }),
        })
    }
}

/// Plans that were made before, and no others.
#[derive(Clone)]
struct FixedPlans {
    plans: Vec<(Purpose, Bindings, SizedPlan)>,
}

impl PlanSource for FixedPlans {
    fn plan(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<SizedPlan, PlanError> {
        let found = self.plans.iter().find(|(p, s, _)| (*p, s) == (purpose, sizes));
        found.map(|(.., made)| made.clone()).ok_or_else(|| {
            let known = self.plans.iter().filter(|(p, ..)| *p == purpose).map(|(_, sizes, _)| named(sizes));
            PlanError::NotPlanned { sizes: named(sizes), known: known.collect::<Vec<_>>().join("; ") }
        })
    }

    fn measured(&mut self, _: Purpose, _: &Bindings, _: &Plan, _: &[f64]) {}

    fn duplicate(&self) -> Box<dyn PlanSource> {
        Box::new(self.clone())
    }

    fn ready(&self) -> Vec<(Purpose, Bindings, SizedPlan)> {
        self.plans.clone()
    }
}

/// Sizes for people: `batch 8, length 64`.
fn named(sizes: &Bindings) -> String {
    sizes.iter().map(|(symbol, size)| format!("{symbol} {size}")).collect::<Vec<_>>().join(", ")
}
