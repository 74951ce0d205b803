//! Seconds, weights and activations of the layers that one device has, for one micro-batch.

use crate::cluster::{Cluster, Group};
use crate::collective::{all_gather, all_reduce, send};
use crate::deal::{Share, shares};
use crate::hardware::Accelerator;
use crate::kernel::{Divide, Family, Work};
use crate::mixed;
use crate::setting::Setting;
use crate::strategy::{Cut, Recompute, Strategy};
use crate::workload::{Layer, Workload};

/// Seconds of one pass over something: what the device computes, what it exchanges with those that share
/// its layers, and what the host needs to launch it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    /// Kernels.
    pub compute: f64,
    /// Collectives between the devices that share layers.
    pub collectives: f64,
    /// Launches.
    pub host: f64,
}

impl Pass {
    /// Seconds until it is done. The host launches while the device works; at a collective devices wait for
    /// each other, and nothing hides it.
    pub fn seconds(&self) -> f64 {
        if self.host == 0.0 {
            return self.compute + self.collectives;
        }
        let beside = self.compute.powf(SHARPNESS) + self.host.powf(SHARPNESS);
        beside.powf(1.0 / SHARPNESS) + self.collectives
    }

    fn add(&mut self, other: Pass, times: f64) {
        self.compute += other.compute * times;
        self.collectives += other.collectives * times;
        self.host += other.host * times;
    }
}

/// How hard the slower of host and device hides the other: they run beside each other, but each waits for
/// the other now and then. Fitted with the rates of A100 on rows of one and two devices.
const SHARPNESS: f64 = 2.5;

/// What one stage holds and takes for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Its place among all stages, counted from zero.
    pub at: u32,
    /// Stages like it, one after the other.
    pub count: u32,
    /// Seconds of the forward and of the backward pass.
    pub took: [f64; 2],
    /// The forward pass.
    pub forward: Pass,
    /// The backward pass, what is computed again included.
    pub backward: Pass,
    /// Weights of the stage on this device.
    pub weights: f64,
    /// Of these, in a mixed cut, those that sharers have alike, and whose gradients they add up.
    pub alike: f64,
    /// Sharers of a mixed cut that load samples of their own, as its first layer shares them.
    pub loads: u32,
    /// Elements that are kept of a micro-batch.
    pub kept: f64,
    /// Most elements in use beside them: those of the layer that has most.
    pub working: f64,
    /// Elements of a micro-batch that go on to the next stage.
    pub output: f64,
    /// Bytes a micro-batch's collectives put on the links of this device.
    pub shared: f64,
}

impl Stage {
    /// Seconds of a micro-batch, forward and backward.
    pub fn seconds(&self) -> f64 {
        self.took[0] + self.took[1]
    }

    fn at(self, at: u32, count: u32) -> Stage {
        let took = [self.forward.seconds(), self.backward.seconds()];
        Stage { at, count, took, ..self }
    }

    /// The backward pass does the forward pass again, collectives included.
    pub fn again(&mut self) {
        self.backward.add(self.forward, 1.0);
    }

    /// Adds so many copies of a layer at its end.
    pub fn join(&mut self, layer: &Stage, copies: f64) {
        self.forward.add(layer.forward, copies);
        self.backward.add(layer.backward, copies);
        self.weights += layer.weights * copies;
        self.alike += layer.alike * copies;
        self.loads = self.loads.max(layer.loads);
        self.kept += layer.kept * copies;
        self.working = self.working.max(layer.working);
        self.output = layer.output;
        self.shared += layer.shared * copies;
    }
}

/// What the costs of layers depend on.
pub struct Costs<'a> {
    /// The model.
    pub workload: &'a Workload,
    /// The machine.
    pub cluster: &'a Cluster,
    /// The way.
    pub strategy: &'a Strategy,
    /// The rest.
    pub setting: &'a Setting,
}

impl Costs<'_> {
    /// One copy of each layer; of a mixed cut [`mixed::layers`] knows more.
    pub fn layers(&self) -> Vec<Stage> {
        let layers = &self.workload.layers;
        let (spatial, last) = (self.workload.spatial().count(), layers.len() - 1);
        (0..layers.len()).map(|i| self.layer(&layers[i], i < spatial, i + 1 == spatial, i == last)).collect()
    }

    /// The stages of the pipeline, one if there is none; of equal ones in a row there is the first.
    pub fn stages(&self) -> Vec<Stage> {
        let each = match self.strategy.cut {
            Cut::Mixed => mixed::layers(self, &mixed::choose(self)),
            _ => self.layers(),
        };
        self.joined(&shares(&self.workload.layers, &each, self.strategy.stages as usize), &each)
    }

    /// Stages with these layers, whose costs are known.
    pub fn joined(&self, shares: &[Share], each: &[Stage]) -> Vec<Stage> {
        let join_all = |share: &Share| {
            let mut stage = Stage::default();
            share.layers.iter().for_each(|&(layer, copies)| stage.join(&each[layer], copies as f64));
            stage
        };
        self.finished(shares, shares.iter().map(join_all).collect())
    }

    /// Stages in their places. The last has a copy of what it shares with the first.
    pub fn finished(&self, shares: &[Share], stages: Vec<Stage>) -> Vec<Stage> {
        let mut made: Vec<Stage> =
            shares.iter().zip(stages).map(|(share, stage)| stage.at(share.at, share.count)).collect();
        let ways = if matches!(self.strategy.cut, Cut::Whole | Cut::Spatial | Cut::Mixed) {
            1
        } else {
            self.strategy.ways
        };
        if let Some(last) = made.last_mut().filter(|_| self.strategy.stages > 1) {
            last.weights += self.workload.tied / ways as f64;
        }
        made
    }

    /// All layers on one stage.
    pub fn whole(&self) -> Share {
        let layers = self.workload.layers.iter().enumerate().map(|(i, layer)| (i, layer.count)).collect();
        Share { at: 0, count: 1, layers }
    }

    /// One copy of a layer that may be cut in space, without what it exchanges with its neighbours, nor what
    /// [`Stage::again`] adds.
    pub fn layer_alone(&self, layer: &Layer, is_last: bool) -> Stage {
        // As the last layer it passes nothing on, and computes nothing again.
        let stage = self.layer(layer, true, false, true);
        let (kept, working) = self.elements(layer, true, is_last);
        Stage { kept, working, ..stage }
    }

    /// One copy of a layer.
    fn layer(&self, layer: &Layer, in_space: bool, ends_space: bool, is_last: bool) -> Stage {
        let Strategy { ways, cut, micro_batch, recompute, .. } = *self.strategy;
        let samples = micro_batch as f64;
        let shared = ways > 1;
        let mut forward = self.pass(layer.forward.iter(), in_space, samples);
        let mut backward = self.pass(layer.backward.iter(), in_space, samples);
        let element = self.setting.precision.bytes();
        let output = layer.output * samples * element;
        let input = layer.input * samples * element;
        let group = self.inner();
        let mut bytes = 0.0;
        let p = ways as f64;
        match cut {
            _ if !shared => {}
            Cut::Whole | Cut::Mixed => {}
            Cut::Tensor | Cut::Sequence => {
                let passed = 2.0 * (p - 1.0) / p * output;
                let each = layer.reductions * self.staged(passed, all_reduce(self.cluster, group, output));
                forward.collectives += each;
                backward.collectives += each;
                bytes += layer.reductions * 4.0 * (p - 1.0) / p * output;
                if cut == Cut::Sequence {
                    // What is kept is a part of the sequence; gradients of weights need all of it once more.
                    let passed = (p - 1.0) / p * output;
                    let gather = self.staged(passed, all_gather(self.cluster, group, output));
                    backward.collectives += layer.reductions * gather;
                    bytes += layer.reductions * passed;
                }
            }
            Cut::Filter | Cut::Channel if layer.filters > 0.0 && !is_last => {
                let passed = (p - 1.0) / p * output;
                let gather = self.staged(passed, all_gather(self.cluster, group, output));
                let sum = self.staged(2.0 * passed, all_reduce(self.cluster, group, output));
                let (there, back) = if cut == Cut::Filter { (gather, sum) } else { (sum, gather) };
                forward.collectives += there;
                backward.collectives += back;
                bytes += 3.0 * (p - 1.0) / p * output;
            }
            Cut::Filter | Cut::Channel => {}
            Cut::Spatial => {
                if in_space && layer.halo > 0.0 {
                    // A slab of the input on either side, and of the output's gradient on the way back.
                    let slab = |whole: f64, extents: &[f64]| {
                        whole * layer.halo / extents.first().copied().unwrap_or(1.0).max(1.0)
                    };
                    let there = slab(input, &layer.input_extents);
                    let back = slab(output, &layer.extents);
                    let turns = if self.setting.software.blocking { p - 1.0 } else { 1.0 };
                    forward.collectives += 2.0 * turns * self.staged(there, send(self.cluster, group, there));
                    backward.collectives += 2.0 * turns * self.staged(back, send(self.cluster, group, back));
                    bytes += 2.0 * (there + back);
                }
                if in_space && layer.statistics > 0.0 {
                    let statistics = 4.0 * layer.statistics;
                    let each = all_reduce(self.cluster, group, statistics);
                    forward.collectives += each;
                    backward.collectives += each;
                    bytes += 4.0 * (p - 1.0) / p * statistics;
                }
                if ends_space && !is_last {
                    let passed = (p - 1.0) / p * output;
                    forward.collectives += self.staged(passed, all_gather(self.cluster, group, output));
                    bytes += 2.0 * (p - 1.0) / p * output;
                }
            }
        }
        match recompute {
            Recompute::Selective => {
                let again = layer.forward.iter().filter(|work| work.again);
                backward.add(self.pass(again, in_space, samples), 1.0);
            }
            // The last layer's backward pass begins as its forward pass ends.
            Recompute::Full if !is_last => backward.add(forward, 1.0),
            // What is planned is a mixture of the others, made of whole layers.
            Recompute::Nothing | Recompute::Full | Recompute::Planned => {}
        }
        let (kept, working) = self.elements(layer, in_space, is_last);
        let weights = match cut {
            Cut::Whole | Cut::Spatial | Cut::Mixed => layer.weights,
            _ => layer.weights / p,
        };
        if self.accumulates() {
            let Accelerator { bandwidth, efficiency, .. } = &self.cluster.device;
            let moved = weights * self.setting.software.accumulate * element;
            backward.compute += moved / (bandwidth * efficiency.memory);
        }
        let output = layer.output * samples;
        Stage { forward, backward, weights, kept, working, output, shared: bytes, ..Stage::default() }
    }

    /// Whether gradients of several micro-batches are added up.
    pub fn accumulates(&self) -> bool {
        self.setting.software.accumulate > 0.0 && self.strategy.micro_batches(self.setting.batch) > 1
    }

    /// Seconds of an exchange between layers that passes so many bytes on, where the software has it go
    /// through host memory.
    pub fn staged(&self, bytes: f64, seconds: f64) -> f64 {
        match self.setting.software.staging {
            Some(rate) if bytes > 0.0 => seconds.max(self.setting.software.message + bytes / rate),
            _ => seconds,
        }
    }

    fn pass<'a>(&self, works: impl Iterator<Item = &'a Work>, in_space: bool, samples: f64) -> Pass {
        let Strategy { ways, cut, .. } = *self.strategy;
        let p = ways as f64;
        let software = &self.setting.software;
        let mut pass = Pass::default();
        for work in works {
            let mine = match cut {
                _ if ways == 1 => *work,
                Cut::Whole | Cut::Mixed => *work,
                Cut::Spatial if in_space => work.cut_in_space(p),
                Cut::Spatial => *work,
                Cut::Filter => Work { divide: divided(work, Divide::Columns), ..*work }.cut(p, true),
                Cut::Channel => Work { divide: divided(work, Divide::Depth), ..*work }.cut(p, true),
                Cut::Tensor => work.cut(p, false),
                Cut::Sequence => work.cut(p, true),
            };
            let mut seconds = mine.seconds(&self.cluster.device, self.setting.precision, samples);
            // A timed layer is one whose scaling is ideal by definition.
            if mine.family == Family::Timed && ways > 1 && cut != Cut::Spatial {
                seconds = work.flops * samples / p;
            }
            if mine.family == Family::Memory {
                seconds *= software.passes;
            }
            pass.compute += seconds;
            pass.host += mine.calls * software.dispatch;
        }
        pass
    }

    /// Elements of a layer that are kept for the backward pass of a micro-batch, and that are in use beside.
    fn elements(&self, layer: &Layer, in_space: bool, is_last: bool) -> (f64, f64) {
        let Strategy { ways, cut, micro_batch, recompute, .. } = *self.strategy;
        let p = ways as f64;
        let (divided, whole) = match cut {
            Cut::Spatial if in_space => (p, p),
            Cut::Whole | Cut::Spatial | Cut::Mixed => (1.0, 1.0),
            Cut::Filter | Cut::Channel => (1.0, 1.0),
            Cut::Tensor => (p, 1.0),
            Cut::Sequence => (p, p),
        };
        let samples = micro_batch as f64;
        let all = layer.kept / divided + layer.kept_whole / whole;
        let working = layer.working / divided;
        match recompute {
            Recompute::Nothing | Recompute::Planned => (all * samples, working * samples),
            Recompute::Selective => {
                let freed = layer.selective / divided;
                ((all - freed) * samples, (working + freed) * samples)
            }
            Recompute::Full if is_last => (all * samples, working * samples),
            Recompute::Full => (layer.input / whole * samples, (working + all) * samples),
        }
    }

    /// The devices that share layers with one.
    pub fn inner(&self) -> Group {
        self.cluster.group(self.strategy.ways, 1, self.strategy.devices())
    }
}

fn divided(work: &Work, along: Divide) -> Divide {
    match work.family {
        Family::Matrix | Family::Convolution => along,
        _ => Divide::Batch,
    }
}
