//! Tofu's cut: every layer is shared in the way that suits it, with the cheapest conversions between neighbours,
//! found by dynamic programming along the layers.

use crate::closed::{Estimate, answer, order};
use crate::cluster::Group;
use crate::collective::{all_gather, all_reduce, all_to_all};
use crate::stage::{Costs, Stage};
use crate::strategy::{Cut, Order, Recompute, Strategy};
use crate::workload::Layer;

/// How one layer is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// It is not: every device does all of it.
    Whole,
    /// Each device has some samples.
    Batch,
    /// Each has some of every sample's space.
    Space,
    /// Each makes some of the results.
    Filter,
    /// Each reads some of the inputs.
    Channel,
    /// Columns, then rows of pairs of products.
    Tensor,
    /// As `Tensor`, with the sequence cut in between.
    Sequence,
}

/// How a result lies on the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    Whole,
    Samples,
    Space,
    Features,
    Tokens,
    /// Every device has a term of the sum.
    Partial,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 7] =
        [Way::Whole, Way::Batch, Way::Space, Way::Filter, Way::Channel, Way::Tensor, Way::Sequence];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Way::Whole => "whole",
            Way::Batch => "batch",
            Way::Space => "space",
            Way::Filter => "filter",
            Way::Channel => "channel",
            Way::Tensor => "tensor",
            Way::Sequence => "sequence",
        }
    }

    /// How it reads its input, and leaves the input's gradient.
    fn before(self) -> [Lies; 2] {
        match self {
            Way::Whole | Way::Tensor => [Lies::Whole; 2],
            Way::Batch => [Lies::Samples; 2],
            Way::Space => [Lies::Space; 2],
            Way::Filter => [Lies::Whole, Lies::Partial],
            Way::Channel => [Lies::Features; 2],
            Way::Sequence => [Lies::Tokens; 2],
        }
    }

    /// How it leaves its output, and reads the output's gradient.
    fn after(self) -> [Lies; 2] {
        match self {
            Way::Whole | Way::Tensor => [Lies::Whole; 2],
            Way::Batch => [Lies::Samples; 2],
            Way::Space => [Lies::Space; 2],
            Way::Filter => [Lies::Features; 2],
            Way::Channel => [Lies::Partial, Lies::Whole],
            Way::Sequence => [Lies::Tokens; 2],
        }
    }

    /// Whether sharers have the same weights, and add up their gradients.
    fn exchanges(self) -> bool {
        matches!(self, Way::Batch | Way::Space)
    }

    /// The strategy of those who share all layers in this way, on the devices of `mixed`.
    pub fn single(self, mixed: &Strategy) -> Option<Strategy> {
        let Strategy { data, ways, micro_batch, .. } = *mixed;
        let cut = match self {
            Way::Whole => return None,
            Way::Batch if !micro_batch.is_multiple_of(ways) => return None,
            Way::Batch => {
                let (data, micro_batch) = (data.saturating_mul(ways), micro_batch / ways);
                return Some(Strategy { data, ways: 1, cut: Cut::Whole, micro_batch, ..*mixed });
            }
            Way::Space => Cut::Spatial,
            Way::Filter => Cut::Filter,
            Way::Channel => Cut::Channel,
            Way::Tensor => Cut::Tensor,
            Way::Sequence => Cut::Sequence,
        };
        Some(Strategy { cut, ..*mixed })
    }
}

/// Costs of a layer in one way, without conversions.
#[derive(Clone, Copy)]
struct Alone {
    stage: Stage,
    /// Seconds of the kernels of a step, its update included.
    compute: f64,
    /// Seconds of what is exchanged inside the layer.
    inside: f64,
    /// Seconds of the exchange of its gradients.
    exchange: f64,
    /// Bytes that it holds.
    bytes: f64,
}

/// Seconds and bytes of passing a result on, forward and backward.
type Conversion = [f64; 2];

/// What a choice of ways is weighed by: seconds of collectives, of gradients, and of memory if bytes cost time.
type Weights = [f64; 3];

/// Gradients that hide, or do not; links that matter more; memory that is short.
const WEIGHED: [Weights; 6] =
    [[1.0, 1.0, 0.0], [1.0, 0.2, 0.0], [1.0, 0.0, 0.0], [8.0, 8.0, 0.0], [1.0, 1.0, 1e-10], [1.0, 1.0, 1e-7]];

/// The way of every layer. It depends on devices and micro-batch, not on what is computed again or sharded. It is
/// never slower than the best single way, if both fit or both do not, nor does it communicate longer.
pub fn choose(costs: &Costs) -> Vec<Way> {
    let plain = Strategy {
        recompute: Recompute::Nothing,
        shard: 0,
        stages: 1,
        order: Order::Alternating,
        offload: false,
        ..*costs.strategy
    };
    let costs = Costs { strategy: &plain, ..*costs };
    let table = Table::new(&costs);
    let single = |way: &Way| Some((*way, alone(&costs, way.single(&plain)?)?));
    let best = Way::ALL.iter().filter_map(single).min_by(|a, b| order(&a.1, &b.1));
    let spoken = |one: &Estimate| one.phases.collectives + one.phases.exchange;
    let allowed = |one: &Estimate| {
        best.as_ref().is_none_or(|(_, best)| {
            (one.missing.is_none() && best.missing.is_some()) || spoken(one) <= spoken(best)
        })
    };
    let mut found: Option<(Vec<Way>, Estimate)> = None;
    for weights in WEIGHED {
        let ways = table.cheapest(weights);
        if found.as_ref().is_some_and(|found| found.0 == ways) {
            continue;
        }
        let each = layers(&costs, &ways);
        let made = answer(&costs.joined(&[costs.whole()], &each), &costs);
        if allowed(&made) && found.as_ref().is_none_or(|found| order(&made, &found.1).is_lt()) {
            found = Some((ways, made));
        }
    }
    match (found, best) {
        (Some((ways, made)), Some((_, best))) if order(&made, &best).is_le() => ways,
        (_, Some((way, _))) => vec![way; costs.workload.layers.len()],
        (Some((ways, _)), None) => ways,
        (None, None) => vec![Way::Whole; costs.workload.layers.len()],
    }
}

/// The estimate of a strategy by itself, if the model allows it.
fn alone(costs: &Costs, strategy: Strategy) -> Option<Estimate> {
    strategy.check(costs.workload, costs.setting.batch).ok()?;
    let own = Costs { strategy: &strategy, ..*costs };
    Some(answer(&own.stages(), &own))
}

/// One copy of each layer, shared as `ways` say, with what is computed again as the strategy says.
pub fn layers(costs: &Costs, ways: &[Way]) -> Vec<Stage> {
    let mut each = shared(costs, ways);
    if ways.first() == Some(&Way::Batch) {
        each[0].loads = costs.strategy.ways;
    }
    each
}

fn shared(costs: &Costs, ways: &[Way]) -> Vec<Stage> {
    let uniform = ways.first().filter(|first| ways.iter().all(|way| way == *first));
    // One way for all layers is that strategy, as its own form has it.
    if let Some(way) = uniform
        && let Some(single) = way.single(costs.strategy)
        && single.check(costs.workload, costs.setting.batch).is_ok()
    {
        let mut each = Costs { strategy: &single, ..*costs }.layers();
        each.iter_mut().filter(|_| way.exchanges()).for_each(|stage| stage.alike = stage.weights);
        let samples = costs.strategy.micro_batch as f64;
        each.iter_mut()
            .zip(&costs.workload.layers)
            .for_each(|(stage, layer)| stage.output = layer.output * samples);
        return each;
    }
    Table::new(costs).stages(ways)
}

/// Every layer in every way it allows, and every conversion there may be.
struct Table<'a> {
    costs: &'a Costs<'a>,
    alone: Vec<Vec<(Way, Alone)>>,
}

impl<'a> Table<'a> {
    fn new(costs: &'a Costs<'a>) -> Table<'a> {
        let layers = &costs.workload.layers;
        let heads = costs.workload.fewest_heads().is_some_and(|heads| heads >= costs.strategy.ways);
        let first = layers.iter().position(|layer| layer.channels > 0.0);
        let of = |(at, layer): (usize, &Layer)| {
            let allowed = |way: &Way| allows(*way, layer, costs.strategy, heads, first == Some(at));
            let alone = |way: Way| (way, Table::cost(costs, layer, way, at + 1 == layers.len()));
            Way::ALL.into_iter().filter(allowed).map(alone).collect()
        };
        Table { costs, alone: layers.iter().enumerate().map(of).collect() }
    }

    fn cost(costs: &Costs, layer: &Layer, way: Way, is_last: bool) -> Alone {
        let Costs { cluster, strategy, setting, .. } = *costs;
        let p = strategy.ways as f64;
        let own = match way {
            Way::Whole => Strategy { ways: 1, cut: Cut::Whole, ..*strategy },
            _ => way.single(strategy).unwrap_or(*strategy),
        };
        let stage = Costs { strategy: &own, ..*costs }.layer_alone(layer, is_last);
        let weights = if way.exchanges() || way == Way::Whole { layer.weights } else { layer.weights / p };
        let alike = if way.exchanges() { layer.weights } else { 0.0 };
        let stage = Stage { weights, alike, output: layer.output * strategy.micro_batch as f64, ..stage };
        let count = strategy.micro_batches(setting.batch).max(1) as f64;
        let times = count * layer.count as f64;
        let kernels = [stage.forward, stage.backward].map(|pass| pass.seconds() - pass.collectives);
        let copies = layer.count as f64;
        let device = &cluster.device;
        let update = weights * setting.update_bytes() / (device.bandwidth * device.efficiency.memory);
        let element = setting.precision.bytes();
        // Layers share the start of an exchange; what one adds is its bytes.
        let all = (costs.workload.weights() * element).max(1.0);
        let slope = all_reduce(cluster, joint(costs), all) / all;
        Alone {
            stage,
            compute: times * (kernels[0] + kernels[1]) + copies * update,
            inside: times * (stage.forward.collectives + stage.backward.collectives),
            exchange: copies * alike * element * slope,
            bytes: copies * (weights * (2.0 * element + setting.optimizer_bytes()) + stage.kept * element),
        }
    }

    /// Seconds forward and backward between neighbours, of the output of one copy.
    fn between(&self, at: usize, from: Way, to: Way) -> (Conversion, f64) {
        let Costs { strategy, setting, workload, .. } = *self.costs;
        let bytes = workload.layers[at].output * strategy.micro_batch as f64 * setting.precision.bytes();
        let (there, there_bytes) = self.convert(from.after()[0], to.before()[0], bytes);
        let (back, back_bytes) = self.convert(to.before()[1], from.after()[1], bytes);
        ([there, back], there_bytes + back_bytes)
    }

    /// Seconds, and bytes a device sends, until a result that lies in one way lies in another.
    fn convert(&self, from: Lies, to: Lies, bytes: f64) -> (f64, f64) {
        let (cluster, group) = (self.costs.cluster, self.costs.inner());
        let p = group.size as f64;
        let passed = (p - 1.0) / p * bytes;
        let (seconds, sent) = match (from, to) {
            (Lies::Whole, _) => (0.0, 0.0),
            (from, to) if from == to => (0.0, 0.0),
            (Lies::Partial, Lies::Whole) => (all_reduce(cluster, group, bytes), 2.0 * passed),
            (Lies::Partial, _) | (_, Lies::Whole) => (all_gather(cluster, group, bytes), passed),
            _ => (all_to_all(cluster, group, bytes / p), passed / p),
        };
        (self.costs.staged(sent, seconds), sent)
    }

    /// Seconds of conversions of a step between copies of a layer, in one way.
    fn repeated(&self, at: usize, way: Way) -> f64 {
        let copies = self.costs.workload.layers[at].count as f64 - 1.0;
        if copies > 0.0 { copies * self.between(at, way, way).0.iter().sum::<f64>() } else { 0.0 }
    }

    /// The ways that cost least.
    fn cheapest(&self, [links, gradients, memory]: Weights) -> Vec<Way> {
        let count = self.costs.strategy.micro_batches(self.costs.setting.batch).max(1) as f64;
        let mut best: Vec<Vec<(f64, usize)>> = Vec::with_capacity(self.alone.len());
        for (at, ways) in self.alone.iter().enumerate() {
            let row = ways.iter().map(|&(way, alone)| {
                let own = alone.compute
                    + links * (alone.inside + count * self.repeated(at, way))
                    + gradients * alone.exchange
                    + memory * alone.bytes;
                let before = at.checked_sub(1).map(|before| {
                    let from = |(i, (cost, _)): (usize, &(f64, usize))| {
                        let seconds: f64 = self.between(before, self.alone[before][i].0, way).0.iter().sum();
                        (cost + links * count * seconds, i)
                    };
                    best[before]
                        .iter()
                        .enumerate()
                        .map(from)
                        .fold((f64::INFINITY, 0), |a, b| if b.0 < a.0 { b } else { a })
                });
                before.map_or((own, 0), |(cost, from)| (cost + own, from))
            });
            let row = row.collect();
            best.push(row);
        }
        let mut ways = vec![Way::Whole; self.alone.len()];
        let ends = best.last().into_iter().flatten().enumerate();
        let mut i = ends.fold((f64::INFINITY, 0), |a, (i, b)| if b.0 < a.0 { (b.0, i) } else { a }).1;
        for at in (0..ways.len()).rev() {
            ways[at] = self.alone[at][i].0;
            i = best[at][i].1;
        }
        ways
    }

    /// One copy of each layer with the conversions after it, and what is computed again.
    fn stages(&self, ways: &[Way]) -> Vec<Stage> {
        let layers = &self.costs.workload.layers;
        let stage = |at: usize| {
            let chosen = self.alone[at].iter().find(|(way, _)| *way == ways[at]);
            let mut stage = chosen.map_or_else(Stage::default, |(_, alone)| alone.stage);
            let copies = layers[at].count as f64;
            let mut add = |([there, back], bytes): (Conversion, f64), times: f64| {
                stage.forward.collectives += times * there;
                stage.backward.collectives += times * back;
                stage.shared += times * bytes;
            };
            if copies > 1.0 {
                add(self.between(at, ways[at], ways[at]), (copies - 1.0) / copies);
            }
            if at + 1 < layers.len() {
                add(self.between(at, ways[at], ways[at + 1]), 1.0 / copies);
            }
            if self.costs.strategy.recompute == Recompute::Full && at + 1 < layers.len() {
                stage.again();
            }
            stage
        };
        (0..layers.len()).map(stage).collect()
    }
}

/// Whether a layer may be shared in this way; the first layer with channels reads data, whose channels stay whole.
fn allows(way: Way, layer: &Layer, strategy: &Strategy, heads: bool, reads_data: bool) -> bool {
    let ways = strategy.ways as f64;
    match way {
        Way::Whole => true,
        Way::Batch => strategy.micro_batch.is_multiple_of(strategy.ways),
        Way::Space => layer.extents.first().is_some_and(|&extent| extent > 1.0 && extent >= ways),
        Way::Filter => layer.filters >= ways,
        Way::Channel => layer.channels >= ways && !reads_data,
        Way::Tensor | Way::Sequence => heads,
    }
}

/// The devices that have the same weights of a layer whose samples or space are cut.
pub(super) fn joint(costs: &Costs) -> Group {
    let Strategy { data, ways, .. } = *costs.strategy;
    costs.cluster.group(data.saturating_mul(ways), 1, costs.strategy.devices())
}
