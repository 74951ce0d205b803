//! The rules a graph keeps, checked from scratch:
//!
//! 1. every node reads inputs of the graph or results of earlier nodes;
//! 2. every result names the node and output that make it, and is made once;
//! 3. every result has the type that the operator's spec infers;
//! 4. input names are unique;
//! 5. a carry goes from a weight or state to a value of the same type, at most one per input;
//! 6. outputs exist, and their names are unique within a scope.

use crate::graph::{Graph, GraphError, GraphOutput, Node, Origin, Role, Type, Value};
use std::collections::HashSet;

/// The first rule that is broken, if any.
pub fn verify(graph: &Graph) -> Result<(), GraphError> {
    let invalid = |why: String| Err(GraphError::Invalid(why));
    let exists = |v: &Value| v.index() < graph.values.len();
    let mut names = HashSet::new();
    let mut known = vec![false; graph.values.len()];
    for (v, _, info) in graph.inputs() {
        known[v.index()] = true;
        if !names.insert(info.name.as_str()) {
            return invalid(format!("two inputs are called `{}`", info.name));
        }
    }
    for (id, node) in graph.nodes.iter().enumerate() {
        let label = format!("node {id} ({})", node.op.def().name());
        if let Some(v) = node.ins.iter().find(|v| !exists(v) || !known[v.index()]) {
            return invalid(format!("{label} reads %{} before it is made", v.0));
        }
        let types = result_types(graph, node)?;
        if types.len() != node.outs.len() {
            return invalid(format!("{label} makes {} values, {} are named", types.len(), node.outs.len()));
        }
        for (output, (v, ty)) in node.outs.iter().zip(types).enumerate() {
            if !exists(v) || known[v.index()] {
                return invalid(format!("{label} makes %{}, which exists already or never", v.0));
            }
            known[v.index()] = true;
            let info = graph.value(*v);
            let made_here =
                matches!(info.origin, Origin::Node { node, output: o } if node.index() == id && o == output);
            if !made_here {
                return invalid(format!("%{} does not name {label} as its origin", v.0));
            }
            if info.ty != ty {
                return invalid(format!("%{} of {label} is {}, but the spec says {ty}", v.0, info.ty));
            }
        }
    }
    if let Some(v) = known.iter().position(|k| !k) {
        return invalid(format!("%{v} is never made"));
    }
    let mut carried = HashSet::new();
    for (input, next) in &graph.carries {
        if !exists(input) || !exists(next) {
            return invalid(format!("carry %{} -> %{} names a value that does not exist", input.0, next.0));
        }
        let carries = matches!(graph.value(*input).origin, Origin::Input(Role::Weight(_) | Role::State(_)));
        if !carries || !carried.insert(*input) || graph.ty(*input) != graph.ty(*next) {
            return invalid(format!(
                "carry %{} -> %{} is not one of a weight or state to its own type",
                input.0, next.0
            ));
        }
    }
    let mut names = HashSet::new();
    if let Some(twice) = graph.outputs.iter().find(|output| !names.insert((&output.name, output.scope))) {
        return invalid(format!("two outputs are called `{}`", twice.name));
    }
    match graph.outputs.iter().find(|output| !exists(&output.value)) {
        Some(GraphOutput { name, value, .. }) => {
            invalid(format!("output `{name}` is %{}, which does not exist", value.0))
        }
        None => Ok(()),
    }
}

/// The types that a node's results must have.
pub(crate) fn result_types(graph: &Graph, node: &Node) -> Result<Vec<Type>, GraphError> {
    let ins: Vec<Type> = node.ins.iter().map(|v| graph.ty(*v).clone()).collect();
    node.op.result_types(&ins).map_err(|source| GraphError::Op {
        name: node
            .outs
            .first()
            .and_then(|v| graph.values.get(v.index()))
            .map_or("", |info| &info.name)
            .into(),
        op: node.op.def().name(),
        inputs: ins.iter().map(Type::to_string).collect::<Vec<_>>().join(", "),
        source: Box::new(source),
    })
}
