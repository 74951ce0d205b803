//! Element-wise functions of one value: the operator, and the table of functions.

use super::map_grad::MapGrad;
use super::sample::{Sample, SampleInput};
use super::special::erf;
use super::{Backward, OpDef, OpError, OpName, check};
use crate::graph::build::Builder;
use crate::graph::{GraphError, Type, Value};
use crate::spec::{Spec, expand_ellipsis};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// `y = f(x)`, element by element.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Map(pub Function);

/// A differentiable function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // each is the function of its name; `Function::help` says it in words
pub enum Function {
    Neg,
    Abs,
    Square,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Exp,
    Log,
    Erf,
    Tanh,
    Sigmoid,
    Softplus,
    Relu,
    LeakyRelu { slope: f32 },
    Elu { alpha: f32 },
    Gelu,
    GeluTanh,
    Silu,
    HardSwish,
    HardSigmoid,
    Clamp { low: f32, high: f32 },
    Pow { exponent: f32 },
    Affine { scale: f32, shift: f32 },
}

/// √(2/π), the factor of the tanh form of gelu.
pub const GELU_SCALE: f64 = 0.797_884_560_802_865_4;
/// The cubic coefficient of the tanh form of gelu.
pub const GELU_CUBIC: f64 = 0.044715;

impl Function {
    /// One of each, with ordinary parameters.
    pub const ALL: [Function; 23] = [
        Function::Neg,
        Function::Abs,
        Function::Square,
        Function::Sqrt,
        Function::Rsqrt,
        Function::Reciprocal,
        Function::Exp,
        Function::Log,
        Function::Erf,
        Function::Tanh,
        Function::Sigmoid,
        Function::Softplus,
        Function::Relu,
        Function::LeakyRelu { slope: 0.01 },
        Function::Elu { alpha: 1.0 },
        Function::Gelu,
        Function::GeluTanh,
        Function::Silu,
        Function::HardSwish,
        Function::HardSigmoid,
        Function::Clamp { low: -0.5, high: 0.75 },
        Function::Pow { exponent: 1.5 },
        Function::Affine { scale: 1.5, shift: 0.25 },
    ];

    /// The function's name.
    pub fn name(self) -> &'static str {
        match self {
            Function::Neg => "neg",
            Function::Abs => "abs",
            Function::Square => "square",
            Function::Sqrt => "sqrt",
            Function::Rsqrt => "rsqrt",
            Function::Reciprocal => "reciprocal",
            Function::Exp => "exp",
            Function::Log => "log",
            Function::Erf => "erf",
            Function::Tanh => "tanh",
            Function::Sigmoid => "sigmoid",
            Function::Softplus => "softplus",
            Function::Relu => "relu",
            Function::LeakyRelu { .. } => "leaky_relu",
            Function::Elu { .. } => "elu",
            Function::Gelu => "gelu",
            Function::GeluTanh => "gelu_tanh",
            Function::Silu => "silu",
            Function::HardSwish => "hard_swish",
            Function::HardSigmoid => "hard_sigmoid",
            Function::Clamp { .. } => "clamp",
            Function::Pow { .. } => "pow",
            Function::Affine { .. } => "affine",
        }
    }

    /// The value.
    pub fn eval(self, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match self {
            Function::Neg => -x,
            Function::Abs => x.abs(),
            Function::Square => x * x,
            Function::Sqrt => x.sqrt(),
            Function::Rsqrt => 1.0 / x.sqrt(),
            Function::Reciprocal => 1.0 / x,
            Function::Exp => x.exp(),
            Function::Log => x.ln(),
            Function::Erf => erf(x),
            Function::Tanh => x.tanh(),
            Function::Sigmoid => sigmoid(x),
            Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Function::Relu => x.max(0.0),
            Function::LeakyRelu { slope } => {
                if x > 0.0 {
                    x
                } else {
                    x * f64::from(slope)
                }
            }
            Function::Elu { alpha } => {
                if x > 0.0 {
                    x
                } else {
                    f64::from(alpha) * x.exp_m1()
                }
            }
            Function::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
            Function::GeluTanh => 0.5 * x * (1.0 + (GELU_SCALE * (x + GELU_CUBIC * x * x * x)).tanh()),
            Function::Silu => x * sigmoid(x),
            Function::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
            Function::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
            Function::Clamp { low, high } => x.max(f64::from(low)).min(f64::from(high)),
            Function::Pow { exponent } => x.powf(f64::from(exponent)),
            Function::Affine { scale, shift } => f64::from(scale) * x + f64::from(shift),
        }
    }

    /// Whether the derivative is computed from the result instead of the argument, which need then not
    /// be kept.
    pub fn derivative_of_result(self) -> bool {
        match self {
            Function::Sqrt
            | Function::Rsqrt
            | Function::Reciprocal
            | Function::Exp
            | Function::Tanh
            | Function::Sigmoid
            | Function::Relu => true,
            Function::LeakyRelu { slope } => slope > 0.0,
            Function::Elu { alpha } => alpha > 0.0,
            _ => false,
        }
    }

    /// The derivative, of the argument `v`, or of the result `v` where [`Self::derivative_of_result`].
    pub fn derivative(self, v: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let step = |inside: bool| if inside { 1.0 } else { 0.0 };
        match self {
            Function::Neg => -1.0,
            Function::Abs => {
                if v > 0.0 {
                    1.0
                } else if v < 0.0 {
                    -1.0
                } else {
                    0.0
                }
            }
            Function::Square => 2.0 * v,
            Function::Sqrt => 0.5 / v,
            Function::Rsqrt => -0.5 * v * v * v,
            Function::Reciprocal => -v * v,
            Function::Exp => v,
            Function::Log => 1.0 / v,
            Function::Erf => std::f64::consts::FRAC_2_SQRT_PI * (-v * v).exp(),
            Function::Tanh => 1.0 - v * v,
            Function::Sigmoid => v * (1.0 - v),
            Function::Softplus => sigmoid(v),
            Function::Relu => step(v > 0.0),
            Function::LeakyRelu { slope } => {
                if v > 0.0 {
                    1.0
                } else {
                    f64::from(slope)
                }
            }
            Function::Elu { alpha } if self.derivative_of_result() => {
                if v > 0.0 {
                    1.0
                } else {
                    v + f64::from(alpha)
                }
            }
            Function::Elu { alpha } => {
                if v > 0.0 {
                    1.0
                } else {
                    f64::from(alpha) * v.exp()
                }
            }
            Function::Gelu => {
                let density = (-0.5 * v * v).exp()
                    * 0.5
                    * std::f64::consts::FRAC_2_SQRT_PI
                    * std::f64::consts::FRAC_1_SQRT_2;
                0.5 * (1.0 + erf(v / std::f64::consts::SQRT_2)) + v * density
            }
            Function::GeluTanh => {
                let t = (GELU_SCALE * (v + GELU_CUBIC * v * v * v)).tanh();
                0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * v * v)
            }
            Function::Silu => sigmoid(v) * (1.0 + v * (1.0 - sigmoid(v))),
            Function::HardSwish => {
                if v <= -3.0 {
                    0.0
                } else if v >= 3.0 {
                    1.0
                } else {
                    (2.0 * v + 3.0) / 6.0
                }
            }
            Function::HardSigmoid => {
                if v > -3.0 && v < 3.0 {
                    1.0 / 6.0
                } else {
                    0.0
                }
            }
            Function::Clamp { low, high } => step(v >= f64::from(low) && v <= f64::from(high)),
            Function::Pow { exponent } => f64::from(exponent) * v.powf(f64::from(exponent) - 1.0),
            Function::Affine { scale, .. } => f64::from(scale),
        }
    }

    /// A range of arguments in which the function is defined and differentiable almost everywhere.
    pub fn domain(self) -> (f64, f64) {
        match self {
            Function::Sqrt
            | Function::Rsqrt
            | Function::Reciprocal
            | Function::Log
            | Function::Pow { .. } => (0.2, 3.0),
            _ => (-4.0, 4.0),
        }
    }
}

impl OpName for Map {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn help(&self) -> &'static str {
        "element-wise function of one value"
    }
}

impl OpDef for Map {
    fn spec(&self, ins: &[Type]) -> Result<Spec, OpError> {
        check(ins, 1, &[])?;
        Ok(expand_ellipsis("... -> ...", ins[0].rank()).parse()?)
    }

    fn grad(&self, g: &mut Builder, at: &Backward) -> Result<Vec<Option<Value>>, GraphError> {
        let saved = if self.0.derivative_of_result() { at.outs[0] } else { at.ins[0] };
        Ok(vec![Some(g.push1(MapGrad(self.0), &[saved, at.dout()?])?)])
    }

    fn eval(&self, ins: &[&Tensor], outs: &mut [Tensor]) {
        for (y, x) in outs[0].data.iter_mut().zip(&ins[0].data) {
            *y = self.0.eval(*x);
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn samples() -> Vec<Sample> {
        let sample = |f: &Function| {
            let (low, high) = f.domain();
            Sample::new(Map(*f), vec![SampleInput::uniform(&[3, 37], low, high)])
        };
        Function::ALL.iter().map(sample).collect()
    }
}
