//! What a schedule comes to: seconds, and bytes by device, link and kind.

use serde::Serialize;

/// What is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MovedKind {
    /// Weights, and buffers that come with them.
    Weights,
    /// Gradients of weights.
    Gradients,
    /// Optimizer state.
    State,
    /// Data, and values and gradients that pass from layer to layer.
    Activations,
    /// Inputs of packs that wait for the backward pass.
    Stash,
}

/// Over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MovedOver {
    /// From the host.
    ToDevice,
    /// To the host.
    ToHost,
    /// To another device.
    Peer,
}

/// Bytes of one device in one step, by [`MovedOver`] and [`MovedKind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MovedBytes {
    /// By link, then by what.
    pub bytes: [[u64; 5]; 3],
}

impl MovedBytes {
    /// Bytes of one kind over one link.
    pub fn of(&self, link: MovedOver, what: MovedKind) -> u64 {
        self.bytes[link as usize][what as usize]
    }

    /// Counts some bytes.
    pub fn add(&mut self, link: MovedOver, what: MovedKind, bytes: u64) {
        self.bytes[link as usize][what as usize] += bytes;
    }

    /// Bytes to and from the host.
    pub fn swapped(&self) -> u64 {
        self.bytes[..2].iter().flatten().sum()
    }
}

/// What a schedule comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduleOutcome {
    /// Seconds of a step; infinite if tasks wait for each other for ever.
    pub seconds: f64,
    /// By device: seconds it computes.
    pub busy: Vec<f64>,
    /// By device: most bytes in use.
    pub peaks: Vec<u64>,
    /// By device: bytes moved.
    pub moved: Vec<MovedBytes>,
}

impl ScheduleOutcome {
    /// The share of the time in which devices do not compute.
    pub fn idle(&self) -> f64 {
        1.0 - self.busy.iter().sum::<f64>() / (self.seconds * self.busy.len() as f64)
    }

    /// Bytes of one kind to and from the host, over all devices.
    pub fn swapped(&self, what: MovedKind) -> u64 {
        self.moved.iter().map(|m| m.of(MovedOver::ToDevice, what) + m.of(MovedOver::ToHost, what)).sum()
    }

    /// All bytes to and from the host.
    pub fn swap_load(&self) -> u64 {
        self.moved.iter().map(MovedBytes::swapped).sum()
    }
}
