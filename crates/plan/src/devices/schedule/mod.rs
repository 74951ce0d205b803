//! Training a model that is larger than the memory of all devices together: its layers go through the devices in packs,
//! and weights and values that are not in use wait in host memory. `search` finds the packs (Li et al., "Harmony",
//! VLDB 2022). Pack `i` is on device `i` modulo the number of devices in both passes; its weights are updated there.

mod bound;
mod chain;
mod engine;
mod linear;
mod memory;
mod pack;
mod search;
mod simulate;
#[cfg(test)]
mod tests;

pub(crate) use linear::linearise;
pub(crate) use search::search;

use gulliver_graph::dim::DimError;

/// The devices and their links.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScheduleMachine {
    /// By device.
    pub devices: Vec<ScheduleDevice>,
    /// Bytes per second of the host's own link, which all devices share, in each direction.
    pub uplink: f64,
    /// Bytes per second from device to device.
    pub peer: f64,
}

/// One device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScheduleDevice {
    /// Bytes of memory.
    pub memory: u64,
    /// Speed of its kernels; 1 takes the seconds of the chain.
    pub speed: f64,
    /// Bytes per second from the host.
    pub to_device: f64,
    /// Bytes per second to the host.
    pub to_host: f64,
}

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// A speed that is zero, negative or infinite.
    #[error("{what} is {value}; it must be above zero and finite")]
    NotPositive {
        /// The speed.
        what: String,
        /// Its value.
        value: f64,
    },
    /// A layer is too large.
    #[error(
        "layer {layer} (`{name}`) needs {needed} bytes for one partial, a device has {memory}; raise the memory or use more partials"
    )]
    TooLarge {
        /// The layer.
        layer: usize,
        /// Its name.
        name: String,
        /// Bytes it needs.
        needed: u64,
        /// Bytes of the largest device.
        memory: u64,
    },
    /// A graph with several losses.
    #[error("the graph has several objectives; schedules are made for one")]
    SeveralObjectives,
    /// A graph without a backward pass.
    #[error("the graph has no backward pass; schedules are made for training graphs")]
    NotTrained,
    /// A size is missing or invalid.
    #[error(transparent)]
    Size(#[from] DimError),
}
