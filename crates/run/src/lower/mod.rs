//! From operators to kernels: the table that says, for an operator with concrete shapes, which kernel
//! runs it and how much scratch memory that takes. Operators without a row run on their reference
//! kernel, and the plan's report says so.

mod array;
mod attention;
mod broadcast;
pub mod call;
mod channel_norm;
mod contract;
mod custom;
mod elementwise;
mod exchange;
mod index;
mod loss;
mod movement;
mod normalize;
mod partials;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod reference;
mod scan;
mod softmax;
mod update;
mod windows;

use crate::peers::PeerLost;
use call::Call;
pub use custom::Kernels;
pub(crate) use exchange::ExchangeCall;
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::{Op, OpDef};
use gulliver_graph::graph::{Graph, Node, Value};

/// Element type and concrete shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether some extent is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a kernel gave up: the data, or another device, not the program, is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// An index that points nowhere.
    #[error("index {index} at position {position} is not below {bound}")]
    Index {
        /// The index.
        index: i64,
        /// Where it stands in its tensor.
        position: usize,
        /// What it must be below.
        bound: usize,
    },
    /// Another device is gone.
    #[error(transparent)]
    PeerLost(PeerLost),
}

/// A kernel with its shapes settled.
pub type Run = Box<dyn Fn(&mut Call<'_>) -> Result<(), KernelError> + Send + Sync>;

/// What is needed to run an operator.
pub struct Lowered {
    /// Does it.
    pub run: Run,
    /// Bytes of working memory.
    pub scratch: u64,
    /// No fast kernel exists; the reference kernel is used.
    pub reference: bool,
}

impl Lowered {
    /// A kernel without scratch.
    pub fn plain(run: impl Fn(&mut Call<'_>) -> Result<(), KernelError> + Send + Sync + 'static) -> Lowered {
        Lowered { run: Box::new(run), scratch: 0, reference: false }
    }

    /// An element-wise function of one f32 operand; for operators from outside.
    pub fn map(f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Lowered {
        Lowered::plain(move |call| {
            let x = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
            let y = call.output::<f32>(0);
            if let Some(x) = x {
                y.copy_from_slice(x);
            }
            y.iter_mut().for_each(|y| *y = f(*y));
            Ok(())
        })
    }

    /// A kernel that needs this many floats of scratch.
    pub fn with_scratch(
        floats: usize,
        run: impl Fn(&mut Call<'_>) -> Result<(), KernelError> + Send + Sync + 'static,
    ) -> Lowered {
        Lowered { run: Box::new(run), scratch: (floats * size_of::<f32>()) as u64, reference: false }
    }
}

/// Whether the fast kernels, which know one float type, can read all of these.
fn all_f32(types: &[TensorType]) -> bool {
    types.iter().all(|t| t.dtype == DType::F32)
}

/// The kernel for an operator whose sizes are bound; `kernels` has those of operators from outside.
pub fn lower(op: &Op, ins: &[TensorType], outs: &[TensorType], threads: usize, kernels: &Kernels) -> Lowered {
    let fast = match op {
        Op::Contract(op) => Some(contract::contract(op, ins, outs, threads)),
        Op::Map(_) | Op::MapGrad(_) | Op::Zip(_) | Op::Select(_) | Op::Cast(_) => {
            elementwise::single(op, ins, outs, threads)
        }
        Op::Elementwise(op) => elementwise::fused(op, ins, outs, threads),
        Op::Reduce(op) => reduce::reduce(op, ins),
        Op::Transpose(op) => movement::transpose(op, ins),
        Op::Reshape(_) => movement::reshape(ins),
        Op::Expand(_) => movement::expand(ins, outs),
        Op::Fill(op) => movement::fill(op.value),
        Op::Size(op) => op.of.as_const().and_then(|c| movement::fill(c as f32)),
        Op::Softmax(op) => softmax::softmax(op.axis, ins),
        Op::SoftmaxGrad(op) => softmax::softmax_grad(op.axis, ins),
        Op::LogSoftmax(op) => softmax::log_softmax(op.axis, ins),
        Op::LogSoftmaxGrad(op) => softmax::log_softmax_grad(op.axis, ins),
        Op::LayerNorm(op) => normalize::layer_norm(op, ins),
        Op::LayerNormGrad(_) => normalize::layer_norm_grad(ins),
        Op::RmsNorm(op) => normalize::rms_norm(op, ins),
        Op::RmsNormGrad(_) => normalize::rms_norm_grad(ins),
        Op::GroupNorm(op) => channel_norm::group_norm(op, ins),
        Op::GroupNormGrad(op) => channel_norm::group_norm_grad(op, ins),
        Op::BatchNorm(op) => channel_norm::batch_norm(op, ins),
        Op::BatchNormGrad(op) => channel_norm::batch_norm_grad(op, ins),
        Op::CrossEntropy(op) => loss::cross_entropy(op, ins),
        Op::CrossEntropyGrad(op) => loss::cross_entropy_grad(op, ins),
        Op::UpdateSgd(op) => update::sgd(op, ins),
        Op::UpdateAdam(op) => update::adam(op, ins),
        Op::UpdateAdadelta(_) => update::adadelta(ins),
        Op::UpdateAdagrad(_) => update::adagrad(ins),
        Op::UpdateRmsprop(op) => update::rmsprop(op, ins),
        Op::UpdateLion(_) => update::lion(ins),
        Op::Attention(op) => attention::forward(op, ins, threads),
        Op::AttentionGrad(op) => attention::backward(op, ins, threads),
        Op::Conv(op) => windows::conv(op, ins, outs, threads),
        Op::Pad(op) => movement::pad(op, ins, outs),
        Op::Slice(op) => movement::slice(op, ins, outs),
        Op::SliceGrad(op) => movement::slice_grad(op, ins, outs),
        Op::Concat(op) => movement::concat(op, ins, outs),
        Op::Upsample(op) => movement::upsample(op, ins),
        Op::Iota(op) => movement::iota(op, outs),
        Op::MaxPool(op) => pool::max_pool(op, ins, outs, threads),
        Op::MaxPoolGrad(op) => pool::max_pool_grad(op, ins, outs, threads),
        Op::AvgPool(op) => pool::avg_pool(op, ins, outs, threads),
        Op::AvgPoolGrad(op) => pool::avg_pool_grad(op, ins, outs, threads),
        Op::AdaptiveAvgPool(_) => pool::adaptive_avg_pool(ins, outs),
        Op::AdaptiveAvgPoolGrad(_) => pool::adaptive_avg_pool_grad(ins, outs),
        Op::Bilinear(op) => pool::bilinear(op, ins, outs, threads),
        Op::BilinearGrad(op) => pool::bilinear_grad(op, ins, outs, threads),
        Op::Gather(_) => index::gather(ins),
        Op::ScatterAdd(op) => index::scatter_add(op, ins, outs),
        Op::Take(_) => index::take(ins),
        Op::TakeGrad(_) => index::spread(1, ins, outs),
        Op::TopKGrad(_) => index::spread(*ins[0].shape.last().unwrap_or(&1), ins, outs),
        Op::Cumsum(op) => scan::cumsum(op, ins),
        Op::Argmax(op) => scan::argmax(op, ins),
        Op::TopK(op) => scan::top_k(op, ins, threads),
        Op::Dropout(op) => random::dropout(op, ins),
        Op::Lstm(_) => recurrent::lstm(ins),
        Op::LstmGrad(_) => recurrent::lstm_grad(ins),
        Op::Gru(_) => recurrent::gru(ins),
        Op::GruGrad(_) => recurrent::gru_grad(ins),
        Op::Array(op) => Some(array::array(op, ins, outs, threads, kernels)),
        Op::Exchange(op) => Some(exchange::exchange(op)),
        Op::SendReceive(op) => match op.bind(&Bindings::new()) {
            Ok(Some(Op::Exchange(op))) => Some(exchange::exchange(&op)),
            _ => None,
        },
        Op::Collect(_) => all_f32(ins).then(partials::collect),
        Op::SumOnto(_) => all_f32(ins).then(partials::sum_onto),
        Op::Custom(op) => kernels.lower(op, ins, outs, threads),
    };
    fast.unwrap_or_else(|| reference::reference(op, ins, outs))
}

/// The kernel for a node of a graph, for these sizes.
pub fn lower_node(
    graph: &Graph,
    node: &Node,
    sizes: &Bindings,
    threads: usize,
    kernels: &Kernels,
) -> Result<Lowered, DimError> {
    let bind = |v: &Value| -> Result<TensorType, DimError> {
        let ty = graph.ty(*v);
        Ok(TensorType { dtype: ty.dtype, shape: ty.bind(sizes)? })
    };
    let ins = node.ins.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
    let outs = node.outs.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
    let bound = node.op.def().bind(sizes)?;
    Ok(lower(bound.as_ref().unwrap_or(&node.op), &ins, &outs, threads, kernels))
}
