//! Memory of a device: the bytes that each task needs, and the bytes that stay on the device between two tasks because
//! all tasks between leave room for them. All other bytes wait on the host.

use super::ScheduleMachine;
use super::chain::{ChainLayer, ChainSums};
use super::pack::Packs;
use std::ops::Range;

/// The phase of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskPhase {
    /// Forward; of the results only inputs of packs stay.
    Forward,
    /// For each partial forward from the pack's input, then backward; then the update, unless it is joint.
    Backward,
    /// The update of a pack, where updates need all gradients.
    Update,
}

/// A pack in one phase, for all partials, so that its weights are fetched once for all of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PackTask {
    pub phase: TaskPhase,
    pub pack: usize,
    pub layers: Range<usize>,
    pub device: usize,
}

/// Tasks in an order in which they can run; those of one device are in the order in which it runs them. The last pack
/// runs forward and backward in one task.
pub(crate) fn tasks(packs: &Packs, devices: usize, joint_update: bool) -> Vec<PackTask> {
    let task = |phase: TaskPhase| {
        move |pack: usize| PackTask { phase, pack, layers: packs[pack].clone(), device: pack % devices }
    };
    let forward = (0..packs.len() - 1).map(task(TaskPhase::Forward));
    let backward = (0..packs.len()).rev().map(task(TaskPhase::Backward));
    let updates = (0..if joint_update { packs.len() } else { 0 }).map(task(TaskPhase::Update));
    forward.chain(backward).chain(updates).collect()
}

/// Bytes that packs need on a device while they run.
pub(crate) struct PackNeeds<'a> {
    pub sums: &'a ChainSums<'a>,
    pub machine: &'a ScheduleMachine,
}

impl PackNeeds<'_> {
    fn layers(&self, pack: &Range<usize>) -> &[ChainLayer] {
        &self.sums.chain.layers[pack.clone()]
    }

    /// Weights, the results of a layer, and two buffers each for inputs and outputs.
    pub fn forward(&self, pack: &Range<usize>) -> u64 {
        let working = self.layers(pack).iter().map(|l| l.forward_working).max().unwrap_or(0);
        let passing = self.sums.entering(pack.start) + self.sums.entering(pack.end);
        self.sums.fetched.of(pack) + working + 2 * passing
    }

    /// The same with gradients of weights and kept results, and room for the update after the pass.
    pub fn backward(&self, pack: &Range<usize>) -> u64 {
        let sums = self.sums;
        let working = self.layers(pack).iter().map(|l| l.backward_working).max().unwrap_or(0);
        let handed = sums.handed_down(pack.end) + sums.handed_down(pack.start);
        let pass = sums.backward_kept.of(pack) + working + 2 * sums.entering(pack.start) + 2 * handed;
        let update = if sums.chain.joint_update { 0 } else { self.one_by_one(pack, |l| l.state) };
        sums.fetched.of(pack) + sums.gradients.of(pack) + pass.max(update)
    }

    /// Bytes that pass through a pack layer by layer, with those of the next layer if they fit.
    fn one_by_one(&self, pack: &Range<usize>, bytes: impl Fn(&ChainLayer) -> u64) -> u64 {
        let all: u64 = self.layers(pack).iter().map(&bytes).sum();
        let largest = self.layers(pack).iter().map(&bytes).max().unwrap_or(0);
        let memory = self.machine.devices.iter().map(|d| d.memory).min().unwrap_or(0);
        let two = all.min(2 * largest);
        if two <= memory { two } else { largest }
    }

    fn task(&self, task: &PackTask) -> u64 {
        match task.phase {
            TaskPhase::Forward => self.forward(&task.layers),
            TaskPhase::Backward => self.backward(&task.layers),
            TaskPhase::Update => self.one_by_one(&task.layers, |l| l.weights + l.gradients + l.state),
        }
    }
}

/// What stays on devices between tasks, by pack.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptOnDevices {
    /// Whether the values that it hands on wait on the device that needs them.
    pub value: Vec<bool>,
    /// Whether the gradients that it hands on do.
    pub gradient: Vec<bool>,
    /// Bytes of weights that the forward task finds on the device from the step before.
    pub there_forward: Vec<u64>,
    /// Bytes of weights that the backward task finds from the forward task or the step before.
    pub there_backward: Vec<u64>,
    /// Bytes of updated weights that need not be written.
    pub unwritten: Vec<u64>,
    /// Whether its optimizer state is always on the device.
    pub state: Vec<bool>,
    /// Whether its input is kept from the forward pass.
    pub stash: Vec<bool>,
    /// Whether all forward results that its backward pass reads are kept, so that none is recomputed.
    pub inside: Vec<bool>,
    /// By task: bytes in use.
    pub used: Vec<u64>,
    /// By task: the task before it on its device.
    pub before: Vec<Option<usize>>,
}

#[derive(Clone, Copy)]
enum Keepable {
    Value,
    Gradient,
    Between,
    Next,
    Fused,
    State,
    Stash,
    Inside,
}

struct Item {
    pack: usize,
    device: usize,
    /// Positions among the device's tasks, ends included. If the first is behind the second, over the end of the step.
    /// None if no task is between.
    span: Option<(usize, usize)>,
    bytes: u64,
    /// Bytes over the host link saved by a byte that stays.
    gain: f64,
    what: Keepable,
}

impl Item {
    /// How many of its device's tasks are in its span.
    fn length(&self, tasks: usize) -> usize {
        match self.span {
            None => 0,
            Some((from, to)) if from <= to => to - from + 1,
            Some((from, to)) => tasks - from + to + 1,
        }
    }

    fn covers(&self, position: usize) -> bool {
        match self.span {
            None => false,
            Some((from, to)) if from <= to => from <= position && position <= to,
            Some((from, to)) => position >= from || position <= to,
        }
    }
}

/// Decides what stays, for the tasks of these packs. None if a task alone is too large.
pub(crate) fn keep(
    needs: &PackNeeds,
    packs: &Packs,
    tasks: &[PackTask],
    partials: u32,
) -> Option<KeptOnDevices> {
    let mut lists: Vec<Vec<usize>> = vec![Vec::new(); needs.machine.devices.len()];
    let (mut at, mut before) = (Vec::with_capacity(tasks.len()), Vec::with_capacity(tasks.len()));
    for (t, task) in tasks.iter().enumerate() {
        at.push(lists[task.device].len());
        before.push(lists[task.device].last().copied());
        lists[task.device].push(t);
    }
    let memory = |t: usize| needs.machine.devices[tasks[t].device].memory;
    let mut used: Vec<u64> = tasks.iter().map(|task| needs.task(task)).collect();
    if (0..tasks.len()).any(|t| used[t] > memory(t)) {
        return None;
    }
    // Fetching ahead comes first: kept bytes leave room for it where there is any.
    let mut ahead = vec![0; tasks.len()];
    for (t, before) in before.iter().enumerate() {
        if let Some(before) = *before {
            ahead[before] = needs.sums.fetched.of(&tasks[t].layers).min(memory(t) - used[before]);
        }
    }
    let mut items = items(needs, packs, partials, &at, &lists);
    let rank = |item: &Item| item.gain / (item.length(lists[item.device].len()) as f64 + 1e-9);
    items.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    let none = || vec![false; packs.len()];
    let zero = || vec![0; packs.len()];
    let mut kept = KeptOnDevices {
        value: none(),
        gradient: none(),
        there_forward: zero(),
        there_backward: zero(),
        unwritten: zero(),
        state: none(),
        stash: none(),
        inside: none(),
        ..KeptOnDevices::default()
    };
    for item in &items {
        let covered =
            || lists[item.device].iter().enumerate().filter(|(i, _)| item.covers(*i)).map(|(_, t)| *t);
        if covered().all(|t| used[t] + ahead[t] + item.bytes <= memory(t)) {
            covered().for_each(|t| used[t] += item.bytes);
            kept.keep(item);
        }
    }
    Some(KeptOnDevices { used, before, ..kept })
}

/// Everything that may stay.
fn items(needs: &PackNeeds, packs: &Packs, partials: u32, at: &[usize], lists: &[Vec<usize>]) -> Vec<Item> {
    let (sums, devices, last) = (needs.sums, lists.len(), packs.len() - 1);
    let samples = u64::from(partials);
    // Positions of tasks among those of their device.
    let forward = |i: usize| at[i];
    let backward = |i: usize| at[last + (last - i)];
    let mut items = Vec::new();
    let mut item = |pack, device, span, bytes, gain, what| {
        if bytes > 0 {
            items.push(Item { pack, device, span, bytes, gain, what });
        }
    };
    // Values that are handed on wait on the device that needs them, while it does the task before.
    let arrival =
        |same: bool, from: usize, to: usize| Some((if same { from } else { to.saturating_sub(1) }, to));
    let first = 1e6;
    for (i, pack) in packs[..last].iter().enumerate() {
        let to = if i + 1 < last { forward(i + 1) } else { backward(last) };
        let (device, next) = (i % devices, (i + 1) % devices);
        let bytes = sums.entering(pack.end) * samples;
        item(i, next, arrival(device == next, forward(i), to), bytes, first, Keepable::Value);
    }
    for (i, pack) in packs.iter().enumerate().skip(1) {
        let (device, below) = (i % devices, (i - 1) % devices);
        let bytes = sums.handed_down(pack.start) * samples;
        let span = arrival(device == below, backward(i), backward(i - 1));
        item(i, below, span, bytes, first, Keepable::Gradient);
    }
    let updates = !sums.chain.joint_update;
    let between = |from: usize, to: usize| (from + 1 < to).then(|| (from + 1, to - 1));
    // From one task around the end of the step to another.
    let around = |device: usize, from: usize, to: usize| {
        let count = lists[device].len();
        let (start, end) = ((from + 1) % count, (to + count - 1) % count);
        (start != to).then_some((start, end))
    };
    for (i, pack) in packs.iter().enumerate() {
        let (device, b) = (i % devices, backward(i));
        let fetched = sums.fetched.of(pack);
        if i < last {
            item(i, device, between(forward(i), b), fetched, 1.0, Keepable::Between);
            if updates {
                item(i, device, around(device, b, forward(i)), fetched, 2.0, Keepable::Next);
            }
        } else if updates {
            item(i, device, around(device, b, b), fetched, 2.0, Keepable::Fused);
        }
        if updates {
            let all = Some((0, lists[device].len() - 1));
            item(i, device, all, sums.state.of(pack), 2.0, Keepable::State);
        }
        if i == last {
            break;
        }
        let input = sums.entering(pack.start) * samples;
        let span = Some((forward(i), b));
        // Data need not be written to the host, which has them.
        let gain = if pack.start > 0 { 2.0 } else { 1.0 };
        item(i, device, span, input, gain, Keepable::Stash);
        let bytes = sums.backward_kept.of(pack) * samples + input;
        let recomputed = sums.forward.of(pack) * f64::from(partials);
        let saved = recomputed * needs.machine.devices[device].to_host + 2.0 * input as f64;
        item(i, device, span, bytes, saved / bytes.max(1) as f64, Keepable::Inside);
    }
    items
}

impl KeptOnDevices {
    fn keep(&mut self, item: &Item) {
        let Item { pack, bytes, .. } = *item;
        match item.what {
            Keepable::Value => self.value[pack] = true,
            Keepable::Gradient => self.gradient[pack] = true,
            Keepable::Between => self.there_backward[pack] += bytes,
            Keepable::Next => {
                self.there_forward[pack] += bytes;
                self.unwritten[pack] += bytes;
            }
            Keepable::Fused => {
                self.there_backward[pack] += bytes;
                self.unwritten[pack] += bytes;
            }
            Keepable::State => self.state[pack] = true,
            Keepable::Stash => self.stash[pack] = true,
            Keepable::Inside => {
                self.inside[pack] = true;
                self.stash[pack] = true;
            }
        }
    }
}
