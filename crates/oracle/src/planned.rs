//! Planned recomputation: a stage recomputes as few layers as memory demands, first those that free bytes most cheaply.
//! A layer may be recomputed in part (selective) or from its input.

use crate::deal::Share;
use crate::stage::Stage;

/// How much memory a stage lacks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// Bytes that are missing if nothing is recomputed; zero or less if all fits.
    pub missing: f64,
    /// Bytes for every element that is kept of a micro-batch.
    pub kept: f64,
    /// Bytes for every element that is in use beside.
    pub working: f64,
}

/// Costs of every layer by recomputation: nothing, selective, full.
pub type Levels<'a> = [&'a [Stage]; 3];

/// A change of some copies of a layer from one level to a higher one.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Which of the share's layers.
    layer: usize,
    /// The level that copies leave.
    from: usize,
    /// The level that they reach.
    to: usize,
    copies: u32,
    /// Elements that a copy no longer keeps.
    freed: f64,
    /// Seconds that a copy takes longer.
    seconds: f64,
    /// Elements in use while it is recomputed.
    working: f64,
    /// The step of the same layer that comes before it, and after it.
    before: Option<usize>,
    after: Option<usize>,
}

/// The stage of a share with as little recomputation as memory demands. If no choice fits, the one that needs least
/// memory.
pub fn planned(share: &Share, levels: Levels, need: Need) -> Stage {
    let layers = merged(&share.layers);
    let mut copies: Vec<[u32; 3]> = layers.iter().map(|&(_, count)| [count, 0, 0]).collect();
    if need.missing > 0.0 {
        let steps = steps(&layers, levels);
        for (step, taken) in steps.iter().zip(chosen(&layers, levels, &steps, need)) {
            copies[step.layer][step.from] -= taken;
            copies[step.layer][step.to] += taken;
        }
    }
    let mut stage = Stage::default();
    for (&(layer, _), copies) in layers.iter().zip(&copies) {
        for (level, &count) in levels.iter().zip(copies).filter(|(_, count)| **count > 0) {
            stage.join(&level[layer], count as f64);
        }
    }
    stage
}

/// Copies of the same layer in a row as one entry.
fn merged(layers: &[(usize, u32)]) -> Vec<(usize, u32)> {
    let mut all: Vec<(usize, u32)> = Vec::new();
    for &(layer, copies) in layers {
        match all.last_mut().filter(|last| last.0 == layer) {
            Some(last) => last.1 += copies,
            None => all.push((layer, copies)),
        }
    }
    all
}

/// All changes that free something, by seconds for each element freed. A layer's selective step is left out where the
/// full step frees elements more cheaply.
fn steps(layers: &[(usize, u32)], levels: Levels) -> Vec<Step> {
    let mut all = Vec::new();
    for (at, &(layer, copies)) in layers.iter().enumerate() {
        let step = |from: usize, to: usize| {
            let (before, after) = (&levels[from][layer], &levels[to][layer]);
            Step {
                layer: at,
                from,
                to,
                copies,
                freed: before.kept - after.kept,
                seconds: (after.backward.seconds() - before.backward.seconds()).max(0.0),
                working: after.working,
                before: None,
                after: None,
            }
        };
        let (some, rest, whole) = (step(0, 1), step(1, 2), step(0, 2));
        let in_two = some.freed > 0.0 && rest.freed > 0.0 && price(&some) <= price(&rest);
        if in_two {
            all.extend([some, rest]);
        } else {
            let one = if whole.freed > some.freed { whole } else { some };
            all.extend((one.freed > 0.0).then_some(one));
        }
    }
    all.sort_by(|a, b| price(a).total_cmp(&price(b)));
    for at in 0..all.len() {
        let before = all[..at].iter().position(|other| other.layer == all[at].layer);
        all[at].before = before;
        before.into_iter().for_each(|before| all[before].after = Some(at));
    }
    all
}

fn price(step: &Step) -> f64 {
    step.seconds / step.freed
}

/// Copies that take each step. While a layer is recomputed all of it is in use, so a large one may cost more than it
/// frees: every limit of elements in use is tried, and the quickest choice that fits is taken.
fn chosen(layers: &[(usize, u32)], levels: Levels, steps: &[Step], need: Need) -> Vec<u32> {
    let in_use = layers.iter().map(|&(layer, _)| levels[0][layer].working).fold(0.0, f64::max);
    let mut limits: Vec<f64> = steps.iter().map(|step| step.working.max(in_use)).collect();
    limits.sort_by(f64::total_cmp);
    limits.dedup();
    let mut best: Option<(f64, f64, Vec<u32>)> = None;
    for limit in limits {
        let missing = need.missing + (limit - in_use) * need.working;
        let taken = greedy(steps, limit, missing, need.kept);
        let (freed, seconds) =
            steps.iter().zip(&taken).fold((0.0, 0.0), |(freed, seconds), (step, &copies)| {
                (freed + step.freed * copies as f64, seconds + step.seconds * copies as f64)
            });
        let left = (missing - freed * need.kept).max(0.0);
        let better = best.as_ref().is_none_or(|best| left < best.0 || (left == best.0 && seconds < best.1));
        // Where it does not fit and frees less than it takes, nothing is better.
        if better && left < need.missing {
            best = Some((left, seconds, taken));
        }
    }
    best.map_or_else(|| vec![0; steps.len()], |best| best.2)
}

/// Takes steps by their price until nothing is missing, then gives back those that are not needed.
fn greedy(steps: &[Step], limit: f64, mut missing: f64, bytes: f64) -> Vec<u32> {
    let mut taken = vec![0u32; steps.len()];
    for (at, step) in steps.iter().enumerate().filter(|(_, step)| step.working <= limit) {
        if missing <= 0.0 {
            break;
        }
        // A later step of a layer is for copies that took the one before.
        let most = step.before.map_or(step.copies, |before| taken[before]);
        let copies = ((missing / (step.freed * bytes)).ceil().min(most as f64)) as u32;
        taken[at] = copies;
        missing -= copies as f64 * step.freed * bytes;
    }
    for (at, step) in steps.iter().enumerate().rev() {
        let free = taken[at] - step.after.map_or(0, |after| taken[after]);
        let copies = ((-missing / (step.freed * bytes)).floor().clamp(0.0, free as f64)) as u32;
        taken[at] -= copies;
        missing += copies as f64 * step.freed * bytes;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::oracle::{Oracle, estimate};
    use crate::setting::Setting;
    use crate::stage::Pass;
    use crate::strategy::{ClusterStrategy, Order, Recompute};
    use crate::tests::samples::{gpt, resnet50, vgg16};

    /// Numbers that repeat from run to run.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % most
        }
    }

    /// Random layers, kept or computed again; nothing is selected.
    fn random(dice: &mut Dice, layers: usize) -> [Vec<Stage>; 2] {
        let mut made = [Vec::new(), Vec::new()];
        for _ in 0..layers {
            let (kept, input, working) =
                (dice.below(90) as f64, dice.below(30) as f64, dice.below(40) as f64);
            let seconds = 1.0 + dice.below(20) as f64;
            let pass = |compute| Pass { compute, ..Pass::default() };
            let layer = Stage { kept, working, backward: pass(2.0 * seconds), ..Stage::default() };
            made[0].push(layer);
            let again = pass(3.0 * seconds);
            made[1].push(Stage { kept: input, working: working + kept, backward: again, ..layer });
        }
        made
    }

    #[test]
    fn it_fits_whenever_any_choice_of_layers_does() {
        let mut dice = Dice(7);
        let mut tight = 0;
        for _ in 0..400 {
            let count = 1 + dice.below(8) as usize;
            let [nothing, full] = random(&mut dice, count);
            let share = Share { at: 0, count: 1, layers: (0..count).map(|i| (i, 1)).collect() };
            let bytes = |chosen: u32| {
                let of = |i: usize| if chosen >> i & 1 == 1 { &full[i] } else { &nothing[i] };
                let kept: f64 = (0..count).map(|i| of(i).kept).sum();
                3.0 * kept + (0..count).map(|i| of(i).working).fold(0.0, f64::max)
            };
            let seconds = |chosen: u32| -> f64 {
                (0..count)
                    .map(|i| if chosen >> i & 1 == 1 { &full[i] } else { &nothing[i] }.backward.compute)
                    .sum()
            };
            let limit = bytes(0) * (0.3 + 0.08 * dice.below(10) as f64);
            let need = Need { missing: bytes(0) - limit, kept: 3.0, working: 1.0 };
            let made = planned(&share, [&nothing, &nothing, &full], need);
            let took = 3.0 * made.kept + made.working;
            let fitting = (0..1u32 << count).filter(|&chosen| bytes(chosen) <= limit);
            match fitting.map(seconds).min_by(f64::total_cmp) {
                Some(best) => {
                    tight += usize::from(best > seconds(0));
                    assert!(took <= limit + 1e-9, "{took} of {limit}");
                    let most = nothing.iter().map(|layer| 0.5 * layer.backward.compute).fold(0.0, f64::max);
                    let over = made.backward.compute - best;
                    assert!(
                        (-1e-9..=2.0 * most).contains(&over),
                        "{over} over the best, a layer takes {most}"
                    );
                }
                None => {
                    let least = (0..1u32 << count).map(bytes).fold(f64::INFINITY, f64::min);
                    assert!((took - least).abs() < 1e-9, "{took}, where {least} is possible");
                }
            }
        }
        assert!(tight > 100, "only {tight} cases asked for a choice");
    }

    #[test]
    fn between_nothing_and_everything_for_every_memory() {
        let networks = [gpt("gpt3-1.3b"), resnet50(), vgg16()];
        let setting = Setting::new(64).unwrap();
        let serial = ClusterStrategy::serial(16);
        let strategies = [
            serial,
            ClusterStrategy { data: 4, shard: 2, ..serial },
            ClusterStrategy { stages: 4, micro_batch: 4, ..serial },
            ClusterStrategy { stages: 4, micro_batch: 4, order: Order::Gpipe, ..serial },
        ];
        let mut between = 0;
        for workload in &networks {
            for strategy in strategies {
                for step in 1..40 {
                    let mut cluster = Cluster::named("dgx-a100").unwrap();
                    cluster.device.memory = 3e9 * 1.12f64.powi(step);
                    let mut oracle = Oracle::new(workload, &cluster, &setting);
                    let mut of =
                        |recompute| oracle.estimate(&ClusterStrategy { recompute, ..strategy }).unwrap();
                    let [nothing, some, full, made] =
                        [Recompute::Nothing, Recompute::Selective, Recompute::Full, Recompute::Planned]
                            .map(&mut of);
                    let what =
                        format!("{} {strategy} in {:.1} GB", workload.name, cluster.device.memory / 1e9);
                    if nothing.missing.is_none() {
                        // Stages may be dealt better as if everything were recomputed.
                        assert!(made.missing.is_none() && made.seconds <= nothing.seconds, "{what}");
                        continue;
                    }
                    assert!(made.seconds >= nothing.seconds * 0.999, "{what}: {made:?} for {nothing:?}");
                    for other in [&full, &some].into_iter().filter(|other| other.missing.is_none()) {
                        assert!(made.missing.is_none(), "{what}: {made:?}, where {other:?} fits");
                        assert!(made.memory.device() <= cluster.device.memory, "{what}");
                        assert!(made.seconds <= other.seconds * 1.0001, "{what}: {made:?} for {other:?}");
                        between += usize::from(made.seconds < 0.995 * full.seconds);
                    }
                    if made.missing.is_some() {
                        assert!(made.memory.device() <= full.memory.device() * 1.0001, "{what}");
                    }
                }
            }
        }
        assert!(between > 40, "only {between} cases lie between");
    }

    #[test]
    fn at_the_limit_it_is_full_recomputation() {
        let gpt = gpt("gpt3-13b");
        let mut cluster = Cluster::named("dgx-a100").unwrap();
        let setting = Setting::new(8).unwrap();
        let serial = ClusterStrategy::serial(8);
        let full = ClusterStrategy { recompute: Recompute::Full, ..serial };
        cluster.device.memory = estimate(&gpt, &cluster, &full, &setting).unwrap().memory.device();
        let of = |strategy| estimate(&gpt, &cluster, &strategy, &setting).unwrap();
        let (made, full) = (of(ClusterStrategy { recompute: Recompute::Planned, ..serial }), of(full));
        assert!(made.missing.is_none() && full.missing.is_none());
        assert!((made.seconds / full.seconds - 1.0).abs() < 0.01, "{} for {}", made.seconds, full.seconds);
        assert!((made.memory.device() / full.memory.device() - 1.0).abs() < 1e-3);
    }
}
