//! How far off an answer may be.

use crate::closed::{Phases, sharers};
use crate::cluster::Cluster;
use crate::setting::Software;
use crate::strategy::Strategy;

/// Eight of ten steps lie within: what is uncertain of each phase, added as independent errors. Kernels have
/// the spread of the rows they were fitted on, and on other accelerators that of rates taken over from one to
/// another; the other shares are guesses, as no row tells them apart.
pub(super) fn interval(
    phases: &Phases,
    strategy: &Strategy,
    cluster: &Cluster,
    software: &Software,
) -> [f64; 2] {
    let far = strategy.devices() > cluster.devices;
    let network = if far { 0.40 } else { 0.15 };
    let seen = software.seen.iter().any(|name| cluster.device.name.starts_with(name));
    let kernels = if seen { software.spread } else { software.spread.hypot(TRANSFER) };
    // Kernels of a part are known less well than those of the whole.
    let halvings = if software.spread == 0.0 { 0.0 } else { sharers(strategy).log2() };
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
    [total / factor, total * factor]
}

/// What it adds to the spread of kernels' times to take their rates from another accelerator: rows of A100
/// that calibrate, asked with the shares that V100 reaches, are off by 0.20 (GPT); published throughput of
/// each, asked with the other's, is off by 0.17 more than with its own.
const TRANSFER: f64 = 0.20;

/// What every halving of layers between devices adds to it: rows of GPT on two A100 that calibrate, grouped by width,
/// micro-batch and way, are off by 0.039 where layers are whole and by 0.082 where two devices share them.
const DIVIDED: f64 = 0.072;
