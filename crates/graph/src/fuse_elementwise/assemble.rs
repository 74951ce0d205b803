//! Assembles the fused operator of some nodes: its operands, steps and results; and whether these nodes may be fused
//! at all.

use super::Uses;
use crate::graph::op::Op;
use crate::graph::op::elementwise::{Apply, Elementwise, ElementwiseResult, ElementwiseStep};
use crate::graph::op::map::Function;
use crate::graph::op::reduce::Reduce;
use crate::graph::op::zip::{Binary, broadcast_spec};
use crate::graph::{Graph, Value};
use std::collections::HashMap;

/// Limits that keep the blocks of all values of a fused node within a core's first-level cache.
const OPERANDS: usize = 12;
const STEPS: usize = 24;
const RESULTS: usize = 8;

/// A fused operator with its operands and results in the graph.
pub(super) struct Assembled {
    pub chain: Elementwise,
    pub ins: Vec<Value>,
    pub outs: Vec<Value>,
}

/// The fused operator of some nodes, in order; `None` if they cannot be fused.
pub(super) fn assemble(graph: &Graph, uses: &Uses, members: &[usize]) -> Option<Assembled> {
    let makes = |v: &Value| members.iter().any(|&id| graph.nodes[id].outs[0] == *v);
    let mut ins: Vec<Value> = Vec::new();
    for v in members.iter().flat_map(|&id| &uses.ins[id]).filter(|v| !makes(v)) {
        if !ins.contains(v) {
            ins.push(*v);
        }
    }
    let mut place: HashMap<Value, usize> = ins.iter().enumerate().map(|(i, v)| (*v, i)).collect();
    let mut chain = Elementwise { operands: ins.len(), steps: Vec::new(), results: Vec::new() };
    let mut outs = Vec::new();
    for &id in members {
        let node = &graph.nodes[id];
        let of: Option<Vec<usize>> = uses.ins[id].iter().map(|v| place.get(v).copied()).collect();
        let (of, out) = (of?, node.outs[0]);
        if let Op::Reduce(reduce) = &node.op {
            // Only a reduction of a step: reading an operand for it would save nothing.
            if of[0] < ins.len() {
                return None;
            }
            chain.results.push(ElementwiseResult { value: of[0], reduce: Some(reduce.clone()) });
            outs.push(out);
            continue;
        }
        let value = ins.len() + chain.steps.len();
        chain.steps.push(ElementwiseStep { apply: Apply::of(&node.op)?, of });
        place.insert(out, value);
        let outside = |reader: &usize| !members.contains(reader);
        if uses.wanted[out.index()] || uses.readers[out.index()].iter().any(outside) {
            chain.results.push(ElementwiseResult { value, reduce: None });
            outs.push(out);
        }
    }
    let fits = ins.len() <= OPERANDS && chain.steps.len() <= STEPS && (1..=RESULTS).contains(&outs.len());
    let types: Vec<_> = ins.iter().map(|v| graph.ty(*v).clone()).collect();
    let shape = &graph.ty(graph.nodes[*members.iter().find(|&&id| !is_reduce(graph, id))?].outs[0]).shape;
    let reduces = || chain.results.iter().filter_map(|kept| kept.reduce.as_ref());
    if !fits || !reduces().all(|reduce| reducible(reduce, shape.len(), &chain.steps)) {
        return None;
    }
    // The operands alone must give the loop its shape; the operator checks the rest itself.
    let shapes: Vec<_> = types.iter().map(|t| t.shape.as_slice()).collect();
    let whole = broadcast_spec(&types).ok()?.infer(&shapes).ok()?;
    let valid = whole[0] == *shape && crate::graph::op::OpDef::spec(&chain, &types).is_ok();
    valid.then_some(Assembled { chain, ins, outs })
}

fn is_reduce(graph: &Graph, id: usize) -> bool {
    matches!(graph.nodes[id].op, Op::Reduce(_))
}

/// Whether a reduction may end a fused node: over the first dimensions, the last or both. A reduction over all
/// dimensions runs on one thread, so it is fused only where the steps before it cost no more than itself.
fn reducible(reduce: &Reduce, rank: usize, steps: &[ElementwiseStep]) -> bool {
    let reduced: Vec<bool> = (0..rank).map(|d| reduce.axes.contains(&d)).collect();
    let changes = reduced.windows(2).filter(|w| w[0] != w[1]).count();
    match (reduced.first(), changes) {
        (None, _) => false,
        (Some(true), 0) => steps.iter().all(|step| cheap(step.apply)),
        (Some(false), 0) => false,
        (_, 1) => true,
        (Some(true), 2) => true,
        _ => false,
    }
}

/// Whether a step takes no more than a few instructions.
fn cheap(apply: Apply) -> bool {
    match apply {
        Apply::Map(f) | Apply::MapGrad(f) => matches!(
            f,
            Function::Neg
                | Function::Abs
                | Function::Square
                | Function::Relu
                | Function::LeakyRelu { .. }
                | Function::HardSwish
                | Function::HardSigmoid
                | Function::Clamp { .. }
                | Function::Affine { .. }
        ),
        Apply::Zip(f) => f != Binary::Pow,
        Apply::Select | Apply::Cast(_) => true,
    }
}
