//! The graph rewriter: a new graph written node by node, from one graph or from several, and verified at the end.
//! Names, phases, objectives, roles, outputs and carries stay unless the caller changes them. A node is removed by
//! not writing it.

use crate::dim::Dim;
use crate::graph::op::Op;
use crate::graph::{
    Graph, GraphError, GraphOutput, Node, NodeId, ObjectivePhase, Origin, Type, Value, ValueInfo,
};
use crate::verify::{result_types, verify};

/// A graph being written. [`Rewriter::finish`] gives it out, verified.
#[derive(Clone, Debug, Default)]
pub struct Rewriter {
    graph: Graph,
    /// The first operator that refused its operands.
    refused: Option<GraphError>,
}

impl Rewriter {
    /// Starts with an empty graph.
    pub fn new() -> Rewriter {
        Rewriter::default()
    }

    /// Starts with the values, outputs and carries of a graph, under the same numbers, and without its nodes. Values
    /// that no node makes in the end are left out, and those after them move up.
    pub fn of(graph: &Graph) -> Rewriter {
        let Graph { values, outputs, carries, .. } = graph;
        let nodes = Vec::with_capacity(graph.nodes.len());
        let graph =
            Graph { values: values.clone(), nodes, outputs: outputs.clone(), carries: carries.clone() };
        Rewriter { graph, refused: None }
    }

    /// The graph so far. Results of nodes that are still to be written name no valid node.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Adds a value: an input, or the result of a node that is still to be written.
    pub fn value(&mut self, info: ValueInfo) -> Value {
        self.graph.values.push(info);
        Value(self.graph.values.len() as u32 - 1)
    }

    /// Gives a value another shape.
    pub fn reshape(&mut self, v: Value, shape: Vec<Dim>) {
        self.graph.values[v.index()].ty.shape = shape;
    }

    /// Appends a node whose results are values already. Results after the first are named after it.
    pub fn push(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.graph.nodes.len() as u32);
        for (output, v) in node.outs.iter().enumerate() {
            if output > 0 {
                let name = format!("{}.{output}", self.graph.value(node.outs[0]).name);
                self.graph.values[v.index()].name = name;
            }
            self.graph.values[v.index()].origin = Origin::Node { node: id, output };
        }
        self.graph.nodes.push(node);
        id
    }

    /// Appends a node with one result, a new value of the type that the operator's spec infers.
    pub fn add(
        &mut self,
        op: impl Into<Op>,
        ins: Vec<Value>,
        name: impl Into<String>,
        (phase, objective): ObjectivePhase,
    ) -> Value {
        let (node, out) = (NodeId(self.graph.nodes.len() as u32), Value(self.graph.values.len() as u32));
        let node_of = Node { op: op.into(), ins, outs: vec![out], phase, objective };
        let ty = match result_types(&self.graph, &node_of) {
            Ok(mut types) if types.len() == 1 => types.remove(0),
            Ok(types) => {
                let many = format!("{} makes {} values, not one", node_of.op.def().name(), types.len());
                self.refused.get_or_insert(GraphError::Invalid(many));
                Type::f32::<Dim>(&[])
            }
            Err(refused) => {
                self.refused.get_or_insert(refused);
                Type::f32::<Dim>(&[])
            }
        };
        self.value(ValueInfo { name: name.into(), ty, origin: Origin::Node { node, output: 0 } });
        self.push(node_of);
        out
    }

    /// Adds an output.
    pub fn output(&mut self, output: GraphOutput) {
        self.graph.outputs.push(output);
    }

    /// The outputs so far.
    pub fn outputs_mut(&mut self) -> &mut Vec<GraphOutput> {
        &mut self.graph.outputs
    }

    /// Carries a value to the next step, where it is the input's.
    pub fn carry(&mut self, input: Value, next: Value) {
        self.graph.carries.push((input, next));
    }

    /// The carries so far.
    pub fn carries_mut(&mut self) -> &mut Vec<(Value, Value)> {
        &mut self.graph.carries
    }

    /// The graph, if it keeps all rules of graphs.
    pub fn finish(self) -> Result<Graph, GraphError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let graph = without_unmade(self.graph);
        verify(&graph)?;
        Ok(graph)
    }
}

/// The graph without values that no node makes, the others in the order they had.
fn without_unmade(mut graph: Graph) -> Graph {
    let mut made: Vec<bool> =
        graph.values.iter().map(|info| matches!(info.origin, Origin::Input(_))).collect();
    graph.nodes.iter().flat_map(|node| &node.outs).for_each(|v| made[v.index()] = true);
    if made.iter().all(|made| *made) {
        return graph;
    }
    let mut count = 0;
    let numbers: Vec<Value> = made
        .iter()
        .map(|&made| {
            count += u32::from(made);
            // One that is read and never made is no value of the graph, as `verify` will find.
            if made { Value(count - 1) } else { Value(u32::MAX) }
        })
        .collect();
    let mut left = made.into_iter();
    graph.values.retain(|_| left.next().unwrap_or(false));
    let renumber = |v: &mut Value| *v = numbers[v.index()];
    for node in &mut graph.nodes {
        node.ins.iter_mut().chain(&mut node.outs).for_each(renumber);
    }
    graph.outputs.iter_mut().for_each(|output| renumber(&mut output.value));
    for (input, next) in &mut graph.carries {
        renumber(input);
        renumber(next);
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::graph::Phase;
    use crate::graph::build::Builder;
    use crate::graph::op::contract::Contract;
    use crate::graph::op::map::{Function, Map};
    use crate::model::{MODELS, model};
    use crate::optim::Optimizer;
    use crate::role::OutputRole;
    use crate::training::plain_training_graph;

    const FORWARD: ObjectivePhase = (Phase::Forward, 0);

    fn copied(graph: &Graph) -> Rewriter {
        let mut to = Rewriter::of(graph);
        for node in &graph.nodes {
            to.push(node.clone());
        }
        to
    }

    /// x -> relu -> tanh, the last of which is an output.
    fn two_steps() -> Graph {
        let mut g = Builder::new(true);
        let x = g.data("x", DType::F32, &[3]).unwrap();
        let y = g.relu(x).unwrap();
        let z = g.tanh(y).unwrap();
        g.output("z", OutputRole::Metric, z);
        g.finish()
    }

    #[test]
    fn a_copy_of_every_model_is_the_same_graph() {
        for row in MODELS.iter().filter(|row| !row.name.contains('-')) {
            let adam = Optimizer::new("adam", &[]).unwrap();
            let graph = plain_training_graph(&*model(row.name, &[]).unwrap(), &[adam], None).unwrap();
            assert_eq!(copied(&graph).finish().unwrap(), graph, "{}", row.name);
        }
    }

    #[test]
    fn a_node_that_is_not_written_is_removed_with_its_values() {
        let graph = two_steps();
        let mut to = Rewriter::of(&graph);
        let tanh = &graph.nodes[1];
        to.push(Node { ins: graph.nodes[0].ins.clone(), ..tanh.clone() });
        let short = to.finish().unwrap();
        assert_eq!((short.values.len(), short.nodes.len()), (2, 1));
        assert_eq!(short.value(short.output("z").unwrap()).name, "tanh");
    }

    #[test]
    fn nodes_are_inserted_with_the_types_their_specs_infer() {
        let graph = two_steps();
        let mut to = Rewriter::of(&graph);
        to.push(graph.nodes[0].clone());
        let square = to.add(Map(Function::Square), graph.nodes[0].outs.clone(), "square", FORWARD);
        to.push(Node { ins: vec![square], ..graph.nodes[1].clone() });
        let long = to.finish().unwrap();
        let names: Vec<&str> = long.nodes.iter().map(|node| node.op.def().name()).collect();
        assert_eq!(names, ["relu", "square", "tanh"]);
        assert_eq!(long.ty(square), graph.ty(graph.nodes[0].outs[0]));
    }

    #[test]
    fn every_graph_is_verified_at_the_end() {
        let graph = two_steps();
        let refused = |to: Rewriter| to.finish().unwrap_err().to_string();
        // Its operand is never made.
        let mut to = Rewriter::of(&graph);
        to.push(graph.nodes[1].clone());
        assert!(refused(to).contains("before it is made"));
        // An output that is left out.
        let mut to = Rewriter::of(&graph);
        to.push(graph.nodes[0].clone());
        assert!(refused(to).contains("output `z`"));
        // A result of another shape than the operator makes.
        let mut to = copied(&graph);
        to.reshape(graph.nodes[1].outs[0], vec![4.into()]);
        assert!(refused(to).contains("but the spec says"));
        // Two outputs of one name.
        let mut to = copied(&graph);
        to.output(graph.outputs[0].clone());
        assert!(refused(to).contains("two outputs are called `z`"));
        // A carry of what is no state.
        let mut to = copied(&graph);
        to.carry(graph.nodes[0].ins[0], graph.nodes[1].outs[0]);
        assert!(refused(to).contains("carry"));
        // An operator that does not take such operands.
        let mut to = copied(&graph);
        to.add(Contract::new("m k, k n -> m n"), graph.nodes[0].ins.clone(), "c", FORWARD);
        assert!(refused(to).contains("contract"));
    }
}
