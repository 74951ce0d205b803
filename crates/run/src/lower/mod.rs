//! The table from operators with concrete shapes to kernels and their scratch memory. Operators without a row run on
//! their reference kernel, which the report of the plan mentions.

mod array;
mod attention;
mod broadcast;
pub mod call;
mod channel_norm;
mod contract;
mod custom;
mod divide;
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

/// Why a kernel failed: because of the data or another device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// An index out of range.
    #[error("index {index} at position {position} is not below {bound}")]
    Index {
        /// The index.
        index: i64,
        /// Its position in the tensor.
        position: usize,
        /// Its exclusive upper bound.
        bound: usize,
    },
    /// Another device was lost.
    #[error(transparent)]
    PeerLost(PeerLost),
}

/// A kernel with concrete shapes.
pub type Run = Box<dyn Fn(&mut Call<'_>) -> Result<(), KernelError> + Send + Sync>;

/// A kernel and its scratch memory.
pub struct Lowered {
    /// Runs it.
    pub run: Run,
    /// Bytes of scratch memory.
    pub scratch: u64,
    /// Whether it is the reference kernel, because there is no fast one.
    pub reference: bool,
}

impl Lowered {
    /// A kernel that may fail, without scratch.
    pub fn fallible(
        run: impl Fn(&mut Call<'_>) -> Result<(), KernelError> + Send + Sync + 'static,
    ) -> Lowered {
        Lowered { run: Box::new(run), scratch: 0, reference: false }
    }

    /// A kernel that cannot fail, without scratch.
    pub fn plain(run: impl Fn(&mut Call<'_>) + Send + Sync + 'static) -> Lowered {
        Lowered::with_scratch(0, run)
    }

    /// An element-wise function of one f32 operand, for custom operators.
    pub fn map(f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Lowered {
        Lowered::plain(move |call| {
            let x = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
            let y = call.output::<f32>(0);
            if let Some(x) = x {
                y.copy_from_slice(x);
            }
            y.iter_mut().for_each(|y| *y = f(*y));
        })
    }

    /// A kernel that cannot fail, with this many floats of scratch.
    pub fn with_scratch(floats: usize, run: impl Fn(&mut Call<'_>) + Send + Sync + 'static) -> Lowered {
        let run = move |call: &mut Call<'_>| {
            run(call);
            Ok(())
        };
        Lowered { scratch: (floats * size_of::<f32>()) as u64, ..Lowered::fallible(run) }
    }
}

/// Whether all are f32, the only float type of the fast kernels.
fn all_f32(types: &[TensorType]) -> bool {
    types.iter().all(|t| t.dtype == DType::F32)
}

/// The kernel for an operator with bound sizes; `kernels` has those of custom operators.
pub fn lower(op: &Op, ins: &[TensorType], outs: &[TensorType], threads: usize, kernels: &Kernels) -> Lowered {
    // Most fast kernels read f32 only.
    let f32s = all_f32(ins);
    let fast = match op {
        Op::Contract(op) => Some(contract::contract(op, ins, outs, threads)),
        Op::Map(_) | Op::MapGrad(_) | Op::Zip(_) | Op::Select(_) | Op::Cast(_) => {
            elementwise::single(op, ins, outs, threads)
        }
        Op::Elementwise(op) => elementwise::fused(op, ins, outs, threads),
        Op::Reduce(op) => reduce::reduce(op, ins),
        Op::Transpose(op) => Some(movement::transpose(op, ins)),
        Op::Reshape(_) => Some(movement::reshape(ins)),
        Op::Expand(_) => Some(movement::expand(ins, outs)),
        Op::Fill(op) => Some(movement::fill(op.value)),
        Op::Size(op) => op.of.as_const().map(|c| movement::fill(c as f32)),
        Op::Softmax(op) => f32s.then(|| softmax::softmax(op.axis, ins)),
        Op::SoftmaxGrad(op) => f32s.then(|| softmax::softmax_grad(op.axis, ins)),
        Op::LogSoftmax(op) => f32s.then(|| softmax::log_softmax(op.axis, ins)),
        Op::LogSoftmaxGrad(op) => f32s.then(|| softmax::log_softmax_grad(op.axis, ins)),
        Op::LayerNorm(op) => f32s.then(|| normalize::layer_norm(op, ins)),
        Op::LayerNormGrad(_) => f32s.then(|| normalize::layer_norm_grad(ins)),
        Op::RmsNorm(op) => f32s.then(|| normalize::rms_norm(op, ins)),
        Op::RmsNormGrad(_) => f32s.then(|| normalize::rms_norm_grad(ins)),
        Op::GroupNorm(op) => f32s.then(|| channel_norm::group_norm(op, ins)),
        Op::GroupNormGrad(op) => f32s.then(|| channel_norm::group_norm_grad(op, ins)),
        Op::BatchNorm(op) => f32s.then(|| channel_norm::batch_norm(op, ins)),
        Op::BatchNormGrad(op) => f32s.then(|| channel_norm::batch_norm_grad(op, ins)),
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
        Op::Conv(op) => f32s.then(|| windows::conv(op, ins, outs, threads)).flatten(),
        Op::Pad(op) => f32s.then(|| movement::pad(op, ins, outs)),
        Op::Slice(op) => Some(movement::slice(op, ins, outs)),
        Op::SliceGrad(op) => f32s.then(|| movement::slice_grad(op, ins, outs)),
        Op::Concat(op) => Some(movement::concat(op, ins, outs)),
        Op::Upsample(op) => Some(movement::upsample(op, ins)),
        Op::Iota(op) => movement::iota(op, outs),
        Op::MaxPool(op) => f32s.then(|| pool::max_pool(op, ins, outs, threads)),
        Op::MaxPoolGrad(op) => f32s.then(|| pool::max_pool_grad(op, ins, outs, threads)),
        Op::AvgPool(op) => f32s.then(|| pool::avg_pool(op, ins, outs, threads)),
        Op::AvgPoolGrad(op) => f32s.then(|| pool::avg_pool_grad(op, ins, outs, threads)),
        Op::AdaptiveAvgPool(_) => f32s.then(|| pool::adaptive_avg_pool(ins, outs)),
        Op::AdaptiveAvgPoolGrad(_) => f32s.then(|| pool::adaptive_avg_pool_grad(ins, outs)),
        Op::Bilinear(op) => f32s.then(|| pool::bilinear(op, ins, outs, threads)),
        Op::BilinearGrad(op) => f32s.then(|| pool::bilinear_grad(op, ins, outs, threads)),
        Op::Gather(_) => index::gather(ins),
        Op::ScatterAdd(op) => index::scatter_add(op, ins, outs),
        Op::Take(_) => index::take(ins),
        Op::TakeGrad(_) => index::spread(1, ins, outs),
        Op::TopKGrad(_) => index::spread(*ins[0].shape.last().unwrap_or(&1), ins, outs),
        Op::Cumsum(op) => f32s.then(|| scan::cumsum(op, ins)),
        Op::Argmax(op) => f32s.then(|| scan::argmax(op, ins)),
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
        Op::Collect(_) => f32s.then(partials::collect),
        Op::SumOnto(_) => f32s.then(partials::sum_onto),
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
