//! Checkpointing by segments, as users of frameworks have it: the forward pass is in so many segments, only what
//! passes from one to another is kept, and the backward pass computes a segment again before it goes through it.

use super::ComparedStep;
use gulliver_graph::graph::{Phase, Value};
use gulliver_plan::budget::choices::Choices;
use gulliver_plan::devices::pipeline::spread;
use gulliver_plan::document::plan::Tier;
use gulliver_plan::step::script::{Script, VersionId};

/// The script in which everything else stays.
pub fn script(case: &ComparedStep, segments: usize) -> Script {
    let base = case.base;
    let graph = base.graph;
    let segment =
        spread(graph, segments, |id| case.node[id.index()], |v: Value| case.bytes[v.index()] as f64);
    // By value: the segments of the forward nodes that touch it, and whether there are several.
    let mut first = vec![None; graph.values.len()];
    let mut passed = vec![false; graph.values.len()];
    for (id, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.phase == Phase::Forward) {
        for v in node.ins.iter().chain(&node.outs) {
            let known = *first[v.index()].get_or_insert(segment[id]);
            passed[v.index()] |= known != segment[id];
        }
    }
    let drop = |v: VersionId| !passed[base.script.versions[v as usize].of.value.index()];
    let start = Choices::keep(base, vec![Tier::Device; base.script.versions.len()]);
    case.settle(&mut case.checkpoint(&start, drop))
}
