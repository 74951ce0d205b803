//! Everyday names: `use gulliver::prelude::*;` is enough to build, plan and train a model or to define an
//! operator. Everything else is in [`crate::graph`], [`mod@crate::plan`] and [`crate::run`].

pub use crate::local::{LocalDevice, session};
pub use gulliver_graph::dim::{Bindings, Dim};
pub use gulliver_graph::dtype::DType;
pub use gulliver_graph::fuse_elementwise::fuse_elementwise;
pub use gulliver_graph::graph::build::Builder;
pub use gulliver_graph::graph::op::custom::Custom;
pub use gulliver_graph::graph::op::map::Function;
pub use gulliver_graph::graph::op::sample::Sample;
pub use gulliver_graph::graph::op::{Backward, Op, OpDef, OpError, OpName};
pub use gulliver_graph::graph::{Graph, GraphError, Init, Type, Value};
pub use gulliver_graph::lr::LrSchedule;
pub use gulliver_graph::model::classifier::Classifier;
pub use gulliver_graph::model::{Architecture, Built, classified, images, logits, model, tokens};
pub use gulliver_graph::optim::Optimizer;
pub use gulliver_graph::spec::{Spec, expand_ellipsis};
pub use gulliver_graph::tensor::Tensor;
pub use gulliver_graph::training::{
    Clip, evaluation_graph, forward_graph, plain_training_graph, training_graph,
};
pub use gulliver_graph::windows::ConvOptions;
pub use gulliver_plan::document::job::Purpose;
pub use gulliver_run::data::{self, DataOptions, Dataset};
pub use gulliver_run::lower::{Kernels, Lowered, TensorType};
pub use gulliver_run::session::{Session, StepKey};
pub use gulliver_run::train::{Done, Notice, Resumed, Sources, TrainOptions, train};
