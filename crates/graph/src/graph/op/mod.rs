//! Operators. Each is described once, in its own file, and has one row in the table at the end. The rest of the program
//! derives from [`OpDef`] what it knows of operators.

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

/// The name of an operator. The table below implements it for operators with one name.
pub trait OpName {
    /// The name in graph text and messages.
    fn name(&self) -> &'static str;

    /// One line for `gulliver ops`.
    fn help(&self) -> &'static str;
}

/// The definition of an operator.
pub trait OpDef: OpName {
    /// Words that tell kernels of different speed apart, the most telling first; see [`crate::work`].
    fn family(&self) -> String {
        self.name().to_string()
    }

    /// How each output element reads the inputs. Checks attributes, number, types and ranks of the
    /// inputs; the spec itself checks their extents.
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError>;

    /// Element types of the outputs; that of the first input unless the operator says otherwise.
    fn dtypes(&self, ins: &[Type], outputs: usize) -> Vec<DType> {
        vec![ins.first().map_or(DType::F32, |t| t.dtype); outputs]
    }

    /// Number of outputs that are results; the ones after them exist only for the backward pass and have no
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

/// The operands of a gradient.
pub struct Backward<'a> {
    /// The forward node's inputs.
    pub ins: &'a [Value],
    /// The forward node's outputs.
    pub outs: &'a [Value],
    /// The gradient of the loss by each output, where there is one.
    pub douts: &'a [Option<Value>],
    /// Whether each input needs a gradient.
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
        /// The input.
        input: usize,
        /// The type that the operator takes.
        expected: &'static str,
        /// The type of the input.
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
    ($($module:ident::$name:ident $(=> $help:literal)?),* $(,)?) => {
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

        $($(impl OpName for $module::$name {
            fn name(&self) -> &'static str {
                stringify!($module)
            }

            fn help(&self) -> &'static str {
                $help
            }
        })?)*

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
    contract::Contract =>
        "sum of products of two operands over named axes: matmul, batched, transposed, einsum",
    map::Map,
    map_grad::MapGrad => "gradient of an element-wise function",
    zip::Zip,
    select::Select,
    cast::Cast => "the same numbers as another element type",
    reduce::Reduce,
    elementwise::Elementwise => "several element-wise operators, and reductions of their results, in one pass",
    softmax::Softmax => "exponentials along an axis, scaled to sum to one",
    softmax_grad::SoftmaxGrad => "gradient of softmax",
    log_softmax::LogSoftmax => "logarithm of softmax along an axis",
    log_softmax_grad::LogSoftmaxGrad => "gradient of log_softmax",
    layer_norm::LayerNorm => "normalisation over the last dimensions, with gain and bias",
    layer_norm_grad::LayerNormGrad => "gradient of layer_norm",
    rms_norm::RmsNorm => "normalisation by the root mean square of the last dimension, with gain",
    rms_norm_grad::RmsNormGrad => "gradient of rms_norm",
    group_norm::GroupNorm => "normalisation over groups of channels and all positions, with gain and bias",
    group_norm_grad::GroupNormGrad => "gradient of group_norm",
    batch_norm::BatchNorm =>
        "normalisation of each channel over the batch and all positions, with gain and bias",
    batch_norm_grad::BatchNormGrad => "gradient of batch_norm",
    cross_entropy::CrossEntropy => "negative log probability of each row's class, from logits",
    cross_entropy_grad::CrossEntropyGrad => "gradient of cross_entropy",
    attention::Attention => "scaled dot-product attention, causal or not, with an optional key mask",
    attention_grad::AttentionGrad => "gradient of attention",
    lstm::Lstm => "an LSTM layer over a whole sequence, input products given",
    lstm_grad::LstmGrad => "gradient of lstm, except by its recurrent weight",
    gru::Gru => "a GRU layer over a whole sequence, input products given",
    gru_grad::GruGrad => "gradient of gru, except by its recurrent weight",
    update_sgd::UpdateSgd => "stochastic gradient descent, with momentum and nesterov",
    update_adam::UpdateAdam => "Adam, or AdamW when the weight decay is decoupled",
    update_adadelta::UpdateAdadelta => "Adadelta: step sizes from the history of steps and gradients",
    update_adagrad::UpdateAdagrad => "Adagrad: divides by the root of the sum of squared gradients",
    update_rmsprop::UpdateRmsprop => "RMSprop, centered or not, with momentum or not",
    update_lion::UpdateLion => "Lion: steps of one size in the direction of a momentum's sign",
    reshape::Reshape => "the same elements under another shape",
    transpose::Transpose => "dimensions in another order",
    expand::Expand => "repeats dimensions of extent one up to a shape",
    fill::Fill => "a value full of one number",
    size::Size => "an extent as a number",
    conv::Conv,
    max_pool::MaxPool => "largest element of each sliding window",
    max_pool_grad::MaxPoolGrad => "gradient of max pooling",
    avg_pool::AvgPool => "sum of each sliding window over a divisor",
    avg_pool_grad::AvgPoolGrad => "gradient of average pooling",
    adaptive_avg_pool::AdaptiveAvgPool => "average pooling to given extents",
    adaptive_avg_pool_grad::AdaptiveAvgPoolGrad => "gradient of adaptive average pooling",
    upsample::Upsample => "repeats every element along the spatial dimensions",
    bilinear::Bilinear => "bilinear upsampling of images by whole factors",
    bilinear_grad::BilinearGrad => "gradient of bilinear upsampling",
    pad::Pad => "a constant around a value, or less of it",
    slice::Slice => "a range of elements along one dimension",
    slice_grad::SliceGrad => "gradient of a slice: its elements in zeros",
    concat::Concat => "values one after another along a dimension",
    gather::Gather => "rows of a table by index",
    scatter_add::ScatterAdd => "adds rows into a table by index",
    take::Take => "one element of each row by index",
    take_grad::TakeGrad => "gradient of taking one element of each row",
    cumsum::Cumsum => "cumulative sum along a dimension",
    argmax::Argmax => "index of the largest element along a dimension",
    top_k::TopK => "largest elements of each row and their indices",
    top_k_grad::TopKGrad => "gradient of the largest elements of each row",
    iota::Iota => "0, 1, 2… along a dimension",
    dropout::Dropout => "drops elements at random and scales the others up",
    array::Array => "an operator done once for every member of an array",
    exchange::Exchange => "boxes of several ranks' operands, put together or added up",
    send_receive::SendReceive => "hands all of a value from one rank to another",
    collect::Collect => "a row of every partial, one below the other",
    sum_onto::SumOnto => "a value of every partial added in order to a sum",
    custom::Custom,
}
