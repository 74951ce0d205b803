//! A lower bound of the simulated seconds of packs: the work of each device, and the work of the others before it can
//! begin and after it has ended. It is above the simulation by at most the update of a pack, which may overlap that end.

use super::ScheduleMachine;
use super::chain::ChainSums;
use super::pack::Packs;

/// The bound for these packs and this many partials.
pub(crate) fn bound(sums: &ChainSums, machine: &ScheduleMachine, packs: &Packs, partials: u32) -> f64 {
    let devices = 0..machine.devices.len();
    devices.map(|device| of_device(sums, machine, packs, partials, device)).fold(0.0, f64::max)
}

/// Seconds of moves over host links if nothing stays on devices: orders candidates with equal bounds.
pub(crate) fn traffic(sums: &ChainSums, machine: &ScheduleMachine, packs: &Packs, partials: u32) -> f64 {
    let all = 0..sums.chain.layers.len();
    let stash: u64 = packs[..packs.len() - 1].iter().map(|pack| sums.entering(pack.start)).sum();
    let stash = stash as f64 * f64::from(partials);
    let fetched = (2 * sums.fetched.of(&all) + sums.state.of(&all)) as f64 + stash;
    let links = machine.devices.iter().map(|d| d.to_device).sum::<f64>();
    fetched / links.min(machine.uplink)
}

fn of_device(
    sums: &ChainSums,
    machine: &ScheduleMachine,
    packs: &Packs,
    partials: u32,
    device: usize,
) -> f64 {
    let mine = |pack: usize| pack % machine.devices.len() == device;
    let speed = machine.devices[device].speed;
    let fastest = machine.devices.iter().map(|d| d.speed).fold(0.0, f64::max);
    let others = f64::from(partials - 1);
    let of_all = |one: f64| others * one + one;
    let (mut load, mut again, mut kept) = (0.0, 0.0, 0.0);
    let (mut head, mut tail) = (f64::INFINITY, f64::INFINITY);
    let (mut weights, mut gradients, mut before, mut below) = (0, 0, 0.0, 0.0);
    let last = packs.len() - 1;
    for (i, pack) in packs[..last].iter().enumerate() {
        if mine(i) {
            load += of_all(sums.forward.of(pack));
            weights += sums.fetched.of(pack);
            head = head.min(before);
        }
        before += sums.forward.of(pack);
    }
    for (i, pack) in packs.iter().enumerate() {
        if mine(i) {
            load += of_all(sums.backward.of(pack));
            if i == last {
                load += of_all(sums.forward.of(pack));
                head = head.min(before);
            } else {
                again += of_all(sums.forward.of(pack));
                kept += others * sums.backward_kept.of(pack) as f64;
            }
            load += sums.update.of(pack);
            weights += sums.fetched.of(pack);
            gradients += sums.gradients.of(pack);
            tail = tail.min(below);
        }
        below += sums.backward.of(pack);
    }
    if !head.is_finite() {
        return 0.0;
    }
    // Results that are not recomputed are kept.
    let memory = machine.devices[device].memory as f64;
    load += again * if kept > memory { 1.0 - memory / kept } else { 0.0 };
    let compute = (head + if tail.is_finite() { tail } else { 0.0 }) / fastest + load / speed;
    // Weights are fetched twice, except those that stay in between.
    let passing = (weights as f64 - 2.0 * memory).max(0.0) / machine.devices[device].to_device;
    let written = (gradients as f64 - memory).max(0.0) / machine.devices[device].to_host;
    compute.max(passing).max(written)
}
