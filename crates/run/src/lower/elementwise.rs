//! Element-wise operators: one loop over memory, vectorised, divided over threads. A result may be
//! written over an operand.

use super::{Lowered, TensorType};
use crate::call::Call;
use crate::kernel::isa::simd;
use crate::kernel::math;
use crate::team::SharedMut;
use gulliver_graph::dtype::DType;
use gulliver_graph::op::cast::Cast;
use gulliver_graph::op::map::{Function, Map};
use gulliver_graph::op::map_grad::MapGrad;
use gulliver_graph::op::zip::{Binary, Zip};

/// Elements a thread takes at least.
pub(super) const GRAIN: usize = 4096;

/// Runs `f` on ranges of `0..len`, on one thread if there is little to do.
pub(super) fn ranges(call: &Call<'_>, len: usize, f: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
    if len < 2 * GRAIN { f(0..len) } else { call.team.split(len, 64, f) }
}

/// Runs `f` on ranges of `0..units`, each of about `work` elements, on one thread if there is little to do.
pub(super) fn units(call: &Call<'_>, units: usize, work: usize, f: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
    if units * work < 2 * GRAIN { f(0..units) } else { call.team.split(units, 1, f) }
}

pub(super) fn map(op: &Map) -> Option<Lowered> {
    let f = op.0;
    Some(Lowered::plain(move |call| {
        let isa = call.team.isa();
        let x = (!call.in_place(0, 0)).then(|| call.input::<f32>(0));
        let y = SharedMut::new(call.output::<f32>(0));
        ranges(call, y.len(), &|r| {
            // SAFETY: ranges are disjoint.
            let y = unsafe { y.slice(r.clone()) };
            map_slice(isa, f, x.map(|x| &x[r]), y);
        });
        Ok(())
    }))
}

simd! {
    /// `y = f(x)`; an operand that is not given lies in `y`.
    fn map_slice(f: Function, x: Option<&[f32]>, y: &mut [f32]) = map_body;
}

#[inline(always)]
fn each(y: &mut [f32], f: impl Fn(f32) -> f32) {
    for v in y {
        *v = f(*v);
    }
}

/// One loop for one function.
#[inline(always)]
fn values(x: Option<&[f32]>, y: &mut [f32], f: impl Fn(f32) -> f32) {
    match x {
        Some(x) => {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f(x);
            }
        }
        None => each(y, f),
    }
}

#[inline(always)]
fn map_body(f: Function, x: Option<&[f32]>, y: &mut [f32]) {
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
        // NaN passes: a diverging run must not look healthy.
        Function::Relu => values(x, y, |x| if x <= 0.0 { 0.0 } else { x }),
        Function::LeakyRelu { slope } => values(x, y, |x| if x > 0.0 { x } else { x * slope }),
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

pub(super) fn map_grad(op: &MapGrad) -> Option<Lowered> {
    let f = op.0;
    Some(Lowered::plain(move |call| {
        let isa = call.team.isa();
        let over = (call.in_place(0, 0), call.in_place(1, 0));
        let v = (!over.0).then(|| call.input::<f32>(0));
        let dy = (!over.1).then(|| call.input::<f32>(1));
        let dx = SharedMut::new(call.output::<f32>(0));
        ranges(call, dx.len(), &|r| {
            // SAFETY: ranges are disjoint.
            let dx = unsafe { dx.slice(r.clone()) };
            map_grad_slice(isa, f, v.map(|v| &v[r.clone()]), dy.map(|dy| &dy[r.clone()]), dx);
        });
        Ok(())
    }))
}

simd! {
    /// `dx = f'(v)·dy`; an operand that is not given lies in `dx`.
    fn map_grad_slice(f: Function, v: Option<&[f32]>, dy: Option<&[f32]>, dx: &mut [f32]) = map_grad_body;
}

/// One loop for one derivative `d`.
#[inline(always)]
fn slopes(v: Option<&[f32]>, dy: Option<&[f32]>, dx: &mut [f32], d: impl Fn(f32) -> f32) {
    match (v, dy) {
        (Some(v), Some(dy)) => {
            for ((dx, &v), &dy) in dx.iter_mut().zip(v).zip(dy) {
                *dx = dy * d(v);
            }
        }
        (Some(v), None) => {
            for (dx, &v) in dx.iter_mut().zip(v) {
                *dx *= d(v);
            }
        }
        (None, Some(dy)) => {
            for (dx, &dy) in dx.iter_mut().zip(dy) {
                *dx = dy * d(*dx);
            }
        }
        (None, None) => unreachable!("one result cannot lie over two operands"),
    }
}

#[inline(always)]
fn map_grad_body(f: Function, v: Option<&[f32]>, dy: Option<&[f32]>, dx: &mut [f32]) {
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

/// Extents and strides of a broadcast, with neighbours joined where both operands walk alike.
#[derive(Clone, Debug)]
pub(super) struct Broadcast {
    /// Outer loops: extent and stride per operand.
    outer: Vec<(usize, Vec<usize>)>,
    /// Innermost run and its stride (0 or 1) per operand.
    inner: (usize, Vec<usize>),
}

impl Broadcast {
    pub(super) fn new(ins: &[&[usize]], out: &[usize]) -> Broadcast {
        let mut dims: Vec<(usize, Vec<usize>)> = Vec::new();
        for d in 0..out.len() {
            let stride = |shape: &[usize]| {
                let Some(i) = (d + shape.len()).checked_sub(out.len()) else { return 0 };
                if shape[i] == 1 { 0 } else { shape[i + 1..].iter().product() }
            };
            let strides: Vec<usize> = ins.iter().map(|s| stride(s)).collect();
            if out[d] == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((extent, last)) if last.iter().zip(&strides).all(|(l, s)| *l == s * out[d]) => {
                    *extent *= out[d];
                    *last = strides;
                }
                _ => dims.push((out[d], strides)),
            }
        }
        let inner = dims.pop().unwrap_or((1, vec![0; ins.len()]));
        Broadcast { outer: dims, inner }
    }

    /// Whether an operand stays at one element within a run.
    pub(super) fn repeats_within_run(&self, operand: usize) -> bool {
        self.inner.1[operand] == 0
    }

    fn rows(&self) -> usize {
        self.outer.iter().map(|(e, _)| e).product()
    }

    /// Where operand `i` starts for a row.
    fn start(&self, mut row: usize, i: usize) -> usize {
        let mut at = 0;
        for (extent, strides) in self.outer.iter().rev() {
            at += row % extent * strides[i];
            row /= extent;
        }
        at
    }

    /// Calls `f(start of run in the result, length, starts per operand)` for all runs, over threads.
    pub(super) fn each(&self, call: &Call<'_>, f: &(dyn Fn(usize, usize, [usize; 3]) + Sync)) {
        let (len, operands) = (self.inner.0, self.inner.1.len());
        let starts = |row: usize| {
            let mut s = [0; 3];
            for (i, s) in s.iter_mut().enumerate().take(operands) {
                *s = self.start(row, i);
            }
            s
        };
        let rows = self.rows();
        if rows == 1 {
            return ranges(call, len, &|r| {
                let mut s = [0; 3];
                for (i, s) in s.iter_mut().enumerate().take(operands) {
                    *s = r.start * self.inner.1[i];
                }
                f(r.start, r.len(), s);
            });
        }
        let work = |r: std::ops::Range<usize>| {
            for row in r {
                f(row * len, len, starts(row));
            }
        };
        if rows * len < 2 * GRAIN { work(0..rows) } else { call.team.split(rows, 1, &work) }
    }
}

/// How an operand is met within a run.
#[derive(Clone, Copy)]
enum Side<'a> {
    Run(&'a [f32]),
    Same(f32),
    /// The result's own bytes.
    Under,
}

pub(super) fn zip(op: &Zip, ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return integer_zip(op, ins, outs);
    }
    let f = op.0;
    let walk = Broadcast::new(&[&ins[0].shape, &ins[1].shape], &outs[0].shape);
    Some(Lowered::plain(move |call| {
        let isa = call.team.isa();
        if f.compares() {
            let (x, y) = (call.input::<f32>(0), call.input::<f32>(1));
            let z = SharedMut::new(call.output::<u8>(0));
            walk.each(call, &|at, len, s| {
                // SAFETY: runs are disjoint.
                let z = unsafe { z.slice(at..at + len) };
                for (i, z) in z.iter_mut().enumerate() {
                    let (x, y) = (x[s[0] + i * walk.inner.1[0]], y[s[1] + i * walk.inner.1[1]]);
                    *z = u8::from(compare(f, x, y));
                }
            });
            return Ok(());
        }
        let operands = [0, 1].map(|i| (!call.in_place(i, 0)).then(|| call.input::<f32>(i)));
        let z = SharedMut::new(call.output::<f32>(0));
        walk.each(call, &|at, len, s| {
            // SAFETY: runs are disjoint.
            let z = unsafe { z.slice(at..at + len) };
            let side = |i: usize| match operands[i] {
                None => Side::Under,
                Some(x) if walk.inner.1[i] == 0 => Side::Same(x[s[i]]),
                Some(x) => Side::Run(&x[s[i]..s[i] + len]),
            };
            zip_run(isa, f, side(0), side(1), z);
        });
        Ok(())
    }))
}

simd! { fn zip_run(f: Binary, x: Side<'_>, y: Side<'_>, z: &mut [f32]) = zip_body; }

#[inline(always)]
fn zip_body(f: Binary, x: Side<'_>, y: Side<'_>, z: &mut [f32]) {
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

#[inline(always)]
fn combine(x: Side<'_>, y: Side<'_>, z: &mut [f32], f: impl Fn(f32, f32) -> f32) {
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
        (Side::Same(x), Side::Same(y)) => z.fill(f(x, y)),
        (Side::Under, Side::Under) => each(z, |x| f(x, x)),
    }
}

fn compare<T: PartialOrd>(f: Binary, x: T, y: T) -> bool {
    match f {
        Binary::Equal => x == y,
        Binary::NotEqual => x != y,
        Binary::Less => x < y,
        Binary::LessEqual => x <= y,
        Binary::Greater => x > y,
        _ => x >= y,
    }
}

fn integer_zip(op: &Zip, ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    if !op.0.compares() || ins[0].dtype != DType::I64 {
        return None;
    }
    let f = op.0;
    let walk = Broadcast::new(&[&ins[0].shape, &ins[1].shape], &outs[0].shape);
    Some(Lowered::plain(move |call| {
        let (x, y) = (call.input::<i64>(0), call.input::<i64>(1));
        let z = SharedMut::new(call.output::<u8>(0));
        walk.each(call, &|at, len, s| {
            // SAFETY: runs are disjoint.
            let z = unsafe { z.slice(at..at + len) };
            for (i, z) in z.iter_mut().enumerate() {
                *z = u8::from(compare(f, x[s[0] + i * walk.inner.1[0]], y[s[1] + i * walk.inner.1[1]]));
            }
        });
        Ok(())
    }))
}

pub(super) fn select(ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    if ins[1].dtype != DType::F32 {
        return None;
    }
    let walk = Broadcast::new(&[&ins[0].shape, &ins[1].shape, &ins[2].shape], &outs[0].shape);
    Some(Lowered::plain(move |call| {
        let condition = call.input::<u8>(0);
        let sides = [1, 2].map(|i| (!call.in_place(i, 0)).then(|| call.input::<f32>(i)));
        let z = SharedMut::new(call.output::<f32>(0));
        walk.each(call, &|at, len, s| {
            // SAFETY: runs are disjoint.
            let z = unsafe { z.slice(at..at + len) };
            let stride = &walk.inner.1;
            for (i, z) in z.iter_mut().enumerate() {
                let side = usize::from(condition[s[0] + i * stride[0]] == 0);
                if let Some(x) = sides[side] {
                    *z = x[s[side + 1] + i * stride[side + 1]];
                }
            }
        });
        Ok(())
    }))
}

pub(super) fn cast(op: &Cast, ins: &[TensorType]) -> Option<Lowered> {
    macro_rules! from {
        ($t:ty) => {
            Some(Lowered::plain(|call| {
                let x = call.input::<$t>(0);
                for (y, &x) in call.output::<f32>(0).iter_mut().zip(x) {
                    *y = x as f32;
                }
                Ok(())
            }))
        };
    }
    match (ins[0].dtype, op.to) {
        (DType::I64, DType::F32) => from!(i64),
        (DType::I32, DType::F32) => from!(i32),
        (DType::U8 | DType::Bool, DType::F32) => from!(u8),
        _ => None,
    }
}
