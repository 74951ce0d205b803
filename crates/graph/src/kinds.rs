//! The kinds of a graph: its distinct types, and one node for each operator with the same operand types. The layers
//! of a deep model differ in their weights only, so sizes and kernels are computed once per kind.

use crate::graph::{Graph, NodeId, Type};
use std::collections::HashMap;

/// The kinds of values and nodes of one graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kinds {
    /// Every type of a value, once.
    pub types: Vec<Type>,
    /// Index into `types` by value.
    pub type_of: Vec<u32>,
    /// One node of every kind.
    pub nodes: Vec<NodeId>,
    /// Index into `nodes` by node.
    pub kind_of: Vec<u32>,
}

impl Kinds {
    /// Finds them, in time linear in the graph.
    pub fn of(graph: &Graph) -> Kinds {
        let mut kinds = Kinds::default();
        let mut types: HashMap<&Type, u32> = HashMap::new();
        for info in &graph.values {
            let new = kinds.types.len() as u32;
            let at = *types.entry(&info.ty).or_insert(new);
            if at == new {
                kinds.types.push(info.ty.clone());
            }
            kinds.type_of.push(at);
        }
        let mut nodes: HashMap<(String, Vec<u32>), u32> = HashMap::new();
        for (id, node) in graph.nodes.iter().enumerate() {
            let operands = node.ins.iter().chain(&node.outs);
            let key = (format!("{:?}", node.op), operands.map(|v| kinds.type_of[v.index()]).collect());
            let new = kinds.nodes.len() as u32;
            let mut at = *nodes.entry(key).or_insert(new);
            // Custom operators may print alike and differ.
            if at != new && graph.nodes[kinds.nodes[at as usize].index()].op != node.op {
                at = new;
            }
            if at == new {
                kinds.nodes.push(NodeId(id as u32));
            }
            kinds.kind_of.push(at);
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::model;
    use crate::model::param::ParamValue;
    use crate::optim::Optimizer;
    use crate::training::training_graph;

    #[test]
    fn more_layers_are_not_more_kinds() {
        let kinds = |layers: i64| {
            let params = [("width", 16), ("heads", 2), ("layers", layers)];
            let params = params.map(|(name, value)| (name.to_string(), ParamValue::Int(value)));
            let optimizer = Optimizer::new("adam", &[]).unwrap();
            let graph = training_graph(model("gpt", &params).unwrap().as_ref(), &[optimizer], None).unwrap();
            let kinds = Kinds::of(&graph);
            for (id, node) in graph.nodes.iter().enumerate() {
                let like = &graph.nodes[kinds.nodes[kinds.kind_of[id] as usize].index()];
                assert_eq!(like.op, node.op);
                let pairs = like.ins.iter().chain(&like.outs).zip(node.ins.iter().chain(&node.outs));
                assert!(pairs.into_iter().all(|(a, b)| graph.ty(*a) == graph.ty(*b)));
            }
            (kinds.types.len(), kinds.nodes.len())
        };
        assert_eq!(kinds(3), kinds(9));
    }
}
