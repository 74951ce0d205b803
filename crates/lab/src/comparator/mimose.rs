//! Whole layers, largest first: the excess over the budget is covered by checkpointing layers. Sizes that
//! differ by at most a tenth of the largest of them form a bucket, in which earlier layers are preferred;
//! then the smallest layer that covers what is left is taken, or the largest if none does. After Liao, Li
//! et al., "Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU" (2022).

use super::ComparedStep;
use gulliver_graph::graph::Phase;
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::step::script::VersionId;
use std::collections::HashMap;

/// Sizes that differ by no more than this share of the first belong together.
const BUCKET: f64 = 0.1;

/// The layer a value belongs to, by its name up to the last number at the end of a prefix: `h.3` of
/// `h.3.attn.contract`, `layer1.0` of `layer1.0.conv1.conv`. None if there is no number.
pub fn block(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        let at = end + part.len();
        if end > 0 && !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some(&name[..at]);
        }
        end = at + 1;
    }
    None
}

/// The choice for `budget`; more is set aside as long as that does not suffice in truth, as the reserve
/// against fragmentation does. What comes out may need more than the budget.
pub fn choose(case: &ComparedStep, start: &Choices, budget: u64) -> Choices {
    let peak = case.outcome(&case.settle(&mut start.clone())).peak;
    let layers = layers(case);
    let mut reserve = 0;
    loop {
        let taken = cover(&layers, (peak + reserve).saturating_sub(budget));
        let in_taken =
            |v: VersionId| taken.iter().any(|&layer| layers[layer].inside.binary_search(&v).is_ok());
        let mut choices = case.checkpoint(start, in_taken);
        let needs = case.outcome(&case.settle(&mut choices)).peak;
        if needs <= budget || taken.len() == layers.len() {
            return choices;
        }
        reserve += (needs - budget).max(64);
    }
}

/// A layer and what is let go if it is taken.
struct Layer {
    /// Versions that no other layer's forward acts read, in order.
    inside: Vec<VersionId>,
    /// Their bytes.
    bytes: u64,
}

/// All layers in the order of the forward pass.
fn layers(case: &ComparedStep) -> Vec<Layer> {
    let base = case.base;
    let layer_of = |act: u32| {
        let outs = base.script.split(act as usize).1;
        let value = outs.first().map(|&v| base.script.versions[v as usize].of.value);
        value.and_then(|value| block(&base.graph.value(value).name))
    };
    let mut layers: Vec<Layer> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for v in 0..base.script.versions.len() as u32 {
        let Some(last) = case.last_forward(v) else { continue };
        let made = base.producer[v as usize];
        let Some(name) = layer_of(made).filter(|_| base.again[v as usize]) else { continue };
        let readers = base.uses(v).iter().filter(|&&act| act <= last && act != made);
        if readers.clone().any(|&act| layer_of(act) != Some(name)) {
            continue;
        }
        let at = *known.entry(name).or_insert_with(|| {
            layers.push(Layer { inside: Vec::new(), bytes: 0 });
            layers.len() - 1
        });
        layers[at].inside.push(v);
        layers[at].bytes += if returns(case, v) { case.size(v) } else { 0 };
    }
    layers
}

/// Which layers are taken to cover so many bytes.
fn cover(layers: &[Layer], excess: u64) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..layers.len()).collect();
    sorted.sort_by_key(|&i| (std::cmp::Reverse(layers[i].bytes), i));
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    for i in sorted {
        match buckets.last_mut() {
            Some(bucket) if layers[i].bytes as f64 >= (1.0 - BUCKET) * layers[bucket[0]].bytes as f64 => {
                bucket.push(i)
            }
            _ => buckets.push(vec![i]),
        }
    }
    buckets.iter_mut().for_each(|bucket| bucket.sort());
    let (mut taken, mut left) = (Vec::new(), excess);
    while left > 0 {
        let large = |bucket: &Vec<usize>| bucket.iter().any(|&i| layers[i].bytes >= left);
        let smallest = buckets.iter().rposition(large);
        let from = smallest.or_else(|| buckets.iter().position(|b| !b.is_empty()));
        let Some(bucket) = from.map(|at| &mut buckets[at]) else { break };
        let fitting = bucket.iter().position(|&i| smallest.is_some() && layers[i].bytes >= left);
        let i = bucket.remove(fitting.unwrap_or(0));
        taken.push(i);
        left = left.saturating_sub(layers[i].bytes.max(1));
    }
    taken
}

/// Whether checkpointing a version would free its bytes for any time.
fn returns(case: &ComparedStep, v: VersionId) -> bool {
    let turns = |pair: &[u32]| {
        let [from, to] = [pair[0], pair[1]].map(|act| case.phase(act) == Phase::Forward);
        from && !to && pair[1] - pair[0] > 1
    };
    case.base.uses(v).windows(2).any(turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_named_by_their_first_number() {
        let rows = [
            ("h.3.attn.contract", Some("h.3")),
            ("layer1.0.conv1.conv", Some("layer1.0")),
            ("bert.encoder.layer.11.attention.self", Some("bert.encoder.layer.11")),
            ("fc.contract", None),
            ("conv1.conv", None),
            ("elementwise", None),
        ];
        for (name, layer) in rows {
            assert_eq!(block(name), layer);
        }
    }

    #[test]
    fn the_smallest_layer_that_covers_is_taken_and_earlier_ones_first() {
        let rows: [(&[u64], u64, &[usize]); 5] = [
            (&[100, 100, 100], 150, &[0, 1]),
            (&[100, 50, 20], 40, &[1]),
            (&[100, 50, 20], 130, &[0, 1]),
            (&[95, 100, 20], 10, &[2]),
            (&[10, 10], 100, &[0, 1]),
        ];
        for (sizes, excess, expected) in rows {
            let layers: Vec<Layer> = sizes.iter().map(|&bytes| Layer { inside: vec![], bytes }).collect();
            assert_eq!(cover(&layers, excess), expected, "{sizes:?} {excess}");
        }
    }
}
