//! The plan: a document. A flat list of steps, every buffer with its device, offset and size. It
//! serialises, is verified by [`crate::verify`], and is obeyed by an executor that decides nothing.

use gulliver_graph::graph::{NodeId, Value};
use serde::{Deserialize, Serialize};

/// A buffer of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// A fixed piece of a device's arena, in use from its `Alloc` to its `Free` step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Index into [`Plan::devices`].
    pub device: u32,
    /// First byte in the device's arena.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// The value it was made for; `None` for scratch space.
    pub value: Option<Value>,
}

/// Some bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte within the buffer.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// One instruction. Steps happen in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The buffer is in use from here; its contents are undefined.
    Alloc(BufferId),
    /// The buffer is no longer in use.
    Free(BufferId),
    /// Runs a node. Views run nowhere: their value is where their operand is.
    Run {
        /// The node.
        node: NodeId,
        /// Which slice of the batch.
        partial: u32,
        /// Where its operands are.
        ins: Vec<Place>,
        /// Where its results go.
        outs: Vec<Place>,
        /// Working memory of the kernel.
        scratch: Option<Place>,
    },
    /// Copies bytes.
    Copy {
        /// From here.
        from: Place,
        /// To there.
        to: Place,
    },
    /// Adds f32 elements: `into = into + from`.
    Add {
        /// What is added.
        from: Place,
        /// To what.
        into: Place,
    },
}

/// A device as the plan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Its name.
    pub name: String,
    /// Bytes of its arena; the executor allocates exactly this.
    pub arena: u64,
    /// Most bytes in use at once; no arena could be smaller, and the rest is lost to layout.
    pub live: u64,
}

/// Where an input is fed or carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputPlace {
    /// The input.
    pub value: Value,
    /// Its bytes: for data and random keys those of all partials, one after the other.
    pub place: Place,
    /// Stays in place from step to step.
    pub persistent: bool,
}

/// Where an output is found after the last step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPlace {
    /// Its name.
    pub name: String,
    /// The value.
    pub value: Value,
    /// Its bytes: summed over the partials, if it is computed once per partial.
    pub place: Place,
}

/// When and where everything happens, for one set of input sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Sizes of one partial, by symbol.
    pub sizes: Vec<(String, usize)>,
    /// Slices of the batch whose gradients are added, in order.
    pub partials: u32,
    /// Devices and their arenas.
    pub devices: Vec<DevicePlan>,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// Where inputs are.
    pub inputs: Vec<InputPlace>,
    /// Where outputs are.
    pub outputs: Vec<OutputPlace>,
    /// What happens.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The buffer of that number.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Most bytes in use at once: what the arena would be if no byte of it were lost to layout.
    pub fn live_peak(&self) -> u64 {
        let (mut live, mut peak) = (0u64, 0u64);
        for step in &self.steps {
            match step {
                Step::Alloc(b) => {
                    live += self.buffer(*b).bytes;
                    peak = peak.max(live);
                }
                Step::Free(b) => live -= self.buffer(*b).bytes,
                _ => {}
            }
        }
        peak
    }

    /// Bytes that stay from step to step.
    pub fn persistent_bytes(&self) -> u64 {
        self.inputs.iter().filter(|i| i.persistent).map(|i| i.place.bytes).sum()
    }
}
