//! Segments: the forward pass is divided into stretches of equal length, only what crosses from one into
//! another is kept, and the rest of a stretch is computed again when backward reaches it. With as many
//! stretches as each has acts, memory grows with the square root of the depth. After Chen, Xu, Zhang and
//! Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016).

use super::{ComparedStep, mimose::block};
use gulliver_graph::graph::Phase;
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::step::script::{ScriptOp, VersionId};

/// The segment of every forward act; none of the others.
type Segments = Vec<Option<u32>>;

/// As many segments as the square root of the number of forward acts of one partial.
pub fn square_root(case: &ComparedStep, start: &Choices) -> Choices {
    let acts = forward(case).len() / case.sharing.partials.max(1) as usize;
    let segments = even(case, (acts as f64).sqrt().ceil() as u32);
    keep_borders(case, start, &segments)
}

/// The number of segments, of acts or of whole layers, with the fewest seconds among those that need at
/// most `budget`; none if no number does.
pub fn searched(case: &ComparedStep, start: &Choices, budget: u64) -> Option<Choices> {
    let acts = forward(case).len() / case.sharing.partials.max(1) as usize;
    let by_act = (1..=(acts as u32).min(96)).map(|count| even(case, count));
    let layers = layers(case);
    let count = layers.iter().flatten().max().map_or(0, |last| last + 1);
    let by_layer = (1..=count).map(|size| {
        let joined = layers.iter().map(|layer| layer.map(|layer| layer / size));
        joined.collect::<Segments>()
    });
    let mut best: Option<(f64, Choices)> = None;
    for segments in by_act.chain(by_layer) {
        let mut choices = keep_borders(case, start, &segments);
        let outcome = case.outcome(&case.settle(&mut choices));
        if outcome.peak <= budget && best.as_ref().is_none_or(|(least, _)| outcome.again < *least) {
            best = Some((outcome.again, choices));
        }
    }
    best.map(|(_, choices)| choices)
}

fn forward(case: &ComparedStep) -> Vec<u32> {
    (0..case.base.script.acts.len() as u32).filter(|&act| case.phase(act) == Phase::Forward).collect()
}

/// Segments of as many acts each, within every partial.
fn even(case: &ComparedStep, count: u32) -> Segments {
    let acts = forward(case);
    let each = acts.len().div_ceil(case.sharing.partials.max(1) as usize).max(1);
    let mut segments = vec![None; case.base.script.acts.len()];
    for (i, &act) in acts.iter().enumerate() {
        segments[act as usize] = Some((i % each * count as usize / each) as u32);
    }
    segments
}

/// A segment for every layer, in the order of the acts: a new one where the layer's name changes.
fn layers(case: &ComparedStep) -> Segments {
    let mut segments = vec![None; case.base.script.acts.len()];
    let (mut now, mut name, mut partial) = (0, None, 0);
    for act in forward(case) {
        let ScriptOp::Run(id, of) = case.base.script.acts[act as usize].what else { continue };
        let value = case.base.graph.nodes[id.index()].outs[0];
        let next = block(&case.base.graph.value(value).name);
        if of != partial {
            (now, name, partial) = (0, None, of);
        }
        // What belongs to no layer goes with the layer before.
        if next.is_some() && next != name {
            now += u32::from(name.is_some());
            name = next;
        }
        segments[act as usize] = Some(now);
    }
    segments
}

fn keep_borders(case: &ComparedStep, start: &Choices, segments: &Segments) -> Choices {
    let inside = |v: VersionId| {
        let made = segments[case.base.producer[v as usize] as usize];
        case.last_forward(v).is_some_and(|last| segments[last as usize] == made)
    };
    case.checkpoint(start, inside)
}
