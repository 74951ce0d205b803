//! The plan: a document. A flat list of steps, every buffer with its space, offset and size. It
//! serialises, is verified by [`crate::document::verify`], and is obeyed by an executor that decides nothing.
//!
//! Done one after the other, the steps are right. Steps of different [streams](PlanStream) may be done at the
//! same time: a step starts when those before it in its stream and those it names are done.

use crate::document::pass::PlanPass;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{NodeId, Value};
use gulliver_graph::role::{OutputRole, OutputScope};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A buffer of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Where kernels work.
    Device,
    /// Beside the device.
    Host,
    /// A file.
    Disk,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::Device => "device memory",
            Tier::Host => "host memory",
            Tier::Disk => "disk",
        })
    }
}

impl Tier {
    /// Buffers begin at multiples of this many bytes, and take whole multiples: a cache line, or a block.
    pub fn grain(self) -> u64 {
        match self {
            Tier::Device | Tier::Host => ALIGN,
            Tier::Disk => 4096,
        }
    }
}

/// Offsets are multiples of this many bytes: a cache line, and every vector register.
pub const ALIGN: u64 = 64;

/// Every tier, by its number; a plan for one device has a space of each, in this order.
pub const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

/// What does steps one after the other, beside the other streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanStream {
    /// Kernels.
    Compute,
    /// From host to device.
    In,
    /// From device to host.
    Out,
    /// From disk.
    Read,
    /// To disk.
    Write,
    /// Collectives with other devices.
    Exchange,
}

/// Every stream, by its number.
pub const STREAMS: [PlanStream; 6] = [
    PlanStream::Compute,
    PlanStream::In,
    PlanStream::Out,
    PlanStream::Read,
    PlanStream::Write,
    PlanStream::Exchange,
];

/// A fixed piece of a space, in use from its `Alloc` to its `Free` step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Index into [`Plan::spaces`].
    pub space: u32,
    /// First byte in the space.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// The value it was made for; `None` for scratch space.
    pub value: Option<Value>,
}

/// Some bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BufferRange {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte within the buffer.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What it does.
    #[serde(flatten)]
    pub act: Act,
    /// Steps of other streams that must be done before it starts, by their index; all come before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<u32>,
}

impl From<Act> for Step {
    /// A step that waits for nothing but its stream.
    fn from(act: Act) -> Step {
        Step { act, after: Vec::new() }
    }
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The buffer is in use from here; its contents are undefined.
    Alloc(BufferId),
    /// The buffer is no longer in use.
    Free(BufferId),
    /// Runs a node, for the first time or again. Views run nowhere: their value is where their operand is.
    Run {
        /// The node.
        node: NodeId,
        /// Which slice of the batch.
        partial: u32,
        /// Where its operands are.
        ins: Vec<BufferRange>,
        /// Where its results go.
        outs: Vec<BufferRange>,
        /// Working memory of the kernel.
        scratch: Option<BufferRange>,
    },
    /// Runs a node that meets other devices.
    Exchange {
        /// The node.
        node: NodeId,
        /// Which slice of the batch.
        partial: u32,
        /// Its operand, if it has one. Other devices read it until the step is done.
        own: Option<BufferRange>,
        /// Where its result goes.
        result: BufferRange,
    },
    /// Copies bytes within the device.
    Copy {
        /// From here.
        from: BufferRange,
        /// To there.
        to: BufferRange,
    },
    /// Copies bytes between spaces.
    Move {
        /// From here.
        from: BufferRange,
        /// To there.
        to: BufferRange,
    },
    /// Adds f32 elements: `into = into + from`.
    Add {
        /// What is added.
        from: BufferRange,
        /// To what.
        into: BufferRange,
    },
}

/// A stretch of memory as the plan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Its kind.
    pub tier: Tier,
    /// Its size; the executor allocates exactly this.
    pub bytes: u64,
    /// Most bytes in use at once; no arena could be smaller, and the rest is lost to layout.
    pub live: u64,
}

/// What is done with a value while nothing reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// It stays where it is.
    Keep,
    /// It is forgotten and recomputed.
    Recompute,
    /// It waits in host memory.
    Host,
    /// It waits on disk.
    Disk,
}

impl Choice {
    /// The tier in which the value waits; none if it is recomputed.
    pub fn tier(self) -> Option<Tier> {
        match self {
            Choice::Keep => Some(Tier::Device),
            Choice::Recompute => None,
            Choice::Host => Some(Tier::Host),
            Choice::Disk => Some(Tier::Disk),
        }
    }
}

impl From<Tier> for Choice {
    /// The value waits in that tier.
    fn from(tier: Tier) -> Choice {
        match tier {
            Tier::Device => Choice::Keep,
            Tier::Host => Choice::Host,
            Tier::Disk => Choice::Disk,
        }
    }
}

/// A choice and its reason, for one value between two of its uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The value.
    pub value: Value,
    /// Which slice of the batch.
    pub partial: u32,
    /// Bytes that are free meanwhile.
    pub bytes: u64,
    /// What is done.
    pub choice: Choice,
    /// Its predicted seconds.
    pub seconds: f64,
    /// What would have been done otherwise, and its seconds, if anything could.
    pub instead: Option<(Choice, f64)>,
}

/// Where an input is fed or carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputPlace {
    /// The input.
    pub value: Value,
    /// Its bytes: for data and random keys those of all partials, one after the other.
    pub place: BufferRange,
    /// Stays in place from step to step.
    pub persistent: bool,
}

/// Where an output is found after the last step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPlace {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: OutputRole,
    /// Which partials it is summed over.
    pub scope: OutputScope,
    /// The value.
    pub value: Value,
    /// Its bytes: summed over the partials, if it is computed once per partial.
    pub place: BufferRange,
}

impl OutputPlace {
    /// Whether it is a loss that must be known before the updates of its objective.
    pub fn is_early_loss(&self) -> bool {
        self.role == OutputRole::Loss && self.scope != OutputScope::AllDevices
    }
}

/// When and where everything happens, for one set of input sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Sizes of one partial, by symbol.
    pub sizes: Vec<(String, usize)>,
    /// Slices of the batch whose gradients are added, in order.
    pub partials: u32,
    /// Memory, by tier.
    pub spaces: Vec<Space>,
    /// Every buffer.
    pub buffers: Vec<Buffer>,
    /// Where inputs are.
    pub inputs: Vec<InputPlace>,
    /// Where outputs are.
    pub outputs: Vec<OutputPlace>,
    /// What happens.
    pub steps: Vec<Step>,
    /// Why values do not simply stay; empty if all do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
    /// How it was made, pass by pass; empty unless that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<PlanPass>,
}

impl Plan {
    /// Sizes of one partial.
    pub fn bindings(&self) -> Bindings {
        self.sizes.iter().fold(Bindings::new(), |sizes, (symbol, value)| sizes.with(symbol, *value))
    }

    /// The buffer of that number.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// The tier of some bytes.
    pub fn tier(&self, place: &BufferRange) -> Tier {
        self.spaces[self.buffer(place.buffer).space as usize].tier
    }

    /// The stream of an act; none for those that only say which buffers are in use.
    pub fn stream(&self, act: &Act) -> Option<PlanStream> {
        match act {
            Act::Alloc(_) | Act::Free(_) => None,
            Act::Run { .. } | Act::Copy { .. } | Act::Add { .. } => Some(PlanStream::Compute),
            Act::Exchange { .. } => Some(PlanStream::Exchange),
            Act::Move { from, to } => Some(match (self.tier(from), self.tier(to)) {
                (Tier::Disk, _) => PlanStream::Read,
                (_, Tier::Disk) => PlanStream::Write,
                (Tier::Host, _) => PlanStream::In,
                _ => PlanStream::Out,
            }),
        }
    }

    /// Most bytes in use at once in each space.
    pub fn live_peaks(&self) -> Vec<u64> {
        let (mut live, mut peaks) = (vec![0u64; self.spaces.len()], vec![0u64; self.spaces.len()]);
        for step in &self.steps {
            match &step.act {
                Act::Alloc(b) => {
                    let Buffer { space, bytes, .. } = *self.buffer(*b);
                    live[space as usize] += bytes;
                    peaks[space as usize] = peaks[space as usize].max(live[space as usize]);
                }
                Act::Free(b) => live[self.buffer(*b).space as usize] -= self.buffer(*b).bytes,
                _ => {}
            }
        }
        peaks
    }

    /// The step at which most bytes of the device come to be in use, and what is in use then, largest first.
    pub fn at_peak(&self) -> (usize, Vec<BufferId>) {
        let (mut live, mut now, mut most) = (Vec::new(), 0u64, 0u64);
        let mut at_peak = (0, Vec::new());
        let here = |b: &BufferId| self.buffer(*b).space == Tier::Device as u32;
        for (i, step) in self.steps.iter().enumerate() {
            match &step.act {
                Act::Alloc(b) if here(b) => {
                    live.push(*b);
                    now += self.buffer(*b).bytes;
                    if now > most {
                        (most, at_peak) = (now, (i, live.clone()));
                    }
                }
                Act::Free(b) if here(b) => {
                    live.retain(|x| x != b);
                    now -= self.buffer(*b).bytes;
                }
                _ => {}
            }
        }
        at_peak.1.sort_by_key(|b| std::cmp::Reverse(self.buffer(*b).bytes));
        at_peak
    }

    /// Bytes that stay from step to step.
    pub fn persistent_bytes(&self) -> u64 {
        self.inputs.iter().filter(|i| i.persistent).map(|i| i.place.bytes).sum()
    }
}
