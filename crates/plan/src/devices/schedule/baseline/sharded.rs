//! Data parallel whose weights, gradients and optimizer state are shared out (ZeRO's third stage) and wait on the
//! host: before each layer of each micro-batch every device fetches its share and all put theirs together; the
//! host runs the optimizer. Layers keep their inputs and compute the rest again.

use super::super::chain::{AtSize, FixedSums};
use super::super::task::shares;
use super::super::{LayerChain, MovedBytes, MovedKind, MovedOver, ScheduleMachine, ScheduleOutcome, pieces};

/// What it comes to with micro-batches of a size; moves are hidden behind kernels and the other way round, as
/// far as can be. None if one layer alone does not fit.
pub fn sharded(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    devices: usize,
    batch: u32,
    size: u32,
) -> Option<ScheduleOutcome> {
    if devices == 0 || devices > machine.devices.len() || size == 0 || chain.layers.is_empty() {
        return None;
    }
    let fixed = FixedSums::of(chain);
    let samples = shares(machine, devices, batch);
    let size = size.min(samples.iter().copied().max().unwrap_or(1)).max(1);
    let at = AtSize::of(chain, size);
    let all = 0..chain.layers.len();
    let (weights, gradients) = (fixed.fetched.of(&all), fixed.gradients.of(&all));
    let inputs: u64 = chain.layers.iter().map(|l| l.input).sum();
    let mut outcome =
        ScheduleOutcome { seconds: 0.0, busy: Vec::new(), peaks: Vec::new(), moved: Vec::new() };
    for (d, &samples) in samples.iter().enumerate() {
        if samples == 0 {
            return None;
        }
        let device = &machine.devices[d];
        // A layer at work and the next on its way.
        let layer = |l: usize| {
            let one = l..l + 1;
            2 * fixed.fetched.of(&one) + fixed.gradients.of(&one) + at.backward_memory(&one)
        };
        let need = all.clone().map(layer).max().unwrap_or(0);
        if need > device.memory {
            return None;
        }
        let stash = inputs * u64::from(size.min(samples));
        let stays = need + stash <= device.memory;
        let pieces = pieces(samples, size);
        let (times, share) = (pieces.len() as u64, devices as u64);
        let mut moved = MovedBytes::default();
        moved.add(MovedOver::ToDevice, MovedKind::Weights, 2 * times * weights / share);
        moved.add(MovedOver::ToHost, MovedKind::Gradients, times * gradients / share);
        moved.add(MovedOver::ToDevice, MovedKind::Activations, chain.layers[0].input * u64::from(samples));
        // Every share to every other device, in both passes, and gradients to where they belong.
        let others = times * (share - 1);
        moved.add(MovedOver::Peer, MovedKind::Weights, 2 * others * weights / share);
        moved.add(MovedOver::Peer, MovedKind::Gradients, others * gradients / share);
        if !stays {
            moved.add(MovedOver::ToHost, MovedKind::Stash, inputs * u64::from(samples));
            moved.add(MovedOver::ToDevice, MovedKind::Stash, inputs * u64::from(samples));
        }
        let compute: f64 = pieces
            .iter()
            .map(|&size| {
                let at = AtSize::of(chain, size);
                2.0 * at.forward.of(&all) + at.backward.of(&all)
            })
            .sum();
        let rate = |own: f64| own.min(machine.uplink.unwrap_or(f64::INFINITY) / devices as f64);
        let sum = |link: MovedOver| moved.bytes[link as usize].iter().sum::<u64>() as f64;
        let update = fixed.update_on_host.of(&all) / devices as f64;
        let seconds = [
            compute / device.speed,
            sum(MovedOver::ToDevice) / rate(device.to_device),
            sum(MovedOver::ToHost) / rate(device.to_host),
            sum(MovedOver::Peer) / machine.peer.unwrap_or(rate(device.to_host) / 2.0),
        ];
        let seconds = seconds.into_iter().fold(0.0, f64::max) + update;
        outcome.seconds = outcome.seconds.max(seconds);
        outcome.busy.push(compute / device.speed);
        outcome.peaks.push(if stays { need + stash } else { need });
        outcome.moved.push(moved);
    }
    Some(outcome)
}
