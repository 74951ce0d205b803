//! Operators that read or write where an index says. Every index is checked before anything is written.

use super::broadcast::{GRAIN, units};
use super::{KernelError, Lowered, TensorType};
use crate::lower::call::Element;
use crate::team::SharedMut;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::scatter_add::ScatterAdd;
use std::ops::Range;

/// Element types of indices.
pub(super) trait Integer: Element {
    /// The value.
    fn wide(self) -> i64;
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(impl Integer for $t {
            fn wide(self) -> i64 {
                i64::from(self)
            }
        })*
    };
}
integers!(i64, i32, u8);

/// Calls a generic function with the integer type of an index, if it is one.
macro_rules! by_integer {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::I64 => Some($f::<i64>($($arg),*)),
            DType::I32 => Some($f::<i32>($($arg),*)),
            DType::U8 => Some($f::<u8>($($arg),*)),
            _ => None,
        }
    };
}
pub(super) use by_integer;

/// That every index, save those equal to `skip`, is below the bound; reports the first that is not.
fn check<I: Integer>(index: &[I], bound: usize, skip: Option<i64>) -> Result<(), KernelError> {
    let inside = |i: i64| usize::try_from(i).is_ok_and(|i| i < bound);
    match index.iter().position(|i| !inside(i.wide()) && skip != Some(i.wide())) {
        None => Ok(()),
        Some(position) => Err(KernelError::Index { index: index[position].wide(), position, bound }),
    }
}

pub(super) fn gather(ins: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    let (rows, width) = (ins[0].shape[0], ins[0].shape[1..].iter().product());
    by_integer!(ins[1].dtype, gather_as(rows, width))
}

fn gather_as<I: Integer>(rows: usize, width: usize) -> Lowered {
    Lowered::plain(move |call| {
        let (table, index) = (call.input::<f32>(0), call.input::<I>(1));
        let y = SharedMut::new(call.output::<f32>(0));
        check(index, rows, None)?;
        units(call, index.len(), width, &|range| {
            for n in range {
                let from = index[n].wide() as usize * width;
                // SAFETY: rows are disjoint.
                let y = unsafe { y.slice(n * width..(n + 1) * width) };
                y.copy_from_slice(&table[from..from + width]);
            }
        });
        Ok(())
    })
}

pub(super) fn scatter_add(op: &ScatterAdd, ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    if ins[1].dtype != DType::F32 {
        return None;
    }
    let (rows, width) = (outs[0].shape[0], outs[0].shape[1..].iter().product());
    by_integer!(ins[0].dtype, scatter_add_as(rows, width, op.padding))
}

fn scatter_add_as<I: Integer>(rows: usize, width: usize, padding: Option<i64>) -> Lowered {
    Lowered::plain(move |call| {
        let (index, x) = (call.input::<I>(0), call.input::<f32>(1));
        let y = SharedMut::new(call.output::<f32>(0));
        check(index, rows, padding)?;
        // A block of the table belongs to one thread, which adds to it in the order of the index.
        let block = |rows: Range<usize>, columns: Range<usize>| {
            // SAFETY: blocks are disjoint, and within one of them only one row is held at a time.
            let row = |r: usize| unsafe { y.slice(r * width + columns.start..r * width + columns.end) };
            rows.clone().for_each(|r| row(r).fill(0.0));
            for (n, r) in index.iter().enumerate() {
                let r = r.wide();
                if padding != Some(r) && rows.contains(&(r as usize)) {
                    let x = &x[n * width + columns.start..n * width + columns.end];
                    row(r as usize).iter_mut().zip(x).for_each(|(y, x)| *y += x);
                }
            }
        };
        if (rows + index.len()) * width < 2 * GRAIN {
            block(0..rows, 0..width);
        } else if width >= 64 * call.team.threads() {
            // Frequent rows make ranges of them uneven; ranges of columns are not.
            call.team.split(width, 16, &|columns| block(0..rows, columns));
        } else {
            call.team.split(rows, 1, &|rows| block(rows, 0..width));
        }
        Ok(())
    })
}

pub(super) fn take(ins: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    by_integer!(ins[1].dtype, take_as(*ins[0].shape.last()?))
}

fn take_as<I: Integer>(width: usize) -> Lowered {
    Lowered::plain(move |call| {
        let (x, index) = (call.input::<f32>(0), call.input::<I>(1));
        check(index, width, None)?;
        for (n, (y, i)) in call.output::<f32>(0).iter_mut().zip(index).enumerate() {
            *y = x[n * width + i.wide() as usize];
        }
        Ok(())
    })
}

/// Gradients of reading `k` elements of each row: zeros to which each is added at its index, in order.
pub(super) fn spread(k: usize, ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    if ins[1].dtype != DType::F32 {
        return None;
    }
    by_integer!(ins[0].dtype, spread_as(k, *outs[0].shape.last()?))
}

fn spread_as<I: Integer>(k: usize, width: usize) -> Lowered {
    Lowered::plain(move |call| {
        let (index, dy) = (call.input::<I>(0), call.input::<f32>(1));
        let dx = SharedMut::new(call.output::<f32>(0));
        check(index, width, None)?;
        units(call, dx.len().checked_div(width).unwrap_or(0), width, &|range| {
            for row in range {
                // SAFETY: rows are disjoint.
                let dx = unsafe { dx.slice(row * width..(row + 1) * width) };
                dx.fill(0.0);
                let from = row * k..(row + 1) * k;
                for (i, dy) in index[from.clone()].iter().zip(&dy[from]) {
                    dx[i.wide() as usize] += dy;
                }
            }
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Kernels, lower};
    use super::*;
    use crate::lower::call::{Call, Slot};
    use crate::team::Team;
    use gulliver_graph::graph::op::Op;
    use gulliver_graph::graph::op::{gather::Gather, take::Take, take_grad::TakeGrad};

    fn slot<T>(data: &mut [T]) -> Slot {
        Slot { start: data.as_mut_ptr().cast(), bytes: size_of_val(data) }
    }

    fn f32s(shape: &[usize]) -> TensorType {
        TensorType { dtype: DType::F32, shape: shape.to_vec() }
    }

    #[test]
    fn indices_that_point_nowhere_are_reported_and_nothing_is_written() {
        let index = TensorType { dtype: DType::I64, shape: vec![3] };
        let scatter = |padding| ScatterAdd { rows: 4.into(), padding };
        // Operator, which operand the index is, shape of the other operand, shape of the result.
        let rows: [(Op, usize, TensorType, TensorType); 4] = [
            (Gather { padding: None }.into(), 1, f32s(&[4, 2]), f32s(&[3, 2])),
            (scatter(None).into(), 0, f32s(&[3, 2]), f32s(&[4, 2])),
            (Take {}.into(), 1, f32s(&[3, 4]), f32s(&[3])),
            (TakeGrad { size: 4.into() }.into(), 0, f32s(&[3]), f32s(&[3, 4])),
        ];
        let team = Team::new(1);
        let run = |(op, at, other, result): &(Op, usize, TensorType, TensorType), ids: &mut [i64]| {
            let mut ins = vec![other.clone()];
            ins.insert(*at, index.clone());
            let lowered = lower(op, &ins, std::slice::from_ref(result), 1, &Kernels::default());
            assert!(!lowered.reference);
            let (mut x, mut y) = (vec![1.0f32; other.len()], vec![7.0f32; result.len()]);
            let mut slots = vec![slot(&mut x)];
            slots.insert(*at, slot(ids));
            let outs = [slot(&mut y)];
            // SAFETY: all slots are distinct vectors of the right lengths.
            let mut call = unsafe { Call::new(&team, &slots, &outs, None) };
            let answer = (lowered.run)(&mut call);
            (answer, y)
        };
        for row in &rows {
            for (ids, position) in [([0, 4, -1], 1), ([-1, 0, 0], 0), ([3, 3, i64::MAX], 2)] {
                let (answer, y) = run(row, &mut ids.clone());
                let error = KernelError::Index { index: ids[position], position, bound: 4 };
                assert_eq!(answer, Err(error), "{:?}", row.0);
                assert!(y.iter().all(|&y| y == 7.0), "{:?}", row.0);
            }
            assert!(run(row, &mut [0, 1, 3]).0.is_ok());
        }
        let skipping = (scatter(Some(-1)).into(), 0, f32s(&[3, 2]), f32s(&[4, 2]));
        let (answer, y) = run(&skipping, &mut [2, -1, 2]);
        assert_eq!((answer, y), (Ok(()), vec![0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 0.0, 0.0]));
    }
}
