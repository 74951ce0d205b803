//! Operators that only move elements.

use super::elementwise::{Broadcast, ranges};
use super::{Lowered, TensorType};
use crate::call::{Call, Element};
use crate::team::SharedMut;
use gulliver_graph::dtype::DType;
use gulliver_graph::op::transpose::Transpose;

/// Calls a generic function with the type that has the bits of an element type.
macro_rules! by_width {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F32 | DType::I32 => $f::<i32>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            DType::F16 | DType::BF16 => $f::<u16>($($arg),*),
            DType::U8 | DType::Bool => $f::<u8>($($arg),*),
        }
    };
}

pub(super) fn fill(value: f32) -> Option<Lowered> {
    Some(Lowered::plain(move |call| {
        call.output::<f32>(0).fill(value);
        Ok(())
    }))
}

pub(super) fn reshape(ins: &[TensorType]) -> Option<Lowered> {
    Some(by_width!(ins[0].dtype, copy()))
}

fn copy<T: Element>() -> Lowered {
    Lowered::plain(|call| {
        if !call.in_place(0, 0) {
            let x = call.input::<T>(0);
            call.output::<T>(0).copy_from_slice(x);
        }
        Ok(())
    })
}

pub(super) fn expand(ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    let walk = Broadcast::new(&[&ins[0].shape], &outs[0].shape);
    Some(by_width!(ins[0].dtype, expand_as(walk)))
}

fn expand_as<T: Element>(walk: Broadcast) -> Lowered {
    let repeated = walk.repeats_within_run(0);
    Lowered::plain(move |call| {
        let x = call.input::<T>(0);
        let y = SharedMut::new(call.output::<T>(0));
        walk.each(call, &|at, len, s| {
            // SAFETY: runs are disjoint.
            let y = unsafe { y.slice(at..at + len) };
            if repeated {
                y.fill(x[s[0]]);
            } else {
                y.copy_from_slice(&x[s[0]..s[0] + len]);
            }
        });
        Ok(())
    })
}

pub(super) fn transpose(op: &Transpose, ins: &[TensorType]) -> Option<Lowered> {
    let shape = &ins[0].shape;
    let mut strides = vec![1; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1];
    }
    // Result dimensions as (extent, stride in the operand), joined where they walk as one.
    let mut dims: Vec<(usize, usize)> = Vec::new();
    for &d in &op.order {
        if shape[d] == 1 {
            continue;
        }
        match dims.last_mut() {
            Some((extent, stride)) if *stride == strides[d] * shape[d] => {
                *extent *= shape[d];
                *stride = strides[d];
            }
            _ => dims.push((shape[d], strides[d])),
        }
    }
    Some(by_width!(ins[0].dtype, transpose_as(dims)))
}

/// Rows of the result gathered at a time, so that operand cache lines are used whole.
const TILE: usize = 16;

fn transpose_as<T: Element>(mut dims: Vec<(usize, usize)>) -> Lowered {
    let (inner, step) = dims.pop().unwrap_or((1, 1));
    let (rows, row_step) = if step == 1 { (1, 0) } else { dims.pop().unwrap_or((1, 0)) };
    let blocks: usize = dims.iter().map(|d| d.0).product();
    let start = move |mut block: usize| {
        let mut at = 0;
        for (extent, stride) in dims.iter().rev() {
            at += block % extent * stride;
            block /= extent;
        }
        at
    };
    let tiles = rows.div_ceil(TILE);
    Lowered::plain(move |call: &mut Call<'_>| {
        let x = call.input::<T>(0);
        let y = SharedMut::new(call.output::<T>(0));
        if step == 1 {
            ranges(call, blocks, &|range| {
                for block in range {
                    let from = start(block);
                    // SAFETY: blocks are disjoint.
                    let y = unsafe { y.slice(block * inner..(block + 1) * inner) };
                    y.copy_from_slice(&x[from..from + inner]);
                }
            });
            return Ok(());
        }
        let work = |range: std::ops::Range<usize>| {
            for unit in range {
                let (block, tile) = (unit / tiles, unit % tiles);
                let from = start(block);
                let r = tile * TILE..((tile + 1) * TILE).min(rows);
                let first = (block * rows + r.start) * inner;
                // SAFETY: tiles of rows are disjoint.
                let y = unsafe { y.slice(first..first + r.len() * inner) };
                for i in 0..inner {
                    for (j, row) in r.clone().enumerate() {
                        y[j * inner + i] = x[from + row * row_step + i * step];
                    }
                }
            }
        };
        call.team.split(blocks * tiles, 1, &work);
        Ok(())
    })
}
