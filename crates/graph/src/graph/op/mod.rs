//! Operators. Each is described once, in its own file, and has one row in the table below; whatever
//! else the program knows of operators is derived from [`OpDef`].

pub mod moments;
pub(crate) mod pool;
pub mod product;
pub mod sample;
pub mod special;
pub mod update;
pub mod window;

use crate::dim::{Bindings, Dim, DimError};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Part, Spec, SpecError};
use crate::tensor::Tensor;
use sample::Sample;
use serde::{Deserialize, Serialize};

/// What the rest of the system may ask of an operator.
pub trait OpDef {
    /// The name in graph text and messages.
    fn name(&self) -> &'static str;

    /// One line for `gulliver ops`.
    fn help(&self) -> &'static str;

    /// Words that tell kernels of different speed apart, the most telling first; see [`crate::work`].
    fn family(&self) -> String {
        self.name().to_string()
    }

    /// How each output element reads the inputs. Checks attributes, number, types and ranks of the
    /// inputs; whether their extents agree is the spec's own business.
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError>;

    /// Element types of the outputs; that of the first input unless the operator says otherwise.
    fn dtypes(&self, ins: &[Type], outputs: usize) -> Vec<DType> {
        vec![ins.first().map_or(DType::F32, |t| t.dtype); outputs]
    }

    /// How many outputs are results; the ones after them exist only for the backward pass and have no
    /// gradient of their own.
    fn results(&self) -> usize {
        usize::MAX
    }

    /// Adds backward nodes; one gradient per input, `None` where there is none.
    fn grad(&self, _g: &mut Builder, _at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        Err(GraphError::NotDifferentiable(self.name()))
    }

    /// This operator with the sizes of one input put into its attributes, where its results depend on
    /// them by more than its operands' shapes.
    fn bind(&self, _sizes: &Bindings) -> Result<Option<Op>, DimError> {
        Ok(None)
    }

    /// Whether concrete shapes fit, where symbolic ones could not tell; the message names the mismatch.
    fn fits(&self, _ins: &[&[usize]], _outs: &[&[usize]]) -> Result<(), String> {
        Ok(())
    }

    /// The reference kernel: plain loops. Outputs come with their shapes, filled with zeros.
    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]);

    /// Floating-point operations per point of the spec's loop nest.
    fn flops_per_point(&self) -> u64 {
        1
    }

    /// The operator that does one part of a cut, where it is not this very one.
    fn part(&self, _part: &Part) -> Option<Op> {
        None
    }

    /// Whether the output is the first input's bytes under another shape, so that no work is needed
    /// where both can share a buffer.
    fn is_view(&self) -> bool {
        false
    }

    /// Pairs (input, output) that may share one buffer: each element is read before it is written, and
    /// no other element is read after. Holds where both have the same type; broadcast operands are not shared.
    fn in_place(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// Whether it is a collective with ranks that run graphs of their own. It then runs exactly once per partial, and
    /// all ranks must run their collectives in one order, or they would deadlock.
    fn meets(&self) -> bool {
        false
    }

    /// The number of the collective, and its ranks.
    fn collective(&self) -> Option<(u32, Vec<u32>)> {
        None
    }

    /// Whether an update reads this operand as every partial has made it, one after the other, instead of
    /// their sum.
    fn each_partial(&self, _input: usize) -> bool {
        false
    }

    /// Small cases for the tests that loop over the table.
    fn samples() -> Vec<Sample>
    where
        Self: Sized;
}

impl Op {
    /// Types of the results for operands of these types.
    pub fn result_types(&self, ins: &[Type]) -> Result<Vec<Type>, OpError> {
        let shapes: Vec<&[Dim]> = ins.iter().map(|t| t.shape.as_slice()).collect();
        let shapes = self.def().spec(ins)?.infer(&shapes)?;
        let dtypes = self.def().dtypes(ins, shapes.len());
        Ok(shapes.into_iter().zip(dtypes).map(|(shape, dtype)| Type { dtype, shape }).collect())
    }
}

/// What an operator's gradient is built from.
pub struct Backward<'a> {
    /// The forward node's inputs.
    pub ins: &'a [Value],
    /// The forward node's outputs.
    pub outs: &'a [Value],
    /// The gradient of the loss by each output, where there is one.
    pub douts: &'a [Option<Value>],
    /// Which inputs need a gradient; work for others would be wasted.
    pub wants: &'a [bool],
}

impl Backward<'_> {
    /// The gradient of the first output; a node is only asked when some output has one.
    pub fn dout(&self) -> Result<Value, GraphError> {
        self.douts[0].ok_or(GraphError::NotDifferentiable("an output other than the first"))
    }
}

/// Why an operator cannot be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    /// Shapes disagree with the spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Wrong element type.
    #[error("input {input} is {got}, expected {expected}")]
    DType {
        /// Which input.
        input: usize,
        /// What the operator takes.
        expected: &'static str,
        /// What it was given.
        got: DType,
    },
    /// The operator's own settings make no sense here.
    #[error("{0}")]
    Attribute(String),
}

/// An attribute error with a message.
pub fn attribute<T>(message: impl Into<String>) -> Result<T, OpError> {
    Err(OpError::Attribute(message.into()))
}

/// Checks the number of inputs and that all are float, save those listed with what they must be.
pub fn check(ins: &[Type], count: usize, others: &[(usize, &[DType])]) -> Result<(), OpError> {
    if ins.len() != count {
        return Err(SpecError::Arity { expected: count, got: ins.len() }.into());
    }
    for (input, ty) in ins.iter().enumerate() {
        let other = others.iter().find(|(i, _)| *i == input);
        let fine = match other {
            Some((_, allowed)) => allowed.contains(&ty.dtype),
            None => ty.dtype.is_float(),
        };
        if !fine {
            let expected = match other {
                None => "a float type",
                Some((_, d)) if d.contains(&DType::I64) => "an integer type",
                Some(_) => "bool or u8",
            };
            return Err(OpError::DType { input, expected, got: ty.dtype });
        }
    }
    Ok(())
}

/// Element types of indices and labels.
pub const INTEGER: &[DType] = &[DType::I64, DType::I32, DType::U8];
/// Element types of masks.
pub const MASK: &[DType] = &[DType::Bool, DType::U8];

macro_rules! operators {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(pub mod $module;)*

        /// Any operator. The only place where all of them are listed is the table that makes this.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Op {
            $(#[doc = concat!("See [`", stringify!($module), "`](mod@", stringify!($module), ").")] $name($module::$name),)*
        }

        $(impl From<$module::$name> for Op {
            fn from(op: $module::$name) -> Op {
                Op::$name(op)
            }
        })*

        impl Op {
            /// The operator's definition.
            pub fn def(&self) -> &dyn OpDef {
                match self {
                    $(Op::$name(op) => op,)*
                }
            }

            /// The small cases of every operator, for tests that loop over the table.
            pub fn samples() -> Vec<Sample> {
                let mut all = Vec::new();
                $(all.extend($module::$name::samples());)*
                all
            }
        }
    };
}

operators! {
    contract::Contract,
    map::Map,
    map_grad::MapGrad,
    zip::Zip,
    select::Select,
    cast::Cast,
    reduce::Reduce,
    elementwise::Elementwise,
    softmax::Softmax,
    softmax_grad::SoftmaxGrad,
    log_softmax::LogSoftmax,
    log_softmax_grad::LogSoftmaxGrad,
    layer_norm::LayerNorm,
    layer_norm_grad::LayerNormGrad,
    rms_norm::RmsNorm,
    rms_norm_grad::RmsNormGrad,
    group_norm::GroupNorm,
    group_norm_grad::GroupNormGrad,
    batch_norm::BatchNorm,
    batch_norm_grad::BatchNormGrad,
    cross_entropy::CrossEntropy,
    cross_entropy_grad::CrossEntropyGrad,
    attention::Attention,
    attention_grad::AttentionGrad,
    lstm::Lstm,
    lstm_grad::LstmGrad,
    gru::Gru,
    gru_grad::GruGrad,
    update_sgd::UpdateSgd,
    update_adam::UpdateAdam,
    update_adadelta::UpdateAdadelta,
    update_adagrad::UpdateAdagrad,
    update_rmsprop::UpdateRmsprop,
    update_lion::UpdateLion,
    reshape::Reshape,
    transpose::Transpose,
    expand::Expand,
    fill::Fill,
    size::Size,
    conv::Conv,
    max_pool::MaxPool,
    max_pool_grad::MaxPoolGrad,
    avg_pool::AvgPool,
    avg_pool_grad::AvgPoolGrad,
    adaptive_avg_pool::AdaptiveAvgPool,
    adaptive_avg_pool_grad::AdaptiveAvgPoolGrad,
    upsample::Upsample,
    bilinear::Bilinear,
    bilinear_grad::BilinearGrad,
    pad::Pad,
    slice::Slice,
    slice_grad::SliceGrad,
    concat::Concat,
    gather::Gather,
    scatter_add::ScatterAdd,
    take::Take,
    take_grad::TakeGrad,
    cumsum::Cumsum,
    argmax::Argmax,
    top_k::TopK,
    top_k_grad::TopKGrad,
    iota::Iota,
    dropout::Dropout,
    array::Array,
    exchange::Exchange,
    send_receive::SendReceive,
    collect::Collect,
    sum_onto::SumOnto,
    custom::Custom,
}
