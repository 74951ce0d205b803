//! The search for the packs that take least time. Candidates are simulated in the order of the time they promise, except
//! those whose lower bound is above the best time found.

use super::bound::{bound, traffic};
use super::chain::{ChainSums, LayerChain};
use super::memory::PackNeeds;
use super::pack::{Packer, Packs};
use super::simulate::simulate;
use super::{ScheduleError, ScheduleMachine};
use std::ops::Range;

/// Packs with their simulated time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RankedPacks {
    /// Layers of each pack.
    pub packs: Packs,
    /// Seconds of a step; infinite if there is a deadlock.
    pub seconds: f64,
    /// Bytes to and from the host.
    pub swapped: u64,
}

struct Candidate {
    packs: Packs,
    /// A lower bound of its seconds.
    bound: f64,
    /// The seconds it promises: candidates are simulated in their order.
    expected: f64,
}

/// All packs that were simulated, at most `limit`: fastest first, equally fast ones by bytes to and from the host.
pub(crate) fn search(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    partials: u32,
    limit: usize,
) -> Result<Vec<RankedPacks>, ScheduleError> {
    check(machine)?;
    let sums = ChainSums::new(chain);
    let mut candidates = candidates(&sums, machine, partials);
    candidates.sort_by(|a, b| a.expected.total_cmp(&b.expected));
    let mut found: Vec<RankedPacks> = Vec::new();
    let mut best = f64::INFINITY;
    for Candidate { packs, bound, .. } in candidates {
        if found.len() == limit {
            break;
        }
        if !found.is_empty() && bound >= best {
            continue;
        }
        if let Some((seconds, swapped)) = simulate(&sums, machine, &packs, partials) {
            best = best.min(seconds);
            found.push(RankedPacks { packs, seconds, swapped });
        }
    }
    if found.is_empty() {
        return Err(too_large(&sums, machine));
    }
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(a.swapped.cmp(&b.swapped)));
    Ok(found)
}

fn candidates(sums: &ChainSums, machine: &ScheduleMachine, partials: u32) -> Vec<Candidate> {
    let needs = PackNeeds { sums, machine };
    let memory = machine.devices.iter().map(|d| d.memory).min().unwrap_or(0);
    let forward_fits = |packs: &Packs| packs[..packs.len() - 1].iter().all(|p| needs.forward(p) <= memory);
    let packs = possible_packs(&needs, memory).into_iter().filter(forward_fits);
    let candidate = |packs: Packs| {
        let bound = bound(sums, machine, &packs, partials);
        let expected = bound.max(traffic(sums, machine, &packs, partials));
        Candidate { packs, bound, expected }
    };
    packs.map(candidate).collect()
}

/// Different divisions into packs whose backward pass fits.
fn possible_packs(needs: &PackNeeds, memory: u64) -> Vec<Packs> {
    let sums = needs.sums;
    let layers = sums.chain.layers.len();
    let fits = |pack: &Range<usize>| needs.backward(pack) <= memory;
    let packer = Packer { layers: 0..layers, fits: &fits };
    let Some(full) = packer.greedy_from_last() else { return Vec::new() };
    let seconds = |pack: &Range<usize>| sums.forward.of(pack) + sums.backward.of(pack);
    let layer_seconds = |layer: usize| seconds(&(layer..layer + 1));
    let bytes = |layer: usize| needs.backward(&(layer..layer + 1)) as f64;
    let mut packs = vec![full.clone()];
    packs.extend(packer.greedy());
    for count in counts(full.len(), layers, needs.machine.devices.len()) {
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
    packs.sort_by(|a, b| a.iter().map(|r| r.end).cmp(b.iter().map(|r| r.end)));
    packs.dedup();
    packs
}

/// Numbers of packs worth trying, given the fewest that fit.
fn counts(fewest: usize, layers: usize, devices: usize) -> Vec<usize> {
    let round = fewest.next_multiple_of(devices);
    let more = [round, round + 1, round + devices, round + devices + 1, round + 2 * devices];
    let mut counts = [&[fewest, fewest + 1, 3 * fewest / 2, 2 * round, 3 * round][..], &more].concat();
    counts.retain(|count| *count >= fewest && *count <= layers);
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Checks the speeds of a machine.
fn check(machine: &ScheduleMachine) -> Result<(), ScheduleError> {
    let of_devices = machine.devices.iter().enumerate().flat_map(|(d, device)| {
        let all = [("speed", device.speed), ("link", device.to_device), ("link", device.to_host)];
        all.map(|(what, value)| (format!("the {what} of device {d}"), value))
    });
    let shared = [("the uplink", machine.uplink), ("the link between devices", machine.peer)];
    let shared = shared.map(|(what, value)| (what.to_string(), value));
    match of_devices.chain(shared).find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
        Some((what, value)) => Err(ScheduleError::NotPositive { what, value }),
        None => Ok(()),
    }
}

/// The layer that needs most.
fn too_large(sums: &ChainSums, machine: &ScheduleMachine) -> ScheduleError {
    let needs = PackNeeds { sums, machine };
    let need = |layer: usize| needs.backward(&(layer..layer + 1));
    let layers = &sums.chain.layers;
    let layer = (0..layers.len()).rev().max_by_key(|layer| need(*layer)).unwrap_or(0);
    let memory = machine.devices.iter().map(|d| d.memory).max().unwrap_or(0);
    ScheduleError::TooLarge { layer, name: layers[layer].name.clone(), needed: need(layer), memory }
}
