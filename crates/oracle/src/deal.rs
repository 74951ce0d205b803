//! Layers dealt to stages or packs: in even parts where a layer repeats, else with the least time of the slowest.

use crate::stage::{Costs, Stage};
use crate::workload::ModelLayer;

/// The layers of one stage, or of several equal ones in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The place of the first among all stages, counted from zero.
    pub at: u32,
    /// Stages like it, one after the other.
    pub count: u32,
    /// Layers in order, with how many copies of each.
    pub layers: Vec<(usize, u32)>,
}

impl Share {
    /// Its layers as one stage; `each` has the costs of one copy of every layer.
    pub fn joined(&self, each: &[Stage]) -> Stage {
        let mut stage = Stage::default();
        self.layers.iter().for_each(|&(layer, copies)| stage.join(&each[layer], copies as f64));
        stage
    }
}

/// Deals layers, whose costs are `each`, to stages.
pub fn shares(layers: &[ModelLayer], each: &[Stage], stages: usize) -> Vec<Share> {
    if stages <= 1 {
        return vec![whole(layers)];
    }
    match layers.iter().position(|layer| layer.count as usize >= stages) {
        Some(repeated) => evenly(layers, repeated, stages),
        None => by_time(layers, each, stages),
    }
}

/// Stages with even parts of the repeated layer. The first also has the layers before it and the last those after it.
/// Where copies do not divide evenly, stages after the first have one more.
fn evenly(layers: &[ModelLayer], repeated: usize, stages: usize) -> Vec<Share> {
    let (part, more) = (layers[repeated].count as usize / stages, layers[repeated].count as usize % stages);
    let made = |at: usize, count: usize, [from, copies, to]: [usize; 3]| {
        let copies_of = |i: usize| if i == repeated { copies as u32 } else { layers[i].count };
        Share { at: at as u32, count: count as u32, layers: (from..to).map(|i| (i, copies_of(i))).collect() }
    };
    let (before, after) = (repeated, repeated + 1);
    let fewer = stages - 2 - more.min(stages - 2);
    let mut all = vec![made(0, 1, [0, part, after])];
    if more > 0 && stages > 2 {
        all.push(made(1, more.min(stages - 2), [before, part + 1, after]));
    }
    if fewer > 0 {
        all.push(made(stages - 1 - fewer, fewer, [before, part, after]));
    }
    let last = part + more - more.min(stages - 2);
    all.push(made(stages - 1, 1, [before, last, layers.len()]));
    all
}

/// All layers on one stage.
pub fn whole(layers: &[ModelLayer]) -> Share {
    let layers = layers.iter().enumerate().map(|(i, layer)| (i, layer.count)).collect();
    Share { at: 0, count: 1, layers }
}

/// Stages with these layers, whose costs are `each`. Of equal stages in a row there is the first.
pub fn joined(costs: &Costs, shares: &[Share], each: &[Stage]) -> Vec<Stage> {
    finished(costs, shares, shares.iter().map(|share| share.joined(each)).collect())
}

/// Stages in their places. The last has a copy of the weights that it shares with the first.
pub fn finished(costs: &Costs, shares: &[Share], stages: Vec<Stage>) -> Vec<Stage> {
    let mut made: Vec<Stage> =
        shares.iter().zip(stages).map(|(share, stage)| stage.at(share.at, share.count)).collect();
    if let Some(last) = made.last_mut().filter(|_| costs.strategy.stages > 1) {
        last.weights += costs.workload.tied / costs.strategy.weight_parts();
    }
    made
}

/// Stages with the least time of the slowest.
pub fn by_time(layers: &[ModelLayer], each: &[Stage], stages: usize) -> Vec<Share> {
    let units: Vec<(usize, f64)> = layers
        .iter()
        .enumerate()
        .flat_map(|(i, layer)| {
            let seconds = each[i].forward.seconds() + each[i].backward.seconds();
            std::iter::repeat_n((i, seconds), layer.count as usize)
        })
        .collect();
    let (mut low, mut high) =
        (units.iter().map(|u| u.1).fold(0.0, f64::max), units.iter().map(|u| u.1).sum::<f64>());
    for _ in 0..16 {
        let middle = 0.5 * (low + high);
        if deal(&units, middle, stages, |_, _| {}) <= stages { high = middle } else { low = middle }
    }
    let mut dealt: Vec<Share> =
        (0..stages).map(|at| Share { at: at as u32, count: 1, layers: Vec::new() }).collect();
    deal(&units, high * (1.0 + 1e-9), stages, |at, layer| dealt[at.min(stages - 1)].layers.push((layer, 1)));
    dealt
}

/// Stages that are needed if none takes longer than `most`; tells which stage has which layer. Units that
/// are left are spread so that every stage has one.
fn deal(units: &[(usize, f64)], most: f64, stages: usize, mut tell: impl FnMut(usize, usize)) -> usize {
    let (mut at, mut used) = (0, 0.0);
    for (i, &(layer, seconds)) in units.iter().enumerate() {
        let must = units.len() - i < stages.saturating_sub(at);
        if used > 0.0 && (used + seconds > most || must) {
            at += 1;
            used = 0.0;
        }
        used += seconds;
        tell(at, layer);
    }
    at + 1
}
