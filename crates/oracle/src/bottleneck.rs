//! The reason why a strategy is not faster.

use crate::cluster::{Cluster, Group};
use crate::estimate::{Bottleneck, Phases};
use crate::stage::Stage;
use crate::strategy::{ClusterStrategy, Cut};

/// The longest phase beside computing, if it takes half as long as computing; else the limit of computing. `group` is
/// the devices that exchange gradients.
pub(super) fn bottleneck(
    phases: &Phases,
    stages: &[Stage],
    cluster: &Cluster,
    strategy: &ClusterStrategy,
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
