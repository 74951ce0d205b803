//! The search for the schedules that take least time: micro-batch sizes and packs of both passes, devices, mode
//! and place of the optimizer. Candidates are simulated in the order of the time they promise, save those whose
//! lower bound is above the best that was found.

use super::bound::{bound, traffic};
use super::chain::ChainPrices;
use super::memory::Needs;
use super::pack::{Packer, Packs};
use super::simulate::timed;
use super::task::{LayerPack, PackRotation, PackSchedule, ScheduleMode, UpdateOn, pieces, shares};
use super::{LayerChain, ScheduleError, ScheduleMachine, ScheduleOutcome};
use serde::Serialize;
use std::ops::Range;

/// What is searched.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleOptions {
    /// Samples of a step.
    pub batch: u32,
    /// Ways to divide work.
    pub modes: Vec<ScheduleMode>,
    /// Micro-batch sizes that may be used; none is any.
    pub sizes: Option<Vec<u32>>,
    /// Who may run the optimizer.
    pub updates: Vec<UpdateOn>,
    /// Fewest devices that may be used; more are tried up to all.
    pub least_devices: usize,
    /// Schedules that take at most this share longer than the fastest count as equally fast: of these, the one
    /// that moves fewest bytes over the host's link comes first.
    pub slack: f64,
    /// Most schedules to return.
    pub top: usize,
    /// Most schedules to simulate.
    pub limit: usize,
}

impl ScheduleOptions {
    /// Everything, for so many samples a step.
    pub fn new(batch: u32) -> ScheduleOptions {
        ScheduleOptions {
            batch,
            modes: vec![
                ScheduleMode::DataParallel,
                ScheduleMode::Pipeline(PackRotation::SameDevice),
                ScheduleMode::Pipeline(PackRotation::Continuing),
            ],
            sizes: None,
            updates: vec![UpdateOn::Device, UpdateOn::Host],
            least_devices: 1,
            slack: 0.0,
            top: 10,
            limit: 900,
        }
    }
}

/// A schedule and what it comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankedSchedule {
    /// What is decided.
    pub schedule: PackSchedule,
    /// What it takes.
    pub outcome: ScheduleOutcome,
}

/// The best schedules found, fastest first; equally fast ones by fewer bytes over the host's link, then by fewer
/// devices. The best of every mode and number of devices is among those that were simulated.
pub fn search(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    options: &ScheduleOptions,
) -> Result<Vec<RankedSchedule>, ScheduleError> {
    check(chain, machine, options)?;
    let mut found: Vec<RankedSchedule> = Vec::new();
    let mut prices = ChainPrices::new(chain);
    let mut groups: Vec<Vec<Candidate>> = Vec::new();
    for devices in options.least_devices.max(1)..=machine.devices.len() {
        for &mode in options.modes.iter().filter(|mode| useful(options, **mode, devices)) {
            let group = Group { machine, options, devices, mode };
            let mut candidates = group.candidates(&mut prices);
            candidates.sort_by(|a, b| a.expected.total_cmp(&b.expected));
            groups.push(candidates);
        }
    }
    // The groups that promise most first: what they find rules out much of the others.
    groups.retain(|candidates| !candidates.is_empty());
    groups.sort_by(|a, b| a[0].expected.total_cmp(&b[0].expected));
    let each = (options.limit / groups.len().max(1)).max(4);
    let mut best = f64::INFINITY;
    let slack = 1.0 + options.slack.max(0.0);
    for candidates in groups {
        let mut tried = 0;
        for candidate in candidates {
            if tried >= each {
                break;
            }
            if tried > 0 && candidate.bound >= best * slack {
                continue;
            }
            if let Some(outcome) = timed(&prices, machine, &candidate.schedule) {
                best = best.min(outcome.seconds);
                found.push(RankedSchedule { schedule: candidate.schedule, outcome });
                tried += 1;
            }
        }
    }
    if found.is_empty() {
        return Err(too_large(chain, machine, options, &mut prices));
    }
    found.sort_by(|a, b| {
        let seconds =
            |r: &RankedSchedule| if r.outcome.seconds <= best * slack { 0.0 } else { r.outcome.seconds };
        let key = |r: &RankedSchedule| (r.outcome.swap_load(), r.schedule.devices);
        let exact = || a.outcome.seconds.total_cmp(&b.outcome.seconds);
        seconds(a).total_cmp(&seconds(b)).then(key(a).cmp(&key(b))).then_with(exact)
    });
    found.truncate(options.top.max(1));
    Ok(found)
}

/// One device is the same in every mode.
fn useful(options: &ScheduleOptions, mode: ScheduleMode, devices: usize) -> bool {
    match mode {
        ScheduleMode::DataParallel => options.batch >= devices as u32,
        ScheduleMode::Pipeline(_) => devices > 1 || options.modes[0] == mode,
    }
}

struct Candidate {
    schedule: PackSchedule,
    /// Seconds that it cannot be below.
    bound: f64,
    /// Seconds that it may take: the order in which candidates are simulated.
    expected: f64,
}

/// What all candidates of a group have in common.
struct Group<'a> {
    machine: &'a ScheduleMachine,
    options: &'a ScheduleOptions,
    devices: usize,
    mode: ScheduleMode,
}

impl Group<'_> {
    fn candidates(&self, prices: &mut ChainPrices) -> Vec<Candidate> {
        let shares = match self.mode {
            ScheduleMode::DataParallel => shares(self.machine, self.devices, self.options.batch),
            ScheduleMode::Pipeline(_) => vec![self.options.batch],
        };
        if shares.contains(&0) {
            return Vec::new();
        }
        let sizes = sizes(self.options, shares.iter().copied().max().unwrap_or(1));
        for &size in &sizes {
            for &share in &shares {
                prices.prepare(size);
                prices.prepare(size.min(share));
                pieces(share, size).into_iter().for_each(|size| prices.prepare(size));
            }
        }
        let mut out = Vec::new();
        for &update in &self.options.updates {
            for &size_b in &sizes {
                for backward in self.backward_packs(prices, size_b, update) {
                    let boundary = backward[backward.len() - 1].start;
                    for &size_f in sizes.iter().filter(|size| **size >= size_b) {
                        if boundary == 0 && size_f != size_b {
                            continue;
                        }
                        for forward in self.forward_packs(prices, size_f, &backward) {
                            let pack =
                                |layers: &Range<usize>| LayerPack { layers: layers.clone(), device: 0 };
                            let mut schedule = PackSchedule {
                                mode: self.mode,
                                devices: self.devices,
                                batch: self.options.batch,
                                forward_size: size_f,
                                backward_size: size_b,
                                forward: forward.iter().map(pack).collect(),
                                backward: backward.iter().map(pack).collect(),
                                update,
                            };
                            schedule.place();
                            let bound = bound(prices, self.machine, &schedule);
                            let expected = bound.max(traffic(prices, self.machine, &schedule));
                            out.push(Candidate { schedule, bound, expected });
                        }
                    }
                }
            }
        }
        out
    }

    fn memory(&self) -> u64 {
        self.machine.devices[..self.devices].iter().map(|d| d.memory).min().unwrap_or(0)
    }

    fn backward_packs(&self, prices: &ChainPrices, size: u32, update: UpdateOn) -> Vec<Packs> {
        let at = prices.at(size);
        let needs = Needs { chain: prices.chain, fixed: &prices.fixed, machine: self.machine };
        let memory = self.memory();
        let fits = |pack: &Range<usize>| needs.backward(pack, size, at, update) <= memory;
        let packer = Packer { layers: 0..prices.chain.layers.len(), fits: &fits };
        let Some(full) = packer.greedy_from_last() else { return Vec::new() };
        let seconds = |pack: &Range<usize>| at.forward.of(pack) + at.backward.of(pack);
        let layer_seconds = |layer: usize| seconds(&(layer..layer + 1));
        let bytes = |layer: usize| needs.backward(&(layer..layer + 1), size, at, update) as f64;
        let mut packs = vec![full.clone()];
        packs.extend(packer.greedy());
        for count in self.counts(full.len(), prices.chain.layers.len()) {
            packs.extend(packer.balanced(count, &layer_seconds));
            packs.extend(packer.balanced(count, &bytes));
            packs.extend(packer.bottleneck(count, &seconds));
            // The last pack runs forward only once: as large as fits, the others equal.
            let last = full[full.len() - 1].clone();
            let rest = Packer { layers: 0..last.start, fits: &fits };
            if let Some(mut others) = rest.balanced(count - 1, &layer_seconds) {
                others.push(last);
                packs.push(others);
            }
        }
        distinct(packs)
    }

    fn forward_packs(&self, prices: &ChainPrices, size: u32, backward: &Packs) -> Vec<Packs> {
        let reuse = backward[..backward.len() - 1].to_vec();
        if reuse.is_empty() {
            return vec![reuse];
        }
        let at = prices.at(size);
        let needs = Needs { chain: prices.chain, fixed: &prices.fixed, machine: self.machine };
        let memory = self.memory();
        let fits = |pack: &Range<usize>| needs.forward(pack, size, at) <= memory;
        let mut packs = Vec::new();
        if reuse.iter().all(fits) {
            packs.push(reuse.clone());
        }
        if self.mode == ScheduleMode::Pipeline(PackRotation::SameDevice) {
            return packs;
        }
        let packer = Packer { layers: 0..reuse[reuse.len() - 1].end, fits: &fits };
        let Some(full) = packer.greedy() else { return packs };
        let seconds = |layer: usize| at.forward.of(&(layer..layer + 1));
        for count in self.counts(full.len(), packer.layers.len()).into_iter().take(3) {
            packs.extend(packer.balanced(count, &seconds));
        }
        packs.push(full);
        distinct(packs)
    }

    /// Numbers of packs worth trying, given the fewest that fit.
    fn counts(&self, fewest: usize, layers: usize) -> Vec<usize> {
        let n = if self.mode == ScheduleMode::DataParallel { 1 } else { self.devices };
        let round = fewest.next_multiple_of(n);
        let mut counts = vec![fewest, fewest + 1, round, round + 1, round + n, round + n + 1, round + 2 * n];
        counts.extend([3 * fewest / 2, 2 * round, 3 * round]);
        counts.retain(|count| *count >= fewest && *count <= layers);
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}

fn distinct(mut packs: Vec<Packs>) -> Vec<Packs> {
    packs.sort_by(|a, b| {
        let ends = |p: &Packs| p.iter().map(|r| r.end).collect::<Vec<_>>();
        ends(a).cmp(&ends(b))
    });
    packs.dedup();
    packs
}

/// For every number of micro-batches the smallest size that makes no more of them.
fn sizes(options: &ScheduleOptions, samples: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = match &options.sizes {
        Some(sizes) => sizes.iter().copied().filter(|size| *size > 0).map(|s| s.min(samples)).collect(),
        None => (1..=samples).map(|count| samples.div_ceil(count)).collect(),
    };
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn check(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    options: &ScheduleOptions,
) -> Result<(), ScheduleError> {
    let empty = [
        ("the chain", chain.layers.is_empty()),
        ("the machine", machine.devices.is_empty()),
        ("the batch", options.batch == 0),
        ("the list of modes", options.modes.is_empty()),
        ("the list of places for the optimizer", options.updates.is_empty()),
        ("the list of sizes", options.sizes.as_ref().is_some_and(|sizes| sizes.iter().all(|s| *s == 0))),
    ];
    if let Some((what, _)) = empty.into_iter().find(|(_, empty)| *empty) {
        return Err(ScheduleError::Empty(what));
    }
    let rates = machine.devices.iter().enumerate().flat_map(|(d, device)| {
        let all = [("speed", device.speed), ("link", device.to_device), ("link", device.to_host)];
        all.map(|(what, value)| (format!("the {what} of device {d}"), value))
    });
    let shared = [("the uplink", machine.uplink), ("the link between devices", machine.peer)];
    let shared = shared.into_iter().filter_map(|(what, rate)| Some((what.to_string(), rate?)));
    match rates.chain(shared).find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
        Some((what, value)) => Err(ScheduleError::NotPositive { what, value }),
        None => Ok(()),
    }
}

/// The layer that needs most, for the smallest micro-batch.
fn too_large(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    options: &ScheduleOptions,
    prices: &mut ChainPrices,
) -> ScheduleError {
    let size = sizes(options, options.batch)[0];
    prices.prepare(size);
    let needs = Needs { chain, fixed: &prices.fixed, machine };
    let need = |layer: usize| {
        let pack = layer..layer + 1;
        needs.backward(&pack, size, prices.at(size), options.updates[0])
    };
    let layer = (0..chain.layers.len()).rev().max_by_key(|layer| need(*layer)).unwrap_or(0);
    let memory = machine.devices.iter().map(|d| d.memory).max().unwrap_or(0);
    let name = chain.layers[layer].name.clone();
    ScheduleError::TooLarge { layer, name, size, needed: need(layer), memory }
}
