//! A schedule and the tasks it stands for: a pack of layers, one phase, and all micro-batches of a batch, so
//! that the weights of a pack are fetched once for all of them.

use super::{LayerChain, ScheduleError, ScheduleMachine};
use serde::Serialize;
use std::ops::Range;

/// How work is divided over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleMode {
    /// Every device runs all packs for its share of the samples.
    DataParallel,
    /// Packs go around the devices; each runs its packs for all samples.
    Pipeline(PackRotation),
}

/// Which device a pack is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PackRotation {
    /// Pack i on device i modulo their number, in both passes: weights have one residence.
    SameDevice,
    /// The count goes on from the forward into the backward pass, as in the paper: weights may be needed on
    /// two devices.
    Continuing,
}

/// Who runs the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateOn {
    /// The device of the backward pass, right after it: weights and state come and go.
    Device,
    /// The host: gradients go there, state stays there.
    Host,
}

/// Neighbouring layers that a device runs together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct LayerPack {
    /// The layers.
    pub layers: Range<usize>,
    /// The device; 0 where every device runs every pack.
    pub device: usize,
}

/// Everything that is decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PackSchedule {
    /// How work is divided.
    pub mode: ScheduleMode,
    /// Devices that take part.
    pub devices: usize,
    /// Samples of a step.
    pub batch: u32,
    /// Samples of a micro-batch of the forward pass; the last may have fewer.
    pub forward_size: u32,
    /// Samples of a micro-batch of the backward pass; the last may have fewer.
    pub backward_size: u32,
    /// Packs of the forward pass, in order. The last pack of the backward pass is not among them: it runs
    /// forward and backward in one.
    pub forward: Vec<LayerPack>,
    /// Packs of the backward pass, in the order of their layers: the last runs first.
    pub backward: Vec<LayerPack>,
    /// Who runs the optimizer.
    pub update: UpdateOn,
}

/// The phase of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskPhase {
    /// Forward; of what is computed only inputs of backward packs stay.
    Forward,
    /// Forward from the pack's input, then backward, for each micro-batch; then the update, unless it is joint.
    Backward,
    /// The update of a pack, where all gradients must be known before.
    Update,
}

/// One task of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PackTask {
    /// Its phase.
    pub kind: TaskPhase,
    /// The pack, as an index into the schedule's packs of that phase.
    pub pack: usize,
    /// The layers.
    pub layers: Range<usize>,
    /// The device.
    pub device: usize,
    /// Sizes of the micro-batches, in order.
    pub pieces: Vec<u32>,
}

/// Sizes of the micro-batches of so many samples.
pub fn pieces(samples: u32, size: u32) -> Vec<u32> {
    let size = size.max(1);
    let mut pieces = vec![size; (samples / size) as usize];
    if !samples.is_multiple_of(size) {
        pieces.push(samples % size);
    }
    pieces
}

/// The samples of each of some devices: by their speed, and equal where that is.
pub fn shares(machine: &ScheduleMachine, devices: usize, batch: u32) -> Vec<u32> {
    let speeds: Vec<f64> = machine.devices.iter().take(devices).map(|d| d.speed).collect();
    let total: f64 = speeds.iter().sum();
    let (mut given, mut sum) = (0, 0.0);
    let mut shares = Vec::with_capacity(devices);
    for speed in &speeds {
        sum += speed;
        let until = (f64::from(batch) * sum / total).round() as u32;
        shares.push(until - given);
        given = until;
    }
    // Rounding puts the larger shares anywhere; the first devices take them.
    if speeds.windows(2).all(|pair| pair[0] == pair[1]) {
        shares.sort_by_key(|share| std::cmp::Reverse(*share));
    }
    shares
}

impl PackSchedule {
    /// Puts packs on devices as the mode says.
    pub fn place(&mut self) {
        let (devices, forward) = (self.devices.max(1), self.forward.len());
        let packs = self.backward.len();
        for (i, pack) in self.forward.iter_mut().enumerate() {
            pack.device = if self.mode == ScheduleMode::DataParallel { 0 } else { i % devices };
        }
        for (i, pack) in self.backward.iter_mut().enumerate() {
            pack.device = match self.mode {
                ScheduleMode::DataParallel => 0,
                ScheduleMode::Pipeline(PackRotation::SameDevice) => i % devices,
                ScheduleMode::Pipeline(PackRotation::Continuing) => (forward + packs - 1 - i) % devices,
            };
        }
    }

    /// Whether it is a schedule of this chain on this machine.
    pub fn check(&self, chain: &LayerChain, machine: &ScheduleMachine) -> Result<(), ScheduleError> {
        let wrong = |why: &str| Err(ScheduleError::Invalid(why.to_string()));
        let follow = |packs: &[LayerPack], end: usize| {
            let starts = packs.iter().map(|p| p.layers.start).chain([end]);
            let ends = [0].into_iter().chain(packs.iter().map(|p| p.layers.end));
            starts.eq(ends) && packs.iter().all(|p| !p.layers.is_empty())
        };
        let Some(last) = self.backward.last() else { return wrong("there is no backward pack") };
        if !follow(&self.backward, chain.layers.len()) || !follow(&self.forward, last.layers.start) {
            return wrong("packs must follow each other from the first layer to the last");
        }
        if self.devices == 0 || self.devices > machine.devices.len() {
            return wrong("it uses devices that are not there");
        }
        if self.forward.iter().chain(&self.backward).any(|p| p.device >= self.devices) {
            return wrong("a pack is on a device that takes no part");
        }
        if self.batch == 0 || self.forward_size == 0 || self.backward_size == 0 {
            return wrong("a micro-batch is empty");
        }
        if self.mode == ScheduleMode::DataParallel && shares(machine, self.devices, self.batch).contains(&0) {
            return wrong("a device has no sample");
        }
        Ok(())
    }
}

/// The tasks in an order in which they can run; those of one device are in the order in which it runs them.
pub fn tasks(chain: &LayerChain, machine: &ScheduleMachine, schedule: &PackSchedule) -> Vec<PackTask> {
    let share = match schedule.mode {
        ScheduleMode::DataParallel => shares(machine, schedule.devices, schedule.batch),
        ScheduleMode::Pipeline(_) => vec![schedule.batch],
    };
    let mut tasks = Vec::new();
    let mut add = |kind: TaskPhase, i: usize, pack: &LayerPack, size: u32| {
        for (d, &samples) in share.iter().enumerate() {
            let device = if schedule.mode == ScheduleMode::DataParallel { d } else { pack.device };
            let pieces = if kind == TaskPhase::Update { Vec::new() } else { pieces(samples, size) };
            tasks.push(PackTask { kind, pack: i, layers: pack.layers.clone(), device, pieces });
        }
    };
    for (i, pack) in schedule.forward.iter().enumerate() {
        add(TaskPhase::Forward, i, pack, schedule.forward_size);
    }
    for (i, pack) in schedule.backward.iter().enumerate().rev() {
        add(TaskPhase::Backward, i, pack, schedule.backward_size);
    }
    if chain.joint_update && schedule.update == UpdateOn::Device {
        for (i, pack) in schedule.backward.iter().enumerate() {
            add(TaskPhase::Update, i, pack, 0);
        }
    }
    tasks
}
