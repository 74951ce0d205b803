//! A strategy for a cluster as one plain struct: replicas x devices that share layers x stages, with recomputation,
//! sharding and offloading.

use crate::OracleError;
use crate::workload::{ModelLayer, Workload};

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
    /// As `Tensor`; values between such pairs are cut along the sequence.
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
    /// As `Alternating`, with this many pieces of the model on every stage.
    Interleaved(u32),
}

/// Activations that the backward pass recomputes instead of keeping them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    Nothing,
    /// Large and cheap ones: the scores of attention.
    Selective,
    /// Every layer from its input.
    Full,
    /// As few layers as memory demands, those first that cost least for the bytes they free.
    Planned,
}

/// Where layers are between their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerResidence {
    /// On the device that computes them.
    Resident,
    /// In host memory; pages come and go with every micro-batch that touches them, as virtual memory has it.
    Paged,
    /// In host memory; this many packs of layers come to every replica in turn, each for all its micro-batches
    /// (Harmony-DP).
    Replicas(u32),
    /// In host memory; this many packs go round the stages' devices, each for all micro-batches (Harmony-PP).
    Wrapped(u32),
}

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct ClusterStrategy {
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
    /// Activations that are recomputed.
    pub recompute: Recompute,
    /// Optimizer states live in host memory.
    pub offload: bool,
    /// Where layers are between their turns.
    pub stream: LayerResidence,
}

impl ClusterStrategy {
    /// One device; the whole batch of `samples` at once.
    pub fn serial(samples: u32) -> ClusterStrategy {
        ClusterStrategy {
            data: 1,
            ways: 1,
            cut: Cut::Whole,
            stages: 1,
            order: Order::Alternating,
            micro_batch: samples,
            shard: 0,
            recompute: Recompute::Nothing,
            offload: false,
            stream: LayerResidence::Resident,
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

    /// Devices that each hold a part of every layer's weights.
    pub fn weight_parts(&self) -> f64 {
        match self.cut {
            Cut::Whole | Cut::Spatial | Cut::Mixed => 1.0,
            Cut::Filter | Cut::Channel | Cut::Tensor | Cut::Sequence => self.ways as f64,
        }
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
        if let LayerResidence::Replicas(packs) | LayerResidence::Wrapped(packs) = self.stream
            && !(1..=workload.depth()).contains(&packs)
        {
            let most = workload.depth();
            return Err(OracleError::Count { what: "packs", asked: packs, most });
        }
        let lone = match self.stream {
            LayerResidence::Resident => true,
            LayerResidence::Paged | LayerResidence::Replicas(_) => self.ways == 1 && self.stages == 1,
            LayerResidence::Wrapped(_) => self.ways == 1 && self.data == 1,
        };
        if !lone {
            return Err(OracleError::Mixture(self.family()));
        }
        let limit = self.limit(workload);
        if self.ways > limit {
            let family = ClusterStrategy { data: 1, stages: 1, ..*self }.family();
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
                let most = |layer: &ModelLayer| {
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

/// Powers of two that divide a replica's share of the batch, and all of it.
pub(crate) fn micro_batches(share: u32, stages: u32) -> impl Iterator<Item = u32> {
    let powers = (0..16).map(|power| 1u32 << power).take_while(move |&size| size < share && size <= 512);
    let whole = (stages == 1 || share == 1).then_some(share);
    powers.filter(move |size| share.is_multiple_of(*size)).chain(whole)
}
