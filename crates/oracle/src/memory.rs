//! Peak bytes of a device whose layers stay on it.

use crate::estimate::Memory;
use crate::setting::{DEEPSPEED_BUCKET, Setting};
use crate::stage::Stage;
use crate::strategy::{ClusterStrategy, Order};

/// Peak bytes of a device that has this stage.
pub fn memory(stage: &Stage, strategy: &ClusterStrategy, setting: &Setting, context: f64) -> Memory {
    let element = setting.precision.bytes();
    let replicas = strategy.data as f64;
    let divided = |from: u8| if strategy.shard >= from { replicas } else { 1.0 };
    let optimizer = stage.weights * setting.optimizer_bytes() / divided(1);
    // A stage holds its output until the gradient of it is back.
    let sent = if stage.at + 1 < strategy.stages { stage.output } else { 0.0 };
    let software = &setting.software;
    // One bucket on its way out and one on its way in, and flat copies of all gradients.
    let gathered = if strategy.shard > 0 {
        let bucket = software.bucket.unwrap_or(stage.weights.min(DEEPSPEED_BUCKET));
        // The share that this device updates is also there in 32 bits.
        (2.0 * bucket + software.flat * stage.weights) * element
            + software.flat * 4.0 * stage.weights / replicas
    } else {
        0.0
    };
    let channels = if strategy.devices() > 1 { software.channels } else { 0.0 };
    let lost = 1.0 + software.fragmentation;
    Memory {
        weights: stage.weights * element / divided(3),
        gradients: stage.weights * element / divided(2),
        optimizer: if strategy.offload { 0.0 } else { optimizer },
        activations: (stage.kept + sent) * under_way(stage.at, strategy, setting) * element * lost,
        workspace: stage.working * element * lost + gathered + channels,
        context,
        host: if strategy.offload { optimizer } else { 0.0 },
    }
}

/// The most micro-batches for whose backward pass the stage at this place keeps values at a time.
pub fn under_way(at: u32, strategy: &ClusterStrategy, setting: &Setting) -> f64 {
    let micro_batches = strategy.micro_batches(setting.batch).max(1);
    match strategy.order {
        _ if strategy.stages == 1 => 1.0,
        Order::Gpipe => micro_batches as f64,
        Order::Alternating => micro_batches.min(strategy.stages - at) as f64,
        Order::Interleaved(pieces) => {
            let (stages, pieces) = (strategy.stages as f64, pieces.max(1) as f64);
            let ahead = stages * (1.0 + (stages - 1.0) / (stages * pieces)) - at as f64;
            ahead.min(micro_batches as f64).max(1.0)
        }
    }
}
