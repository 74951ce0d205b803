//! The loops of element-wise operators over runs of memory, one per function, compiled once per instruction set. The
//! caller pairs the elements; a result may overwrite an operand.

use crate::kernel::math;
use crate::team::isa::simd;
use gulliver_graph::graph::op::map::Function;
use gulliver_graph::graph::op::zip::Binary;

/// How a loop reads an operand.
#[derive(Clone, Copy, Debug)]
pub enum OperandView<'a, T> {
    /// Element by element.
    Run(&'a [T]),
    /// The same element for all.
    Scalar(T),
    /// From the memory of the result.
    InPlace,
}

simd! {
    /// `y = f(x)`.
    pub fn map(f: Function, x: OperandView<'_, f32>, y: &mut [f32]) = map_body;
    /// `dx = f'(v)·dy`; panics if an operand is a scalar.
    pub fn map_grad(f: Function, v: OperandView<'_, f32>, dy: OperandView<'_, f32>, dx: &mut [f32]) = map_grad_body;
    /// `z = f(x, y)`; not for comparisons.
    pub fn zip(f: Binary, x: OperandView<'_, f32>, y: OperandView<'_, f32>, z: &mut [f32]) = zip_body;
    /// `z` is 1 where the comparison holds and 0 elsewhere; panics if an operand is in place.
    pub fn compare(f: Binary, x: OperandView<'_, f32>, y: OperandView<'_, f32>, z: &mut [u8]) = compare_body::<f32>;
    /// As [`compare`].
    pub fn compare_integers(f: Binary, x: OperandView<'_, i64>, y: OperandView<'_, i64>, z: &mut [u8]) = compare_body::<i64>;
    /// `z = yes` where the condition is not zero, else `no`.
    pub fn select(condition: &[u8], yes: OperandView<'_, f32>, no: OperandView<'_, f32>, z: &mut [f32]) = select_body;
    /// Converts to floats.
    pub fn from_bytes(x: &[u8], y: &mut [f32]) = from_bytes_body;
    /// Converts to floats, rounded to nearest.
    pub fn from_i32(x: &[i32], y: &mut [f32]) = from_i32_body;
    /// Converts to floats, rounded to nearest.
    pub fn from_i64(x: &[i64], y: &mut [f32]) = from_i64_body;
}

#[inline(always)]
fn each(y: &mut [f32], f: impl Fn(f32) -> f32) {
    for v in y {
        *v = f(*v);
    }
}

/// The loop of one function.
#[inline(always)]
fn values(x: OperandView<'_, f32>, y: &mut [f32], f: impl Fn(f32) -> f32) {
    match x {
        OperandView::Run(x) => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f(x);
            }
        }
        OperandView::Scalar(x) => {
            y.fill(x);
            each(y, f);
        }
        OperandView::InPlace => each(y, f),
    }
}

#[inline(always)]
fn map_body(f: Function, x: OperandView<'_, f32>, y: &mut [f32]) {
    match f {
        Function::Neg => values(x, y, |x| -x),
        Function::Abs => values(x, y, f32::abs),
        Function::Square => values(x, y, |x| x * x),
        Function::Sqrt => values(x, y, f32::sqrt),
        Function::Rsqrt => values(x, y, math::rsqrt),
        Function::Reciprocal => values(x, y, |x| 1.0 / x),
        Function::Exp => values(x, y, math::exp),
        Function::Log => values(x, y, math::ln),
        Function::Erf => values(x, y, math::erf),
        Function::Tanh => values(x, y, math::tanh),
        Function::Sigmoid => values(x, y, math::sigmoid),
        Function::Softplus => values(x, y, math::softplus),
        // NaN passes, so that a diverging run is noticed. Both end with arithmetic, because a selected operand that is
        // its own result compiles to a slow masked store. Adding zero drops the sign of zero.
        Function::Relu => values(x, y, |x| (if x < 0.0 { 0.0 } else { x }) + 0.0),
        Function::LeakyRelu { slope } => values(x, y, |x| x * if x > 0.0 { 1.0 } else { slope }),
        Function::Elu { alpha } => values(x, y, |x| if x > 0.0 { x } else { alpha * (math::exp(x) - 1.0) }),
        Function::Gelu => values(x, y, math::gelu),
        Function::GeluTanh => values(x, y, math::gelu_tanh),
        Function::Silu => values(x, y, math::silu),
        Function::HardSwish => values(x, y, |x| x * clamp(x + 3.0, 0.0, 6.0) / 6.0),
        Function::HardSigmoid => values(x, y, |x| clamp(x + 3.0, 0.0, 6.0) / 6.0),
        Function::Clamp { low, high } => values(x, y, |x| clamp(x, low, high)),
        Function::Pow { exponent } => values(x, y, |x| power(x, exponent)),
        Function::Affine { scale, shift } => values(x, y, |x| x.mul_add(scale, shift)),
    }
}

#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// `x` to a power; for negative `x` only whole exponents have a value.
#[inline(always)]
fn power(x: f32, e: f32) -> f32 {
    let whole = e.trunc() == e;
    let odd = whole && (e * 0.5).trunc() != e * 0.5;
    let size = math::exp(e * math::ln(x.abs()));
    let value = if e == 0.0 || x == 1.0 { 1.0 } else { size };
    if x < 0.0 {
        if !whole {
            f32::NAN
        } else if odd {
            -value
        } else {
            value
        }
    } else {
        value
    }
}

/// The loop of one derivative `d`.
#[inline(always)]
fn slopes(v: OperandView<'_, f32>, dy: OperandView<'_, f32>, dx: &mut [f32], d: impl Fn(f32) -> f32) {
    match (v, dy) {
        (OperandView::Run(v), OperandView::Run(dy)) => {
            for ((dx, &v), &dy) in dx.iter_mut().zip(v).zip(dy) {
                *dx = dy * d(v);
            }
        }
        (OperandView::Run(v), OperandView::InPlace) => {
            for (dx, &v) in dx.iter_mut().zip(v) {
                *dx *= d(v);
            }
        }
        (OperandView::InPlace, OperandView::Run(dy)) => {
            for (dx, &dy) in dx.iter_mut().zip(dy) {
                *dx = dy * d(*dx);
            }
        }
        (OperandView::InPlace, OperandView::InPlace) => each(dx, |v| v * d(v)),
        (OperandView::Scalar(_), _) | (_, OperandView::Scalar(_)) => {
            unreachable!("operands of a derivative are runs")
        }
    }
}

#[inline(always)]
fn map_grad_body(f: Function, v: OperandView<'_, f32>, dy: OperandView<'_, f32>, dx: &mut [f32]) {
    let step = |inside: bool| if inside { 1.0 } else { 0.0 };
    match f {
        Function::Neg => slopes(v, dy, dx, |_| -1.0),
        Function::Abs => slopes(v, dy, dx, |v| step(v > 0.0) - step(v < 0.0)),
        Function::Square => slopes(v, dy, dx, |v| 2.0 * v),
        Function::Sqrt => slopes(v, dy, dx, |v| 0.5 / v),
        Function::Rsqrt => slopes(v, dy, dx, |v| -0.5 * v * v * v),
        Function::Reciprocal => slopes(v, dy, dx, |v| -v * v),
        Function::Exp => slopes(v, dy, dx, |v| v),
        Function::Log => slopes(v, dy, dx, |v| 1.0 / v),
        Function::Erf => {
            slopes(v, dy, dx, |v| std::f32::consts::FRAC_2_SQRT_PI * math::exp(-v * v));
        }
        Function::Tanh => slopes(v, dy, dx, |v| (-v).mul_add(v, 1.0)),
        Function::Sigmoid => slopes(v, dy, dx, |v| v * (1.0 - v)),
        Function::Softplus => slopes(v, dy, dx, math::sigmoid),
        Function::Relu => slopes(v, dy, dx, |v| step(v > 0.0)),
        Function::LeakyRelu { slope } => slopes(v, dy, dx, |v| if v > 0.0 { 1.0 } else { slope }),
        Function::Elu { alpha } if alpha > 0.0 => {
            slopes(v, dy, dx, |v| if v > 0.0 { 1.0 } else { v + alpha });
        }
        Function::Elu { alpha } => {
            slopes(v, dy, dx, |v| if v > 0.0 { 1.0 } else { alpha * math::exp(v) });
        }
        Function::Gelu => slopes(v, dy, dx, math::gelu_grad),
        Function::GeluTanh => slopes(v, dy, dx, math::gelu_tanh_grad),
        Function::Silu => slopes(v, dy, dx, math::silu_grad),
        Function::HardSwish => slopes(v, dy, dx, |v| {
            let inside = if v >= 3.0 { 1.0 } else { (2.0 * v + 3.0) / 6.0 };
            if v <= -3.0 { 0.0 } else { inside }
        }),
        Function::HardSigmoid => slopes(v, dy, dx, |v| step(v > -3.0 && v < 3.0) / 6.0),
        Function::Clamp { low, high } => slopes(v, dy, dx, |v| step(v >= low && v <= high)),
        Function::Pow { exponent } => slopes(v, dy, dx, |v| exponent * power(v, exponent - 1.0)),
        Function::Affine { scale, .. } => slopes(v, dy, dx, |_| scale),
    }
}

#[inline(always)]
fn zip_body(f: Binary, x: OperandView<'_, f32>, y: OperandView<'_, f32>, z: &mut [f32]) {
    match f {
        Binary::Add => combine(x, y, z, |x, y| x + y),
        Binary::Sub => combine(x, y, z, |x, y| x - y),
        Binary::Mul => combine(x, y, z, |x, y| x * y),
        Binary::Div => combine(x, y, z, |x, y| x / y),
        Binary::Max => combine(x, y, z, |x, y| if x >= y || x.is_nan() { x } else { y }),
        Binary::Min => combine(x, y, z, |x, y| if x <= y || x.is_nan() { x } else { y }),
        Binary::Pow => combine(x, y, z, power),
        _ => unreachable!("comparisons have a result of another type"),
    }
}

/// The loop of one function of two operands, either of which may be in place.
#[inline(always)]
fn combine(x: OperandView<'_, f32>, y: OperandView<'_, f32>, z: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match (x, y) {
        (OperandView::InPlace, OperandView::Run(y)) => {
            for (z, &y) in z.iter_mut().zip(y) {
                *z = f(*z, y);
            }
        }
        (OperandView::Run(x), OperandView::InPlace) => {
            for (z, &x) in z.iter_mut().zip(x) {
                *z = f(x, *z);
            }
        }
        (OperandView::InPlace, OperandView::Scalar(y)) => each(z, |x| f(x, y)),
        (OperandView::Scalar(x), OperandView::InPlace) => each(z, |y| f(x, y)),
        (OperandView::InPlace, OperandView::InPlace) => each(z, |x| f(x, x)),
        (OperandView::Run(_) | OperandView::Scalar(_), OperandView::Run(_) | OperandView::Scalar(_)) => {
            pairs(x, y, z, f)
        }
    }
}

/// The loop of one function of two operands, neither in place.
#[inline(always)]
fn pairs<T: Copy, Z: Copy>(x: OperandView<'_, T>, y: OperandView<'_, T>, z: &mut [Z], f: impl Fn(T, T) -> Z) {
    match (x, y) {
        (OperandView::Run(x), OperandView::Run(y)) => {
            for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                *z = f(x, y);
            }
        }
        (OperandView::Run(x), OperandView::Scalar(y)) => {
            for (z, &x) in z.iter_mut().zip(x) {
                *z = f(x, y);
            }
        }
        (OperandView::Scalar(x), OperandView::Run(y)) => {
            for (z, &y) in z.iter_mut().zip(y) {
                *z = f(x, y);
            }
        }
        (OperandView::Scalar(x), OperandView::Scalar(y)) => z.fill(f(x, y)),
        (OperandView::InPlace, _) | (_, OperandView::InPlace) => {
            unreachable!("these operands are not in place")
        }
    }
}

#[inline(always)]
fn compare_body<T: PartialOrd + Copy>(f: Binary, x: OperandView<'_, T>, y: OperandView<'_, T>, z: &mut [u8]) {
    match f {
        Binary::Equal => pairs(x, y, z, |x, y| u8::from(x == y)),
        Binary::NotEqual => pairs(x, y, z, |x, y| u8::from(x != y)),
        Binary::Less => pairs(x, y, z, |x, y| u8::from(x < y)),
        Binary::LessEqual => pairs(x, y, z, |x, y| u8::from(x <= y)),
        Binary::Greater => pairs(x, y, z, |x, y| u8::from(x > y)),
        Binary::GreaterEqual => pairs(x, y, z, |x, y| u8::from(x >= y)),
        _ => unreachable!("arithmetic has a result of another type"),
    }
}

/// Selects one of two numbers without a branch, which would prevent vectorisation.
#[inline(always)]
fn choose(first: bool, a: f32, b: f32) -> f32 {
    std::hint::select_unpredictable(first, a, b)
}

#[inline(always)]
fn select_body(condition: &[u8], yes: OperandView<'_, f32>, no: OperandView<'_, f32>, z: &mut [f32]) {
    let choices = z.iter_mut().zip(condition);
    match (yes, no) {
        (OperandView::Run(yes), OperandView::Run(no)) => {
            for (((z, &c), &yes), &no) in choices.zip(yes).zip(no) {
                *z = choose(c != 0, yes, no);
            }
        }
        (OperandView::Run(yes), OperandView::Scalar(no)) => {
            for ((z, &c), &yes) in choices.zip(yes) {
                *z = choose(c != 0, yes, no);
            }
        }
        (OperandView::Scalar(yes), OperandView::Run(no)) => {
            for ((z, &c), &no) in choices.zip(no) {
                *z = choose(c != 0, yes, no);
            }
        }
        (OperandView::Scalar(yes), OperandView::Scalar(no)) => {
            choices.for_each(|(z, &c)| *z = choose(c != 0, yes, no))
        }
        (OperandView::InPlace, OperandView::Run(no)) => {
            for ((z, &c), &no) in choices.zip(no) {
                *z = choose(c != 0, *z, no);
            }
        }
        (OperandView::Run(yes), OperandView::InPlace) => {
            for ((z, &c), &yes) in choices.zip(yes) {
                *z = choose(c != 0, yes, *z);
            }
        }
        (OperandView::InPlace, OperandView::Scalar(no)) => {
            choices.for_each(|(z, &c)| *z = choose(c != 0, *z, no))
        }
        (OperandView::Scalar(yes), OperandView::InPlace) => {
            choices.for_each(|(z, &c)| *z = choose(c != 0, yes, *z))
        }
        (OperandView::InPlace, OperandView::InPlace) => {}
    }
}

#[inline(always)]
fn from_bytes_body(x: &[u8], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f32::from(x);
    }
}

#[inline(always)]
fn from_i32_body(x: &[i32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x as f32;
    }
}

#[inline(always)]
fn from_i64_body(x: &[i64], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = x as f32;
    }
}
