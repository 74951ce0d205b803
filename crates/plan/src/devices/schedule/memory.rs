//! What a device has room for: the bytes each task needs, and what stays on the device between two tasks because
//! there is room for it in all tasks between. Everything else waits on the host.

use super::chain::{AtSize, FixedSums};
use super::task::{PackSchedule, PackTask, TaskPhase, UpdateOn};
use super::{ChainLayer, LayerChain, ScheduleMachine};
use std::ops::Range;

/// What a schedule is looked at with: the chain's sums for its sizes.
pub(crate) struct ScheduleScene<'a> {
    pub(crate) chain: &'a LayerChain,
    pub(crate) machine: &'a ScheduleMachine,
    pub(crate) schedule: &'a PackSchedule,
    pub(crate) fixed: &'a FixedSums,
    pub(crate) forward: &'a AtSize,
    pub(crate) backward: &'a AtSize,
    pub(crate) tasks: &'a [PackTask],
}

/// What stays, by lane (a device of data parallel, or the one pipeline) and pack.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptInLane {
    /// By forward pack: what it hands on waits on the device that needs it.
    pub(crate) value: Vec<bool>,
    /// By backward pack: the gradient it hands on does.
    pub(crate) gradient: Vec<bool>,
    /// By forward pack: bytes of weights that are there from the step before.
    pub(crate) there_forward: Vec<u64>,
    /// By backward pack: bytes of weights that are there from the forward pass or the step before.
    pub(crate) there_backward: Vec<u64>,
    /// By backward pack: bytes of updated weights that need not be written.
    pub(crate) unwritten: Vec<u64>,
    /// By backward pack: its optimizer state is always on the device.
    pub(crate) state: Vec<bool>,
    /// By backward pack: its input is kept from the forward pass.
    pub(crate) stash: Vec<bool>,
    /// By backward pack: all it needs of the forward pass is kept, so that nothing is computed again.
    pub(crate) inside: Vec<bool>,
}

/// What stays, and the room that is left.
#[derive(Clone, Debug)]
pub(crate) struct KeptOnDevices {
    pub(crate) lanes: Vec<KeptInLane>,
    /// By task: bytes in use.
    pub(crate) used: Vec<u64>,
    /// By task: the task before it on its device.
    pub(crate) before: Vec<Option<usize>>,
}

#[derive(Clone, Copy)]
enum Keepable {
    Value(usize),
    Gradient(usize),
    Between(usize),
    Next(usize, usize),
    Fused(usize),
    State(usize),
    Stash(usize),
    Inside(usize),
}

struct Item {
    lane: usize,
    device: usize,
    /// Positions among the device's tasks, ends included; from the second to the first if the other way
    /// round, over the end of the step. None if no task is between.
    span: Option<(usize, usize)>,
    bytes: u64,
    /// Bytes over the host link saved by a byte that stays.
    gain: f64,
    what: Keepable,
}

/// After the last layer nothing enters.
fn entering(chain: &LayerChain, layer: usize, samples: u32) -> u64 {
    chain.layers.get(layer).map_or(0, |l| l.input * u64::from(samples))
}

fn handed_down(chain: &LayerChain, layer: usize, samples: u32) -> u64 {
    chain.layers.get(layer).map_or(0, |l| l.input_gradient * u64::from(samples))
}

/// Bytes that packs need on a device while they run.
pub(crate) struct Needs<'a> {
    pub(crate) chain: &'a LayerChain,
    pub(crate) fixed: &'a FixedSums,
    pub(crate) machine: &'a ScheduleMachine,
}

impl Needs<'_> {
    /// Weights, what the pass needs at once, and two buffers for what comes and what goes.
    pub(crate) fn forward(&self, layers: &Range<usize>, size: u32, at: &AtSize) -> u64 {
        let strict = u64::from(self.machine.counts_buffers);
        self.fixed.fetched.of(layers)
            + at.forward_memory(layers)
            + (1 + strict) * entering(self.chain, layers.start, size)
            + 2 * strict * entering(self.chain, layers.end, size)
    }

    /// The same with gradients of weights, and room for the update after the pass.
    pub(crate) fn backward(&self, layers: &Range<usize>, size: u32, at: &AtSize, update: UpdateOn) -> u64 {
        let strict = u64::from(self.machine.counts_buffers);
        let handed = handed_down(self.chain, layers.end, size) + handed_down(self.chain, layers.start, size);
        let pass = at.backward_memory(layers)
            + (1 + strict) * entering(self.chain, layers.start, size)
            + 2 * strict * handed;
        let update = match update {
            UpdateOn::Device if !self.chain.joint_update => self.one_by_one(layers, |l| l.state),
            _ => 0,
        };
        self.fixed.fetched.of(layers) + self.fixed.gradients.of(layers) + pass.max(update)
    }

    /// What goes through a pack layer by layer needs, with the next layer's on its way where that fits.
    pub(crate) fn one_by_one(&self, layers: &Range<usize>, bytes: impl Fn(&ChainLayer) -> u64) -> u64 {
        let layers = &self.chain.layers[layers.clone()];
        let all: u64 = layers.iter().map(&bytes).sum();
        let largest = layers.iter().map(&bytes).max().unwrap_or(0);
        let memory = self.machine.devices.iter().map(|d| d.memory).min().unwrap_or(0);
        let two = all.min(2 * largest);
        if two <= memory { two } else { largest }
    }
}

impl ScheduleScene<'_> {
    /// Bytes of the values that enter a layer, of so many samples.
    pub(crate) fn entering(&self, layer: usize, samples: u32) -> u64 {
        entering(self.chain, layer, samples)
    }

    /// Bytes of the gradients a layer hands down, of so many samples.
    pub(crate) fn handed_down(&self, layer: usize, samples: u32) -> u64 {
        handed_down(self.chain, layer, samples)
    }

    /// Bytes a task needs whatever stays.
    fn need(&self, task: &PackTask) -> u64 {
        let needs = Needs { chain: self.chain, fixed: self.fixed, machine: self.machine };
        match task.kind {
            TaskPhase::Forward => needs.forward(&task.layers, self.schedule.forward_size, self.forward),
            TaskPhase::Backward => {
                let schedule = self.schedule;
                needs.backward(&task.layers, schedule.backward_size, self.backward, schedule.update)
            }
            TaskPhase::Update => needs.one_by_one(&task.layers, |l| l.weights + l.gradients + l.state),
        }
    }

    /// What stays. None if a task alone is too large.
    pub(crate) fn keep(&self) -> Option<KeptOnDevices> {
        let (schedule, tasks) = (self.schedule, self.tasks);
        let mut lists: Vec<Vec<usize>> = vec![Vec::new(); schedule.devices];
        let mut at = Vec::with_capacity(tasks.len());
        let mut before = Vec::with_capacity(tasks.len());
        for (t, task) in tasks.iter().enumerate() {
            at.push(lists[task.device].len());
            before.push(lists[task.device].last().copied());
            lists[task.device].push(t);
        }
        let memory = |t: usize| self.machine.devices[tasks[t].device].memory;
        let mut used: Vec<u64> = tasks.iter().map(|task| self.need(task)).collect();
        if (0..tasks.len()).any(|t| used[t] > memory(t)) {
            return None;
        }
        // Fetching ahead comes first: what stays leaves room for it where there is any.
        let mut ahead = vec![0; tasks.len()];
        for (t, before) in before.iter().enumerate() {
            if let Some(before) = before.filter(|_| self.machine.counts_buffers) {
                ahead[before] = self.fixed.fetched.of(&tasks[t].layers).min(memory(t) - used[before]);
            }
        }
        let (mut lanes, mut items) = (Vec::new(), Vec::new());
        let lane_count =
            if schedule.mode == super::ScheduleMode::DataParallel { schedule.devices } else { 1 };
        for lane in 0..lane_count {
            let (f, b) = (schedule.forward.len(), schedule.backward.len());
            lanes.push(KeptInLane {
                value: vec![false; f],
                gradient: vec![false; b],
                there_forward: vec![0; f],
                there_backward: vec![0; b],
                unwritten: vec![0; b],
                state: vec![false; b],
                stash: vec![false; b],
                inside: vec![false; b],
            });
            self.items(lane, lane_count, &at, &lists, &mut items);
        }
        let length = |item: &Item| match item.span {
            None => 0,
            Some((from, to)) if from <= to => to - from + 1,
            Some((from, to)) => lists[item.device].len() - from + to + 1,
        };
        let rank = |item: &Item| item.gain / (length(item) as f64 + 1e-9);
        items.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
        for item in &items {
            let list = &lists[item.device];
            let span = |i: usize| match item.span {
                None => false,
                Some((from, to)) if from <= to => from <= i && i <= to,
                Some((from, to)) => i >= from || i <= to,
            };
            let passes = matches!(item.what, Keepable::Value(_) | Keepable::Gradient(_));
            let free = passes && !self.machine.counts_buffers;
            let fits = |i: usize| used[list[i]] + ahead[list[i]] + item.bytes <= memory(list[i]);
            if free || (0..list.len()).filter(|i| span(*i)).all(fits) {
                if !free {
                    (0..list.len()).filter(|i| span(*i)).for_each(|i| used[list[i]] += item.bytes);
                }
                stay(&mut lanes[item.lane], item);
            }
        }
        Some(KeptOnDevices { lanes, used, before })
    }

    fn items(&self, lane: usize, lanes: usize, at: &[usize], lists: &[Vec<usize>], items: &mut Vec<Item>) {
        let schedule = self.schedule;
        let (forward, backward) = (&schedule.forward, &schedule.backward);
        // Tasks are in the order in which `tasks` makes them, one of each pack for every lane.
        let index_f = |i: usize| i * lanes + lane;
        let index_b = |j: usize| (forward.len() + backward.len() - 1 - j) * lanes + lane;
        let device = |t: usize| self.tasks[t].device;
        let samples: u32 = self.tasks[index_b(0)].pieces.iter().sum();
        let mut item = |device, span, bytes, gain, what| {
            if bytes > 0 {
                items.push(Item { lane, device, span, bytes, gain, what });
            }
        };
        // What is handed on, on the device that needs it, while it does what it does before.
        let arrival = |from: usize, to: usize| {
            let start = if device(from) == device(to) { at[from] } else { at[to].saturating_sub(1) };
            Some((start, at[to]))
        };
        let first = 1e6;
        for (i, pack) in forward.iter().enumerate() {
            let to = if i + 1 < forward.len() { index_f(i + 1) } else { index_b(backward.len() - 1) };
            let bytes = self.entering(pack.layers.end, samples);
            item(device(to), arrival(index_f(i), to), bytes, first, Keepable::Value(i));
        }
        for (j, pack) in backward.iter().enumerate().skip(1) {
            let bytes = self.handed_down(pack.layers.start, samples);
            let to = index_b(j - 1);
            item(device(to), arrival(index_b(j), to), bytes, first, Keepable::Gradient(j));
        }
        let updates = schedule.update == UpdateOn::Device && !self.chain.joint_update;
        let between = |from: usize, to: usize| (from + 1 < to).then(|| (from + 1, to - 1));
        // From one task around the end of the step to another.
        let around = |device: usize, from: usize, to: usize| {
            let count = lists[device].len();
            let (start, end) = ((from + 1) % count, (to + count - 1) % count);
            ((from + 1) % count != to).then_some((start, end))
        };
        let mut i = 0;
        for (j, pack) in backward.iter().enumerate() {
            let b = index_b(j);
            while i < forward.len() && forward[i].layers.end <= pack.layers.start {
                i += 1;
            }
            let mut k = i;
            while k < forward.len() && forward[k].layers.start < pack.layers.end {
                let both = forward[k].layers.start.max(pack.layers.start)
                    ..forward[k].layers.end.min(pack.layers.end);
                let f = index_f(k);
                if device(f) == device(b) {
                    let bytes = self.fixed.fetched.of(&both);
                    item(device(b), between(at[f], at[b]), bytes, 1.0, Keepable::Between(j));
                    if updates {
                        let span = around(device(b), at[b], at[f]);
                        item(device(b), span, bytes, 2.0, Keepable::Next(k, j));
                    }
                }
                k += 1;
            }
            if updates && j + 1 == backward.len() {
                let bytes = self.fixed.fetched.of(&pack.layers);
                item(device(b), around(device(b), at[b], at[b]), bytes, 2.0, Keepable::Fused(j));
            }
            let all = Some((0, lists[device(b)].len() - 1));
            if updates {
                item(device(b), all, self.fixed.state.of(&pack.layers), 2.0, Keepable::State(j));
            }
            let Some(f) = forward.get(i).map(|_| index_f(i)).filter(|f| device(*f) == device(b)) else {
                continue;
            };
            let input = self.entering(pack.layers.start, samples);
            // Data need not be written to the host, which has them.
            let gain = if pack.layers.start > 0 { 2.0 } else { 1.0 };
            item(device(b), Some((at[f], at[b])), input, gain, Keepable::Stash(j));
            if forward[i].layers == pack.layers {
                let pieces = &self.tasks[b].pieces;
                let bytes = self.backward.backward_kept.of(&pack.layers) * pieces.len() as u64 + input;
                let again = self.backward.forward.of(&pack.layers) * pieces.len() as f64;
                let saved = again * self.machine.devices[device(b)].to_host + 2.0 * input as f64;
                let gain = saved / bytes.max(1) as f64;
                item(device(b), Some((at[f], at[b])), bytes, gain, Keepable::Inside(j));
            }
        }
    }
}

fn stay(lane: &mut KeptInLane, item: &Item) {
    match item.what {
        Keepable::Value(i) => lane.value[i] = true,
        Keepable::Gradient(j) => lane.gradient[j] = true,
        Keepable::Between(j) => lane.there_backward[j] += item.bytes,
        Keepable::Next(i, j) => {
            lane.there_forward[i] += item.bytes;
            lane.unwritten[j] += item.bytes;
        }
        Keepable::Fused(j) => {
            lane.there_backward[j] += item.bytes;
            lane.unwritten[j] += item.bytes;
        }
        Keepable::State(j) => lane.state[j] = true,
        Keepable::Stash(j) => lane.stash[j] = true,
        Keepable::Inside(j) => {
            lane.inside[j] = true;
            lane.stash[j] = true;
        }
    }
}
