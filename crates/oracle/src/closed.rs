//! The closed forms: what a step of one strategy takes, holds and moves.

use crate::OracleError;
use crate::bottleneck::{Bottleneck, bottleneck};
use crate::cluster::{Cluster, Group};
use crate::collective::{all_gather, all_reduce, send};
use crate::deal::{Share, shares};
use crate::interval::interval;
use crate::memory::{Memory, memory, under_way};
use crate::mixed;
use crate::planned::{Need, planned};
use crate::setting::Setting;
use crate::stage::{Costs, Stage};
use crate::strategy::{Cut, Order, Recompute, Strategy, Stream};
use crate::stream::streamed;
use crate::workload::Workload;
use std::collections::HashMap;

/// Seconds of a step by what they are spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Phases {
    /// Kernels of the forward pass.
    pub forward: f64,
    /// Kernels of the backward pass, what is computed again included.
    pub backward: f64,
    /// Collectives between devices that share layers.
    pub collectives: f64,
    /// Messages between pipeline stages.
    pub messages: f64,
    /// Exchange of gradients (and of sharded weights) that nothing hides.
    pub exchange: f64,
    /// The optimizer.
    pub update: f64,
    /// Waiting for other stages.
    pub bubble: f64,
    /// Moves between device and host that nothing hides.
    pub swap: f64,
    /// Waiting for data.
    pub load: f64,
}

impl Phases {
    /// All of them, by name.
    pub fn rows(&self) -> [(&'static str, f64); 9] {
        [
            ("forward", self.forward),
            ("backward", self.backward),
            ("collectives", self.collectives),
            ("messages", self.messages),
            ("exchange", self.exchange),
            ("update", self.update),
            ("bubble", self.bubble),
            ("swap", self.swap),
            ("load", self.load),
        ]
    }

    /// Seconds of the step.
    pub fn total(&self) -> f64 {
        self.rows().iter().map(|row| row.1).sum()
    }
}

/// Bytes that a device sends in a step, by link.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Traffic {
    /// To devices of its node.
    pub within: f64,
    /// To other nodes.
    pub between: f64,
    /// To and from host memory.
    pub host: f64,
}

/// What a strategy comes to.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The strategy.
    pub strategy: Strategy,
    /// Seconds of a step.
    pub seconds: f64,
    /// In eight of ten cases a step takes so long.
    pub interval: [f64; 2],
    /// Where the seconds go.
    pub phases: Phases,
    /// Peak bytes of the device that holds most.
    pub memory: Memory,
    /// Bytes of a step over links.
    pub traffic: Traffic,
    /// Bytes that are missing, if it does not fit.
    pub missing: Option<f64>,
    /// What keeps it from being faster.
    pub bottleneck: Bottleneck,
    /// Samples a second.
    pub throughput: f64,
}

/// What a step of a strategy takes, holds and moves. Whether it fits is part of the answer; an error says
/// that the strategy cannot be. Who asks often keeps an [`Oracle`].
pub fn estimate(
    workload: &Workload,
    cluster: &Cluster,
    strategy: &Strategy,
    setting: &Setting,
) -> Result<Estimate, OracleError> {
    cluster.check()?;
    Oracle::new(workload, cluster, setting).estimate(strategy)
}

/// What layers' costs depend on: ways, cut, micro-batch, recomputation, devices, whether gradients are added up.
type Key = (u32, Cut, u32, Recompute, u32, bool);

/// Which stages have which layers, and what they come to.
struct Dealt {
    shares: Vec<Share>,
    stages: Vec<Stage>,
}

/// Answers about one model, cluster and setting; remembers what strategies have in common.
pub struct Oracle<'a> {
    workload: &'a Workload,
    cluster: &'a Cluster,
    setting: &'a Setting,
    layers: HashMap<Key, Vec<Stage>>,
    dealt: HashMap<(Key, u32), Dealt>,
    /// How layers are shared in a mixed cut, by ways, micro-batch and devices.
    chosen: HashMap<(u32, u32, u32), Vec<mixed::Way>>,
}

impl<'a> Oracle<'a> {
    /// Knows nothing yet.
    pub fn new(workload: &'a Workload, cluster: &'a Cluster, setting: &'a Setting) -> Oracle<'a> {
        let (layers, dealt, chosen) = (HashMap::new(), HashMap::new(), HashMap::new());
        Oracle { workload, cluster, setting, layers, dealt, chosen }
    }

    /// [`estimate`].
    pub fn estimate(&mut self, strategy: &Strategy) -> Result<Estimate, OracleError> {
        strategy.check(self.workload, self.setting.batch)?;
        if strategy.devices() > self.cluster.size() {
            return Err(OracleError::Devices { asked: strategy.devices(), most: self.cluster.size() });
        }
        if strategy.stream != Stream::Resident {
            let plain = Strategy { data: 1, stages: 1, recompute: Recompute::Nothing, ..*strategy };
            let key = self.deal(&plain);
            return Ok(streamed(&self.costs(strategy), &self.layers[&key]));
        }
        if strategy.recompute == Recompute::Planned {
            return Ok(self.planned(strategy));
        }
        let key = self.deal(strategy);
        let stages = &self.dealt[&(key, strategy.stages)].stages;
        Ok(answer(stages, &self.costs(strategy)))
    }

    fn costs<'s>(&self, strategy: &'s Strategy) -> Costs<'s>
    where
        'a: 's,
    {
        Costs { workload: self.workload, cluster: self.cluster, strategy, setting: self.setting }
    }

    /// How each layer is shared by a mixed cut; nothing of other strategies.
    pub fn ways(&mut self, strategy: &Strategy) -> Vec<mixed::Way> {
        if strategy.cut != Cut::Mixed || strategy.check(self.workload, self.setting.batch).is_err() {
            return Vec::new();
        }
        self.deal(&Strategy { recompute: Recompute::Nothing, ..*strategy });
        self.chosen
            .get(&(strategy.ways, strategy.micro_batch, strategy.devices()))
            .cloned()
            .unwrap_or_default()
    }

    /// Makes sure that layers and stages of a strategy are known, and says where.
    fn deal(&mut self, strategy: &Strategy) -> Key {
        let Strategy { ways, cut, micro_batch, recompute, stages, .. } = *strategy;
        let costs = self.costs(strategy);
        let key = (ways, cut, micro_batch, recompute, strategy.devices(), costs.accumulates());
        if !self.dealt.contains_key(&(key, stages)) {
            let chosen = &mut self.chosen;
            let each = self.layers.entry(key).or_insert_with(|| match cut {
                Cut::Mixed => {
                    let ways =
                        chosen.entry((key.0, micro_batch, key.4)).or_insert_with(|| mixed::choose(&costs));
                    mixed::layers(&costs, ways)
                }
                _ => costs.layers(),
            });
            let shares = shares(&self.workload.layers, each, stages as usize);
            let stages_of = costs.joined(&shares, each);
            self.dealt.insert((key, stages), Dealt { shares, stages: stages_of });
        }
        key
    }

    /// The best mixture of layers that are kept and computed again, with stages dealt as if nothing or as if
    /// everything were.
    fn planned(&mut self, strategy: &Strategy) -> Estimate {
        let [nothing, selective, full] = [Recompute::Nothing, Recompute::Selective, Recompute::Full]
            .map(|recompute| self.deal(&Strategy { recompute, ..*strategy }));
        let costs = self.costs(strategy);
        let levels = [nothing, selective, full].map(|key| self.layers[&key].as_slice());
        let element = self.setting.precision.bytes() * (1.0 + self.setting.software.fragmentation);
        let of = |key: Key| {
            let Dealt { shares, .. } = &self.dealt[&(key, strategy.stages)];
            let kept = costs.joined(shares, levels[0]);
            let stage = |(share, kept): (&Share, &Stage)| {
                let needed = memory(kept, strategy, self.setting, self.cluster.device.context).device();
                let under_way = under_way(share.at, strategy, self.setting);
                // A byte more than is needed, whatever sums round to.
                let missing = needed - self.cluster.device.memory;
                let missing = if missing > 0.0 { missing + 1.0 } else { missing };
                planned(share, levels, Need { missing, kept: element * under_way, working: element })
            };
            let stages = costs.finished(shares, shares.iter().zip(&kept).map(stage).collect());
            answer(&stages, &costs)
        };
        let (one, other) = (of(nothing), of(full));
        if strategy.stages > 1 && order(&other, &one).is_lt() { other } else { one }
    }
}

/// Those that fit come first, by time; the others by what they lack.
pub fn order(a: &Estimate, b: &Estimate) -> std::cmp::Ordering {
    let key = |one: &Estimate| one.missing.map_or((0, one.seconds), |missing| (1, missing));
    let ((fits_a, a), (fits_b, b)) = (key(a), key(b));
    fits_a.cmp(&fits_b).then(a.total_cmp(&b))
}

pub(super) fn answer(stages: &[Stage], costs: &Costs) -> Estimate {
    let Costs { workload, cluster, strategy, setting } = *costs;
    let mut phases = pipeline(stages, cluster, strategy, setting);
    let software = &setting.software;
    let exchanged = replicas(cluster, strategy);
    let (mut exchange, mut update, mut swap) = (0.0f64, 0.0f64, 0.0f64);
    let element = setting.precision.bytes();
    for stage in stages {
        let bytes = stage.weights * element;
        let alike = cluster.group(strategy.data.saturating_mul(strategy.ways), 1, strategy.devices());
        let mut seconds = exposed(costs, stage, [exchanged, alike]);
        if strategy.cut == Cut::Spatial && strategy.data > 1 {
            // Those that share samples first, then each with its likes: two groups know nothing of each other.
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
        exchange += all_reduce(cluster, ends, workload.tied / sharers(strategy) * element);
    }
    (phases.exchange, phases.update, phases.swap) = (exchange, update + software.step, swap);
    let own = stages.iter().map(|stage| stage.loads).max().unwrap_or(0);
    let replicas = strategy.data.saturating_mul(strategy.ways);
    let loaders = if own > 1 { Strategy { data: replicas, ways: 1, ..*strategy } } else { *strategy };
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

/// Seconds that a step of `rest` seconds waits for its samples: on their way through host memory, and until they
/// are read, which takes place during the step before.
pub(super) fn loading(
    workload: &Workload,
    cluster: &Cluster,
    strategy: &Strategy,
    setting: &Setting,
    rest: f64,
) -> f64 {
    let software = &setting.software;
    // Samples lie in memory as 32-bit numbers; one process loads them for all that share them.
    let bytes = setting.batch as f64 / strategy.data as f64 * workload.sample * 4.0;
    let feed = bytes * software.feed[usize::from(strategy.ways > 1)];
    let nodes = strategy.devices().div_ceil(cluster.devices) as f64;
    let read = cluster.loading.map_or(0.0, |rate| setting.batch as f64 / (rate * nodes));
    feed + (read.max(bytes * software.read) - feed - rest).max(0.0)
}

/// Bytes a second of a host's memory, for updates there.
pub(super) const HOST_MEMORY: f64 = 50e9;

/// Devices that each hold a part of every layer's weights.
pub(super) fn sharers(strategy: &Strategy) -> f64 {
    let alike = matches!(strategy.cut, Cut::Whole | Cut::Spatial | Cut::Mixed);
    if alike { 1.0 } else { strategy.ways as f64 }
}

/// The devices that hold the same weights and add up their gradients.
fn replicas(cluster: &Cluster, strategy: &Strategy) -> Group {
    if strategy.cut == Cut::Spatial && strategy.data == 1 {
        return cluster.group(strategy.ways, 1, strategy.devices());
    }
    cluster.group(strategy.data, strategy.ways, strategy.devices())
}

/// Forward, backward, collectives, messages and bubble of all micro-batches.
fn pipeline(stages: &[Stage], cluster: &Cluster, strategy: &Strategy, setting: &Setting) -> Phases {
    let count = strategy.micro_batches(setting.batch).max(1) as f64;
    let slowest = stages.iter().fold(&stages[0], |a, b| if b.seconds() > a.seconds() { b } else { a });
    let mut phases = Phases::default();
    let (forward, backward) = (slowest.forward, slowest.backward);
    phases.forward = count * (slowest.took[0] - forward.collectives);
    phases.backward = count * (slowest.took[1] - backward.collectives);
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

/// Parts in which the devices that share layers pass a result on to the next stage, each its own.
fn parts(strategy: &Strategy, setting: &Setting) -> f64 {
    let cut = match strategy.cut {
        Cut::Sequence => true,
        Cut::Tensor => setting.software.scattered,
        _ => false,
    };
    if cut { strategy.ways as f64 } else { 1.0 }
}

/// Seconds of the exchange between replicas, and in a `joint` group of what sharers have alike, that nothing hides.
/// Whole gradients are exchanged after the last micro-batch, sharded ones after each; sharded weights are gathered for
/// every pass.
fn exposed(costs: &Costs, stage: &Stage, [group, joint]: [Group; 2]) -> f64 {
    let Costs { workload, cluster, strategy, setting } = *costs;
    let element = setting.precision.bytes();
    let bytes = stage.weights * element;
    if group.size <= 1 && stage.alike == 0.0 || bytes <= 0.0 {
        return 0.0;
    }
    let overlap = setting.software.overlap;
    // Gradients of the first layer are the last to be known.
    let first = if stage.at == 0 { workload.layers[0].weights / sharers(strategy) } else { 0.0 };
    let last = (first * element).max(BUCKET).min(bytes);
    let hidden_behind = |seconds: f64, behind: f64| {
        if overlap <= 0.0 {
            return seconds;
        }
        let exposed = (seconds - overlap * behind).max(seconds * last / bytes);
        exposed + TAKEN * (seconds - exposed)
    };
    let [forward, backward] = stage.took;
    let count = strategy.micro_batches(setting.batch).max(1) as f64;
    if strategy.shard == 0 {
        // What sharers have alike is summed over all who have it.
        let own = all_reduce(cluster, group, bytes - stage.alike * element);
        return hidden_behind(own + all_reduce(cluster, joint, stage.alike * element), backward);
    }
    if stage.alike > 0.0 {
        let sharers = cluster.group(strategy.ways, 1, strategy.devices());
        let inner = hidden_behind(all_reduce(cluster, sharers, stage.alike * element), backward);
        return inner + exposed(costs, &Stage { alike: 0.0, ..*stage }, [group, joint]);
    }
    let part = all_gather(cluster, group, bytes);
    match strategy.shard {
        1 => hidden_behind(part, backward) + part,
        2 => count * hidden_behind(part, backward) + part,
        _ => count * (hidden_behind(part, forward) + hidden_behind(2.0 * part, backward)),
    }
}

/// Gradients travel in buckets of so many bytes.
const BUCKET: f64 = 25e6;

/// Assumed: the share of a device that an exchange takes from the kernels it runs beside: NCCL's 12 to 24 channels
/// have a unit each, of 80 to 108.
const TAKEN: f64 = 0.15;

fn traffic(
    stages: &[Stage],
    cluster: &Cluster,
    strategy: &Strategy,
    setting: &Setting,
    group: Group,
) -> Traffic {
    let element = setting.precision.bytes();
    let count = strategy.micro_batches(setting.batch).max(1) as f64;
    let most = |of: fn(&Stage) -> f64| stages.iter().map(of).fold(0.0, f64::max);
    let mut traffic = Traffic::default();
    let inner = cluster.group(strategy.ways, 1, strategy.devices());
    put(&mut traffic, inner, most(|stage| stage.shared) * count);
    let weights = most(|stage| stage.weights) * element;
    let alike = most(|stage| stage.alike) * element;
    if alike > 0.0 {
        // Over all who have them, or over the sharers of each replica first.
        let size =
            if strategy.shard == 0 { strategy.data.saturating_mul(strategy.ways) } else { strategy.ways };
        let p = size as f64;
        put(&mut traffic, cluster.group(size, 1, strategy.devices()), 2.0 * (p - 1.0) / p * alike);
    }
    let summed = if strategy.shard == 0 { weights - alike } else { weights };
    let rounds = match strategy.shard {
        0 | 1 => 2.0,
        2 => 1.0 + count,
        _ => 3.0 * count,
    };
    let p = group.size as f64;
    put(&mut traffic, group, rounds * (p - 1.0) / p * summed);
    if stages.len() > 1 {
        let pair = cluster.group(strategy.stages, strategy.devices() / strategy.stages, strategy.devices());
        // A stage in the middle sends results on and gradients back; of two, each sends one of them.
        let ways = if strategy.stages == 2 { 1.0 } else { 2.0 };
        let largest = stages[..stages.len() - 1].iter().map(|stage| stage.output).fold(0.0, f64::max);
        put(&mut traffic, pair, ways * count * largest * element / parts(strategy, setting));
    }
    if strategy.offload {
        traffic.host = 2.0 * weights / if strategy.shard > 0 { strategy.data as f64 } else { 1.0 };
    }
    traffic
}

/// Of a ring's bytes, the device at the edge of a node sends all of its own to another node.
pub(super) fn put(traffic: &mut Traffic, group: Group, bytes: f64) {
    if group.size <= 1 {
    } else if group.local == group.size {
        traffic.within += bytes;
    } else {
        let away = 1.0 / group.local as f64;
        traffic.between += bytes * away;
        traffic.within += bytes * (1.0 - away);
    }
}
