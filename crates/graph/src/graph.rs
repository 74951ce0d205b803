//! A graph: typed values, and nodes that make them, in an order in which they can run. Built through
//! [`crate::graph::build::Builder`], which infers every type from the operators' specs; read-only afterwards.

pub mod build;
pub mod op;

use crate::dim::{Bindings, Dim, DimError, product};
use crate::dtype::DType;
use crate::graph::op::{Op, OpError};
use crate::role::{DataRole, HyperRole, OutputRole, OutputScope};
use crate::spec::Spec;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A value of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Value(pub u32);

/// A node of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl Value {
    /// As an index into [`Graph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// As an index into [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Element type and shape.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<Dim>,
}

impl Type {
    /// An f32 type.
    pub fn f32<D: Into<Dim> + Clone>(shape: &[D]) -> Type {
        Type::new(DType::F32, shape)
    }

    /// Any type.
    pub fn new<D: Into<Dim> + Clone>(dtype: DType, shape: &[D]) -> Type {
        Type { dtype, shape: shape.iter().cloned().map(Into::into).collect() }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Bytes of the value, as a formula of the input sizes.
    pub fn bytes(&self) -> Dim {
        product(&self.shape) * self.dtype.size()
    }

    /// The shape for these sizes.
    pub fn bind(&self, sizes: &Bindings) -> Result<Vec<usize>, DimError> {
        self.shape.iter().map(|d| d.bind(sizes)).collect()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The first values of a weight or state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Every element this number.
    Constant(f32),
    /// Normal with mean zero and this standard deviation.
    Normal(f32),
    /// Normal around a mean: (mean, standard deviation).
    NormalAround(f32, f32),
    /// Uniform between minus and plus this bound.
    Uniform(f32),
}

/// The kind of an input of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Comes with every batch, sliced along its first dimension into partials.
    Data(DataRole),
    /// Trained.
    Weight(Init),
    /// Carried from step to step but not trained: running statistics, optimizer state.
    State(Init),
    /// A scalar set anew each step, with its default.
    Hyper(HyperRole, f32),
    /// Three integers (seed, step, partial) that key every random number of the step.
    Random,
}

impl Role {
    /// Whether it comes with every batch.
    pub fn is_data(self) -> bool {
        matches!(self, Role::Data(_))
    }

    /// Whether it stays from step to step.
    pub fn persists(self) -> bool {
        matches!(self, Role::Weight(_) | Role::State(_))
    }

    /// Whether every partial has its own.
    pub fn repeats(self) -> bool {
        matches!(self, Role::Data(_) | Role::Random)
    }
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// From outside.
    Input(Role),
    /// From a node.
    Node {
        /// The node.
        node: NodeId,
        /// The index of the output.
        output: usize,
    },
}

/// Name, type and origin of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// Unique for inputs; for results, the scope and operator that made it.
    pub name: String,
    /// Element type and shape.
    pub ty: Type,
    /// Its origin.
    pub origin: Origin,
}

/// The part of a training step a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// From the data to the loss; runs once per partial.
    Forward,
    /// From the loss to the gradients; runs once per partial.
    Backward,
    /// From the summed gradients to the new weights; runs once per step.
    Update,
}

/// A phase of an objective.
pub type ObjectivePhase = (Phase, u32);

/// One application of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operator.
    pub op: Op,
    /// Operands.
    pub ins: Vec<Value>,
    /// Results.
    pub outs: Vec<Value>,
    /// Forward, backward or update.
    pub phase: Phase,
    /// The objective of the step that it belongs to (0 unless a model has several losses).
    pub objective: u32,
}

impl Node {
    /// The phase and objective it belongs to.
    pub fn objective_phase(&self) -> ObjectivePhase {
        (self.phase, self.objective)
    }
}

/// A value that the graph is run for.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphOutput {
    /// Unique within its scope.
    pub name: String,
    /// Its role.
    pub role: OutputRole,
    /// The partials that it is summed over.
    pub scope: OutputScope,
    /// The value.
    pub value: Value,
}

impl GraphOutput {
    /// An output of the device's own partials.
    pub fn new(name: impl Into<String>, role: OutputRole, value: Value) -> GraphOutput {
        GraphOutput { name: name.into(), role, scope: OutputScope::Device, value }
    }

    /// An output with the standard name of its role.
    pub fn of(role: OutputRole, value: Value) -> GraphOutput {
        GraphOutput::new(role.name(), role, value)
    }
}

/// Values and the nodes that make them, in topological order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Every value.
    pub values: Vec<ValueInfo>,
    /// Every node; operands come before results.
    pub nodes: Vec<Node>,
    /// The results the graph is run for.
    pub outputs: Vec<GraphOutput>,
    /// (input, result): the result is the input's value in the next step.
    pub carries: Vec<(Value, Value)>,
}

/// Why a graph cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// An operator refused its inputs.
    #[error("{name}: {op}({inputs}): {source}")]
    Op {
        /// Scope of the node.
        name: String,
        /// The operator.
        op: &'static str,
        /// Types of the inputs.
        inputs: String,
        /// Its error.
        source: Box<OpError>,
    },
    /// No gradient is defined.
    #[error("{0} has no gradient")]
    NotDifferentiable(&'static str),
    /// The loss must be one number.
    #[error("the loss `{name}` has shape {shape}, expected a scalar; reduce it with mean or sum")]
    LossNotScalar {
        /// Its name.
        name: String,
        /// Its type.
        shape: String,
    },
    /// Two inputs with one name, or a weight asked for with another shape.
    #[error("input `{name}` exists with type {have}, asked for again with {want}")]
    Redefined {
        /// The name.
        name: String,
        /// First type.
        have: String,
        /// Second type.
        want: String,
    },
    /// A model cannot be built with these settings.
    #[error("{0}")]
    Model(String),
    /// A graph text cannot be read.
    #[error("line {line}: {why}")]
    Text {
        /// Counted from one.
        line: usize,
        /// The problem.
        why: String,
    },
    /// The graph breaks a rule of its own.
    #[error("invalid graph: {0}")]
    Invalid(String),
}

impl Graph {
    /// Name, type and origin of a value.
    pub fn value(&self, v: Value) -> &ValueInfo {
        &self.values[v.index()]
    }

    /// A value's type.
    pub fn ty(&self, v: Value) -> &Type {
        &self.values[v.index()].ty
    }

    /// Inputs in order of creation.
    pub fn inputs(&self) -> impl Iterator<Item = (Value, Role, &ValueInfo)> {
        self.values.iter().enumerate().filter_map(|(i, info)| match info.origin {
            Origin::Input(role) => Some((Value(i as u32), role, info)),
            Origin::Node { .. } => None,
        })
    }

    /// The node that makes a value; none for an input.
    pub fn maker(&self, v: Value) -> Option<NodeId> {
        match self.value(v).origin {
            Origin::Node { node, .. } => Some(node),
            Origin::Input(_) => None,
        }
    }

    /// Whether a value exists once for each partial of a batch: it comes with the batch, or is made by a node
    /// that is not an update.
    pub fn repeats(&self, v: Value) -> bool {
        match self.value(v).origin {
            Origin::Node { node, .. } => self.nodes[node.index()].phase != Phase::Update,
            Origin::Input(role) => role.repeats(),
        }
    }

    /// The phase and objective in which a value is made; for an input the first.
    pub fn made_in(&self, v: Value) -> ObjectivePhase {
        match self.value(v).origin {
            Origin::Node { node, .. } => self.nodes[node.index()].objective_phase(),
            Origin::Input(_) => (Phase::Forward, 0),
        }
    }

    /// The trained inputs.
    pub fn weights(&self) -> impl Iterator<Item = (Value, &ValueInfo)> {
        self.inputs().filter(|(_, role, _)| matches!(role, Role::Weight(_))).map(|(v, _, info)| (v, info))
    }

    /// The input of that name.
    pub fn input(&self, name: &str) -> Option<Value> {
        self.inputs().find(|(_, _, info)| info.name == name).map(|(v, _, _)| v)
    }

    /// The output of that name of the device's own partials.
    pub fn output(&self, name: &str) -> Option<Value> {
        let own = |output: &&GraphOutput| output.name == name && output.scope == OutputScope::Device;
        self.outputs.iter().find(own).map(|output| output.value)
    }

    /// The first output with that role.
    pub fn output_of(&self, role: OutputRole) -> Option<&GraphOutput> {
        self.outputs.iter().find(|output| output.role == role)
    }

    /// Number of trained numbers, as a formula (a constant for every model whose weights have fixed shapes).
    pub fn parameters(&self) -> Dim {
        self.weights().fold(Dim::from(0), |sum, (_, info)| sum + product(&info.ty.shape))
    }

    /// The spec of a node; present for every node of a valid graph.
    pub fn spec(&self, node: &Node) -> Result<Spec, OpError> {
        let ins: Vec<Type> = node.ins.iter().map(|v| self.ty(*v).clone()).collect();
        node.op.def().spec(&ins)
    }

    /// Floating-point operations of a node, as a formula of the input sizes.
    pub fn flops(&self, node: &Node) -> Result<Dim, OpError> {
        let spec = self.spec(node)?;
        let ins: Vec<&[Dim]> = node.ins.iter().map(|v| self.ty(*v).shape.as_slice()).collect();
        Ok(spec.points(&spec.extents(&ins)?) * node.op.def().flops_per_point() as i64)
    }

    /// Bytes a node reads and writes, as a formula of the input sizes.
    pub fn bytes(&self, node: &Node) -> Dim {
        node.ins.iter().chain(&node.outs).fold(Dim::from(0), |sum, v| sum + self.ty(*v).bytes())
    }
}
