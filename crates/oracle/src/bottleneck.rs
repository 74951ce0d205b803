//! What keeps a strategy from being faster, in words.

use crate::closed::Phases;
use crate::cluster::{Cluster, Group};
use crate::stage::Stage;
use crate::strategy::{Cut, Strategy};

/// What keeps a strategy from being faster.
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
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Bottleneck::Compute => "compute",
            Bottleneck::Launches => "kernel launches: too little work for each",
            Bottleneck::GradientExchange => "gradient exchange",
            Bottleneck::LayerCollectives => "layer-wise collectives",
            Bottleneck::Messages => "messages between stages",
            Bottleneck::Congestion => "congestion: groups share a node's adapters",
            Bottleneck::WeightUpdate => "weight update",
            Bottleneck::Balance => "balance: stages wait for each other",
            Bottleneck::ComputeRedundancy => "compute redundancy: devices repeat each other's work",
            Bottleneck::Swap => "moves between device and host",
            Bottleneck::Staging => "loading data",
        }
    }
}

/// The phase that costs most beside computing, once that is half as long; else what bounds computing. `group`
/// is the devices that exchange gradients.
pub(super) fn bottleneck(
    phases: &Phases,
    stages: &[Stage],
    cluster: &Cluster,
    strategy: &Strategy,
    group: Group,
) -> Bottleneck {
    let compute = phases.forward + phases.backward;
    let others = [
        (phases.exchange, Bottleneck::GradientExchange),
        (phases.collectives, Bottleneck::LayerCollectives),
        (phases.messages, Bottleneck::Messages),
        (phases.update, Bottleneck::WeightUpdate),
        (phases.bubble, Bottleneck::Balance),
        (phases.swap, Bottleneck::Swap),
        (phases.load, Bottleneck::Staging),
    ];
    let (seconds, which) = others
        .into_iter()
        .fold((0.0, Bottleneck::Compute), |most, one| if one.0 > most.0 { one } else { most });
    let launches = stages.iter().any(|s| {
        s.forward.host + s.backward.host
            > s.forward.compute + s.forward.collectives + s.backward.compute + s.backward.collectives
    });
    if seconds < 0.5 * compute {
        return match strategy.cut {
            _ if launches => Bottleneck::Launches,
            Cut::Tensor if strategy.ways > 8 => Bottleneck::ComputeRedundancy,
            _ => Bottleneck::Compute,
        };
    }
    let shared = group.size > group.local && group.sharing > cluster.adapters;
    if which == Bottleneck::GradientExchange && shared { Bottleneck::Congestion } else { which }
}
