//! The door into a graph: every node enters through [`Builder::push`], which infers types from the
//! operator's spec and reports errors with the scope they happened in.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::op::Op;
use crate::graph::{
    Graph, GraphError, GraphOutput, Init, Node, NodeId, Origin, Phase, Role, Type, Value, ValueInfo,
};
use crate::random::hash_name;
use crate::role::{DataRole, OutputRole};
use std::collections::HashMap;

/// A graph under construction.
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
    scope: Vec<String>,
    named: HashMap<String, Value>,
    /// The newest value of a carried input, which `weight` and `state` return.
    current: HashMap<Value, Value>,
    /// The input whose newest value a value is.
    carried: HashMap<Value, Value>,
    phase: Phase,
    objective: u32,
    training: bool,
    /// Whether examples have weights.
    weighs_examples: bool,
    /// Number of streams of random numbers that each scope has.
    streams: HashMap<String, u64>,
}

impl Builder {
    /// An empty graph; `training` decides between batch and running statistics and whether dropout drops.
    pub fn new(training: bool) -> Builder {
        Builder {
            graph: Graph::default(),
            scope: Vec::new(),
            named: HashMap::new(),
            current: HashMap::new(),
            carried: HashMap::new(),
            phase: Phase::Forward,
            objective: 0,
            training,
            weighs_examples: false,
            streams: HashMap::new(),
        }
    }

    /// Whether the graph is for training rather than evaluation.
    pub fn training(&self) -> bool {
        self.training
    }

    /// Classifiers built from now on weigh each example by the data `weight`.
    pub fn weigh_examples(&mut self) {
        self.weighs_examples = true;
    }

    /// Whether classifiers weigh each example by the data `weight`.
    pub fn weighs_examples(&self) -> bool {
        self.weighs_examples
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The finished graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    /// A value's type.
    pub fn ty(&self, v: Value) -> &Type {
        self.graph.ty(v)
    }

    /// A value's shape.
    pub fn shape(&self, v: Value) -> &[Dim] {
        &self.graph.ty(v).shape
    }

    /// A value's number of dimensions.
    pub fn rank(&self, v: Value) -> usize {
        self.graph.ty(v).rank()
    }

    /// Runs `f` with names below `scope`.
    pub fn scope<T>(&mut self, scope: impl ToString, f: impl FnOnce(&mut Builder) -> T) -> T {
        self.scope.push(scope.to_string());
        let result = f(self);
        self.scope.pop();
        result
    }

    /// Nodes pushed from now on belong to this phase of this objective.
    pub fn enter(&mut self, phase: Phase, objective: u32) {
        self.phase = phase;
        self.objective = objective;
    }

    pub(crate) fn path(&self, name: &str) -> String {
        let mut path = self.scope.join(".");
        if !path.is_empty() && !name.is_empty() {
            path.push('.');
        }
        path + name
    }

    /// An input under the current scope. The same name gives the same value; a weight or state that was carried
    /// gives its newest value.
    pub fn input(&mut self, name: &str, role: Role, ty: Type) -> Result<Value, GraphError> {
        let name = self.path(name);
        if let Some(&v) = self.named.get(&name) {
            if *self.ty(v) != ty {
                let have = self.ty(v).to_string();
                return Err(GraphError::Redefined { name, have, want: ty.to_string() });
            }
            return Ok(self.current.get(&v).copied().unwrap_or(v));
        }
        let v = self.add_value(ValueInfo { name: name.clone(), ty, origin: Origin::Input(role) });
        self.named.insert(name, v);
        Ok(v)
    }

    /// Data that comes with every batch and that predictions are made from.
    pub fn data<D: Into<Dim> + Clone>(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[D],
    ) -> Result<Value, GraphError> {
        self.input(name, Role::Data(DataRole::Example), Type::new(dtype, shape))
    }

    /// The targets of a batch: what is to be predicted of each example.
    pub fn target<D: Into<Dim> + Clone>(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[D],
    ) -> Result<Value, GraphError> {
        self.input(name, Role::Data(DataRole::Target), Type::new(dtype, shape))
    }

    /// Tells real elements of a batch from padding.
    pub fn mask<D: Into<Dim> + Clone>(&mut self, name: &str, shape: &[D]) -> Result<Value, GraphError> {
        self.input(name, Role::Data(DataRole::Mask), Type::new(DType::Bool, shape))
    }

    /// Standard normal numbers, drawn anew in every step.
    pub fn noise<D: Into<Dim> + Clone>(&mut self, name: &str, shape: &[D]) -> Result<Value, GraphError> {
        let stream = hash_name(&self.path(name));
        self.input(name, Role::Data(DataRole::Noise { stream, member: 0 }), Type::f32(shape))
    }

    /// A trained f32 input.
    pub fn weight<D: Into<Dim> + Clone>(
        &mut self,
        name: &str,
        shape: &[D],
        init: Init,
    ) -> Result<Value, GraphError> {
        self.input(name, Role::Weight(init), Type::f32(shape))
    }

    /// A carried f32 input that is not trained.
    pub fn state<D: Into<Dim> + Clone>(
        &mut self,
        name: &str,
        shape: &[D],
        init: Init,
    ) -> Result<Value, GraphError> {
        self.input(name, Role::State(init), Type::f32(shape))
    }

    /// The (seed, step, partial) input that keys random numbers; one per graph.
    pub fn random(&mut self) -> Result<Value, GraphError> {
        let scope = std::mem::take(&mut self.scope);
        let value = self.input("random", Role::Random, Type::new(DType::I64, &[3]));
        self.scope = scope;
        value
    }

    /// Names a stream of random numbers that no other asker in the graph gets; it depends on the scope and
    /// on how often the scope asked before, not on the rest of the graph.
    pub fn stream(&mut self) -> u64 {
        let path = self.path("");
        let count = self.streams.entry(path.clone()).or_insert(0);
        *count += 1;
        hash_name(&format!("{path}#{count}"))
    }

    /// From now on, and in the next step, the input has this value.
    pub fn carry(&mut self, input: Value, next: Value) {
        let root = self.carried.get(&input).copied().unwrap_or(input);
        if let Some(before) = self.current.insert(root, next) {
            self.carried.remove(&before);
            self.graph.carries.retain(|(i, _)| *i != root);
        }
        self.graph.carries.push((root, next));
        self.carried.insert(next, root);
    }

    /// The newest value of a carried input.
    pub fn newest(&self, input: Value) -> Value {
        self.current.get(&input).copied().unwrap_or(input)
    }

    /// Names a result the graph is run for.
    pub fn output(&mut self, name: &str, role: OutputRole, value: Value) {
        self.graph.outputs.push(GraphOutput::new(name, role, value));
    }

    /// Applies an operator; one value per output.
    pub fn push(&mut self, op: impl Into<Op>, ins: &[Value]) -> Result<Vec<Value>, GraphError> {
        self.add_node(op.into(), ins)
    }

    /// [`push`](Self::push) for every operator: compiled once, not once for each type of operator.
    fn add_node(&mut self, op: Op, ins: &[Value]) -> Result<Vec<Value>, GraphError> {
        let def = op.def();
        let types: Vec<Type> = ins.iter().map(|v| self.ty(*v).clone()).collect();
        let results = op.result_types(&types).map_err(|source| GraphError::Op {
            name: self.path(""),
            op: def.name(),
            inputs: types.iter().map(Type::to_string).collect::<Vec<_>>().join(", "),
            source: Box::new(source),
        })?;
        let name = self.path(def.name());
        let node = NodeId(self.graph.nodes.len() as u32);
        let mut outs = Vec::with_capacity(results.len());
        for (output, ty) in results.into_iter().enumerate() {
            let name = if output == 0 { name.clone() } else { format!("{name}.{output}") };
            outs.push(self.add_value(ValueInfo { name, ty, origin: Origin::Node { node, output } }));
        }
        let node =
            Node { op, ins: ins.to_vec(), outs: outs.clone(), phase: self.phase, objective: self.objective };
        self.graph.nodes.push(node);
        Ok(outs)
    }

    /// Applies an operator for its first output.
    pub fn push1(&mut self, op: impl Into<Op>, ins: &[Value]) -> Result<Value, GraphError> {
        Ok(self.push(op, ins)?[0])
    }

    fn add_value(&mut self, info: ValueInfo) -> Value {
        self.graph.values.push(info);
        Value(self.graph.values.len() as u32 - 1)
    }
}
