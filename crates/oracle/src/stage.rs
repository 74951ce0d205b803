//! Seconds, weights and activations of the layers that one device has, for one micro-batch.

use crate::cluster::{Cluster, Group};
use crate::collective::{all_gather, all_reduce, send};
use crate::hardware::Accelerator;
use crate::kernel::{Divide, KernelFamily, KernelWork};
use crate::setting::Setting;
use crate::strategy::{ClusterStrategy, Cut, Recompute};
use crate::workload::{ModelLayer, Workload};

/// Seconds of one pass: kernels, collectives between devices that share layers, and launches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    pub compute: f64,
    /// Collectives between the devices that share layers.
    pub collectives: f64,
    /// Seconds in which the host launches the kernels.
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

/// Exponent of the norm that joins seconds of host and device, which run side by side but sometimes wait for each
/// other. Fitted with the rates of A100 on rows of one and two devices.
const SHARPNESS: f64 = 2.5;

/// Seconds of a forward and of a backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassSeconds {
    pub forward: f64,
    pub backward: f64,
}

/// Costs of one stage, or of one layer, for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Its place among all stages, counted from zero.
    pub at: u32,
    /// Stages like it, one after the other.
    pub count: u32,
    /// Seconds of its passes.
    pub took: PassSeconds,
    pub forward: Pass,
    /// With recomputation.
    pub backward: Pass,
    /// Weights of the stage on this device.
    pub weights: f64,
    /// Of these, in a mixed cut, weights that all sharers hold and whose gradients they sum.
    pub alike: f64,
    /// Sharers of a mixed cut that load samples of their own: the first layer divides the batch.
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
        self.took.forward + self.took.backward
    }

    /// The stage at its place, with the seconds that its passes take.
    pub fn at(self, at: u32, count: u32) -> Stage {
        let took = PassSeconds { forward: self.forward.seconds(), backward: self.backward.seconds() };
        Stage { at, count, took, ..self }
    }

    /// Adds the forward pass to the backward pass: it is recomputed, collectives included.
    pub fn again(&mut self) {
        self.backward.add(self.forward, 1.0);
    }

    /// Adds copies of a layer at its end.
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

/// A question from which the costs of layers follow.
pub struct Costs<'a> {
    pub workload: &'a Workload,
    pub cluster: &'a Cluster,
    pub strategy: &'a ClusterStrategy,
    pub setting: &'a Setting,
}

impl Costs<'_> {
    /// One copy of each layer, all cut alike.
    pub fn layers(&self) -> Vec<Stage> {
        let layers = &self.workload.layers;
        let (spatial, last) = (self.workload.spatial().count(), layers.len() - 1);
        (0..layers.len()).map(|i| self.layer(&layers[i], i < spatial, i + 1 == spatial, i == last)).collect()
    }

    /// One copy of a layer that may be cut in space, without exchanges with its neighbours and without recomputation.
    pub fn layer_alone(&self, layer: &ModelLayer, is_last: bool) -> Stage {
        // The last layer passes nothing on and recomputes nothing.
        let stage = self.layer(layer, true, false, true);
        let (kept, working) = self.elements(layer, true, is_last);
        Stage { kept, working, ..stage }
    }

    /// One copy of a layer.
    fn layer(&self, layer: &ModelLayer, in_space: bool, ends_space: bool, is_last: bool) -> Stage {
        let ClusterStrategy { ways, cut, micro_batch, recompute, .. } = *self.strategy;
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
                    // Devices keep a part of the sequence; gradients of weights need all of it.
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
            // `planned` mixes layers of the other three.
            Recompute::Nothing | Recompute::Full | Recompute::Planned => {}
        }
        let (kept, working) = self.elements(layer, in_space, is_last);
        let weights = layer.weights / self.strategy.weight_parts();
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

    /// Seconds of an exchange of `bytes` between layers; some software sends it through host memory.
    pub fn staged(&self, bytes: f64, seconds: f64) -> f64 {
        match self.setting.software.staging {
            Some(rate) if bytes > 0.0 => seconds.max(self.setting.software.message + bytes / rate),
            _ => seconds,
        }
    }

    fn pass<'a>(&self, works: impl Iterator<Item = &'a KernelWork>, in_space: bool, samples: f64) -> Pass {
        let ClusterStrategy { ways, cut, .. } = *self.strategy;
        let p = ways as f64;
        let software = &self.setting.software;
        let mut pass = Pass::default();
        for work in works {
            let mine = match cut {
                _ if ways == 1 => *work,
                Cut::Whole | Cut::Mixed => *work,
                Cut::Spatial if in_space => work.cut_in_space(p),
                Cut::Spatial => *work,
                Cut::Filter => KernelWork { divide: divided(work, Divide::Columns), ..*work }.cut(p, true),
                Cut::Channel => KernelWork { divide: divided(work, Divide::Depth), ..*work }.cut(p, true),
                Cut::Tensor => work.cut(p, false),
                Cut::Sequence => work.cut(p, true),
            };
            let mut seconds = mine.seconds(&self.cluster.device, self.setting.precision, samples);
            // A timed layer is one whose scaling is ideal by definition.
            if mine.family == KernelFamily::Timed && ways > 1 && cut != Cut::Spatial {
                seconds = work.flops * samples / p;
            }
            if mine.family == KernelFamily::Memory {
                seconds *= software.passes;
            }
            pass.compute += seconds;
            pass.host += mine.calls * software.dispatch;
        }
        pass
    }

    /// Elements of a layer that are kept for the backward pass of a micro-batch, and those in use beside them.
    fn elements(&self, layer: &ModelLayer, in_space: bool, is_last: bool) -> (f64, f64) {
        let ClusterStrategy { ways, cut, micro_batch, recompute, .. } = *self.strategy;
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

fn divided(work: &KernelWork, along: Divide) -> Divide {
    match work.family {
        KernelFamily::Matrix | KernelFamily::Convolution => along,
        _ => Divide::Batch,
    }
}
