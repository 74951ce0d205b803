//! Bytes of a device by who holds them.

use crate::setting::{DEEPSPEED_BUCKET, Setting};
use crate::stage::Stage;
use crate::strategy::{Order, Strategy};

/// Peak bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Memory {
    /// Working weights.
    pub weights: f64,
    /// Gradients.
    pub gradients: f64,
    /// Optimizer states and master weights.
    pub optimizer: f64,
    /// What the backward pass needs, of all micro-batches under way.
    pub activations: f64,
    /// What is in use beside: the largest layer's results, gathered weights, exchange buffers.
    pub workspace: f64,
    /// Driver and libraries.
    pub context: f64,
    /// Host memory of a device: offloaded states.
    pub host: f64,
}

impl Memory {
    /// Bytes on the device.
    pub fn device(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.workspace + self.context
    }

    /// The largest holder and its bytes.
    pub fn largest(&self) -> (&'static str, f64) {
        let holders = [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer states", self.optimizer),
            ("activations", self.activations),
            ("workspace", self.workspace),
        ];
        holders
            .into_iter()
            .fold(("context", self.context), |most, one| if one.1 > most.1 { one } else { most })
    }
}

/// Peak bytes of a device that has this stage.
pub fn memory(stage: &Stage, strategy: &Strategy, setting: &Setting, context: f64) -> Memory {
    let element = setting.precision.bytes();
    let replicas = strategy.data as f64;
    let divided = |from: u8| if strategy.shard >= from { replicas } else { 1.0 };
    let optimizer = stage.weights * setting.optimizer_bytes() / divided(1);
    // What goes on to the next stage is held until its gradient is back.
    let sent = if stage.at + 1 < strategy.stages { stage.output } else { 0.0 };
    let software = &setting.software;
    // One bucket on its way out and one on its way in, and what the software makes of all gradients.
    let gathered = if strategy.shard > 0 {
        let bucket = software.bucket.unwrap_or(stage.weights.min(DEEPSPEED_BUCKET));
        // Of that, the share this device updates with is there in 32 bits too.
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

/// Micro-batches of which the stage at this place keeps what its backward pass needs, at most.
pub fn under_way(at: u32, strategy: &Strategy, setting: &Setting) -> f64 {
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
