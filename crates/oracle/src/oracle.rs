//! Answers about one model, cluster and setting. Layers' costs that strategies have in common are computed once.

use crate::OracleError;
use crate::cluster::Cluster;
use crate::deal::{Share, finished, joined, shares};
use crate::estimate::{Estimate, order};
use crate::memory::{memory, under_way};
use crate::mixed::{self, LayerCut};
use crate::planned::{Need, planned};
use crate::resident::answer;
use crate::setting::Setting;
use crate::stage::{Costs, Stage};
use crate::strategy::{ClusterStrategy, Cut, LayerResidence, Recompute};
use crate::stream::streamed;
use crate::workload::Workload;
use std::collections::HashMap;

/// The estimate of a strategy; it says whether the strategy fits. An error says that the model or the batch does not
/// allow it. For many strategies keep an [`Oracle`].
pub fn estimate(
    workload: &Workload,
    cluster: &Cluster,
    strategy: &ClusterStrategy,
    setting: &Setting,
) -> Result<Estimate, OracleError> {
    cluster.check()?;
    Oracle::new(workload, cluster, setting).estimate(strategy)
}

/// Layers' costs depend on ways, cut, micro-batch, recomputation, devices, and whether gradients are accumulated.
type Key = (u32, Cut, u32, Recompute, u32, bool);

/// The layers of each stage, and the stages' costs.
struct Dealt {
    shares: Vec<Share>,
    stages: Vec<Stage>,
}

/// Answers about one model, cluster and setting. Costs that strategies share are computed once.
pub struct Oracle<'a> {
    workload: &'a Workload,
    cluster: &'a Cluster,
    setting: &'a Setting,
    layers: HashMap<Key, Vec<Stage>>,
    dealt: HashMap<(Key, u32), Dealt>,
    /// How layers are shared in a mixed cut, by ways, micro-batch and devices.
    chosen: HashMap<(u32, u32, u32), Vec<LayerCut>>,
}

impl<'a> Oracle<'a> {
    /// Knows nothing yet.
    pub fn new(workload: &'a Workload, cluster: &'a Cluster, setting: &'a Setting) -> Oracle<'a> {
        let (layers, dealt, chosen) = (HashMap::new(), HashMap::new(), HashMap::new());
        Oracle { workload, cluster, setting, layers, dealt, chosen }
    }

    /// [`estimate`].
    pub fn estimate(&mut self, strategy: &ClusterStrategy) -> Result<Estimate, OracleError> {
        strategy.check(self.workload, self.setting.batch)?;
        if strategy.devices() > self.cluster.size() {
            return Err(OracleError::Count {
                what: "devices",
                asked: strategy.devices(),
                most: self.cluster.size(),
            });
        }
        if strategy.stream != LayerResidence::Resident {
            let plain = ClusterStrategy { data: 1, stages: 1, recompute: Recompute::Nothing, ..*strategy };
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

    fn costs<'s>(&self, strategy: &'s ClusterStrategy) -> Costs<'s>
    where
        'a: 's,
    {
        Costs { workload: self.workload, cluster: self.cluster, strategy, setting: self.setting }
    }

    /// How each layer is shared by a mixed cut; nothing of other strategies.
    pub fn ways(&mut self, strategy: &ClusterStrategy) -> Vec<LayerCut> {
        if strategy.cut != Cut::Mixed || strategy.check(self.workload, self.setting.batch).is_err() {
            return Vec::new();
        }
        self.deal(&ClusterStrategy { recompute: Recompute::Nothing, ..*strategy });
        self.chosen
            .get(&(strategy.ways, strategy.micro_batch, strategy.devices()))
            .cloned()
            .unwrap_or_default()
    }

    /// Computes layers and stages of a strategy unless they are known, and returns their key.
    fn deal(&mut self, strategy: &ClusterStrategy) -> Key {
        let ClusterStrategy { ways, cut, micro_batch, recompute, stages, .. } = *strategy;
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
            let stages_of = joined(&costs, &shares, each);
            self.dealt.insert((key, stages), Dealt { shares, stages: stages_of });
        }
        key
    }

    /// The best mixture of layers that are kept and recomputed, with stages dealt as if none or all were recomputed.
    fn planned(&mut self, strategy: &ClusterStrategy) -> Estimate {
        let [nothing, selective, full] = [Recompute::Nothing, Recompute::Selective, Recompute::Full]
            .map(|recompute| self.deal(&ClusterStrategy { recompute, ..*strategy }));
        let costs = self.costs(strategy);
        let levels = [nothing, selective, full].map(|key| self.layers[&key].as_slice());
        let element = self.setting.precision.bytes() * (1.0 + self.setting.software.fragmentation);
        let of = |key: Key| {
            let Dealt { shares, .. } = &self.dealt[&(key, strategy.stages)];
            let kept = joined(&costs, shares, levels[0]);
            let stage = |(share, kept): (&Share, &Stage)| {
                let needed = memory(kept, strategy, self.setting, self.cluster.device.context).device();
                let under_way = under_way(share.at, strategy, self.setting);
                // One more byte, against rounding of sums.
                let missing = needed - self.cluster.device.memory;
                let missing = if missing > 0.0 { missing + 1.0 } else { missing };
                planned(share, levels, Need { missing, kept: element * under_way, working: element })
            };
            let stages = finished(&costs, shares, shares.iter().zip(&kept).map(stage).collect());
            answer(&stages, &costs)
        };
        let (one, other) = (of(nothing), of(full));
        if strategy.stages > 1 && order(&other, &one).is_lt() { other } else { one }
    }
}
