//! Training a model that is larger than the memory of all devices together: its layers go through them in
//! packs, and what is not at work waits in host memory. [`search()`] finds packs, micro-batches and devices
//! (Li et al., "Harmony", VLDB 2022), [`simulate()`] times any such schedule, [`baseline`] holds what others do.

pub mod baseline;
mod bound;
mod chain;
mod curve;
mod engine;
mod linear;
mod memory;
mod outcome;
mod pack;
mod search;
mod simulate;
mod task;
#[cfg(test)]
mod tests;

pub use chain::{ChainLayer, DistantGradient, LayerChain};
pub use curve::SizeCurve;
pub use linear::{LinearGraph, linearise};
pub use outcome::{MovedBytes, MovedKind, MovedOver, ScheduleOutcome};
pub use search::{RankedSchedule, ScheduleOptions, search};
pub use simulate::simulate;
pub use task::{
    LayerPack, PackRotation, PackSchedule, PackTask, ScheduleMode, TaskPhase, UpdateOn, pieces, shares, tasks,
};

use gulliver_graph::dim::DimError;

/// The devices, what is between them, and what is counted.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleMachine {
    /// By device.
    pub devices: Vec<ScheduleDevice>,
    /// Bytes a second of the host's own link, which all devices share, in each direction; none is no limit.
    pub uplink: Option<f64>,
    /// Bytes a second from device to device; none if all goes through the host.
    pub peer: Option<f64>,
    /// Bytes a second from one device's memory on the host to another's; none if they have one memory.
    pub between_hosts: Option<f64>,
    /// Seconds a device loses with every task.
    pub per_task: f64,
    /// Whether room for what is fetched ahead and for what waits between tasks is counted. Harmony's own
    /// planner counts neither.
    pub counts_buffers: bool,
}

/// One device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleDevice {
    /// Bytes of memory.
    pub memory: u64,
    /// How fast it computes; 1 takes the seconds of the chain.
    pub speed: f64,
    /// Bytes a second from the host.
    pub to_device: f64,
    /// Bytes a second to the host.
    pub to_host: f64,
}

impl ScheduleMachine {
    /// Equal devices, each with a link of this many bytes a second in each direction.
    pub fn even(devices: usize, memory: u64, link: f64) -> ScheduleMachine {
        let device = ScheduleDevice { memory, speed: 1.0, to_device: link, to_host: link };
        ScheduleMachine {
            devices: vec![device; devices],
            uplink: None,
            peer: Some(link),
            between_hosts: None,
            per_task: 0.0,
            counts_buffers: true,
        }
    }
}

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// Nothing to schedule.
    #[error("{0} is empty; a schedule needs at least one")]
    Empty(&'static str),
    /// A number that cannot be.
    #[error("{what} is {value}; it must be above zero and finite")]
    NotPositive {
        /// Which.
        what: String,
        /// Its value.
        value: f64,
    },
    /// A layer is too large.
    #[error(
        "layer {layer} (`{name}`) needs {needed} bytes for a micro-batch of {size}, a device has {memory}; raise the memory or lower the micro-batch"
    )]
    TooLarge {
        /// Which.
        layer: usize,
        /// Its name.
        name: String,
        /// Samples of the smallest micro-batch tried.
        size: u32,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are.
        memory: u64,
    },
    /// Packs that do not make up the chain, or devices there are none of.
    #[error("not a schedule of this chain: {0}")]
    Invalid(String),
    /// A graph with several losses.
    #[error("the graph has several objectives; schedules are made for one")]
    SeveralObjectives,
    /// Nothing to divide.
    #[error("the graph has no backward pass; schedules are made for training graphs")]
    NotTrained,
    /// A size is missing or makes no sense.
    #[error(transparent)]
    Size(#[from] DimError),
}
