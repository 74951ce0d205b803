//! How long a schedule takes and what it moves, without running it: its tasks become operations on the streams
//! of each device, which wait for each other and share the host's link.

use super::chain::ChainPrices;
use super::engine::{Engine, EngineLinks, EngineWork, NONE};
use super::memory::{KeptInLane, KeptOnDevices, ScheduleScene};
use super::task::{PackSchedule, PackTask, ScheduleMode, TaskPhase, UpdateOn, tasks};
use super::{LayerChain, MovedBytes, MovedKind, MovedOver, ScheduleError, ScheduleMachine, ScheduleOutcome};

/// Times a schedule. None if a task needs more memory than its device has.
pub fn simulate(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    schedule: &PackSchedule,
) -> Result<Option<ScheduleOutcome>, ScheduleError> {
    schedule.check(chain, machine)?;
    let mut prices = ChainPrices::new(chain);
    let tasks = tasks(chain, machine, schedule);
    for task in &tasks {
        task.pieces.iter().for_each(|&size| prices.prepare(size));
    }
    prices.prepare(schedule.forward_size);
    prices.prepare(schedule.backward_size);
    Ok(timed(&prices, machine, schedule))
}

/// [`simulate`] of a schedule that is one of the chain, all of whose sizes are prepared.
pub(crate) fn timed(
    prices: &ChainPrices,
    machine: &ScheduleMachine,
    schedule: &PackSchedule,
) -> Option<ScheduleOutcome> {
    let tasks = tasks(prices.chain, machine, schedule);
    let scene = ScheduleScene {
        chain: prices.chain,
        machine,
        schedule,
        fixed: &prices.fixed,
        forward: prices.at(schedule.forward_size),
        backward: prices.at(schedule.backward_size),
        tasks: &tasks,
    };
    let kept = scene.keep()?;
    let mut teller = Teller::new(scene, prices, &kept);
    for (t, task) in tasks.iter().enumerate() {
        match task.kind {
            TaskPhase::Forward => teller.forward(t),
            TaskPhase::Backward => teller.backward(t),
            TaskPhase::Update => teller.update(t),
        }
    }
    Some(teller.outcome())
}

const STREAMS: usize = 7;
const COMPUTE: usize = 0;
const WEIGHTS_IN: usize = 1;
const VALUES_IN: usize = 2;
const OUT: usize = 3;
const PEER: usize = 4;
const HOST: usize = 5;
const BETWEEN: usize = 6;

/// Samples up to which something is there, and the operation after which it is.
type Flow = Vec<(u32, u32)>;

fn covering(flow: &Flow, samples: u32) -> u32 {
    flow.get(flow.partition_point(|(until, _)| *until < samples)).map_or(NONE, |(_, op)| *op)
}

/// Where what passes between packs is to be had.
#[derive(Clone, Default)]
struct Passed {
    flow: Flow,
    on_host: bool,
}

/// What a lane has passed on, by the layer it enters or leaves.
struct Passing {
    value: Vec<Passed>,
    gradient: Vec<Passed>,
    stash: Vec<Passed>,
}

/// When a task's memory is free again.
#[derive(Clone, Default)]
struct Left {
    computed: u32,
    written: Vec<u32>,
    /// Bytes on their way out.
    leaving: u64,
}

struct Teller<'a> {
    scene: ScheduleScene<'a>,
    prices: &'a ChainPrices<'a>,
    kept: &'a KeptOnDevices,
    engine: Engine,
    moved: Vec<MovedBytes>,
    busy: Vec<f64>,
    peaks: Vec<u64>,
    passing: Vec<Passing>,
    left: Vec<Left>,
    /// By lane and backward pack: the last operation of its backward pass.
    passed: Vec<Vec<u32>>,
    /// By layer: whether it is the first of a backward pack.
    starts: Vec<Option<usize>>,
}

impl<'a> Teller<'a> {
    fn new(scene: ScheduleScene<'a>, prices: &'a ChainPrices<'a>, kept: &'a KeptOnDevices) -> Teller<'a> {
        let (devices, layers) = (scene.schedule.devices, scene.chain.layers.len());
        let mut starts = vec![None; layers + 1];
        for (j, pack) in scene.schedule.backward.iter().enumerate() {
            starts[pack.layers.start] = Some(j);
        }
        let none = || vec![Passed::default(); layers + 1];
        let passing = kept.lanes.iter().map(|_| Passing { value: none(), gradient: none(), stash: none() });
        let passing = passing.collect();
        let mut peaks = vec![0; devices];
        for (task, used) in scene.tasks.iter().zip(&kept.used) {
            peaks[task.device] = peaks[task.device].max(*used);
        }
        Teller {
            prices,
            kept,
            engine: Engine::new(devices * STREAMS),
            moved: vec![MovedBytes::default(); devices],
            busy: vec![0.0; devices],
            peaks,
            passing,
            left: vec![Left::default(); scene.tasks.len()],
            passed: vec![vec![NONE; scene.schedule.backward.len()]; kept.lanes.len()],
            starts,
            scene,
        }
    }

    fn lane(&self, task: &PackTask) -> usize {
        if self.scene.schedule.mode == ScheduleMode::DataParallel { task.device } else { 0 }
    }

    fn stays(&self, task: &PackTask) -> &'a KeptInLane {
        &self.kept.lanes[self.lane(task)]
    }

    /// Seconds at speed 1 that a task takes beside its work, with its first micro-batch.
    fn overhead(&self, device: usize, first: bool) -> f64 {
        let machine = self.scene.machine;
        if first { machine.per_task * machine.devices[device].speed } else { 0.0 }
    }

    fn compute(&mut self, device: usize, seconds: f64, after: &[u32]) -> u32 {
        let seconds = seconds / self.scene.machine.devices[device].speed;
        self.busy[device] += seconds;
        self.engine.add(device * STREAMS + COMPUTE, EngineWork::Seconds(seconds), after)
    }

    fn fetch(&mut self, device: usize, stream: usize, what: MovedKind, bytes: u64, after: &[u32]) -> u32 {
        if bytes == 0 {
            return NONE;
        }
        self.moved[device].add(MovedOver::ToDevice, what, bytes);
        let work = EngineWork::Move { bytes: bytes as f64, link: 2 * device as u32 };
        self.engine.add(device * STREAMS + stream, work, after)
    }

    fn write(&mut self, device: usize, what: MovedKind, bytes: u64, after: &[u32]) -> u32 {
        if bytes == 0 {
            return NONE;
        }
        self.moved[device].add(MovedOver::ToHost, what, bytes);
        let work = EngineWork::Move { bytes: bytes as f64, link: 2 * device as u32 + 1 };
        self.engine.add(device * STREAMS + OUT, work, after)
    }

    fn send(&mut self, device: usize, what: MovedKind, bytes: u64, times: f64, after: &[u32]) -> Option<u32> {
        let rate = self.scene.machine.peer?;
        let moved = (bytes as f64 * times) as u64;
        self.moved[device].add(MovedOver::Peer, what, moved);
        let work = EngineWork::Seconds(bytes as f64 * times / rate);
        Some(self.engine.add(device * STREAMS + PEER, work, after))
    }

    /// Fetches the weights of a task, as far ahead as there is room. The operations after which they are all
    /// there, and after which the task's memory is free.
    fn begin(&mut self, t: usize, there: u64) -> (u32, Vec<u32>) {
        let task = &self.scene.tasks[t];
        let device = task.device;
        let memory = self.scene.machine.devices[device].memory;
        let bytes = self.scene.fixed.fetched.of(&task.layers).saturating_sub(there);
        let Some(before) = self.kept.before[t] else {
            return (self.fetch(device, WEIGHTS_IN, MovedKind::Weights, bytes, &[]), Vec::new());
        };
        let strict = self.scene.machine.counts_buffers;
        let room = if strict { memory - self.kept.used[before] } else { bytes };
        let ahead = bytes.min(room);
        if strict {
            self.peaks[device] = self.peaks[device].max(self.kept.used[before] + ahead);
        }
        // Ahead means beside the task before, whose memory is its own once the one before that has left.
        let mut early: Vec<u32> = Vec::new();
        if let Some(two) = self.kept.before[before] {
            early.push(self.left[two].computed);
            if strict && self.left[two].leaving + self.kept.used[before] + ahead > memory {
                early.extend(&self.left[two].written);
            }
        }
        let first = self.fetch(device, WEIGHTS_IN, MovedKind::Weights, ahead, &early);
        let left = &self.left[before];
        let mut late = vec![left.computed];
        if strict && left.leaving + self.kept.used[t] > memory {
            late.extend(&left.written);
        }
        let rest = self.fetch(device, WEIGHTS_IN, MovedKind::Weights, bytes - ahead, &late);
        (if rest == NONE { first } else { rest }, late)
    }

    /// Brings a task's input for some samples, when there is room for it.
    fn bring(
        &mut self,
        task: &PackTask,
        from: &Passed,
        size: u32,
        until: u32,
        what: MovedKind,
        room: &[u32],
    ) -> u32 {
        let there = covering(&from.flow, until);
        if !from.on_host {
            return there;
        }
        let bytes = self.scene.entering(task.layers.start, size);
        let op = self.fetch(task.device, VALUES_IN, what, bytes, &[there]);
        if op == NONE {
            return there;
        }
        self.wait(op, room);
        op
    }

    fn wait(&mut self, op: u32, others: &[u32]) {
        for &other in others.iter().filter(|other| **other != NONE && op != NONE) {
            self.engine.wait(op, other);
        }
    }

    /// Hands on what a pack made of some samples, to a pack on a device.
    fn hand(
        &mut self,
        from: usize,
        to: usize,
        stays: bool,
        bytes: u64,
        what: MovedKind,
        after: u32,
    ) -> (u32, bool) {
        if stays && from == to {
            return (after, false);
        }
        if stays && let Some(op) = self.send(from, MovedKind::Activations, bytes, 1.0, &[after]) {
            return (op, false);
        }
        let op = self.write(from, what, bytes, &[after]);
        (if op == NONE { after } else { op }, true)
    }

    fn forward(&mut self, t: usize) {
        let task = &self.scene.tasks[t];
        let (lane, device, layers) = (self.lane(task), task.device, task.layers.clone());
        let stays = self.stays(task);
        let schedule = self.scene.schedule;
        let next = match schedule.forward.get(task.pack + 1) {
            Some(pack) => pack.device,
            None => schedule.backward[schedule.backward.len() - 1].device,
        };
        let next = if schedule.mode == ScheduleMode::DataParallel { device } else { next };
        let (weights, gate) = self.begin(t, stays.there_forward[task.pack]);
        let from = if layers.start == 0 {
            Passed { flow: Vec::new(), on_host: true }
        } else {
            std::mem::take(&mut self.passing[lane].value[layers.start])
        };
        let (mut until, mut last, mut last_but_one) = (0, NONE, NONE);
        let mut written = Vec::new();
        for &size in &task.pieces {
            until += size;
            // Two buffers: one is free when the last micro-batch but one is done.
            let room = if last_but_one == NONE { gate.as_slice() } else { &[last_but_one] };
            let input = self.bring(task, &from, size, until, MovedKind::Activations, room);
            let seconds = self.prices.at(size).forward.of(&layers);
            let done = self.compute(device, seconds + self.overhead(device, last == NONE), &[weights, input]);
            if last == NONE {
                self.wait(done, &gate);
            }
            // What backward packs begin with, where they begin inside this pack.
            for layer in layers.clone().filter(|l| *l > 0) {
                let Some(j) = self.starts[layer] else { continue };
                if j + 1 == schedule.backward.len() {
                    continue;
                }
                let op = if stays.stash[j] {
                    done
                } else if layer == layers.start && from.on_host {
                    // It came from there.
                    input
                } else {
                    let ready = if layer == layers.start { input } else { done };
                    let bytes = self.scene.entering(layer, size);
                    let op = self.write(device, MovedKind::Stash, bytes, &[ready]);
                    written.push(op);
                    if op == NONE { ready } else { op }
                };
                let stash = &mut self.passing[lane].stash[layer];
                stash.on_host = !stays.stash[j];
                stash.flow.push((until, op));
            }
            let bytes = self.scene.entering(layers.end, size);
            // On its way through the host it serves as stash too.
            let stashed = self.starts[layers.end].is_some_and(|j| j + 1 < schedule.backward.len());
            let what = if stashed { MovedKind::Stash } else { MovedKind::Activations };
            let (op, on_host) = self.hand(device, next, stays.value[task.pack], bytes, what, done);
            let value = &mut self.passing[lane].value[layers.end];
            value.on_host = on_host;
            value.flow.push((until, op));
            (last_but_one, last) = (last, done);
        }
        // Weights are dropped, not written: they have not changed.
        self.left[t] = Left { computed: last, written, leaving: 0 };
    }

    fn backward(&mut self, t: usize) {
        let task = &self.scene.tasks[t];
        let (lane, device, layers) = (self.lane(task), task.device, task.layers.clone());
        let stays = self.stays(task);
        let schedule = self.scene.schedule;
        let j = task.pack;
        let fused = j + 1 == schedule.backward.len();
        let (weights, gate) = self.begin(t, stays.there_backward[j]);
        let from = match layers.start {
            0 => Passed { flow: Vec::new(), on_host: !stays.stash[j] },
            start if fused => std::mem::take(&mut self.passing[lane].value[start]),
            start => std::mem::take(&mut self.passing[lane].stash[start]),
        };
        let above = std::mem::take(&mut self.passing[lane].gradient[layers.end]);
        // A stash that another device wrote is passed on by the host first.
        let maker = schedule.forward.iter().find(|p| p.layers.contains(&layers.start)).map(|p| p.device);
        let strange =
            schedule.mode != ScheduleMode::DataParallel && !fused && maker.is_some_and(|d| d != device);
        let below = if j > 0 { schedule.backward[j - 1].device } else { device };
        let below = if schedule.mode == ScheduleMode::DataParallel { device } else { below };
        let what = if fused { MovedKind::Activations } else { MovedKind::Stash };
        let (mut until, mut last, mut last_but_one) = (0, NONE, NONE);
        for &size in &task.pieces {
            until += size;
            let mut room = if last_but_one == NONE { gate.clone() } else { vec![last_but_one] };
            if let Some(rate) = self.scene.machine.between_hosts.filter(|_| strange && from.on_host) {
                let seconds = 2.0 * self.scene.entering(layers.start, size) as f64 / rate;
                let there = covering(&from.flow, until);
                let work = EngineWork::Seconds(seconds);
                room.push(self.engine.add(device * STREAMS + BETWEEN, work, &[there]));
            }
            let input = self.bring(task, &from, size, until, what, &room);
            let mut gradient = covering(&above.flow, until);
            if above.on_host {
                let bytes = self.scene.handed_down(layers.end, size);
                gradient = self.fetch(device, VALUES_IN, MovedKind::Activations, bytes, &[gradient]);
                self.wait(gradient, &room);
            }
            let at = self.prices.at(size);
            let again = if stays.inside[j] { 0.0 } else { at.forward.of(&layers) };
            let seconds = again + at.backward.of(&layers) + self.overhead(device, last == NONE);
            let done = self.compute(device, seconds, &[weights, input, gradient]);
            if last == NONE {
                self.wait(done, &gate);
            }
            if j > 0 {
                let bytes = self.scene.handed_down(layers.start, size);
                let stay = stays.gradient[j];
                let (op, on_host) = self.hand(device, below, stay, bytes, MovedKind::Activations, done);
                let passed = &mut self.passing[lane].gradient[layers.start];
                passed.on_host = on_host;
                passed.flow.push((until, op));
            }
            self.send_far(task, done);
            (last_but_one, last) = (last, done);
        }
        self.passed[lane][j] = last;
        self.left[t] = Left { computed: last, ..Left::default() };
        // In data parallel gradients are added up once every device has its own.
        if schedule.mode != ScheduleMode::DataParallel {
            self.finish(t, last);
        } else if device + 1 == schedule.devices {
            let tasks: Vec<usize> = (t + 1 - schedule.devices..=t).collect();
            let mut all: Vec<u32> = (0..schedule.devices).map(|lane| self.passed[lane][j]).collect();
            all.dedup();
            for t in tasks {
                let ready = self.add_up(t, &all);
                self.finish(t, ready);
            }
        }
    }

    /// Sends on gradients of weights that an earlier layer has too.
    fn send_far(&mut self, task: &PackTask, after: u32) {
        let schedule = self.scene.schedule;
        if schedule.mode == ScheduleMode::DataParallel || self.scene.chain.far.is_empty() {
            return;
        }
        let scene_far = self.scene.chain.far.iter().filter(|far| task.layers.contains(&far.from));
        for far in scene_far.copied().collect::<Vec<_>>() {
            let residence = schedule.backward.iter().find(|p| p.layers.contains(&far.to)).map(|p| p.device);
            if residence.is_some_and(|d| d != task.device)
                && self.send(task.device, MovedKind::Gradients, far.bytes, 1.0, &[after]).is_none()
            {
                self.write(task.device, MovedKind::Gradients, far.bytes, &[after]);
            }
        }
    }

    /// The sum of gradients over all devices.
    fn add_up(&mut self, t: usize, all: &[u32]) -> u32 {
        let (device, layers) = (self.scene.tasks[t].device, self.scene.tasks[t].layers.clone());
        let bytes = self.scene.fixed.gradients.of(&layers);
        let ranks = self.scene.schedule.devices as f64;
        if ranks < 2.0 || bytes == 0 {
            return self.left[t].computed;
        }
        let times = 2.0 * (ranks - 1.0) / ranks;
        match self.send(device, MovedKind::Gradients, bytes, times, all) {
            Some(op) => op,
            None => {
                let out = self.write(device, MovedKind::Gradients, bytes, all);
                self.fetch(device, WEIGHTS_IN, MovedKind::Gradients, bytes, &[out])
            }
        }
    }

    /// What comes after the backward pass of a pack: its update, or its gradients leave.
    fn finish(&mut self, t: usize, ready: u32) {
        let task = &self.scene.tasks[t];
        let (device, layers, j) = (task.device, task.layers.clone(), task.pack);
        let stays = self.stays(task);
        let fixed = self.scene.fixed;
        let gradients = fixed.gradients.of(&layers);
        let on_device = self.scene.schedule.update == UpdateOn::Device;
        if on_device && !self.scene.chain.joint_update {
            let state = if stays.state[j] { 0 } else { fixed.state.of(&layers) };
            let fetched = self.fetch(device, WEIGHTS_IN, MovedKind::State, state, &[self.left[t].computed]);
            let done = self.compute(device, fixed.update.of(&layers), &[ready, fetched]);
            let all = fixed.fetched.of(&layers);
            let stay = stays.unwritten[j];
            let weights = if stay >= all { 0 } else { fixed.weights.of(&layers).saturating_sub(stay) };
            let first = self.write(device, MovedKind::Weights, weights, &[done]);
            let second = self.write(device, MovedKind::State, state, &[done]);
            let leaving = weights + state;
            self.left[t] = Left { computed: done, written: vec![first, second], leaving };
            return;
        }
        let out = self.write(device, MovedKind::Gradients, gradients, &[ready]);
        self.left[t].written = vec![out];
        self.left[t].leaving = gradients;
        if !on_device {
            // One host runs the update once, however many devices wrote the gradient.
            let replicas = if self.scene.schedule.mode == ScheduleMode::DataParallel {
                self.scene.schedule.devices
            } else {
                1
            };
            let mut after = vec![out];
            if self.scene.chain.joint_update {
                after.extend(self.left.iter().flat_map(|left| left.written.iter().copied()));
            }
            let seconds = fixed.update_on_host.of(&layers) / replicas as f64;
            self.engine.add(device * STREAMS + HOST, EngineWork::Seconds(seconds), &after);
        }
    }

    /// The update of a pack when all gradients are known.
    fn update(&mut self, t: usize) {
        let task = &self.scene.tasks[t];
        let (device, layers) = (task.device, task.layers.clone());
        let fixed = self.scene.fixed;
        let passes = self.passed.iter().flatten().copied();
        let mut after: Vec<u32> = passes.collect();
        let parts = [
            (MovedKind::Weights, fixed.weights.of(&layers)),
            (MovedKind::Gradients, fixed.gradients.of(&layers)),
            (MovedKind::State, fixed.state.of(&layers)),
        ];
        if let Some(before) = self.kept.before[t] {
            after.push(self.left[before].computed);
            after.extend(&self.left[before].written);
        }
        let fetched = parts.map(|(what, bytes)| self.fetch(device, WEIGHTS_IN, what, bytes, &after));
        let done = self.compute(device, fixed.update.of(&layers), &fetched);
        let written = [parts[0], parts[2]].map(|(what, bytes)| self.write(device, what, bytes, &[done]));
        self.left[t] = Left { computed: done, written: written.to_vec(), leaving: parts[0].1 + parts[2].1 };
    }

    fn outcome(self) -> ScheduleOutcome {
        let machine = self.scene.machine;
        let used = &machine.devices[..self.scene.schedule.devices];
        let links = used.iter().flat_map(|d| [(d.to_device, 0), (d.to_host, 1)]).collect();
        let wires = EngineLinks { links, trunks: vec![machine.uplink.unwrap_or(f64::INFINITY); 2] };
        let ends = self.engine.run(&wires);
        let seconds = ends.map_or(f64::INFINITY, |ends| ends.into_iter().fold(0.0, f64::max));
        ScheduleOutcome { seconds, busy: self.busy, peaks: self.peaks, moved: self.moved }
    }
}
