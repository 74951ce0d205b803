//! Strategies whose layers stay on their devices: seconds, bytes and traffic of a step from the costs of its stages.

use crate::bottleneck::bottleneck;
use crate::cluster::{Cluster, Group};
use crate::collective::{all_gather, all_reduce, send};
use crate::estimate::{Estimate, Memory, Phases, Traffic};
use crate::interval::interval;
use crate::memory::memory;
use crate::setting::Setting;
use crate::stage::{Costs, PassSeconds, Stage};
use crate::strategy::{ClusterStrategy, Cut, Order};
use crate::workload::Workload;

/// The estimate of a strategy with these stages.
pub(crate) fn answer(stages: &[Stage], costs: &Costs) -> Estimate {
    let Costs { workload, cluster, strategy, setting } = *costs;
    let mut phases = pipeline(stages, cluster, strategy, setting);
    let software = &setting.software;
    let exchanged = replicas(cluster, strategy);
    let (mut exchange, mut update, mut swap) = (0.0f64, 0.0f64, 0.0f64);
    let element = setting.precision.bytes();
    for stage in stages {
        let bytes = stage.weights * element;
        let alike = cluster.group(strategy.data.saturating_mul(strategy.ways), 1, strategy.devices());
        let mut seconds = exposed(costs, stage, exchanged, alike);
        if strategy.cut == Cut::Spatial && strategy.data > 1 {
            // First between devices that share samples, then between replicas: two separate collectives.
            let inner = cluster.group(strategy.ways, 1, strategy.devices());
            seconds += all_reduce(cluster, inner, bytes);
        }
        exchange = exchange.max(seconds);
        let owned = if strategy.shard > 0 { stage.weights / strategy.data as f64 } else { stage.weights };
        let moved = owned * setting.update_bytes();
        let device = &cluster.device;
        if strategy.offload {
            // Gradients go to the host, which updates at the speed of its memory, and weights come back.
            swap = swap.max(2.0 * owned * element / cluster.host.bandwidth + moved / HOST_MEMORY);
        } else {
            update = update.max(moved / (device.bandwidth * device.efficiency.memory));
        }
    }
    if stages.len() > 1 && workload.tied > 0.0 {
        let ends =
            cluster.group(2, strategy.devices() - strategy.devices() / strategy.stages, strategy.devices());
        exchange += all_reduce(cluster, ends, workload.tied / strategy.weight_parts() * element);
    }
    (phases.exchange, phases.update, phases.swap) = (exchange, update + software.step, swap);
    let own = stages.iter().map(|stage| stage.loads).max().unwrap_or(0);
    let replicas = strategy.data.saturating_mul(strategy.ways);
    let loaders = if own > 1 { ClusterStrategy { data: replicas, ways: 1, ..*strategy } } else { *strategy };
    phases.load = loading(workload, cluster, &loaders, setting, phases.total());
    let most = stages
        .iter()
        .map(|stage| memory(stage, strategy, setting, cluster.device.context))
        .fold(Memory::default(), |a, b| if b.device() > a.device() { b } else { a });
    let missing =
        (most.device() - cluster.device.memory).max(most.host * cluster.devices as f64 - cluster.host_memory);
    let seconds = phases.total();
    Estimate {
        strategy: *strategy,
        seconds,
        interval: interval(&phases, strategy, cluster, software),
        phases,
        memory: most,
        traffic: traffic(stages, cluster, strategy, setting, exchanged),
        missing: (missing > 0.0).then_some(missing),
        bottleneck: bottleneck(&phases, stages, cluster, strategy, exchanged),
        throughput: setting.batch as f64 / seconds,
    }
}

/// Seconds that a step of `rest` seconds waits for its samples. Reading takes place during the step before; the way
/// through host memory does not.
pub(crate) fn loading(
    workload: &Workload,
    cluster: &Cluster,
    strategy: &ClusterStrategy,
    setting: &Setting,
    rest: f64,
) -> f64 {
    let software = &setting.software;
    // Samples lie in memory as 32-bit numbers; one process loads them for all that share them.
    let bytes = setting.batch as f64 / strategy.data as f64 * workload.sample * 4.0;
    let feed = bytes * if strategy.ways > 1 { software.feed.group } else { software.feed.own };
    let nodes = strategy.devices().div_ceil(cluster.devices) as f64;
    let read = cluster.loading.map_or(0.0, |rate| setting.batch as f64 / (rate * nodes));
    feed + (read.max(bytes * software.read) - feed - rest).max(0.0)
}

/// Bytes a second of a host's memory, for updates there.
pub(crate) const HOST_MEMORY: f64 = 50e9;

/// The devices that hold the same weights and add up their gradients.
fn replicas(cluster: &Cluster, strategy: &ClusterStrategy) -> Group {
    if strategy.cut == Cut::Spatial && strategy.data == 1 {
        return cluster.group(strategy.ways, 1, strategy.devices());
    }
    cluster.group(strategy.data, strategy.ways, strategy.devices())
}

/// Forward, backward, collectives, messages and bubble of all micro-batches.
fn pipeline(stages: &[Stage], cluster: &Cluster, strategy: &ClusterStrategy, setting: &Setting) -> Phases {
    let count = strategy.micro_batches(setting.batch).max(1) as f64;
    let slowest = stages.iter().fold(&stages[0], |a, b| if b.seconds() > a.seconds() { b } else { a });
    let mut phases = Phases::default();
    let (forward, backward) = (slowest.forward, slowest.backward);
    phases.forward = count * (slowest.took.forward - forward.collectives);
    phases.backward = count * (slowest.took.backward - backward.collectives);
    phases.collectives = count * (forward.collectives + backward.collectives);
    if stages.len() == 1 {
        return phases;
    }
    let pieces = match strategy.order {
        Order::Interleaved(pieces) => pieces.max(1) as f64,
        _ => 1.0,
    };
    let others =
        stages.iter().map(|stage| stage.count as f64 * stage.seconds()).sum::<f64>() - slowest.seconds();
    phases.bubble = others / pieces;
    let stride = strategy.devices() / strategy.stages;
    let pair = cluster.group(strategy.stages, stride, strategy.devices());
    let pair = Group { size: 2, local: pair.local.min(2), sharing: pair.sharing };
    let largest = stages[..stages.len() - 1].iter().map(|stage| stage.output).fold(0.0, f64::max);
    let bytes = largest * setting.precision.bytes();
    let mut each = send(cluster, pair, bytes / parts(strategy, setting));
    if strategy.cut == Cut::Tensor && setting.software.scattered {
        let inner = cluster.group(strategy.ways, 1, strategy.devices());
        each = (each + all_gather(cluster, inner, bytes)).min(send(cluster, pair, bytes));
    }
    each += setting.software.message;
    phases.messages = 2.0 * each * (count * pieces + strategy.stages as f64 - 2.0);
    phases
}

/// Parts of a result that devices which share layers pass on to the next stage, one each.
fn parts(strategy: &ClusterStrategy, setting: &Setting) -> f64 {
    let cut = match strategy.cut {
        Cut::Sequence => true,
        Cut::Tensor => setting.software.scattered,
        _ => false,
    };
    if cut { strategy.ways as f64 } else { 1.0 }
}

/// Seconds of the exchange between replicas that nothing hides. Gradients of weights that sharers all hold are summed in
/// the `joint` group. Whole gradients are exchanged after the last micro-batch, sharded ones after each; sharded weights
/// are gathered for every pass.
fn exposed(costs: &Costs, stage: &Stage, group: Group, joint: Group) -> f64 {
    let Costs { workload, cluster, strategy, setting } = *costs;
    let element = setting.precision.bytes();
    let bytes = stage.weights * element;
    if group.size <= 1 && stage.alike == 0.0 || bytes <= 0.0 {
        return 0.0;
    }
    let overlap = setting.software.overlap;
    // Gradients of the first layer are the last to be known.
    let first = if stage.at == 0 { workload.layers[0].weights / strategy.weight_parts() } else { 0.0 };
    let last = (first * element).max(BUCKET).min(bytes);
    let hidden_behind = |seconds: f64, behind: f64| {
        if overlap <= 0.0 {
            return seconds;
        }
        let exposed = (seconds - overlap * behind).max(seconds * last / bytes);
        exposed + TAKEN * (seconds - exposed)
    };
    let PassSeconds { forward, backward } = stage.took;
    let count = strategy.micro_batches(setting.batch).max(1) as f64;
    if strategy.shard == 0 {
        // Gradients of weights that sharers all hold are summed over sharers and replicas.
        let own = all_reduce(cluster, group, bytes - stage.alike * element);
        return hidden_behind(own + all_reduce(cluster, joint, stage.alike * element), backward);
    }
    if stage.alike > 0.0 {
        let sharers = cluster.group(strategy.ways, 1, strategy.devices());
        let inner = hidden_behind(all_reduce(cluster, sharers, stage.alike * element), backward);
        return inner + exposed(costs, &Stage { alike: 0.0, ..*stage }, group, joint);
    }
    let part = all_gather(cluster, group, bytes);
    match strategy.shard {
        1 => hidden_behind(part, backward) + part,
        2 => count * hidden_behind(part, backward) + part,
        _ => count * (hidden_behind(part, forward) + hidden_behind(2.0 * part, backward)),
    }
}

/// Bytes of a bucket in which gradients travel.
const BUCKET: f64 = 25e6;

/// Assumed share of a device that an exchange takes from kernels beside it: NCCL's 12 to 24 channels use a unit each, of
/// 80 to 108.
const TAKEN: f64 = 0.15;

fn traffic(
    stages: &[Stage],
    cluster: &Cluster,
    strategy: &ClusterStrategy,
    setting: &Setting,
    group: Group,
) -> Traffic {
    let element = setting.precision.bytes();
    let count = strategy.micro_batches(setting.batch).max(1) as f64;
    let most = |of: fn(&Stage) -> f64| stages.iter().map(of).fold(0.0, f64::max);
    let mut traffic = Traffic::default();
    let inner = cluster.group(strategy.ways, 1, strategy.devices());
    traffic.add(inner, most(|stage| stage.shared) * count);
    let weights = most(|stage| stage.weights) * element;
    let alike = most(|stage| stage.alike) * element;
    if alike > 0.0 {
        // Over all devices that hold them, or over the sharers of each replica first.
        let size =
            if strategy.shard == 0 { strategy.data.saturating_mul(strategy.ways) } else { strategy.ways };
        let p = size as f64;
        traffic.add(cluster.group(size, 1, strategy.devices()), 2.0 * (p - 1.0) / p * alike);
    }
    let summed = if strategy.shard == 0 { weights - alike } else { weights };
    let rounds = match strategy.shard {
        0 | 1 => 2.0,
        2 => 1.0 + count,
        _ => 3.0 * count,
    };
    let p = group.size as f64;
    traffic.add(group, rounds * (p - 1.0) / p * summed);
    if stages.len() > 1 {
        let pair = cluster.group(strategy.stages, strategy.devices() / strategy.stages, strategy.devices());
        // A stage in the middle sends results on and gradients back; of two, each sends one of them.
        let ways = if strategy.stages == 2 { 1.0 } else { 2.0 };
        let largest = stages[..stages.len() - 1].iter().map(|stage| stage.output).fold(0.0, f64::max);
        traffic.add(pair, ways * count * largest * element / parts(strategy, setting));
    }
    if strategy.offload {
        traffic.host = 2.0 * weights / if strategy.shard > 0 { strategy.data as f64 } else { 1.0 };
    }
    traffic
}
