//! Kernels of frameworks, where an operator is not one kernel over its operands: attention that writes its scores to
//! memory, recurrence step by step, biases added by products, second passes of normalisations, masks of dropout, losses
//! in 32 bits.

use super::KernelStyle;
use super::reader::Reader;
use crate::OracleError;
use crate::kernel::{Divide, KernelFamily, KernelWork};
use crate::workload::ModelLayer;
use gulliver_graph::graph::op::Op;
use gulliver_graph::graph::op::zip::{Binary, Zip};
use gulliver_graph::graph::{Graph, Node, Origin, Phase, Role, Value};

/// Kernels of one step of a recurrent cell: a product, its bias, a split, five functions, five products and sums,
/// three of dropout, a residual; the loop around it reads, writes and counts.
const CELL: f64 = 24.0;

/// The kernels of a node; `work` is the one that reads its operands and writes its results once.
pub(crate) fn works(reader: &Reader, node: &Node, work: KernelWork) -> Result<Vec<KernelWork>, OracleError> {
    let graph = reader.graph;
    let first = |values: &[Value]| values.first().map_or(Ok(0.0), |v| Ok(reader.elements(*v)?.each));
    let (read, written) = (first(&node.ins)?, first(&node.outs)?);
    let more = |elements: f64| vec![KernelWork { moved: work.moved + elements, ..work }];
    Ok(match &node.op {
        Op::Attention(_) => attention(reader, node)?,
        Op::AttentionGrad(_) => attention_grad(reader, node)?,
        Op::Lstm(_) | Op::Gru(_) => recurrence(reader, node, written)?,
        Op::LstmGrad(_) | Op::GruGrad(_) => recurrence_grad(reader, node, read)?,
        // Once for the statistics, once more to apply them; on the way back for both sums.
        Op::BatchNorm(_) => more(read),
        Op::BatchNormGrad(_) => more(2.0 * read),
        Op::LayerNormGrad(_) => more(read),
        Op::Dropout(_) => more(MASK * written),
        // In 32 bits: cast, subtract, exponentiate, sum, pick.
        Op::CrossEntropy(_) => vec![KernelWork { moved: 6.0 * read, calls: 8.0, ..work }],
        Op::CrossEntropyGrad(_) => vec![KernelWork { moved: 5.0 * read, calls: 5.0, ..work }],
        Op::Slice(_) => vec![KernelWork { moved: 2.0 * written, ..work }],
        Op::Gather(_) => vec![KernelWork { weights: 0.0, moved: 2.0 * written, ..work }],
        // Parts of a gradient are written side by side.
        Op::SliceGrad(_) => vec![KernelWork { moved: 2.0 * read, ..work }],
        Op::Zip(Zip(Binary::Add)) if joins_parts(graph, node) || adds_bias(graph, node) => Vec::new(),
        // Statistics that are carried, and scalars.
        _ if node.phase == Phase::Forward && work.family == KernelFamily::Memory && work.moved <= 1.0 => {
            Vec::new()
        }
        _ => vec![work],
    })
}

/// Elements of a mask of bytes, for each element that it masks, in half precision.
const MASK: f64 = 0.5;

/// Adds values that the forward pass of a node keeps beside its operands and results.
pub(crate) fn keep(reader: &Reader, node: &Node, layer: &mut ModelLayer) -> Result<(), OracleError> {
    match &node.op {
        Op::Dropout(_) => {
            let mask = MASK * reader.elements(node.outs[0])?.each;
            layer.keep(mask);
        }
        Op::CrossEntropy(_) => {
            // Logits in 32 bits beside those in 16.
            let logits = reader.elements(node.ins[0])?.each;
            layer.kept += 2.0 * logits;
            layer.working = layer.working.max(2.0 * logits);
        }
        Op::Attention(_) if reader.kernels == KernelStyle::Framework => {
            let scores = Scores::of(reader, node)?;
            let mask = if reader.drops { MASK } else { 0.0 };
            layer.selective += (2.0 + mask) * scores.elements();
            layer.kept += (2.0 + mask) * scores.elements();
        }
        _ => {}
    }
    Ok(())
}

/// Extents of attention: heads, queries, keys, width of a head.
struct Scores {
    heads: f64,
    queries: f64,
    keys: f64,
    width: f64,
}

impl Scores {
    fn of(reader: &Reader, node: &Node) -> Result<Scores, OracleError> {
        let (queries, keys) = (reader.shape(node.ins[0])?, reader.shape(node.ins[1])?);
        Ok(Scores { heads: queries[2], queries: queries[1], keys: keys[1], width: queries[3] })
    }

    fn elements(&self) -> f64 {
        self.heads * self.queries * self.keys
    }

    /// Queries with keys, and scores with values.
    fn products(&self) -> [KernelWork; 2] {
        let Scores { heads, queries, keys, width } = *self;
        [KernelWork::batched(heads, queries, keys, width), KernelWork::batched(heads, queries, width, keys)]
            .map(|work| KernelWork { again: true, ..work })
    }
}

/// Scaled, masked and dropped scores between two products.
fn attention(reader: &Reader, node: &Node) -> Result<Vec<KernelWork>, OracleError> {
    let scores = Scores::of(reader, node)?;
    let mut works = scores.products().to_vec();
    if reader.kernels == KernelStyle::Framework {
        let passes = if reader.drops { 4.5 } else { 2.0 };
        works.push(KernelWork {
            again: true,
            ..KernelWork::memory(passes * scores.elements(), 3.0, Divide::Batch)
        });
    }
    Ok(works)
}

fn attention_grad(reader: &Reader, node: &Node) -> Result<Vec<KernelWork>, OracleError> {
    let scores = Scores::of(reader, node)?;
    let mut works: Vec<KernelWork> = scores.products().into_iter().flat_map(gradients).collect();
    if reader.kernels == KernelStyle::Framework {
        let passes = if reader.drops { 5.5 } else { 3.0 };
        works.push(KernelWork::memory(passes * scores.elements(), 3.0, Divide::Batch));
    }
    Ok(works)
}

/// The products of a product's backward pass, for either operand.
fn gradients(work: KernelWork) -> [KernelWork; 2] {
    let KernelWork { rows, columns, depth, .. } = work;
    [
        KernelWork { columns: depth, depth: columns, ..work },
        KernelWork { rows: columns, columns: depth, depth: rows, ..work },
    ]
}

/// A product of one row a sample in every step, with the gates around it.
fn recurrence(reader: &Reader, node: &Node, written: f64) -> Result<Vec<KernelWork>, OracleError> {
    let [steps, columns, depth] = steps(reader, node)?;
    let step = KernelWork {
        calls: CELL * steps,
        weights: columns * depth * steps,
        ..KernelWork::matrix(steps, columns, depth, Divide::Columns)
    };
    Ok(vec![step, KernelWork::memory(12.0 * written, 0.0, Divide::Batch)])
}

/// The gradient of the weights is a product of its own in the graph.
fn recurrence_grad(reader: &Reader, node: &Node, read: f64) -> Result<Vec<KernelWork>, OracleError> {
    let [steps, columns, depth] = steps(reader, node)?;
    let step = KernelWork {
        calls: 2.0 * CELL * steps,
        weights: 2.0 * columns * depth * steps,
        ..KernelWork::matrix(steps, depth, columns, Divide::Depth)
    };
    Ok(vec![step, KernelWork::memory(20.0 * read, 0.0, Divide::Batch)])
}

/// Steps of a recurrence, and the extents of the product in each of them.
fn steps(reader: &Reader, node: &Node) -> Result<[f64; 3], OracleError> {
    let steps = reader.shape(node.ins[0])?[1];
    let is_weight = |v: &&Value| matches!(reader.graph.value(**v).origin, Origin::Input(Role::Weight(_)));
    let weights = node.ins.iter().filter(is_weight).find(|v| reader.graph.ty(**v).shape.len() == 2);
    let weights = weights.map_or(Ok(vec![0.0; 2]), |v| reader.shape(*v))?;
    Ok([steps, weights[0], weights[1]])
}

/// Whether a node adds gradients of parts of one value.
fn joins_parts(graph: &Graph, node: &Node) -> bool {
    let of_part = |v: &Value| match graph.value(*v).origin {
        Origin::Node { node, .. } => {
            let maker = &graph.nodes[node.index()];
            let adds = matches!(maker.op, Op::Zip(Zip(Binary::Add)));
            matches!(maker.op, Op::SliceGrad(_)) || (adds && joins_parts(graph, maker))
        }
        Origin::Input(_) => false,
    };
    node.phase == Phase::Backward && node.ins.iter().any(of_part)
}

/// Whether a node adds a bias to a product of matrices, which the product's own kernel does.
fn adds_bias(graph: &Graph, node: &Node) -> bool {
    let made_by_product = match graph.value(node.ins[0]).origin {
        Origin::Node { node, .. } => matches!(graph.nodes[node.index()].op, Op::Contract(_)),
        Origin::Input(_) => false,
    };
    let is_input = |v: Value| matches!(graph.value(v).origin, Origin::Input(_));
    node.phase == Phase::Forward && made_by_product && is_input(node.ins[1])
}
