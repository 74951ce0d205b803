//! Models beyond the memory of all devices, as Harmony trains them: weights, gradients, states and the inputs of
//! packs live in host memory, and packs of layers come to devices for their turn. `turns` says how long it takes.

use crate::bottleneck::bottleneck;
use crate::collective::{all_reduce, send};
use crate::deal::{Share, by_time};
use crate::estimate::{Estimate, Memory, Phases, Traffic};
use crate::interval::interval;
use crate::resident::loading;
use crate::stage::{Costs, Stage};
use crate::strategy::{ClusterStrategy, LayerResidence, micro_batches};
use crate::turns::{CountedParts, PackTurn, makespan};
use crate::workload::Workload;

/// A pack of layers: costs of one micro-batch, and bytes.
#[derive(Clone, Copy, Debug)]
struct Pack {
    /// Seconds of the forward pass.
    forward: f64,
    /// Seconds of the backward pass from the pack's input, forward pass included.
    backward: f64,
    /// Bytes of weights, and of their gradients.
    weights: f64,
    /// Weights.
    trained: f64,
    /// Bytes that come in.
    input: f64,
    /// Bytes that go out.
    output: f64,
    /// Bytes that the backward pass needs of the layers inside.
    kept: f64,
    /// Bytes in use beside.
    working: f64,
}

/// Times that a byte of weights passes between devices and host in a step, over all devices: in for the forward
/// pass, in for the backward pass, and out as a gradient; on every replica, or once. Paged memory brings and drops
/// weights, and gradients, for every micro-batch of every replica.
pub fn weight_moves(strategy: &ClusterStrategy, batch: u32) -> f64 {
    let replicas = strategy.data as f64;
    match strategy.stream {
        LayerResidence::Resident => 0.0,
        LayerResidence::Paged => (4.0 * strategy.micro_batches(batch) as f64 + 2.0) * replicas,
        LayerResidence::Replicas(_) => 3.0 * replicas,
        LayerResidence::Wrapped(_) => 3.0,
    }
}

/// Calls `f` with strategies that train from host memory on `devices` devices.
pub fn each_stream(workload: &Workload, devices: u32, batch: u32, mut f: impl FnMut(ClusterStrategy)) {
    let depth = workload.depth();
    if batch.is_multiple_of(devices) {
        for micro_batch in micro_batches(batch / devices, 1) {
            let replicas = ClusterStrategy { data: devices, ..ClusterStrategy::serial(micro_batch) };
            f(ClusterStrategy { stream: LayerResidence::Paged, ..replicas });
            pack_counts(depth, 1)
                .for_each(|packs| f(ClusterStrategy { stream: LayerResidence::Replicas(packs), ..replicas }));
        }
    }
    if devices > 1 && devices <= depth {
        for micro_batch in micro_batches(batch, 1) {
            let wrapped = ClusterStrategy { stages: devices, ..ClusterStrategy::serial(micro_batch) };
            pack_counts(depth, devices)
                .for_each(|packs| f(ClusterStrategy { stream: LayerResidence::Wrapped(packs), ..wrapped }));
        }
    }
}

/// Numbers of packs that go evenly round the devices, each about a quarter more than the one before.
fn pack_counts(depth: u32, devices: u32) -> impl Iterator<Item = u32> {
    let rounds = std::iter::successors(Some(1u32), |rounds| Some(rounds + (rounds / 4).max(1)));
    rounds
        .map(move |rounds| rounds.saturating_mul(devices))
        .take_while(move |packs| *packs < depth)
        .chain([depth])
}

/// The estimate of a strategy that trains from host memory. `each` has the costs of every layer, whole and kept.
pub(super) fn streamed(costs: &Costs, each: &[Stage]) -> Estimate {
    let Costs { workload, cluster, strategy, setting } = *costs;
    let devices = strategy.devices();
    let count = match strategy.stream {
        LayerResidence::Replicas(packs) | LayerResidence::Wrapped(packs) => packs,
        // Pages are dropped between layers.
        LayerResidence::Resident | LayerResidence::Paged => workload.depth(),
    };
    let shares = by_time(&workload.layers, each, count as usize);
    let packs: Vec<Pack> = shares.iter().map(|share| pack(costs, share, each)).collect();
    let step = Step::new(costs, &packs);
    let phases = if strategy.stream == LayerResidence::Paged { step.paged() } else { step.phases() };
    let phases = Phases { load: loading(workload, cluster, strategy, setting, phases.total()), ..phases };
    let memory = step.memory(step.local);
    let here = devices.min(cluster.devices);
    let missing =
        (memory.device() - cluster.device.memory).max(memory.host * here as f64 - cluster.host_memory);
    let seconds = phases.total();
    let group = cluster.group(strategy.data, 1, devices);
    Estimate {
        strategy: *strategy,
        seconds,
        interval: interval(&phases, strategy, cluster, &setting.software),
        phases,
        memory,
        traffic: step.traffic(),
        missing: (missing > 0.0).then_some(missing),
        bottleneck: bottleneck(&phases, &[], cluster, strategy, group),
        throughput: setting.batch as f64 / seconds,
    }
}

fn pack(costs: &Costs, share: &Share, each: &[Stage]) -> Pack {
    let all = share.joined(each);
    let element = costs.setting.precision.bytes();
    let lost = 1.0 + costs.setting.software.fragmentation;
    let forward = all.forward.seconds();
    let first = share.layers.first().map_or(0.0, |&(layer, _)| costs.workload.layers[layer].input);
    Pack {
        forward,
        backward: forward + all.backward.seconds(),
        weights: all.weights * element,
        trained: all.weights,
        input: first * costs.strategy.micro_batch as f64 * element,
        output: all.output * element,
        kept: all.kept * element * lost,
        working: all.working * element * lost,
    }
}

/// The packs of a step, and figures of the whole step.
struct Step<'a> {
    costs: &'a Costs<'a>,
    packs: &'a [Pack],
    /// Micro-batches that pass through every pack on a device.
    micro_batches: f64,
    /// Devices that packs go round: one, if every replica has all of them.
    round: usize,
    /// Whether values between packs of all micro-batches stay on the device, as there is room.
    local: bool,
}

impl<'a> Step<'a> {
    fn new(costs: &'a Costs<'a>, packs: &'a [Pack]) -> Step<'a> {
        let strategy = costs.strategy;
        let micro_batches = strategy.micro_batches(costs.setting.batch).max(1) as f64;
        let mut step = Step { costs, packs, micro_batches, round: strategy.stages as usize, local: true };
        step.local = step.memory(true).device() <= costs.cluster.device.memory;
        step
    }

    /// Bytes of all micro-batches that come into a pack from the one before.
    fn handed(&self, pack: usize) -> f64 {
        if pack == 0 { 0.0 } else { self.packs[pack].input * self.micro_batches }
    }

    /// Forward turns, then backward turns from the last pack on.
    fn turns(&self) -> Vec<PackTurn> {
        let Costs { cluster, strategy, setting, .. } = *self.costs;
        let rate = cluster.from_host(strategy.devices());
        let replicas = cluster.group(strategy.data, 1, strategy.devices());
        let pair = cluster.group(2.min(strategy.stages), 1, strategy.devices());
        let nodes = strategy.devices().div_ceil(cluster.devices) as f64;
        let hosts = if strategy.data > 1 { 1.0 } else { nodes };
        let passed = |bytes: f64| {
            if self.round > 1 { send(cluster, pair, bytes) + setting.software.message } else { 0.0 }
        };
        let streamed = if self.local || self.round > 1 { 0.0 } else { 1.0 };
        let forward = self.packs.iter().enumerate().map(|(k, pack)| PackTurn {
            compute: pack.forward * self.micro_batches,
            // Inputs are kept in host memory; where packs hand them on there, they come in again.
            fetch: (pack.weights + streamed * self.handed(k)) / rate,
            store: self.handed(k) / rate,
            passed: if k == 0 { 0.0 } else { passed(pack.input) },
            ..PackTurn::default()
        });
        let backward = self.packs.iter().enumerate().rev().map(|(k, pack)| {
            let gradients = if k + 1 < self.packs.len() { self.handed(k + 1) } else { 0.0 };
            PackTurn {
                compute: pack.backward * self.micro_batches,
                fetch: (pack.weights + self.handed(k) + streamed * gradients) / rate,
                store: (pack.weights + streamed * self.handed(k)) / rate,
                passed: if k + 1 == self.packs.len() { 0.0 } else { passed(pack.output) },
                exchange: all_reduce(cluster, replicas, pack.weights),
                update: pack.trained * setting.update_bytes() / crate::resident::HOST_MEMORY / hosts,
            }
        });
        forward.chain(backward).collect()
    }

    /// Seconds by phase: each phase has the seconds that it adds to a step with the phases before it.
    fn phases(&self) -> Phases {
        let turns = self.turns();
        let seconds = |beside: CountedParts| makespan(&turns, self.micro_batches, self.round, beside);
        let overlap = self.costs.setting.software.overlap > 0.0;
        let mut beside = CountedParts { overlap, ..CountedParts::default() };
        let computing = seconds(beside);
        // The device that computes most; turns go on round the devices.
        let half = self.packs.len();
        let load = |device: usize| {
            let mine = |from: usize, to: usize| -> f64 {
                (from..to).filter(|at| at % self.round == device).map(|at| turns[at].compute).sum()
            };
            [mine(0, half), mine(half, 2 * half)]
        };
        let most = (0..self.round.min(2 * half)).map(load);
        let [forward, backward] = most.fold([0.0; 2], |a, b| if b[0] + b[1] > a[0] + a[1] { b } else { a });
        beside.messages = true;
        let messages = seconds(beside);
        beside.exchange = true;
        let exchange = seconds(beside);
        beside.swap = true;
        let swap = seconds(beside);
        beside.update = true;
        let update = seconds(beside);
        Phases {
            forward,
            backward,
            bubble: (computing - forward - backward).max(0.0),
            messages: messages - computing,
            exchange: exchange - messages,
            swap: swap - exchange,
            update: update - swap + self.costs.setting.software.step,
            ..Phases::default()
        }
    }

    /// Pages come when they are touched, and nothing hides it.
    fn paged(&self) -> Phases {
        let Costs { cluster, strategy, setting, .. } = *self.costs;
        let sum = |of: fn(&Pack) -> f64| self.packs.iter().map(of).sum::<f64>();
        let device = &cluster.device;
        let replicas = cluster.group(strategy.data, 1, strategy.devices());
        let forward = sum(|pack| pack.forward) * self.micro_batches;
        Phases {
            forward,
            backward: sum(|pack| pack.backward) * self.micro_batches - forward,
            exchange: all_reduce(cluster, replicas, sum(|pack| pack.weights)),
            update: sum(|pack| pack.trained) * setting.update_bytes()
                / (device.bandwidth * device.efficiency.memory)
                + setting.software.step,
            swap: self.traffic().host / cluster.from_host(strategy.devices()),
            ..Phases::default()
        }
    }

    fn traffic(&self) -> Traffic {
        let Costs { cluster, strategy, setting, workload, .. } = *self.costs;
        let devices = strategy.devices() as f64;
        let moves = weight_moves(strategy, setting.batch) / devices;
        let handed: f64 = (0..self.packs.len()).map(|k| self.handed(k)).sum();
        let weights: f64 = self.packs.iter().map(|pack| pack.weights).sum();
        let mut traffic = Traffic { host: moves * weights, ..Traffic::default() };
        match strategy.stream {
            LayerResidence::Paged => {
                // Kept values of every micro-batch go out and come back; so do states.
                let kept: f64 = self.packs.iter().map(|pack| pack.kept).sum();
                let states = workload.weights() * setting.optimizer_bytes();
                traffic.host += 2.0 * (kept * self.micro_batches + states);
            }
            _ if self.round > 1 => {
                traffic.host += 2.0 * handed / devices;
                traffic.add(cluster.group(2, 1, strategy.devices()), 2.0 * handed / devices);
            }
            // Stored in the forward pass, fetched in the backward pass; and, where there is no room, fetched in the
            // forward pass, and stored and fetched as gradients.
            _ => traffic.host += if self.local { 2.0 } else { 5.0 } * handed,
        }
        let replicas = cluster.group(strategy.data, 1, strategy.devices());
        traffic.add(replicas, 2.0 * (devices - 1.0) / devices * weights);
        traffic
    }

    /// The pack in use and the one on its way, with their gradients; values between packs, if they are `local`; and
    /// one micro-batch's layers inside a pack.
    fn memory(&self, local: bool) -> Memory {
        let Costs { cluster, strategy, setting, workload, .. } = *self.costs;
        let most = |of: &dyn Fn(usize) -> f64| (0..self.packs.len()).map(of).fold(0.0, f64::max);
        let ahead = |k: usize| self.packs.get(k + self.round).map_or(0.0, |next| next.weights);
        let paged = strategy.stream == LayerResidence::Paged;
        let flying = most(&|k| self.packs[k].weights + if paged { 0.0 } else { ahead(k) });
        // In a rotation, a neighbour's results wait while a device is busy with other packs.
        let waiting = match (paged, self.round) {
            (true, _) => 0.0,
            (_, 1) => self.micro_batches,
            (_, round) => (self.micro_batches - round as f64 + 1.0).max(2.0),
        };
        let waiting = if local { waiting } else { waiting.min(2.0) };
        let ends = |k: usize| {
            let Pack { input, output, .. } = self.packs[k];
            waiting * input.max(output) + 2.0 * input
        };
        let software = &setting.software;
        let channels = if strategy.devices() > 1 { software.channels } else { 0.0 };
        let states = workload.weights() * (2.0 * setting.precision.bytes() + setting.optimizer_bytes());
        let here = strategy.devices().min(cluster.devices) as f64;
        let nodes = strategy.devices().div_ceil(cluster.devices) as f64;
        let handed: f64 = (0..self.packs.len()).map(|k| self.handed(k)).sum();
        let host = match strategy.stream {
            // Every process has its own.
            LayerResidence::Paged => states + self.packs.iter().map(|pack| pack.kept).sum::<f64>(),
            LayerResidence::Wrapped(_) => (states + handed) / nodes / here,
            _ => states / here + handed,
        };
        Memory {
            weights: flying,
            gradients: flying,
            optimizer: 0.0,
            activations: most(&|k| self.packs[k].kept + ends(k)),
            workspace: most(&|k| self.packs[k].working) + channels,
            context: cluster.device.context,
            host,
        }
    }
}
