//! Pipelines without wrap-around: which layers each device has, in which order it takes micro-batches, and how
//! long the devices then wait for each other.

use super::super::chain::AtSize;
use super::super::pack::Packer;
use super::super::{LayerChain, ScheduleMachine};
use super::Way;
use super::passes::{Stage, Step, Told};
use std::ops::Range;

/// Neighbouring layers for each device, the slowest as fast as can be.
pub(super) fn stages(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    devices: usize,
    size: u32,
) -> Option<Vec<Range<usize>>> {
    let at = AtSize::of(chain, size);
    let even = machine.devices[..devices].windows(2).all(|pair| pair[0].speed == pair[1].speed);
    let seconds = |layer: usize| at.forward.of(&(layer..layer + 1)) + at.backward.of(&(layer..layer + 1));
    let packer = Packer { layers: 0..chain.layers.len(), fits: &|_| true };
    let packs = packer.balanced(devices, &seconds)?;
    if even {
        return Some(packs);
    }
    // By speed: layers up to each device's share of the seconds.
    let total: f64 = (0..chain.layers.len()).map(seconds).sum();
    let speeds: f64 = machine.devices[..devices].iter().map(|d| d.speed).sum();
    let (mut start, mut sum, mut share, mut out) = (0, 0.0, 0.0, Vec::new());
    for (d, device) in machine.devices[..devices].iter().enumerate() {
        share += total * device.speed / speeds;
        let most = chain.layers.len() - (devices - d - 1);
        let mut end = start;
        while end < most && (end == start || d + 1 == devices || sum + seconds(end) / 2.0 <= share) {
            sum += seconds(end);
            end += 1;
        }
        out.push(start..end);
        start = end;
    }
    Some(out)
}

/// The steps of one device.
pub(super) fn order(way: Way, device: usize, devices: usize, pieces: usize) -> Vec<Step> {
    if way != Way::OneForwardOneBackward {
        let forward = (0..pieces).map(Step::Forward);
        return forward.chain((0..pieces).rev().map(Step::Backward)).collect();
    }
    let ahead = (devices - device).min(pieces);
    let mut order: Vec<Step> = (0..ahead).map(Step::Forward).collect();
    for k in 0..pieces {
        order.push(Step::Backward(k));
        if ahead + k < pieces {
            order.push(Step::Forward(ahead + k));
        }
    }
    order
}

/// Seconds until every device has updated its layers.
pub(super) fn seconds(chain: &LayerChain, machine: &ScheduleMachine, stages: &[Stage], told: &[Told]) -> f64 {
    let pieces = stages[0].pieces.len();
    let rate = machine.peer.unwrap_or(stages[0].rate.1 / 2.0);
    let never = f64::INFINITY;
    let mut forward = vec![vec![never; pieces]; stages.len()];
    let mut backward = vec![vec![never; pieces]; stages.len()];
    let mut next = vec![0; stages.len()];
    let mut now = vec![0.0f64; stages.len()];
    loop {
        let mut moved = false;
        for (s, stage) in stages.iter().enumerate() {
            while let Some(step) = stage.order.get(next[s]) {
                let (Step::Forward(k) | Step::Backward(k)) = *step;
                let passed = |bytes: u64| (bytes * u64::from(stage.pieces[k])) as f64 / rate;
                let ready = match step {
                    Step::Forward(_) if s == 0 => 0.0,
                    Step::Forward(_) => forward[s - 1][k] + passed(chain.layers[stage.layers.start].input),
                    Step::Backward(_) if s + 1 == stages.len() => forward[s][k],
                    Step::Backward(_) => {
                        backward[s + 1][k] + passed(chain.layers[stage.layers.end].input_gradient)
                    }
                };
                if !ready.is_finite() {
                    break;
                }
                now[s] = now[s].max(ready) + told[s].steps[next[s]];
                match step {
                    Step::Forward(_) => forward[s][k] = now[s],
                    Step::Backward(_) => backward[s][k] = now[s],
                }
                next[s] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let ends = now.iter().zip(told).map(|(now, told)| now + told.update);
    let stuck = stages.iter().zip(&next).any(|(stage, next)| *next < stage.order.len());
    if stuck { never } else { ends.fold(0.0, f64::max) }
}
