//! Estimates: seconds by phase, bytes by holder and by link, an interval, and the bottleneck.

use crate::cluster::Group;
use crate::strategy::ClusterStrategy;
use std::cmp::Ordering;

/// Seconds of a step by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Phases {
    /// Kernels of the forward pass.
    pub forward: f64,
    /// Kernels of the backward pass with recomputation.
    pub backward: f64,
    /// Collectives between devices that share layers.
    pub collectives: f64,
    /// Messages between pipeline stages.
    pub messages: f64,
    /// Exchange of gradients (and of sharded weights) that nothing hides.
    pub exchange: f64,
    /// The optimizer.
    pub update: f64,
    /// Waiting for other stages.
    pub bubble: f64,
    /// Moves between device and host that nothing hides.
    pub swap: f64,
    /// Waiting for data.
    pub load: f64,
}

impl Phases {
    /// All of them, by name.
    pub fn rows(&self) -> [(&'static str, f64); 9] {
        [
            ("forward", self.forward),
            ("backward", self.backward),
            ("collectives", self.collectives),
            ("messages", self.messages),
            ("exchange", self.exchange),
            ("update", self.update),
            ("bubble", self.bubble),
            ("swap", self.swap),
            ("load", self.load),
        ]
    }

    /// Seconds of the step.
    pub fn total(&self) -> f64 {
        self.rows().iter().map(|row| row.1).sum()
    }
}

/// Bytes that a device sends in a step, by link.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Traffic {
    /// To devices of its node.
    pub within: f64,
    /// To other nodes.
    pub between: f64,
    /// To and from host memory.
    pub host: f64,
}

impl Traffic {
    /// Adds bytes that each device of a group sends around a ring. The device at the edge of a node sends all of its
    /// own to another node.
    pub(crate) fn add(&mut self, group: Group, bytes: f64) {
        if group.size <= 1 {
            return;
        }
        let away = if group.local == group.size { 0.0 } else { 1.0 / group.local as f64 };
        self.between += bytes * away;
        self.within += bytes * (1.0 - away);
    }
}

/// Peak bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Memory {
    /// Working weights.
    pub weights: f64,
    /// Gradients.
    pub gradients: f64,
    /// Optimizer states and master weights.
    pub optimizer: f64,
    /// Values kept for the backward passes of all micro-batches under way.
    pub activations: f64,
    /// Other values in use: the largest layer's results, gathered weights, exchange buffers.
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

/// Seconds between which something is expected to lie. Programs read it as `[low, high]`.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(into = "[f64; 2]")]
pub struct Interval {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

impl Interval {
    /// Both ends times a factor.
    pub fn scaled(self, factor: f64) -> Interval {
        Interval { low: self.low * factor, high: self.high * factor }
    }

    /// Whether it holds these seconds.
    pub fn contains(&self, seconds: f64) -> bool {
        (self.low..=self.high).contains(&seconds)
    }
}

impl From<Interval> for [f64; 2] {
    fn from(interval: Interval) -> [f64; 2] {
        [interval.low, interval.high]
    }
}

/// The reason why a strategy is not faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The device computes all the time.
    Compute,
    /// The host cannot launch kernels as fast as the device runs them.
    Launches,
    /// Gradients travel longer than the backward pass hides.
    GradientExchange,
    /// Results of layers are gathered or summed between devices.
    LayerCollectives,
    /// Messages between stages or neighbours.
    Messages,
    /// Groups share links of a node or an oversubscribed network.
    Congestion,
    /// The optimizer's passes over weights and states.
    WeightUpdate,
    /// Stages wait for each other.
    Balance,
    /// Devices do the same work as others.
    ComputeRedundancy,
    /// Bytes between device and host.
    Swap,
    /// Data comes too slowly.
    Staging,
}

impl Bottleneck {
    /// Its words, and their meaning where they do not say it.
    fn row(self) -> (&'static str, Option<&'static str>) {
        match self {
            Bottleneck::Compute => ("compute", Some("devices compute nearly all the time")),
            Bottleneck::Launches => ("kernel launches: too little work for each", None),
            Bottleneck::GradientExchange => {
                ("gradient exchange", Some("copies of the model wait for each other's gradients"))
            }
            Bottleneck::LayerCollectives => {
                ("layer-wise collectives", Some("devices that share layers wait for each other's results"))
            }
            Bottleneck::Messages => {
                ("messages between stages", Some("stages wait for what others send them"))
            }
            Bottleneck::Congestion => ("congestion: groups share a node's adapters", None),
            Bottleneck::WeightUpdate => {
                ("weight update", Some("the optimizer's passes over weights and states"))
            }
            Bottleneck::Balance => ("balance: stages wait for each other", None),
            Bottleneck::ComputeRedundancy => ("compute redundancy: devices repeat each other's work", None),
            Bottleneck::Swap => (
                "moves between device and host",
                Some("layers or states do not come from host memory fast enough"),
            ),
            Bottleneck::Staging => ("loading data", None),
        }
    }

    /// In words.
    pub fn words(self) -> &'static str {
        self.row().0
    }

    /// Its words and their meaning, where the words do not say it.
    pub fn explained(self) -> Option<(&'static str, &'static str)> {
        let (words, meaning) = self.row();
        Some((words, meaning?))
    }
}

/// The estimate of a strategy.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The strategy.
    pub strategy: ClusterStrategy,
    /// Seconds of a step.
    pub seconds: f64,
    /// Eight of ten steps are expected to take this long.
    pub interval: Interval,
    /// Where the seconds go.
    pub phases: Phases,
    /// Peak bytes of the device that holds most.
    pub memory: Memory,
    /// Bytes of a step over links.
    pub traffic: Traffic,
    /// Bytes that are missing, if it does not fit.
    pub missing: Option<f64>,
    /// Why it is not faster.
    pub bottleneck: Bottleneck,
    /// Samples a second.
    pub throughput: f64,
}

/// Those that fit come first, by time; the others by missing bytes.
pub fn order(a: &Estimate, b: &Estimate) -> Ordering {
    by_fit((a.missing, a.seconds), (b.missing, b.seconds))
}

/// The order of two estimates, given missing bytes and seconds of each.
pub(crate) fn by_fit(a: (Option<f64>, f64), b: (Option<f64>, f64)) -> Ordering {
    let key = |(missing, seconds): (Option<f64>, f64)| missing.map_or((0, seconds), |missing| (1, missing));
    let ((fits_a, a), (fits_b, b)) = (key(a), key(b));
    fits_a.cmp(&fits_b).then(a.total_cmp(&b))
}
