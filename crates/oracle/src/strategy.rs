//! Ways to train on several devices, as one plain struct: replicas x devices that share layers x stages,
//! and what is computed again, sharded or kept off the device.

use crate::OracleError;
use crate::workload::{Layer, Workload};
use std::fmt;

/// How the devices of one replica and stage share its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// They do not: there is one.
    Whole,
    /// Each has some of every sample's space; halos are exchanged.
    Spatial,
    /// Each has some of every layer's filters; results are gathered.
    Filter,
    /// Each has some of every layer's input channels; results are summed.
    Channel,
    /// Columns, then rows of a pair of products: sums after every second.
    Tensor,
    /// As `Tensor`, with what lies between such pairs cut along the sequence.
    Sequence,
    /// Every layer in the way that suits it (Tofu).
    Mixed,
}

/// In which order a pipeline's stages take micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// All forward, then all backward.
    Gpipe,
    /// One forward, one backward, as soon as there is something to go back with.
    Alternating,
    /// As `Alternating`, with so many pieces of the model on every stage.
    Interleaved(u32),
}

/// What the backward pass computes again instead of keeping it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    Nothing,
    /// What is large and cheap: the scores of attention.
    Selective,
    /// Every layer from its input.
    Full,
    /// As few layers as memory demands, those first that cost least for the bytes they free.
    Planned,
}

/// Where layers are between their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// On the device that computes them.
    Resident,
    /// In host memory; pages come and go with every micro-batch that touches them, as virtual memory has it.
    Paged,
    /// In host memory; so many packs of layers come to every replica in turn, each for all its micro-batches
    /// (Harmony-DP).
    Replicas(u32),
    /// In host memory; so many packs are dealt round the stages' devices, each for all micro-batches (Harmony-PP).
    Wrapped(u32),
}

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Strategy {
    /// Replicas that share a batch.
    pub data: u32,
    /// Devices that share layers.
    pub ways: u32,
    /// How they share them.
    pub cut: Cut,
    /// Pipeline stages.
    pub stages: u32,
    /// Order of the pipeline.
    pub order: Order,
    /// Samples of a micro-batch.
    pub micro_batch: u32,
    /// Sharded data parallel: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too.
    pub shard: u8,
    /// What is computed again.
    pub recompute: Recompute,
    /// Optimizer states live in host memory.
    pub offload: bool,
    /// Where layers are between their turns.
    pub stream: Stream,
}

impl Strategy {
    /// One device; the whole batch of `samples` at once.
    pub fn serial(samples: u32) -> Strategy {
        Strategy {
            data: 1,
            ways: 1,
            cut: Cut::Whole,
            stages: 1,
            order: Order::Alternating,
            micro_batch: samples,
            shard: 0,
            recompute: Recompute::Nothing,
            offload: false,
            stream: Stream::Resident,
        }
    }

    /// Devices it uses.
    pub fn devices(&self) -> u32 {
        self.data.saturating_mul(self.ways).saturating_mul(self.stages)
    }

    /// Micro-batches that each replica works through in a step.
    pub fn micro_batches(&self, batch: u32) -> u32 {
        batch / self.data.max(1).saturating_mul(self.micro_batch.max(1))
    }

    /// The family it is of: `serial`, `data`, `data+filter`, `tensor+pipeline`…
    pub fn family(&self) -> String {
        match self.stream {
            Stream::Resident => {}
            Stream::Paged => return "paged".into(),
            Stream::Replicas(_) => return "harmony-dp".into(),
            Stream::Wrapped(_) => return "harmony-pp".into(),
        }
        let mut parts = Vec::new();
        if self.data > 1 {
            parts.push("data");
        }
        match self.cut {
            _ if self.ways == 1 => {}
            Cut::Whole => {}
            Cut::Spatial => parts.push("spatial"),
            Cut::Filter => parts.push("filter"),
            Cut::Channel => parts.push("channel"),
            Cut::Tensor => parts.push("tensor"),
            Cut::Sequence => parts.push("sequence"),
            Cut::Mixed => parts.push("cut"),
        }
        if self.stages > 1 {
            parts.push("pipeline");
        }
        if parts.is_empty() { "serial".into() } else { parts.join("+") }
    }

    /// Whether the workload and the batch allow it; the error says what would be allowed.
    pub fn check(&self, workload: &Workload, batch: u32) -> Result<(), OracleError> {
        let counts = [self.data, self.ways, self.stages, self.micro_batch];
        if counts.contains(&0) || batch == 0 {
            return Err(OracleError::Zero(self.to_string()));
        }
        if batch < self.data {
            return Err(OracleError::Batch { batch, replicas: self.data });
        }
        if !batch.is_multiple_of(self.data.saturating_mul(self.micro_batch)) {
            return Err(OracleError::MicroBatch {
                batch,
                replicas: self.data,
                micro_batch: self.micro_batch,
            });
        }
        if let Stream::Replicas(packs) | Stream::Wrapped(packs) = self.stream
            && !(1..=workload.depth()).contains(&packs)
        {
            let most = workload.depth();
            return Err(OracleError::Packs { asked: packs, most });
        }
        let lone = match self.stream {
            Stream::Resident => true,
            Stream::Paged | Stream::Replicas(_) => self.ways == 1 && self.stages == 1,
            Stream::Wrapped(_) => self.ways == 1 && self.data == 1,
        };
        if !lone {
            return Err(OracleError::Mixture(self.family()));
        }
        let limit = self.limit(workload);
        if self.ways > limit {
            let family = Strategy { data: 1, stages: 1, ..*self }.family();
            return Err(OracleError::Limit { family, asked: self.ways, most: limit });
        }
        if self.stages > workload.depth() {
            return Err(OracleError::Limit {
                family: "pipeline".into(),
                asked: self.stages,
                most: workload.depth(),
            });
        }
        if let Order::Interleaved(pieces) = self.order
            && (pieces == 0 || self.stages.saturating_mul(pieces) > workload.depth())
        {
            let most = workload.depth() / self.stages;
            return Err(OracleError::Limit { family: "interleaved pipeline".into(), asked: pieces, most });
        }
        Ok(())
    }

    /// The most devices that may share layers in this way.
    pub fn limit(&self, workload: &Workload) -> u32 {
        let most = match self.cut {
            Cut::Whole => Some(1),
            Cut::Spatial => workload.space(),
            Cut::Filter => workload.fewest_filters(),
            Cut::Channel => workload.fewest_channels(),
            Cut::Tensor | Cut::Sequence => workload.fewest_heads(),
            // As many as may share every layer in some way, or a sample for each.
            Cut::Mixed => {
                let heads = workload.fewest_heads().unwrap_or(0) as f64;
                let most = |layer: &Layer| {
                    let space = layer.extents.first().copied().unwrap_or(0.0);
                    layer.filters.max(layer.channels).max(space).max(heads) as u32
                };
                let shared = workload.layers.iter().map(most).filter(|most| *most > 0).min();
                shared.into_iter().chain([self.micro_batch]).max()
            }
        };
        most.unwrap_or(1)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.family())?;
        let mut extents = Vec::new();
        if self.data > 1 && self.data < self.devices() {
            extents.push(format!("d{}", self.data));
        }
        if self.ways > 1 && self.ways < self.devices() {
            extents.push(format!("t{}", self.ways));
        }
        if self.stages > 1 && self.stages < self.devices() {
            extents.push(format!("p{}", self.stages));
        }
        if !extents.is_empty() {
            write!(f, " {}", extents.join("x"))?;
        }
        write!(f, " m{}", self.micro_batch)?;
        if let Stream::Replicas(packs) | Stream::Wrapped(packs) = self.stream {
            write!(f, " packs{packs}")?;
        }
        match self.order {
            _ if self.stages == 1 || self.stream != Stream::Resident => {}
            Order::Gpipe => write!(f, " gpipe")?,
            Order::Alternating => write!(f, " 1f1b")?,
            Order::Interleaved(pieces) => write!(f, " interleaved{pieces}")?,
        }
        if self.shard > 0 {
            write!(f, " zero{}", self.shard)?;
        }
        match self.recompute {
            Recompute::Nothing => {}
            Recompute::Selective => write!(f, " selective")?,
            Recompute::Full => write!(f, " recompute")?,
            Recompute::Planned => write!(f, " planned")?,
        }
        if self.offload { write!(f, " offload") } else { Ok(()) }
    }
}
