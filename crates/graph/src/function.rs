//! Short names for building graphs: arithmetic, activations, reductions and reshaping as methods of
//! [`Builder`]. Each is one operator or a few; layers with weights are in [`crate::layer`].

use crate::dim::{Dim, product};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::op::cast::Cast;
use crate::graph::op::contract::Contract;
use crate::graph::op::dropout::Dropout;
use crate::graph::op::expand::Expand;
use crate::graph::op::fill::Fill;
use crate::graph::op::map::{Function, Map};
use crate::graph::op::reduce::Reduce;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::select::Select;
use crate::graph::op::size::Size;
use crate::graph::op::transpose::Transpose;
use crate::graph::op::zip::{Binary, Zip};
use crate::graph::{GraphError, Value};
use crate::spec::ReduceKind;

type Built = Result<Value, GraphError>;

macro_rules! unary {
    ($($name:ident => $function:expr, $doc:literal;)*) => {
        impl Builder {
            $(#[doc = $doc] pub fn $name(&mut self, x: Value) -> Built { self.map($function, x) })*
        }
    };
}

unary! {
    neg => Function::Neg, "`-x`.";
    abs => Function::Abs, "`|x|`.";
    square => Function::Square, "`x²`.";
    sqrt => Function::Sqrt, "`√x`.";
    rsqrt => Function::Rsqrt, "`1/√x`.";
    exp => Function::Exp, "`eˣ`.";
    log => Function::Log, "The natural logarithm.";
    erf => Function::Erf, "The error function.";
    tanh => Function::Tanh, "The hyperbolic tangent.";
    sigmoid => Function::Sigmoid, "`1/(1+e⁻ˣ)`.";
    softplus => Function::Softplus, "`log(1+eˣ)`.";
    relu => Function::Relu, "`max(x, 0)`.";
    gelu => Function::Gelu, "`x·Φ(x)`.";
    gelu_tanh => Function::GeluTanh, "The tanh form of gelu.";
    silu => Function::Silu, "`x·sigmoid(x)`.";
    hard_swish => Function::HardSwish, "`x·clamp(x+3, 0, 6)/6`.";
    hard_sigmoid => Function::HardSigmoid, "`clamp(x+3, 0, 6)/6`.";
}

macro_rules! binary {
    ($($name:ident => $function:expr, $doc:literal;)*) => {
        impl Builder {
            $(#[doc = $doc] pub fn $name(&mut self, x: Value, y: Value) -> Built { self.push1(Zip($function), &[x, y]) })*
        }
    };
}

binary! {
    add => Binary::Add, "`x + y`, broadcast.";
    sub => Binary::Sub, "`x - y`, broadcast.";
    mul => Binary::Mul, "`x · y`, broadcast.";
    div => Binary::Div, "`x / y`, broadcast.";
    maximum => Binary::Max, "The larger of two values, broadcast.";
    minimum => Binary::Min, "The smaller of two values, broadcast.";
    equal => Binary::Equal, "`x = y`, as truth values.";
    not_equal => Binary::NotEqual, "`x ≠ y`, as truth values.";
    greater => Binary::Greater, "`x > y`, as truth values.";
}

impl Builder {
    /// An element-wise function.
    pub fn map(&mut self, f: Function, x: Value) -> Built {
        self.push1(Map(f), &[x])
    }

    /// `scale·x + shift`.
    pub fn affine(&mut self, x: Value, scale: f32, shift: f32) -> Built {
        self.map(Function::Affine { scale, shift }, x)
    }

    /// A constant number.
    pub fn scalar(&mut self, value: f32) -> Built {
        self.push1(Fill { value, shape: Vec::new() }, &[])
    }

    /// A constant of some shape.
    pub fn fill<D: Into<Dim> + Clone>(&mut self, value: f32, shape: &[D]) -> Built {
        self.push1(Fill { value, shape: dims(shape) }, &[])
    }

    /// An extent as a number.
    pub fn size(&mut self, of: Dim) -> Built {
        self.push1(Size { of }, &[])
    }

    /// Where the condition holds `yes`, elsewhere `no`; broadcast.
    pub fn select(&mut self, condition: Value, yes: Value, no: Value) -> Built {
        self.push1(Select {}, &[condition, yes, no])
    }

    /// As f32.
    pub fn cast_f32(&mut self, x: Value) -> Built {
        self.push1(Cast { to: DType::F32 }, &[x])
    }

    /// A contraction such as `m k, k n -> m n`.
    pub fn contract(&mut self, line: &str, a: Value, b: Value) -> Built {
        self.push1(Contract::new(line), &[a, b])
    }

    /// The same elements under another shape; nothing is added if it is the same.
    pub fn reshape<D: Into<Dim> + Clone>(&mut self, x: Value, shape: &[D]) -> Built {
        let shape = dims(shape);
        if self.shape(x) == shape { Ok(x) } else { self.push1(Reshape { shape }, &[x]) }
    }

    /// Dimensions in another order.
    pub fn transpose(&mut self, x: Value, order: &[usize]) -> Built {
        self.push1(Transpose { order: order.to_vec() }, &[x])
    }

    /// Repeats dimensions of extent one up to a shape; nothing is added if it is the same.
    pub fn expand<D: Into<Dim> + Clone>(&mut self, x: Value, shape: &[D]) -> Built {
        let shape = dims(shape);
        if self.shape(x) == shape { Ok(x) } else { self.push1(Expand { shape }, &[x]) }
    }

    /// Sums away what broadcasting `like` to the shape of `x` would repeat: the gradient of a broadcast.
    pub fn sum_to(&mut self, x: Value, like: Value) -> Built {
        let (from, to) = (self.shape(x).to_vec(), self.shape(like).to_vec());
        if from == to {
            return Ok(x);
        }
        if from.len() < to.len() {
            // A scalar gradient of a value that only ever met scalars.
            return self.expand(x, &to);
        }
        let skip = from.len() - to.len();
        let one = Dim::from(1);
        let repeated = |d: &usize| *d < skip || (to[d - skip] == one && from[*d] != one);
        let axes: Vec<usize> = (0..from.len()).filter(repeated).collect();
        let sum = if axes.is_empty() {
            x
        } else {
            self.push1(Reduce { kind: ReduceKind::Sum, axes, keep: true }, &[x])?
        };
        self.reshape(sum, &to)
    }

    /// Sum over axes.
    pub fn sum(&mut self, x: Value, axes: &[usize], keep: bool) -> Built {
        self.reduce(ReduceKind::Sum, x, axes, keep)
    }

    /// Largest element over axes.
    pub fn max(&mut self, x: Value, axes: &[usize], keep: bool) -> Built {
        self.reduce(ReduceKind::Max, x, axes, keep)
    }

    /// Smallest element over axes.
    pub fn min(&mut self, x: Value, axes: &[usize], keep: bool) -> Built {
        self.reduce(ReduceKind::Min, x, axes, keep)
    }

    fn reduce(&mut self, kind: ReduceKind, x: Value, axes: &[usize], keep: bool) -> Built {
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        self.push1(Reduce { kind, axes, keep }, &[x])
    }

    /// Drops elements at random with this probability while training; otherwise adds nothing.
    pub fn dropout(&mut self, x: Value, rate: f32) -> Built {
        if !self.training() || rate == 0.0 {
            return Ok(x);
        }
        let stream = self.stream();
        let random = self.random()?;
        self.push1(Dropout { rate, stream, frame: None }, &[x, random])
    }

    /// Mean over axes.
    pub fn mean(&mut self, x: Value, axes: &[usize], keep: bool) -> Built {
        let count = self.count(x, axes);
        let sum = self.sum(x, axes, keep)?;
        let n = self.size(count)?;
        self.div(sum, n)
    }

    /// Variance over axes; `correction` is subtracted from the count (1 for the unbiased one).
    pub fn variance(&mut self, x: Value, axes: &[usize], correction: i64, keep: bool) -> Built {
        let mean = self.mean(x, axes, true)?;
        let centered = self.sub(x, mean)?;
        let squares = self.square(centered)?;
        let sum = self.sum(squares, axes, keep)?;
        let count = self.count(x, axes) - correction;
        let n = self.size(count)?;
        self.div(sum, n)
    }

    /// Mean of all elements, a scalar.
    pub fn mean_all(&mut self, x: Value) -> Built {
        let axes: Vec<usize> = (0..self.rank(x)).collect();
        self.mean(x, &axes, false)
    }

    /// Sum of all elements, a scalar.
    pub fn sum_all(&mut self, x: Value) -> Built {
        let axes: Vec<usize> = (0..self.rank(x)).collect();
        self.sum(x, &axes, false)
    }

    fn count(&self, x: Value, axes: &[usize]) -> Dim {
        product(axes.iter().filter_map(|&a| self.shape(x).get(a)))
    }
}

fn dims<D: Into<Dim> + Clone>(shape: &[D]) -> Vec<Dim> {
    shape.iter().cloned().map(Into::into).collect()
}
