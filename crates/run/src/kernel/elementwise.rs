//! The loops of element-wise operators over runs of memory, one per function, compiled once per instruction
//! set. Which elements meet is said by the caller; a result may lie over an operand.

use crate::kernel::math;
use crate::team::isa::simd;
use gulliver_graph::graph::op::map::Function;
use gulliver_graph::graph::op::zip::Binary;

/// How an operand is met within a run.
#[derive(Clone, Copy, Debug)]
pub enum Side<'a, T> {
    /// Element by element.
    Run(&'a [T]),
    /// One element for all.
    Same(T),
    /// The result's own bytes.
    Under,
}

simd! {
    /// `y = f(x)`.
    pub fn map(f: Function, x: Side<'_, f32>, y: &mut [f32]) = map_body;
    /// `dx = f'(v)·dy`; panics if an operand is one element for all.
    pub fn map_grad(f: Function, v: Side<'_, f32>, dy: Side<'_, f32>, dx: &mut [f32]) = map_grad_body;
    /// `z = f(x, y)`; not for comparisons.
    pub fn zip(f: Binary, x: Side<'_, f32>, y: Side<'_, f32>, z: &mut [f32]) = zip_body;
    /// `z` is one where the comparison holds and zero elsewhere; panics if an operand lies under it.
    pub fn compare(f: Binary, x: Side<'_, f32>, y: Side<'_, f32>, z: &mut [u8]) = compare_body::<f32>;
    /// Like [`compare`].
    pub fn compare_integers(f: Binary, x: Side<'_, i64>, y: Side<'_, i64>, z: &mut [u8]) = compare_body::<i64>;
    /// `z = yes` where the condition is not zero, else `no`.
    pub fn select(condition: &[u8], yes: Side<'_, f32>, no: Side<'_, f32>, z: &mut [f32]) = select_body;
    /// The same numbers as floats.
    pub fn from_bytes(x: &[u8], y: &mut [f32]) = from_bytes_body;
    /// The same numbers as floats, rounded to nearest.
    pub fn from_i32(x: &[i32], y: &mut [f32]) = from_i32_body;
    /// The same numbers as floats, rounded to nearest.
    pub fn from_i64(x: &[i64], y: &mut [f32]) = from_i64_body;
}

#[inline(always)]
fn each(y: &mut [f32], f: impl Fn(f32) -> f32) {
    for v in y {
        *v = f(*v);
    }
}

/// One loop for one function.
#[inline(always)]
fn values(x: Side<'_, f32>, y: &mut [f32], f: impl Fn(f32) -> f32) {
    match x {
        Side::Run(x) => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f(x);
            }
        }
        Side::Same(x) => {
            y.fill(x);
            each(y, f);
        }
        Side::Under => each(y, f),
    }
}

#[inline(always)]
fn map_body(f: Function, x: Side<'_, f32>, y: &mut [f32]) {
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
        // NaN passes: a diverging run must not look healthy. Both end with arithmetic, as an operand chosen to
        // be its own result becomes a store under a mask, which is slow. Adding zero drops the sign of zero.
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

/// One loop for one derivative `d`.
#[inline(always)]
fn slopes(v: Side<'_, f32>, dy: Side<'_, f32>, dx: &mut [f32], d: impl Fn(f32) -> f32) {
    match (v, dy) {
        (Side::Run(v), Side::Run(dy)) => {
            for ((dx, &v), &dy) in dx.iter_mut().zip(v).zip(dy) {
                *dx = dy * d(v);
            }
        }
        (Side::Run(v), Side::Under) => {
            for (dx, &v) in dx.iter_mut().zip(v) {
                *dx *= d(v);
            }
        }
        (Side::Under, Side::Run(dy)) => {
            for (dx, &dy) in dx.iter_mut().zip(dy) {
                *dx = dy * d(*dx);
            }
        }
        (Side::Under, Side::Under) => each(dx, |v| v * d(v)),
        (Side::Same(_), _) | (_, Side::Same(_)) => unreachable!("operands of a derivative are runs"),
    }
}

#[inline(always)]
fn map_grad_body(f: Function, v: Side<'_, f32>, dy: Side<'_, f32>, dx: &mut [f32]) {
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
fn zip_body(f: Binary, x: Side<'_, f32>, y: Side<'_, f32>, z: &mut [f32]) {
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

/// One loop for one function of two operands, either of which may lie under the result.
#[inline(always)]
fn combine(x: Side<'_, f32>, y: Side<'_, f32>, z: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match (x, y) {
        (Side::Under, Side::Run(y)) => {
            for (z, &y) in z.iter_mut().zip(y) {
                *z = f(*z, y);
            }
        }
        (Side::Run(x), Side::Under) => {
            for (z, &x) in z.iter_mut().zip(x) {
                *z = f(x, *z);
            }
        }
        (Side::Under, Side::Same(y)) => each(z, |x| f(x, y)),
        (Side::Same(x), Side::Under) => each(z, |y| f(x, y)),
        (Side::Under, Side::Under) => each(z, |x| f(x, x)),
        (Side::Run(_) | Side::Same(_), Side::Run(_) | Side::Same(_)) => pairs(x, y, z, f),
    }
}

/// One loop for one function of two operands apart from the result.
#[inline(always)]
fn pairs<T: Copy, Z: Copy>(x: Side<'_, T>, y: Side<'_, T>, z: &mut [Z], f: impl Fn(T, T) -> Z) {
    match (x, y) {
        (Side::Run(x), Side::Run(y)) => {
            for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                *z = f(x, y);
            }
        }
        (Side::Run(x), Side::Same(y)) => {
            for (z, &x) in z.iter_mut().zip(x) {
                *z = f(x, y);
            }
        }
        (Side::Same(x), Side::Run(y)) => {
            for (z, &y) in z.iter_mut().zip(y) {
                *z = f(x, y);
            }
        }
        (Side::Same(x), Side::Same(y)) => z.fill(f(x, y)),
        (Side::Under, _) | (_, Side::Under) => unreachable!("these operands are apart from the result"),
    }
}

#[inline(always)]
fn compare_body<T: PartialOrd + Copy>(f: Binary, x: Side<'_, T>, y: Side<'_, T>, z: &mut [u8]) {
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

/// One of two numbers without a branch, which would keep a loop from filling vectors.
#[inline(always)]
fn choose(first: bool, a: f32, b: f32) -> f32 {
    std::hint::select_unpredictable(first, a, b)
}

#[inline(always)]
fn select_body(condition: &[u8], yes: Side<'_, f32>, no: Side<'_, f32>, z: &mut [f32]) {
    let choices = z.iter_mut().zip(condition);
    match (yes, no) {
        (Side::Run(yes), Side::Run(no)) => {
            for (((z, &c), &yes), &no) in choices.zip(yes).zip(no) {
                *z = choose(c != 0, yes, no);
            }
        }
        (Side::Run(yes), Side::Same(no)) => {
            for ((z, &c), &yes) in choices.zip(yes) {
                *z = choose(c != 0, yes, no);
            }
        }
        (Side::Same(yes), Side::Run(no)) => {
            for ((z, &c), &no) in choices.zip(no) {
                *z = choose(c != 0, yes, no);
            }
        }
        (Side::Same(yes), Side::Same(no)) => choices.for_each(|(z, &c)| *z = choose(c != 0, yes, no)),
        (Side::Under, Side::Run(no)) => {
            for ((z, &c), &no) in choices.zip(no) {
                *z = choose(c != 0, *z, no);
            }
        }
        (Side::Run(yes), Side::Under) => {
            for ((z, &c), &yes) in choices.zip(yes) {
                *z = choose(c != 0, yes, *z);
            }
        }
        (Side::Under, Side::Same(no)) => choices.for_each(|(z, &c)| *z = choose(c != 0, *z, no)),
        (Side::Same(yes), Side::Under) => choices.for_each(|(z, &c)| *z = choose(c != 0, yes, *z)),
        (Side::Under, Side::Under) => {}
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
