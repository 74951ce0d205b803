//! Seconds below which no simulation of a schedule can come: what each device has to compute, and what has to
//! pass through the others before it can begin and after it has ended.

use super::chain::ChainPrices;
use super::task::{PackSchedule, ScheduleMode, UpdateOn, pieces, shares};
use super::{LayerPack, ScheduleMachine};

/// The bound of a schedule whose sizes are prepared.
pub(crate) fn bound(prices: &ChainPrices, machine: &ScheduleMachine, schedule: &PackSchedule) -> f64 {
    let parallel = schedule.mode == ScheduleMode::DataParallel;
    let samples =
        if parallel { shares(machine, schedule.devices, schedule.batch) } else { vec![schedule.batch] };
    let mut most = 0.0f64;
    for (lane, &samples) in samples.iter().enumerate() {
        let devices = if parallel { lane..lane + 1 } else { 0..schedule.devices };
        for device in devices {
            let mine = |pack: &LayerPack| parallel || pack.device == device;
            most = most.max(of_device(prices, machine, schedule, samples, device, &mine));
        }
    }
    most
}

/// Seconds that moves over host links may take, if nothing stays on devices: tells candidates with equal bounds
/// apart.
pub(crate) fn traffic(prices: &ChainPrices, machine: &ScheduleMachine, schedule: &PackSchedule) -> f64 {
    let fixed = &prices.fixed;
    let all = 0..prices.chain.layers.len();
    let replicas = if schedule.mode == ScheduleMode::DataParallel { schedule.devices as f64 } else { 1.0 };
    let stash = schedule.backward[..schedule.backward.len() - 1].iter();
    let stash: u64 = stash.map(|pack| prices.chain.layers[pack.layers.start].input).sum();
    let stash = stash as f64 * f64::from(schedule.batch);
    let state = if schedule.update == UpdateOn::Device { fixed.state.of(&all) } else { 0 };
    let fetched = replicas * (2 * fixed.fetched.of(&all) + state) as f64 + stash;
    let links = machine.devices[..schedule.devices].iter().map(|d| d.to_device).sum::<f64>();
    fetched / links.min(machine.uplink.unwrap_or(f64::INFINITY))
}

fn of_device(
    prices: &ChainPrices,
    machine: &ScheduleMachine,
    schedule: &PackSchedule,
    samples: u32,
    device: usize,
    mine: &dyn Fn(&LayerPack) -> bool,
) -> f64 {
    let fixed = &prices.fixed;
    let (size_f, size_b) = (schedule.forward_size.min(samples), schedule.backward_size.min(samples));
    let speed = machine.devices[device].speed;
    let fastest = machine.devices.iter().map(|d| d.speed).fold(0.0, f64::max);
    // A remainder counts as its share of a micro-batch, which takes no longer than it does.
    let times = |size: u32| pieces(samples, size).len().saturating_sub(1) as f64;
    let rest = |size: u32| samples - (pieces(samples, size).len() as u32 - 1) * size;
    let (times_f, times_b) = (times(size_f), times(size_b));
    let (f, b) = (prices.at(size_f), prices.at(size_b));
    let (rest_f, rest_b) = (prices.at(rest(size_f)), prices.at(rest(size_b)));
    let (mut load, mut again, mut kept) = (0.0, 0.0, 0.0);
    let (mut head, mut tail) = (f64::INFINITY, f64::INFINITY);
    let (mut weights, mut before) = (0, 0.0);
    for pack in &schedule.forward {
        let one = f.forward.of(&pack.layers).min(rest_f.forward.of(&pack.layers));
        if mine(pack) {
            load += times_f * f.forward.of(&pack.layers) + rest_f.forward.of(&pack.layers) + machine.per_task;
            weights += fixed.fetched.of(&pack.layers);
            head = head.min(before);
        }
        before += one;
    }
    let mut below = 0.0;
    let mut gradients = 0;
    for (j, pack) in schedule.backward.iter().enumerate() {
        let one = b.backward.of(&pack.layers).min(rest_b.backward.of(&pack.layers));
        if mine(pack) {
            let forward = times_b * b.forward.of(&pack.layers) + rest_b.forward.of(&pack.layers);
            load += times_b * b.backward.of(&pack.layers) + rest_b.backward.of(&pack.layers);
            load += machine.per_task;
            if j + 1 == schedule.backward.len() {
                load += forward;
                head = head.min(before);
            } else {
                again += forward;
                kept += times_b * b.backward_kept.of(&pack.layers) as f64;
            }
            if schedule.update == UpdateOn::Device {
                load += fixed.update.of(&pack.layers);
            }
            weights += fixed.fetched.of(&pack.layers);
            gradients += fixed.gradients.of(&pack.layers);
            tail = tail.min(below);
        }
        below += one;
    }
    if !head.is_finite() {
        return 0.0;
    }
    // What is not computed again has to be kept.
    let memory = machine.devices[device].memory as f64;
    load += again * if kept > memory { 1.0 - memory / kept } else { 0.0 };
    let compute = (head + if tail.is_finite() { tail } else { 0.0 }) / fastest + load / speed;
    // Weights pass twice, save what stays in between.
    let passing = (weights as f64 - 2.0 * memory).max(0.0) / machine.devices[device].to_device;
    let out = match schedule.update {
        UpdateOn::Host => gradients as f64,
        UpdateOn::Device => (gradients as f64 - memory).max(0.0),
    };
    compute.max(passing).max(out / machine.devices[device].to_host)
}
