//! The operations of one device on virtual memory: the forward and backward pass of each micro-batch through its
//! layers, then the update, layer by layer.

use super::super::{LayerChain, MovedBytes, MovedKind, MovedOver, ScheduleMachine};
use super::Request;
use super::pager::{Pager, Thing};
use std::ops::Range;

/// A pass of a micro-batch through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Forward(usize),
    Backward(usize),
}

/// The layers of one device and what it does with them.
pub(super) struct Stage {
    pub(super) device: usize,
    pub(super) layers: Range<usize>,
    pub(super) pieces: Vec<u32>,
    pub(super) order: Vec<Step>,
    /// Bytes a second from and to the host.
    pub(super) rate: (f64, f64),
    /// Devices that have the same layers and add up their gradients.
    pub(super) ranks: usize,
}

/// What a stage comes to.
pub(super) struct Told {
    /// Seconds of each step of its order, waiting for bytes included.
    pub(super) steps: Vec<f64>,
    /// Seconds of the update.
    pub(super) update: f64,
    pub(super) busy: f64,
    pub(super) peak: u64,
    pub(super) moved: MovedBytes,
}

pub(super) fn run(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    stage: &Stage,
    request: &Request,
) -> Option<Told> {
    let device = &machine.devices[stage.device];
    let mut run =
        Run { chain, stage, request, pager: Pager::new(device.memory, request.eviction), busy: 0.0 };
    for l in stage.layers.clone() {
        let layer = &chain.layers[l];
        run.pager.at_home((Thing::Weights, l, 0), layer.weights + layer.buffers);
        run.pager.at_home((Thing::State, l, 0), layer.state);
    }
    let mut steps = Vec::with_capacity(stage.order.len());
    let mut update = 0.0;
    // What the first step leaves on the device the second finds there: the second is like all that follow.
    for _ in 0..2 {
        run.pager.moved = MovedBytes::default();
        run.busy = 0.0;
        steps.clear();
        let mut gradients = vec![false; chain.layers.len()];
        for step in &stage.order {
            let before = run.busy;
            let waited = match step {
                Step::Forward(k) => run.forward(*k)?,
                Step::Backward(k) => run.backward(*k, &mut gradients)?,
            };
            steps.push(waited + (run.busy - before) / device.speed);
        }
        let before = run.busy;
        let waited = run.update()?;
        update = waited + (run.busy - before) / device.speed;
    }
    let mut moved = run.pager.moved;
    if stage.ranks > 1 {
        let ranks = stage.ranks as f64;
        let bytes: u64 = stage.layers.clone().map(|l| chain.layers[l].gradients).sum();
        let sent = 2.0 * (ranks - 1.0) / ranks * bytes as f64;
        moved.add(MovedOver::Peer, MovedKind::Gradients, sent as u64);
        update += sent / machine.peer.unwrap_or(stage.rate.0.min(stage.rate.1));
    }
    Some(Told { steps, update, busy: run.busy / device.speed, peak: run.pager.peak, moved })
}

struct Run<'a> {
    chain: &'a LayerChain,
    stage: &'a Stage,
    request: &'a Request,
    pager: Pager,
    busy: f64,
}

impl Run<'_> {
    fn seconds(&self, (arrived, left): (u64, u64)) -> f64 {
        arrived as f64 / self.stage.rate.0 + left as f64 / self.stage.rate.1
    }

    fn forward(&mut self, k: usize) -> Option<f64> {
        let size = self.stage.pieces[k];
        let mut waited = 0.0;
        for l in self.stage.layers.clone() {
            let layer = &self.chain.layers[l];
            let bytes = |l: usize| self.chain.layers.get(l).map_or(0, |n| n.input * u64::from(size));
            let mut makes = vec![((Thing::Input, l + 1, k), bytes(l + 1))];
            let mut working = layer.forward_kept.at(size) + layer.forward_working.at(size);
            if l == self.stage.layers.start {
                // Data, or what another device sent.
                makes.push(((Thing::Input, l, k), bytes(l)));
            }
            if !self.request.recompute {
                let inside = layer.backward_kept.at(size);
                makes.push(((Thing::Inside, l, k), inside as u64));
                working = (working - inside).max(0.0);
            }
            let reads = [(Thing::Weights, l, 0), (Thing::Input, l, k)];
            let moved = self.pager.access(&reads, &makes, &[], working as u64)?;
            waited += self.seconds(moved);
            if l == 0 {
                self.pager.moved.add(MovedOver::ToDevice, MovedKind::Activations, bytes(0));
                waited += bytes(0) as f64 / self.stage.rate.0;
            }
            self.busy += layer.forward.at(size);
        }
        if self.stage.layers.end < self.chain.layers.len() {
            // It is the next device's now.
            self.pager.forget((Thing::Input, self.stage.layers.end, k));
        }
        Some(waited)
    }

    fn backward(&mut self, k: usize, gradients: &mut [bool]) -> Option<f64> {
        let size = self.stage.pieces[k];
        let mut waited = 0.0;
        for l in self.stage.layers.clone().rev() {
            let layer = &self.chain.layers[l];
            let handed =
                |l: usize| self.chain.layers.get(l).map_or(0, |n| n.input_gradient * u64::from(size));
            let weights = (Thing::Gradients, l, 0);
            let mut makes = vec![((Thing::InputGradient, l, k), handed(l))];
            if l + 1 == self.stage.layers.end {
                makes.push(((Thing::InputGradient, l + 1, k), handed(l + 1)));
            }
            let mut reads =
                vec![(Thing::Weights, l, 0), (Thing::Input, l, k), (Thing::InputGradient, l + 1, k)];
            if gradients[l] {
                reads.push(weights);
            } else {
                makes.push((weights, layer.gradients));
                gradients[l] = true;
            }
            let mut working = layer.backward_working.at(size);
            if self.request.recompute {
                working += layer.backward_kept.at(size);
                self.busy += layer.forward.at(size);
            } else {
                reads.push((Thing::Inside, l, k));
            }
            let moved = self.pager.access(&reads, &makes, &[weights], working as u64)?;
            waited += self.seconds(moved);
            self.busy += layer.backward.at(size);
            for thing in [Thing::Input, Thing::Inside] {
                self.pager.forget((thing, l, k));
            }
            self.pager.forget((Thing::InputGradient, l + 1, k));
            self.pager.forget((Thing::Input, l + 1, k));
        }
        self.pager.forget((Thing::InputGradient, self.stage.layers.start, k));
        Some(waited)
    }

    fn update(&mut self) -> Option<f64> {
        let mut waited = 0.0;
        for l in self.stage.layers.clone() {
            let things = [(Thing::Weights, l, 0), (Thing::Gradients, l, 0), (Thing::State, l, 0)];
            let changed = [things[0], things[2]];
            let moved = self.pager.access(&things, &[], &changed, 0)?;
            waited += self.seconds(moved);
            self.busy += self.chain.layers[l].update;
            self.pager.forget(things[1]);
        }
        Some(waited)
    }
}
