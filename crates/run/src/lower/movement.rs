//! Operators that only move elements.

use super::broadcast::{GRAIN, Walk, ranges, units};
use super::scan::around;
use super::{Lowered, TensorType};
use crate::lower::call::{Call, Element};
use crate::team::SharedMut;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::concat::Concat;
use gulliver_graph::graph::op::iota::Iota;
use gulliver_graph::graph::op::pad::Pad;
use gulliver_graph::graph::op::slice::Slice;
use gulliver_graph::graph::op::slice_grad::SliceGrad;
use gulliver_graph::graph::op::transpose::Transpose;
use gulliver_graph::graph::op::upsample::Upsample;
use std::ops::Range;

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
    let walk = Walk::new(&ins[0].shape, &outs[0].shape);
    Some(by_width!(ins[0].dtype, expand_as(walk)))
}

fn expand_as<T: Element>(walk: Walk) -> Lowered {
    Lowered::plain(move |call| {
        let x = call.input::<T>(0);
        let y = SharedMut::new(call.output::<T>(0));
        ranges(call, y.len(), &|r| {
            // SAFETY: ranges are disjoint.
            walk.gather(x, r.start, unsafe { y.slice(r) });
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
const TILE: usize = 32;

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
        let work = |range: Range<usize>| {
            for unit in range {
                let (block, tile) = (unit / tiles, unit % tiles);
                let from = start(block);
                let r = tile * TILE..((tile + 1) * TILE).min(rows);
                let first = (block * rows + r.start) * inner;
                // SAFETY: tiles of rows are disjoint.
                let y = unsafe { y.slice(first..first + r.len() * inner) };
                // In squares, whose lines of both sides stay in the cache and its page table.
                for i0 in (0..inner).step_by(TILE) {
                    let columns = i0..inner.min(i0 + TILE);
                    for (row, y) in r.clone().zip(y.chunks_exact_mut(inner)) {
                        let x = &x[from + row * row_step + i0 * step..];
                        let y = &mut y[columns.clone()];
                        for (y, x) in y.iter_mut().zip(x.iter().step_by(step)) {
                            *y = *x;
                        }
                    }
                }
            }
        };
        call.team.split(blocks * tiles, 1, &work);
        Ok(())
    })
}

/// Divides `count` blocks of `len` elements over threads; `f(block, range within it)` covers them all.
fn blocks(call: &Call<'_>, count: usize, len: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
    if count * len < 2 * GRAIN {
        (0..count).for_each(|block| f(block, 0..len));
    } else if count >= call.team.threads() {
        call.team.split(count, 1, &|range| range.for_each(|block| f(block, 0..len)));
    } else {
        (0..count).for_each(|block| call.team.split(len, 64, &|range| f(block, range)));
    }
}

pub(super) fn concat(op: &Concat, ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    let inner: usize = outs[0].shape[op.axis + 1..].iter().product();
    let lens: Vec<usize> = ins.iter().map(|ty| ty.shape[op.axis] * inner).collect();
    let before = outs[0].shape[..op.axis].iter().product();
    Some(by_width!(outs[0].dtype, concat_as(before, lens)))
}

fn concat_as<T: Element>(before: usize, lens: Vec<usize>) -> Lowered {
    let total: usize = lens.iter().sum();
    Lowered::plain(move |call| {
        let y = SharedMut::new(call.output::<T>(0));
        let mut start = 0;
        for (i, &len) in lens.iter().enumerate() {
            let x = call.input::<T>(i);
            blocks(call, before, len, &|block, range| {
                let at = block * total + start;
                // SAFETY: blocks and ranges within them are disjoint.
                let y = unsafe { y.slice(at + range.start..at + range.end) };
                y.copy_from_slice(&x[block * len + range.start..block * len + range.end]);
            });
            start += len;
        }
        Ok(())
    })
}

pub(super) fn slice(op: &Slice, ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    let [before, extent, after] = around(&ins[0].shape, op.axis);
    let (start, step, len) = (op.start, op.step, outs[0].shape[op.axis]);
    Some(by_width!(ins[0].dtype, slice_as(before, [extent, len], after, start, step)))
}

fn slice_as<T: Element>(
    before: usize,
    [extent, len]: [usize; 2],
    after: usize,
    start: usize,
    step: usize,
) -> Lowered {
    Lowered::plain(move |call| {
        let x = call.input::<T>(0);
        let y = SharedMut::new(call.output::<T>(0));
        if step == 1 {
            blocks(call, before, len * after, &|block, range| {
                let (from, to) = ((block * extent + start) * after, block * len * after);
                // SAFETY: blocks and ranges within them are disjoint.
                let y = unsafe { y.slice(to + range.start..to + range.end) };
                y.copy_from_slice(&x[from + range.start..from + range.end]);
            });
            return Ok(());
        }
        blocks(call, before, len, &|block, range| {
            let to = (block * len + range.start) * after..(block * len + range.end) * after;
            // SAFETY: blocks and ranges within them are disjoint.
            let y = unsafe { y.slice(to) };
            for (y, i) in y.chunks_exact_mut(after.max(1)).zip(range) {
                let from = (block * extent + start + i * step) * after;
                y.copy_from_slice(&x[from..from + after]);
            }
        });
        Ok(())
    })
}

pub(super) fn slice_grad(op: &SliceGrad, ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    let [before, extent, after] = around(&outs[0].shape, op.axis);
    let (start, step, len) = (op.start, op.step as i64, ins[0].shape[op.axis]);
    Some(Lowered::plain(move |call| {
        let dy = call.input::<f32>(0);
        let dx = SharedMut::new(call.output::<f32>(0));
        if step == 1 {
            let (run, from) = (extent * after, len * after);
            blocks(call, before, run, &|block, range| {
                // SAFETY: blocks and ranges within them are disjoint.
                let dx = unsafe { dx.slice(block * run + range.start..block * run + range.end) };
                surround(&dy[block * from..][..from], start * after as i64, range.start, 0.0, dx);
            });
            return Ok(());
        }
        blocks(call, before, extent, &|block, range| {
            let to = (block * extent + range.start) * after..(block * extent + range.end) * after;
            // SAFETY: blocks and ranges within them are disjoint.
            let dx = unsafe { dx.slice(to) };
            dx.fill(0.0);
            let skipped = (range.start as i64 - start).max(0) as u64;
            let first = skipped.div_ceil(step as u64) as i64;
            for i in (first..len as i64).take_while(|i| start + i * step < range.end as i64) {
                let to = ((start + i * step) as usize - range.start) * after;
                let from = (block * len + i as usize) * after;
                dx[to..to + after].copy_from_slice(&dy[from..from + after]);
            }
        });
        Ok(())
    }))
}

/// Writes the elements from `at` on of a run that has `x` from `shift` on and `value` elsewhere.
fn surround(x: &[f32], shift: i64, at: usize, value: f32, y: &mut [f32]) {
    let inside = |end: i64| (end - at as i64).clamp(0, y.len() as i64) as usize;
    let (lead, end) = (inside(shift), inside(shift + x.len() as i64));
    y[..lead].fill(value);
    y[end..].fill(value);
    if lead < end {
        let first = ((at + lead) as i64 - shift) as usize;
        y[lead..end].copy_from_slice(&x[first..first + end - lead]);
    }
}

pub(super) fn pad(op: &Pad, ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    // Dimensions after the last padded one are whole: with it they make one run.
    let rank = op.low.len();
    let last = (0..rank).rev().find(|&d| (op.low[d], op.high[d]) != (0, 0)).unwrap_or(0);
    let inner: usize = outs[0].shape.iter().skip(last + 1).product();
    let extents = |shape: &[usize]| shape.iter().take(last).copied().collect::<Vec<_>>();
    let (from, to) = (extents(&ins[0].shape), extents(&outs[0].shape));
    let (low, value) = (op.low.clone(), op.value);
    let run = |shape: &[usize]| shape.get(last).map_or(1, |extent| extent * inner);
    let (from_run, run) = (run(&ins[0].shape), run(&outs[0].shape));
    let shift = low.get(last).map_or(0, |low| low * inner as i64);
    let rows = to.iter().product();
    Some(Lowered::plain(move |call| {
        let x = call.input::<f32>(0);
        let y = SharedMut::new(call.output::<f32>(0));
        // Where a row of the result begins in the operand, if it is not all padding.
        let source = |mut row: usize| {
            let (mut at, mut step) = (0, from_run);
            for d in (0..last).rev() {
                let p = usize::try_from((row % to[d]) as i64 - low[d]).ok().filter(|&p| p < from[d])?;
                (row, at, step) = (row / to[d], at + p * step, step * from[d]);
            }
            Some(at)
        };
        blocks(call, rows, run, &|row, range| {
            // SAFETY: rows and ranges within them are disjoint.
            let y = unsafe { y.slice(row * run + range.start..row * run + range.end) };
            match source(row) {
                Some(at) => surround(&x[at..at + from_run], shift, range.start, value, y),
                None => y.fill(value),
            }
        });
        Ok(())
    }))
}

pub(super) fn upsample(op: &Upsample, ins: &[TensorType]) -> Option<Lowered> {
    let rank = op.factor.len();
    let mut factor = [1; 3];
    factor[3 - rank..].copy_from_slice(&op.factor);
    let mut source = [1; 3];
    source[3 - rank..].copy_from_slice(&ins[0].shape[2..]);
    let planes = ins[0].shape[0] * ins[0].shape[1];
    Some(by_width!(ins[0].dtype, upsample_as(planes, source, factor)))
}

fn upsample_as<T: Element>(
    planes: usize,
    [depth, height, width]: [usize; 3],
    [fd, fh, fw]: [usize; 3],
) -> Lowered {
    let rows = height * fh;
    Lowered::plain(move |call| {
        let x = call.input::<T>(0);
        let y = SharedMut::new(call.output::<T>(0));
        let len = width * fw;
        let work = |range: Range<usize>| {
            for line in range {
                let from = (line / rows / fd * height + line % rows / fh) * width;
                // SAFETY: lines are disjoint.
                let y = unsafe { y.slice(line * len..(line + 1) * len) };
                let x = &x[from..from + width];
                match fw {
                    1 => y.copy_from_slice(x),
                    2 => y.chunks_exact_mut(2).zip(x).for_each(|(y, &x)| y.fill(x)),
                    _ => y.chunks_exact_mut(fw).zip(x).for_each(|(y, &x)| y.fill(x)),
                }
            }
        };
        let lines = planes * depth * fd * rows;
        units(call, lines, len, &work);
        Ok(())
    })
}

pub(super) fn iota(op: &Iota, outs: &[TensorType]) -> Option<Lowered> {
    let [_, extent, after] = around(&outs[0].shape, op.axis);
    let start = op.start;
    macro_rules! count {
        ($t:ty) => {
            Some(Lowered::plain(move |call| {
                for (row, y) in call.output::<$t>(0).chunks_mut(after.max(1)).enumerate() {
                    y.fill((start + (row % extent) as i64) as $t);
                }
                Ok(())
            }))
        };
    }
    match op.dtype {
        DType::F32 => count!(f32),
        DType::I64 => count!(i64),
        _ => None,
    }
}
