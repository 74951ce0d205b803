//! The interval in which eight of ten steps are expected.

use crate::cluster::Cluster;
use crate::estimate::{Interval, Phases};
use crate::setting::Software;
use crate::strategy::ClusterStrategy;

/// The interval of a step: relative errors of its phases, added as independent ones. Kernels have the spread of the rows
/// they were fitted on; the errors of other phases are guesses, as no row tells them apart.
pub(super) fn interval(
    phases: &Phases,
    strategy: &ClusterStrategy,
    cluster: &Cluster,
    software: &Software,
) -> Interval {
    let far = strategy.devices() > cluster.devices;
    let network = if far { 0.40 } else { 0.15 };
    let seen = software.seen.iter().any(|name| cluster.device.name.starts_with(name));
    let kernels = if seen { software.spread } else { software.spread.hypot(TRANSFER) };
    // Kernels of a part are known less well than those of the whole.
    let halvings = if software.spread == 0.0 { 0.0 } else { strategy.weight_parts().log2() };
    let kernels = kernels.hypot(DIVIDED * halvings);
    // Paths through host memory are known within a factor of two.
    let shared = match software.staging {
        Some(_) => std::f64::consts::LN_2,
        None if strategy.ways > cluster.devices => 0.40,
        None => 0.15,
    };
    let compute = phases.forward + phases.backward + phases.bubble;
    let terms = [
        (compute, kernels),
        (phases.collectives + phases.messages, shared),
        (phases.exchange, network),
        (phases.update + phases.swap, 0.25),
        (phases.load, std::f64::consts::LN_2),
    ];
    let total = phases.total();
    let all = terms.iter().map(|(seconds, share)| (seconds * share).powi(2)).sum::<f64>().sqrt() / total;
    // 1.28 standard deviations to either side.
    let factor = (1.28 * all).exp();
    Interval { low: total / factor, high: total * factor }
}

/// Spread that is added where rates are taken from another accelerator: calibration rows of A100, predicted with the
/// shares that V100 reaches, are off by 0.20 (GPT).
const TRANSFER: f64 = 0.20;

/// Spread that each halving of layers between devices adds: calibration rows of GPT on two A100 are off by 0.039 where
/// layers are whole and by 0.082 where two devices share them.
const DIVIDED: f64 = 0.072;
