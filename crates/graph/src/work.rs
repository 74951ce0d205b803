//! The work of a node, as formulas of the input sizes: everything that its speed may depend on. It is derived from
//! the operator's definition and spec, so a new operator needs no code here.

use crate::dim::{Bindings, Dim, DimError, product};
use crate::graph::{Graph, Node, Value};
use crate::spec::{AxisId, Index, Spec};
use serde::{Deserialize, Serialize};

/// The work of a node, as formulas of the input sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Nodes of one family do the same kind of thing. Words, the most telling first: what
    /// [`family`](crate::graph::op::OpDef::family) says, then in which order memory is walked.
    pub family: String,
    /// Floating-point operations.
    pub flops: Dim,
    /// Bytes read and written.
    pub bytes: Dim,
    /// Elements of the first operand.
    pub first: Dim,
    /// Elements of the second operand; 1 if there is none. A scan reads its weights at every step, and they count as
    /// often.
    pub second: Dim,
    /// Elements of the first result.
    pub result: Dim,
    /// Positions of the window that moves over an operand; 1 if there is none.
    pub taps: Dim,
    /// Neighbouring elements of the first result: its last extent.
    pub row: Dim,
    /// Of a sum of products, the results that read the same elements of the first operand: columns of a product of
    /// matrices, channels of a convolution's result, the row of a scan's. 1 elsewhere.
    pub columns: Dim,
    /// Of every dimension of a result that windows are scattered over: positions of the window, elements of the
    /// dimension, and the stride. Such results are gathered, element by element, so it is their elements that cost
    /// operations, not the positions: with the rims of a part, positions are more than that.
    pub scattered: Vec<(Dim, Dim, i64)>,
}

/// [`Work`] for inputs of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// First operand, second operand, first result, taps, row, columns.
    pub extents: [f64; 6],
}

impl Work {
    /// The work of a node of a valid graph. An operator whose spec gives no operations counts by its bytes.
    pub fn of(graph: &Graph, node: &Node) -> Work {
        let one = || Dim::from(1);
        let elements = |v: Option<&Value>| v.map_or_else(one, |v| product(&graph.ty(*v).shape));
        let mut work = Work {
            family: node.op.def().family(),
            flops: graph.flops(node).unwrap_or(Dim::from(0)),
            bytes: graph.bytes(node),
            first: elements(node.ins.first()),
            second: elements(node.ins.get(1)),
            result: elements(node.outs.first()),
            taps: one(),
            row: node.outs.first().and_then(|v| graph.ty(*v).shape.last()).cloned().unwrap_or_else(one),
            columns: one(),
            scattered: Vec::new(),
        };
        let Ok(spec) = graph.spec(node) else { return work };
        for word in walks(&spec) {
            work.family += " ";
            work.family += &word;
        }
        let dims: Vec<&[Dim]> = node.ins.iter().map(|v| graph.ty(*v).shape.as_slice()).collect();
        if let Ok(extents) = spec.extents(&dims) {
            let all =
                |axes: Vec<AxisId>| axes.into_iter().fold(one(), |all, axis| all * extents[axis.0].clone());
            work.taps = all(taps(&spec));
            work.columns = all(columns(&spec));
            if let Some((operand, steps)) = read_again(&spec) {
                work.second = elements(node.ins.get(operand)) * all(steps);
                work.columns = work.row.clone();
            }
            for (indices, value) in spec.outputs.iter().zip(&node.outs) {
                for (index, elements) in indices.iter().zip(&graph.ty(*value).shape) {
                    let Index::Affine { terms, .. } = index else { continue };
                    let walks = terms.first().map(|(stride, axis)| (extents[axis.0].clone(), *stride));
                    work.scattered.extend(walks.map(|(walks, stride)| (walks, elements.clone(), stride)));
                }
            }
        }
        work
    }

    /// With the sizes of one input put in.
    pub fn bind(&self, sizes: &Bindings) -> Result<Load, DimError> {
        let number = |dim: &Dim| dim.bind(sizes).map(|n| n as f64);
        let mut gathered = 1.0;
        for (walks, elements, stride) in &self.scattered {
            gathered *= number(elements)? / (number(walks)? * *stride as f64).max(1.0);
        }
        Ok(Load {
            flops: number(&self.flops)? * gathered,
            bytes: number(&self.bytes)?,
            extents: [
                number(&self.first)?,
                number(&self.second)?,
                number(&self.result)?,
                number(&self.taps)?,
                number(&self.row)?,
                number(&self.columns)?,
            ],
        })
    }
}

/// The axis that walks along a dimension.
fn walks_along(index: &Index) -> Option<AxisId> {
    match index {
        Index::Axis(axis) => Some(*axis),
        Index::One => None,
        Index::Merge(axes) => axes.last().copied(),
        Index::Affine { terms, .. } => terms.first().map(|term| term.1),
    }
}

/// The axes of windows: those that move within a dimension along which another walks.
fn taps(spec: &Spec) -> Vec<AxisId> {
    let mut taps = Vec::new();
    for index in spec.inputs.iter().chain(&spec.outputs).flatten() {
        if let Index::Affine { terms, .. } = index {
            let new = terms.iter().skip(1).map(|term| term.1).filter(|axis| !taps.contains(axis));
            let new: Vec<AxisId> = new.collect();
            taps.extend(new);
        }
    }
    taps
}

/// The axes of results that the second operand of a sum of products has and the first has not; windows aside.
fn columns(spec: &Spec) -> Vec<AxisId> {
    let [first, second] = match spec.inputs.as_slice() {
        [first, second, ..] if !spec.opaque && sums(spec) => [first, second],
        _ => return Vec::new(),
    };
    let taps = taps(spec);
    let has = |operand: &[Index], axis: AxisId| operand.iter().any(|index| index.has(axis));
    let all = (0..spec.axes.len()).map(AxisId);
    let wanted = |axis: &AxisId| {
        spec.in_outputs(*axis) && has(second, *axis) && !has(first, *axis) && !taps.contains(axis)
    };
    all.filter(wanted).collect()
}

/// Of a scan, the operand that every step reads anew and the axes of its steps: a matrix that all samples share, while
/// the elements of a result depend on each other along axes that it does not have.
fn read_again(spec: &Spec) -> Option<(usize, Vec<AxisId>)> {
    let has = |operand: &[Index], axis: AxisId| operand.iter().any(|index| index.has(axis));
    let axes = |whole: bool| (0..spec.axes.len()).map(AxisId).filter(move |a| spec.axes[a.0].whole == whole);
    let result = spec.outputs.first()?;
    spec.inputs.iter().enumerate().find_map(|(i, operand)| {
        let lacks = |axis: &AxisId| has(result, *axis) && !has(operand, *axis);
        let steps: Vec<AxisId> = axes(true).filter(lacks).collect();
        let matrix = axes(true).filter(|axis| has(operand, *axis)).count() > 1;
        (matrix && !steps.is_empty() && axes(false).any(|axis| lacks(&axis))).then_some((i, steps))
    })
}

/// Whether anything is added up.
fn sums(spec: &Spec) -> bool {
    (0..spec.axes.len()).any(|axis| !spec.in_outputs(AxisId(axis)))
}

/// How memory is walked: the dimensions of a window, and for each operand of a sum of products whether
/// neighbouring elements are added up.
fn walks(spec: &Spec) -> Vec<String> {
    let mut words = Vec::new();
    let windows = taps(spec).len();
    if windows > 0 {
        words.push(format!("{windows}d"));
    }
    let reduced = |axis: AxisId| !spec.in_outputs(axis);
    if sums(spec) && spec.inputs.len() > 1 {
        let adds = |operand: &Vec<Index>| operand.last().and_then(walks_along).is_some_and(reduced);
        words.push(spec.inputs.iter().take(2).map(|o| if adds(o) { 'r' } else { 'p' }).collect());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MODELS, ModelRow, gpt, model};
    use crate::optim::Optimizer;
    use crate::training::training_graph;

    #[test]
    fn families_tell_apart_what_is_walked_differently() {
        let graph = |name: &str| {
            let optimizer = Optimizer::new("adam", &[]).unwrap();
            training_graph(model(name, &[]).unwrap().as_ref(), &[optimizer], None).unwrap()
        };
        let families = |name: &str| {
            let graph = graph(name);
            let all = graph.nodes.iter().map(|node| Work::of(&graph, node).family);
            all.collect::<std::collections::BTreeSet<_>>()
        };
        for (name, expected) in [
            ("mlp", &["contract rr", "contract pp", "contract rp", "update_adam"][..]),
            ("resnet18", &["conv 2d pr", "conv_transpose 2d pp", "conv_weight_grad 2d rr"]),
            ("cosmoflow", &["conv 3d pr", "conv_weight_grad 3d rr"]),
            ("gpt-nano", &["elementwise add gelu_tanh", "attention", "attention_grad"]),
        ] {
            let found = families(name);
            for family in expected {
                assert!(found.iter().any(|f| f.starts_with(family)), "{name} has no {family}: {found:?}");
            }
        }
    }

    #[test]
    fn what_is_scattered_costs_what_its_elements_do() {
        use crate::dtype::DType;
        use crate::graph::Init;
        use crate::graph::build::Builder;
        use crate::windows::ConvOptions;
        for (stride, pad, rows, extra, elements) in [(1, 1, 8, 0, 8), (2, 1, 4, 1, 8), (1, 2, 9, 0, 7)] {
            let mut g = Builder::new(true);
            let y = g.data("y", DType::F32, &[1usize, 3, rows]).unwrap();
            let w = g.weight("w", &[3, 5, 3], Init::Normal(0.1)).unwrap();
            let options = ConvOptions::new(1).stride(stride).padding(pad);
            let x = g.conv_transpose(y, w, &options, &[extra]).unwrap();
            let graph = g.finish();
            assert_eq!(graph.ty(x).shape[2], Dim::from(elements));
            let load = Work::of(&graph, graph.nodes.last().unwrap()).bind(&Bindings::new()).unwrap();
            let taps = 3.0 / stride as f64;
            assert_eq!(load.flops, 2.0 * 3.0 * 5.0 * taps * elements as f64, "stride {stride}");
        }
    }

    #[test]
    fn scans_read_their_weights_at_every_step_and_nothing_else_does() {
        let of_gpt = |row: &&ModelRow| std::ptr::eq(row.family, &gpt::FAMILY);
        for row in MODELS.iter().filter(|row| row.name == "gpt" || !of_gpt(row)) {
            let optimizer = Optimizer::new("sgd", &[]).unwrap();
            let graph = training_graph(model(row.name, &[]).unwrap().as_ref(), &[optimizer], None).unwrap();
            for node in &graph.nodes {
                let name = node.op.def().name();
                let scans = name.starts_with("lstm") || name.starts_with("gru");
                let found = graph.spec(node).ok().and_then(|spec| read_again(&spec));
                assert_eq!(found.is_some(), scans, "{}: {name}", row.name);
                if !scans {
                    continue;
                }
                let load = Work::of(&graph, node).bind(&Bindings::new().with("batch", 2).with("length", 5));
                let weights = if name.ends_with("_grad") { [2, 1] } else { [3, 2] };
                let weights = weights[usize::from(name.starts_with("gru"))];
                let weights = product(&graph.ty(node.ins[weights]).shape).bind(&Bindings::new()).unwrap();
                assert_eq!(load.unwrap().extents[1], 5.0 * weights as f64, "{}: {name}", row.name);
            }
        }
    }

    #[test]
    fn loads_are_counted_from_shapes() {
        let optimizer = Optimizer::new("sgd", &[]).unwrap();
        let graph = training_graph(model("resnet18", &[]).unwrap().as_ref(), &[optimizer], None).unwrap();
        let node = graph.nodes.iter().find(|node| node.op.def().name() == "conv").unwrap();
        let load = Work::of(&graph, node).bind(&Bindings::new().with("batch", 2)).unwrap();
        let (x, w, y) = (2.0 * 3.0 * 32.0 * 32.0, 64.0 * 3.0 * 9.0, 2.0 * 64.0 * 32.0 * 32.0);
        assert_eq!(load.extents, [x, w, y, 9.0, 32.0, 64.0]);
        assert_eq!((load.flops, load.bytes), (2.0 * y * 27.0, 4.0 * (x + w + y)));
        // The weights' gradient has the channels of the result, the input's gradient those of the input.
        for (name, columns) in [("conv_weight_grad", 64.0), ("conv_transpose", 64.0), ("contract", 10.0)] {
            let node = graph.nodes.iter().rfind(|node| node.op.def().name() == name).unwrap();
            let load = Work::of(&graph, node).bind(&Bindings::new().with("batch", 2)).unwrap();
            assert_eq!(load.extents[5], columns, "{name}");
        }
    }
}
