//! Runs a graph with the reference kernels. For tests and for understanding, not for speed.

use crate::dim::{Bindings, DimError};
use crate::graph::{Graph, Origin, Value};
use crate::tensor::Tensor;

/// Every value of the graph, given its inputs; `feed` is asked once per input.
pub fn interpret(
    graph: &Graph,
    sizes: &Bindings,
    mut feed: impl FnMut(Value, &[usize]) -> Tensor,
) -> Result<Vec<Tensor>, DimError> {
    let mut values: Vec<Tensor> = Vec::with_capacity(graph.values.len());
    for (i, info) in graph.values.iter().enumerate() {
        let shape = info.ty.bind(sizes)?;
        values.push(match info.origin {
            Origin::Input(_) => feed(Value(i as u32), &shape),
            Origin::Node { .. } => Tensor::zeros(&shape),
        });
    }
    for node in &graph.nodes {
        let mut outs: Vec<Tensor> = node.outs.iter().map(|v| values[v.index()].clone()).collect();
        let ins: Vec<&Tensor> = node.ins.iter().map(|v| &values[v.index()]).collect();
        let bound = node.op.def().bind(sizes)?;
        bound.as_ref().unwrap_or(&node.op).def().eval(&ins, &mut outs);
        for (v, t) in node.outs.iter().zip(outs) {
            values[v.index()] = t;
        }
    }
    Ok(values)
}
