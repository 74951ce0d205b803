//! How layers are dealt to stages or packs: in even parts where a layer repeats, else such that the slowest is as
//! fast as it can be.

use crate::stage::Stage;
use crate::workload::Layer;

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

/// Deals layers, whose costs are `each`, to so many stages.
pub fn shares(layers: &[Layer], each: &[Stage], stages: usize) -> Vec<Share> {
    if stages <= 1 {
        let all = layers.iter().enumerate().map(|(i, layer)| (i, layer.count)).collect();
        return vec![Share { at: 0, count: 1, layers: all }];
    }
    match layers.iter().position(|layer| layer.count as usize >= stages) {
        Some(repeated) => evenly(layers, repeated, stages),
        None => by_time(layers, each, stages),
    }
}

/// Stages that have the repeated layer in even parts, the first also what comes before it and the last what
/// comes after it. Where it cannot be divided, stages after the first have one more.
fn evenly(layers: &[Layer], repeated: usize, stages: usize) -> Vec<Share> {
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

/// Stages such that the slowest is as fast as it can be.
pub fn by_time(layers: &[Layer], each: &[Stage], stages: usize) -> Vec<Share> {
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
