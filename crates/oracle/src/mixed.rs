//! Tofu's cut: every layer is cut on its own. Dynamic programming along the layers finds the cuts whose kernels and
//! conversions between neighbours take least time.

use crate::cluster::Group;
use crate::collective::{all_gather, all_reduce, all_to_all};
use crate::deal::{joined, whole};
use crate::estimate::{Estimate, order};
use crate::resident::answer;
use crate::stage::{Costs, Stage};
use crate::strategy::{ClusterStrategy, Cut, Order, Recompute};
use crate::workload::ModelLayer;

/// How devices share one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerCut {
    /// Not at all: every device does all of it.
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

/// How a result is divided between the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Whole,
    Samples,
    Space,
    Features,
    Tokens,
    /// Every device has a term of the sum.
    Partial,
}

/// Layouts of a value and of its gradient.
struct Layouts {
    value: Layout,
    gradient: Layout,
}

impl Layouts {
    fn same(layout: Layout) -> Layouts {
        Layouts { value: layout, gradient: layout }
    }
}

impl LayerCut {
    /// All of them.
    pub const ALL: [LayerCut; 7] = [
        LayerCut::Whole,
        LayerCut::Batch,
        LayerCut::Space,
        LayerCut::Filter,
        LayerCut::Channel,
        LayerCut::Tensor,
        LayerCut::Sequence,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            LayerCut::Whole => "whole",
            LayerCut::Batch => "batch",
            LayerCut::Space => "space",
            LayerCut::Filter => "filter",
            LayerCut::Channel => "channel",
            LayerCut::Tensor => "tensor",
            LayerCut::Sequence => "sequence",
        }
    }

    /// The layout in which it reads its input, and in which it leaves the input's gradient.
    fn before(self) -> Layouts {
        match self {
            LayerCut::Filter => Layouts { value: Layout::Whole, gradient: Layout::Partial },
            LayerCut::Channel => Layouts::same(Layout::Features),
            _ => self.kept(),
        }
    }

    /// The layout in which it leaves its output, and in which it reads the output's gradient.
    fn after(self) -> Layouts {
        match self {
            LayerCut::Filter => Layouts::same(Layout::Features),
            LayerCut::Channel => Layouts { value: Layout::Partial, gradient: Layout::Whole },
            _ => self.kept(),
        }
    }

    /// The layout of input and output, where both have the same.
    fn kept(self) -> Layouts {
        Layouts::same(match self {
            LayerCut::Batch => Layout::Samples,
            LayerCut::Space => Layout::Space,
            LayerCut::Sequence => Layout::Tokens,
            LayerCut::Whole | LayerCut::Tensor | LayerCut::Filter | LayerCut::Channel => Layout::Whole,
        })
    }

    /// Whether sharers have the same weights, and add up their gradients.
    fn exchanges(self) -> bool {
        matches!(self, LayerCut::Batch | LayerCut::Space)
    }

    /// The strategy that cuts all layers so, on the devices of `mixed`.
    pub fn single(self, mixed: &ClusterStrategy) -> Option<ClusterStrategy> {
        let ClusterStrategy { data, ways, micro_batch, .. } = *mixed;
        let cut = match self {
            LayerCut::Whole => return None,
            LayerCut::Batch if !micro_batch.is_multiple_of(ways) => return None,
            LayerCut::Batch => {
                let (data, micro_batch) = (data.saturating_mul(ways), micro_batch / ways);
                return Some(ClusterStrategy { data, ways: 1, cut: Cut::Whole, micro_batch, ..*mixed });
            }
            LayerCut::Space => Cut::Spatial,
            LayerCut::Filter => Cut::Filter,
            LayerCut::Channel => Cut::Channel,
            LayerCut::Tensor => Cut::Tensor,
            LayerCut::Sequence => Cut::Sequence,
        };
        Some(ClusterStrategy { cut, ..*mixed })
    }
}

/// Costs of a layer in one way, without conversions.
#[derive(Clone, Copy)]
struct Alone {
    stage: Stage,
    /// Seconds of the kernels of a step, its update included.
    compute: f64,
    /// Seconds of exchanges inside the layer.
    inside: f64,
    /// Seconds of the exchange of its gradients.
    exchange: f64,
    /// Bytes that it holds.
    bytes: f64,
}

/// The cost of passing a result on to a layer with another layout.
#[derive(Clone, Copy)]
struct Conversion {
    /// Seconds of the forward pass.
    forward: f64,
    /// Seconds of the backward pass.
    backward: f64,
    /// Bytes that a device sends in both.
    bytes: f64,
}

impl Conversion {
    fn seconds(&self) -> f64 {
        self.forward + self.backward
    }
}

/// How much seconds of collectives and of gradients count, and a byte of memory.
#[derive(Clone, Copy)]
struct Weights {
    links: f64,
    gradients: f64,
    memory: f64,
}

/// Gradients that hide, or do not; links that matter more; memory that is short.
const WEIGHED: [Weights; 6] = {
    const fn weights(links: f64, gradients: f64, memory: f64) -> Weights {
        Weights { links, gradients, memory }
    }
    [
        weights(1.0, 1.0, 0.0),
        weights(1.0, 0.2, 0.0),
        weights(1.0, 0.0, 0.0),
        weights(8.0, 8.0, 0.0),
        weights(1.0, 1.0, 1e-10),
        weights(1.0, 1.0, 1e-7),
    ]
};

/// The cut of every layer. It depends on devices and micro-batch, not on recomputation or sharding. It is neither slower
/// nor communicates longer than the best single cut, if both fit or both do not.
pub fn choose(costs: &Costs) -> Vec<LayerCut> {
    let plain = ClusterStrategy {
        recompute: Recompute::Nothing,
        shard: 0,
        stages: 1,
        order: Order::Alternating,
        offload: false,
        ..*costs.strategy
    };
    let costs = Costs { strategy: &plain, ..*costs };
    let table = Table::new(&costs);
    let single = |way: &LayerCut| Some((*way, alone(&costs, way.single(&plain)?)?));
    let best = LayerCut::ALL.iter().filter_map(single).min_by(|a, b| order(&a.1, &b.1));
    let spoken = |one: &Estimate| one.phases.collectives + one.phases.exchange;
    let allowed = |one: &Estimate| {
        best.as_ref().is_none_or(|(_, best)| {
            (one.missing.is_none() && best.missing.is_some()) || spoken(one) <= spoken(best)
        })
    };
    let mut found: Option<(Vec<LayerCut>, Estimate)> = None;
    for weights in WEIGHED {
        let ways = table.cheapest(weights);
        if found.as_ref().is_some_and(|found| found.0 == ways) {
            continue;
        }
        let each = layers(&costs, &ways);
        let made = answer(&joined(&costs, &[whole(&costs.workload.layers)], &each), &costs);
        if allowed(&made) && found.as_ref().is_none_or(|found| order(&made, &found.1).is_lt()) {
            found = Some((ways, made));
        }
    }
    match (found, best) {
        (Some((ways, made)), Some((_, best))) if order(&made, &best).is_le() => ways,
        (_, Some((way, _))) => vec![way; costs.workload.layers.len()],
        (Some((ways, _)), None) => ways,
        (None, None) => vec![LayerCut::Whole; costs.workload.layers.len()],
    }
}

/// The estimate of a strategy by itself, if the model allows it.
fn alone(costs: &Costs, strategy: ClusterStrategy) -> Option<Estimate> {
    strategy.check(costs.workload, costs.setting.batch).ok()?;
    let own = Costs { strategy: &strategy, ..*costs };
    let shares = [whole(&costs.workload.layers)];
    Some(answer(&joined(&own, &shares, &own.layers()), &own))
}

/// One copy of each layer, cut as `ways` say, with the strategy's recomputation.
pub fn layers(costs: &Costs, ways: &[LayerCut]) -> Vec<Stage> {
    let mut each = shared(costs, ways);
    if ways.first() == Some(&LayerCut::Batch) {
        each[0].loads = costs.strategy.ways;
    }
    each
}

fn shared(costs: &Costs, ways: &[LayerCut]) -> Vec<Stage> {
    let uniform = ways.first().filter(|first| ways.iter().all(|way| way == *first));
    // One cut for all layers is a strategy of its own.
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
    alone: Vec<Vec<(LayerCut, Alone)>>,
}

impl<'a> Table<'a> {
    fn new(costs: &'a Costs<'a>) -> Table<'a> {
        let layers = &costs.workload.layers;
        let heads = costs.workload.fewest_heads().is_some_and(|heads| heads >= costs.strategy.ways);
        let first = layers.iter().position(|layer| layer.channels > 0.0);
        let of = |(at, layer): (usize, &ModelLayer)| {
            let allowed = |way: &LayerCut| allows(*way, layer, costs.strategy, heads, first == Some(at));
            let alone = |way: LayerCut| (way, Table::cost(costs, layer, way, at + 1 == layers.len()));
            LayerCut::ALL.into_iter().filter(allowed).map(alone).collect()
        };
        Table { costs, alone: layers.iter().enumerate().map(of).collect() }
    }

    fn cost(costs: &Costs, layer: &ModelLayer, way: LayerCut, is_last: bool) -> Alone {
        let Costs { cluster, strategy, setting, .. } = *costs;
        let p = strategy.ways as f64;
        let own = match way {
            LayerCut::Whole => ClusterStrategy { ways: 1, cut: Cut::Whole, ..*strategy },
            _ => way.single(strategy).unwrap_or(*strategy),
        };
        let stage = Costs { strategy: &own, ..*costs }.layer_alone(layer, is_last);
        let weights =
            if way.exchanges() || way == LayerCut::Whole { layer.weights } else { layer.weights / p };
        let alike = if way.exchanges() { layer.weights } else { 0.0 };
        let stage = Stage { weights, alike, output: layer.output * strategy.micro_batch as f64, ..stage };
        let count = strategy.micro_batches(setting.batch).max(1) as f64;
        let times = count * layer.count as f64;
        let kernels = [stage.forward, stage.backward].map(|pass| pass.seconds() - pass.collectives);
        let copies = layer.count as f64;
        let device = &cluster.device;
        let update = weights * setting.update_bytes() / (device.bandwidth * device.efficiency.memory);
        let element = setting.precision.bytes();
        // All layers share the start of an exchange; each adds its bytes.
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
    fn between(&self, at: usize, from: LayerCut, to: LayerCut) -> Conversion {
        let Costs { strategy, setting, workload, .. } = *self.costs;
        let bytes = workload.layers[at].output * strategy.micro_batch as f64 * setting.precision.bytes();
        let (forward, sent) = self.convert(from.after().value, to.before().value, bytes);
        let (backward, sent_back) = self.convert(to.before().gradient, from.after().gradient, bytes);
        Conversion { forward, backward, bytes: sent + sent_back }
    }

    /// Seconds, and bytes a device sends, until a result that lies in one way lies in another.
    fn convert(&self, from: Layout, to: Layout, bytes: f64) -> (f64, f64) {
        let (cluster, group) = (self.costs.cluster, self.costs.inner());
        let p = group.size as f64;
        let passed = (p - 1.0) / p * bytes;
        let (seconds, sent) = match (from, to) {
            (Layout::Whole, _) => (0.0, 0.0),
            (from, to) if from == to => (0.0, 0.0),
            (Layout::Partial, Layout::Whole) => (all_reduce(cluster, group, bytes), 2.0 * passed),
            (Layout::Partial, _) | (_, Layout::Whole) => (all_gather(cluster, group, bytes), passed),
            _ => (all_to_all(cluster, group, bytes / p), passed / p),
        };
        (self.costs.staged(sent, seconds), sent)
    }

    /// Seconds of conversions of a step between copies of a layer, in one way.
    fn repeated(&self, at: usize, way: LayerCut) -> f64 {
        let copies = self.costs.workload.layers[at].count as f64 - 1.0;
        if copies > 0.0 { copies * self.between(at, way, way).seconds() } else { 0.0 }
    }

    /// The ways that cost least.
    fn cheapest(&self, weights: Weights) -> Vec<LayerCut> {
        let Weights { links, gradients, memory } = weights;
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
                        let seconds = self.between(before, self.alone[before][i].0, way).seconds();
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
        let mut ways = vec![LayerCut::Whole; self.alone.len()];
        let ends = best.last().into_iter().flatten().enumerate();
        let mut i = ends.fold((f64::INFINITY, 0), |a, (i, b)| if b.0 < a.0 { (b.0, i) } else { a }).1;
        for at in (0..ways.len()).rev() {
            ways[at] = self.alone[at][i].0;
            i = best[at][i].1;
        }
        ways
    }

    /// One copy of each layer with the conversions after it and with recomputation.
    fn stages(&self, ways: &[LayerCut]) -> Vec<Stage> {
        let layers = &self.costs.workload.layers;
        let stage = |at: usize| {
            let chosen = self.alone[at].iter().find(|(way, _)| *way == ways[at]);
            let mut stage = chosen.map_or_else(Stage::default, |(_, alone)| alone.stage);
            let copies = layers[at].count as f64;
            let mut add = |conversion: Conversion, times: f64| {
                stage.forward.collectives += times * conversion.forward;
                stage.backward.collectives += times * conversion.backward;
                stage.shared += times * conversion.bytes;
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

/// Whether a layer may be cut so. The first layer with channels reads data, whose channels stay whole.
fn allows(
    way: LayerCut,
    layer: &ModelLayer,
    strategy: &ClusterStrategy,
    heads: bool,
    reads_data: bool,
) -> bool {
    let ways = strategy.ways as f64;
    match way {
        LayerCut::Whole => true,
        LayerCut::Batch => strategy.micro_batch.is_multiple_of(strategy.ways),
        LayerCut::Space => layer.extents.first().is_some_and(|&extent| extent > 1.0 && extent >= ways),
        LayerCut::Filter => layer.filters >= ways,
        LayerCut::Channel => layer.channels >= ways && !reads_data,
        LayerCut::Tensor | LayerCut::Sequence => heads,
    }
}

/// The devices that have the same weights of a layer whose samples or space are cut.
pub(super) fn joint(costs: &Costs) -> Group {
    let ClusterStrategy { data, ways, .. } = *costs.strategy;
    costs.cluster.group(data.saturating_mul(ways), 1, costs.strategy.devices())
}
