//! The time of a step in packs and the bytes it moves, without running it: tasks become operations on the streams of
//! each device, which wait for each other and share the host's link.

use super::ScheduleMachine;
use super::chain::ChainSums;
use super::engine::{Engine, EngineLinks, EngineWork, NONE};
use super::memory::{KeptOnDevices, PackNeeds, PackTask, TaskPhase, keep, tasks};
use super::pack::Packs;

/// Seconds of a step, infinite if there is a deadlock, and bytes to and from the host. None if a task needs more memory
/// than its device has.
pub(crate) fn simulate(
    sums: &ChainSums,
    machine: &ScheduleMachine,
    packs: &Packs,
    partials: u32,
) -> Option<(f64, u64)> {
    let tasks = tasks(packs, machine.devices.len(), sums.chain.joint_update);
    let kept = keep(&PackNeeds { sums, machine }, packs, &tasks, partials)?;
    let none = || vec![Passed::default(); packs.len() + 1];
    let mut simulation = Simulation {
        sums,
        machine,
        packs,
        tasks: &tasks,
        partials: partials as usize,
        kept: &kept,
        engine: Engine::new(machine.devices.len() * STREAMS),
        swapped: 0,
        value: none(),
        gradient: none(),
        stash: none(),
        left: vec![Left::default(); tasks.len()],
        passed: vec![NONE; packs.len()],
    };
    for (t, task) in tasks.iter().enumerate() {
        match task.phase {
            TaskPhase::Forward => simulation.forward(t),
            TaskPhase::Backward => simulation.backward(t),
            TaskPhase::Update => simulation.update(t),
        }
    }
    Some((simulation.seconds(), simulation.swapped))
}

const STREAMS: usize = 5;
const COMPUTE: usize = 0;
const WEIGHTS_IN: usize = 1;
const VALUES_IN: usize = 2;
const OUT: usize = 3;
const PEER: usize = 4;

/// Values that pass between packs.
#[derive(Clone, Default)]
struct Passed {
    /// By partial: the operation after which they are there.
    ops: Vec<u32>,
    on_host: bool,
}

impl Passed {
    fn of(&self, partial: usize) -> u32 {
        self.ops.get(partial).copied().unwrap_or(NONE)
    }
}

/// When the memory of a task is free again.
#[derive(Clone, Default)]
struct Left {
    computed: u32,
    written: Vec<u32>,
    /// Bytes on their way out.
    leaving: u64,
}

struct Simulation<'a> {
    sums: &'a ChainSums<'a>,
    machine: &'a ScheduleMachine,
    packs: &'a Packs,
    tasks: &'a [PackTask],
    partials: usize,
    kept: &'a KeptOnDevices,
    engine: Engine,
    swapped: u64,
    /// By pack: the values that enter it, as handed on and as kept for its backward pass.
    value: Vec<Passed>,
    stash: Vec<Passed>,
    /// By pack: the gradients that enter its backward pass.
    gradient: Vec<Passed>,
    /// By task.
    left: Vec<Left>,
    /// By pack: the last operation of its backward pass.
    passed: Vec<u32>,
}

impl Simulation<'_> {
    fn compute(&mut self, device: usize, seconds: f64, after: &[u32]) -> u32 {
        let seconds = seconds / self.machine.devices[device].speed;
        self.engine.add(device * STREAMS + COMPUTE, EngineWork::Seconds(seconds), after)
    }

    fn fetch(&mut self, device: usize, stream: usize, bytes: u64, after: &[u32]) -> u32 {
        self.swap(device, stream, 2 * device as u32, bytes, after)
    }

    fn write(&mut self, device: usize, bytes: u64, after: &[u32]) -> u32 {
        self.swap(device, OUT, 2 * device as u32 + 1, bytes, after)
    }

    fn swap(&mut self, device: usize, stream: usize, link: u32, bytes: u64, after: &[u32]) -> u32 {
        if bytes == 0 {
            return NONE;
        }
        self.swapped += bytes;
        let work = EngineWork::Move { bytes: bytes as f64, link };
        self.engine.add(device * STREAMS + stream, work, after)
    }

    fn send(&mut self, device: usize, bytes: u64, after: u32) -> u32 {
        let work = EngineWork::Seconds(bytes as f64 / self.machine.peer);
        self.engine.add(device * STREAMS + PEER, work, &[after])
    }

    fn wait(&mut self, op: u32, others: &[u32]) {
        for &other in others.iter().filter(|other| **other != NONE && op != NONE) {
            self.engine.wait(op, other);
        }
    }

    fn device(&self, pack: usize) -> usize {
        pack % self.machine.devices.len()
    }

    /// Fetches the weights of a task, as far ahead as there is room. The operation after which they are all there, and
    /// those after which the task's memory is free.
    fn begin(&mut self, t: usize, there: u64) -> (u32, Vec<u32>) {
        let device = self.tasks[t].device;
        let memory = self.machine.devices[device].memory;
        let bytes = self.sums.fetched.of(&self.tasks[t].layers).saturating_sub(there);
        let Some(before) = self.kept.before[t] else {
            return (self.fetch(device, WEIGHTS_IN, bytes, &[]), Vec::new());
        };
        let ahead = bytes.min(memory - self.kept.used[before]);
        // Ahead means beside the task before, whose memory is its own once the one before that has left.
        let mut early: Vec<u32> = Vec::new();
        if let Some(two) = self.kept.before[before] {
            early.push(self.left[two].computed);
            if self.left[two].leaving + self.kept.used[before] + ahead > memory {
                early.extend(&self.left[two].written);
            }
        }
        let first = self.fetch(device, WEIGHTS_IN, ahead, &early);
        let left = &self.left[before];
        let mut late = vec![left.computed];
        if left.leaving + self.kept.used[t] > memory {
            late.extend(&left.written);
        }
        let rest = self.fetch(device, WEIGHTS_IN, bytes - ahead, &late);
        (if rest == NONE { first } else { rest }, late)
    }

    /// Brings the input of a task for one partial, when there is room for it.
    fn bring(&mut self, task: &PackTask, from: &Passed, partial: usize, room: &[u32]) -> u32 {
        let there = from.of(partial);
        if !from.on_host {
            return there;
        }
        let op = self.fetch(task.device, VALUES_IN, self.sums.entering(task.layers.start), &[there]);
        if op == NONE {
            return there;
        }
        self.wait(op, room);
        op
    }

    /// Hands on the results of a pack for one partial: the operation after which they are there, and whether they are
    /// on the host then.
    fn hand(&mut self, [from, to]: [usize; 2], stays: bool, bytes: u64, after: u32) -> (u32, bool) {
        if stays {
            return (if from == to { after } else { self.send(from, bytes, after) }, false);
        }
        let op = self.write(from, bytes, &[after]);
        (if op == NONE { after } else { op }, true)
    }

    fn forward(&mut self, t: usize) {
        let task = &self.tasks[t];
        let (pack, device, layers) = (task.pack, task.device, task.layers.clone());
        let next = self.device(pack + 1);
        let (weights, gate) = self.begin(t, self.kept.there_forward[pack]);
        let from = match layers.start {
            0 => Passed { ops: Vec::new(), on_host: true },
            _ => std::mem::take(&mut self.value[pack]),
        };
        let (mut last, mut last_but_one) = (NONE, NONE);
        let mut written = Vec::new();
        for partial in 0..self.partials {
            // Two buffers: one is free when the last partial but one is done.
            let room = if last_but_one == NONE { gate.as_slice() } else { &[last_but_one] };
            let input = self.bring(task, &from, partial, room);
            let done = self.compute(device, self.sums.forward.of(&layers), &[weights, input]);
            if last == NONE {
                self.wait(done, &gate);
            }
            // The input of the backward pass.
            if layers.start > 0 {
                let stays = self.kept.stash[pack];
                let op = if stays {
                    done
                } else if from.on_host {
                    input
                } else {
                    let op = self.write(device, self.sums.entering(layers.start), &[input]);
                    written.push(op);
                    if op == NONE { input } else { op }
                };
                self.stash[pack].on_host = !stays;
                self.stash[pack].ops.push(op);
            }
            let bytes = self.sums.entering(layers.end);
            let (op, on_host) = self.hand([device, next], self.kept.value[pack], bytes, done);
            self.value[pack + 1].on_host = on_host;
            self.value[pack + 1].ops.push(op);
            (last_but_one, last) = (last, done);
        }
        // Weights are dropped, not written: they have not changed.
        self.left[t] = Left { computed: last, written, leaving: 0 };
    }

    fn backward(&mut self, t: usize) {
        let task = &self.tasks[t];
        let (pack, device, layers) = (task.pack, task.device, task.layers.clone());
        let fused = pack + 1 == self.packs.len();
        let (weights, gate) = self.begin(t, self.kept.there_backward[pack]);
        let from = match layers.start {
            0 => Passed { ops: Vec::new(), on_host: !self.kept.stash[pack] },
            _ if fused => std::mem::take(&mut self.value[pack]),
            _ => std::mem::take(&mut self.stash[pack]),
        };
        let above = std::mem::take(&mut self.gradient[pack]);
        let (mut last, mut last_but_one) = (NONE, NONE);
        for partial in 0..self.partials {
            let room = if last_but_one == NONE { gate.as_slice() } else { &[last_but_one] };
            let input = self.bring(task, &from, partial, room);
            let mut gradient = above.of(partial);
            if above.on_host {
                gradient = self.fetch(device, VALUES_IN, self.sums.handed_down(layers.end), &[gradient]);
                self.wait(gradient, room);
            }
            let recomputed = if self.kept.inside[pack] { 0.0 } else { self.sums.forward.of(&layers) };
            let seconds = recomputed + self.sums.backward.of(&layers);
            let done = self.compute(device, seconds, &[weights, input, gradient]);
            if last == NONE {
                self.wait(done, &gate);
            }
            if pack > 0 {
                let bytes = self.sums.handed_down(layers.start);
                let devices = [device, self.device(pack - 1)];
                let (op, on_host) = self.hand(devices, self.kept.gradient[pack], bytes, done);
                self.gradient[pack - 1].on_host = on_host;
                self.gradient[pack - 1].ops.push(op);
            }
            self.send_far(task, done);
            (last_but_one, last) = (last, done);
        }
        self.passed[pack] = last;
        self.left[t] = Left { computed: last, ..Left::default() };
        self.finish(t);
    }

    /// Sends on gradients of weights that an earlier layer has too.
    fn send_far(&mut self, task: &PackTask, after: u32) {
        for far in self.sums.chain.far.iter().filter(|far| task.layers.contains(&far.from)) {
            let to = self.packs.iter().position(|pack| pack.contains(&far.to)).map(|pack| self.device(pack));
            if to.is_some_and(|to| to != task.device) {
                self.send(task.device, far.bytes, after);
            }
        }
    }

    /// The end of a backward task: its update, or its gradients leave.
    fn finish(&mut self, t: usize) {
        let (sums, kept, PackTask { pack, layers, device, .. }) = (self.sums, self.kept, &self.tasks[t]);
        let computed = self.left[t].computed;
        if sums.chain.joint_update {
            let gradients = sums.gradients.of(layers);
            let out = self.write(*device, gradients, &[computed]);
            self.left[t] = Left { computed, written: vec![out], leaving: gradients };
            return;
        }
        let state = if kept.state[*pack] { 0 } else { sums.state.of(layers) };
        let fetched = self.fetch(*device, WEIGHTS_IN, state, &[computed]);
        let done = self.compute(*device, sums.update.of(layers), &[computed, fetched]);
        let stay = kept.unwritten[*pack];
        let weights =
            if stay >= sums.fetched.of(layers) { 0 } else { sums.weights.of(layers).saturating_sub(stay) };
        let written = [weights, state].map(|bytes| self.write(*device, bytes, &[done]));
        self.left[t] = Left { computed: done, written: written.to_vec(), leaving: weights + state };
    }

    /// The update of a pack when all gradients are known.
    fn update(&mut self, t: usize) {
        let (sums, PackTask { layers, device, .. }) = (self.sums, &self.tasks[t]);
        let mut after = self.passed.clone();
        if let Some(before) = self.kept.before[t] {
            after.push(self.left[before].computed);
            after.extend(&self.left[before].written);
        }
        let [weights, gradients, state] =
            [&sums.weights, &sums.gradients, &sums.state].map(|bytes| bytes.of(layers));
        let fetched = [weights, gradients, state].map(|bytes| self.fetch(*device, WEIGHTS_IN, bytes, &after));
        let done = self.compute(*device, sums.update.of(layers), &fetched);
        let written = [weights, state].map(|bytes| self.write(*device, bytes, &[done]));
        self.left[t] = Left { computed: done, written: written.to_vec(), leaving: weights + state };
    }

    fn seconds(&self) -> f64 {
        let links = self.machine.devices.iter().flat_map(|d| [(d.to_device, 0), (d.to_host, 1)]).collect();
        let ends = self.engine.run(&EngineLinks { links, trunks: vec![self.machine.uplink; 2] });
        ends.map_or(f64::INFINITY, |ends| ends.into_iter().fold(0.0, f64::max))
    }
}
