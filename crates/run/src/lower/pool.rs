//! Pooling and resampling of images: planes and their rows divided over threads.

use super::broadcast::GRAIN;
use super::{Lowered, TensorType};
use crate::kernel::pool::{self, Landing, Mixes, Windows};
use crate::lower::call::{Call, Element};
use crate::team::isa::Isa;
use crate::team::{SharedMut, share};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::adaptive_avg_pool::adaptive_range;
use gulliver_graph::graph::op::avg_pool::AvgPool;
use gulliver_graph::graph::op::avg_pool_grad::AvgPoolGrad;
use gulliver_graph::graph::op::bilinear::{Bilinear, Stretch};
use gulliver_graph::graph::op::bilinear_grad::{BilinearGrad, lands};
use gulliver_graph::graph::op::max_pool::MaxPool;
use gulliver_graph::graph::op::max_pool_grad::MaxPoolGrad;
use gulliver_graph::graph::op::window::{PoolWindow, WindowTarget};
use std::ops::Range;

/// Three extents from the spatial dimensions of a shape [n, c, …].
fn spatial(shape: &[usize]) -> [usize; 3] {
    let mut extents = [1; 3];
    extents[5 - shape.len()..].copy_from_slice(&shape[2..]);
    extents
}

fn windows(window: &[PoolWindow], source: &[usize], positions: &[usize]) -> Windows {
    let mut w = Windows {
        source: spatial(source),
        positions: spatial(positions),
        kernel: [1; 3],
        stride: [1; 3],
        low: [0; 3],
    };
    for (axis, window) in (3 - window.len()..).zip(window) {
        w.kernel[axis] = window.kernel;
        w.stride[axis] = window.stride;
        w.low[axis] = window.low as isize;
    }
    w
}

fn lows(into: &[WindowTarget]) -> [isize; 3] {
    let mut low = [0; 3];
    for (axis, target) in (3 - into.len()..).zip(into) {
        low[axis] = target.low as isize;
    }
    low
}

/// Divides `units` of about `work` elements over the team and calls `f` with ranges of them, each thread
/// with `each` elements of scratch.
fn with_lines<T: Element>(
    call: &mut Call<'_>,
    units: usize,
    work: usize,
    each: usize,
    f: &(dyn Fn(&mut [T], Range<usize>) + Sync),
) {
    let lines = SharedMut::new(call.scratch::<T>());
    let parts = if units * work < 2 * GRAIN { 1 } else { call.team.threads() };
    call.team.run(parts, &|part| {
        // SAFETY: each part has its own stretch of scratch.
        f(unsafe { lines.slice(part * each..(part + 1) * each) }, share(units, 1, parts, part));
    });
}

/// Runs `f(plane of x, rows, line, rows of y)` for all rows of a result [n, c, …].
fn by_rows(
    ins: &[TensorType],
    outs: &[TensorType],
    (taps, line, threads): (usize, usize, usize),
    f: impl Fn(Isa, &[f32], Range<usize>, &mut [f32], &mut [f32]) + Send + Sync + 'static,
) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    let from: usize = spatial(&ins[0].shape).iter().product();
    let [depth, height, width] = spatial(&outs[0].shape);
    let (rows, planes) = (depth * height, outs[0].shape[0] * outs[0].shape[1]);
    Some(Lowered::with_scratch(line * threads, move |call| {
        let isa = call.team.isa();
        let x = call.input::<f32>(0);
        let y = SharedMut::new(call.output::<f32>(0));
        with_lines(call, planes * rows, width * taps, line, &|line, range| {
            let mut at = range.start;
            while at < range.end {
                let plane = at / rows;
                let end = range.end.min((plane + 1) * rows);
                // SAFETY: rows are disjoint.
                let y = unsafe { y.slice(at * width..end * width) };
                f(isa, &x[plane * from..(plane + 1) * from], at - plane * rows..end - plane * rows, line, y);
                at = end;
            }
        });
        Ok(())
    }))
}

pub(super) fn max_pool(
    op: &MaxPool,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    let w = windows(&op.window, &ins[0].shape, &outs[0].shape);
    let work = (w.kernel.iter().product(), w.line_len(), threads);
    by_rows(ins, outs, work, move |isa, x, rows, line, y| pool::max_rows(isa, &w, x, rows, line, y))
}

pub(super) fn avg_pool(
    op: &AvgPool,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    let w = windows(&op.window, &ins[0].shape, &outs[0].shape);
    let (work, divisor) = ((w.kernel.iter().product(), w.line_len(), threads), op.divisor);
    by_rows(ins, outs, work, move |isa, x, rows, line, y| {
        pool::mean_rows(isa, &w, x, rows, divisor, line, y);
    })
}

pub(super) fn avg_pool_grad(
    op: &AvgPoolGrad,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    let mut w = windows(&op.window, &outs[0].shape, &ins[0].shape);
    w.low = lows(&op.into);
    let line = w.positions[2] + w.line_len();
    let (work, divisor) = ((w.kernel.iter().product(), line, threads), op.divisor);
    by_rows(ins, outs, work, move |isa, dy, rows, line, dx| {
        pool::mean_rows_grad(isa, &w, dy, rows, divisor, line, dx);
    })
}

/// Runs `f(planes of the operands, line, plane of the result)` for every plane.
fn by_planes<const N: usize>(
    ins: &[TensorType],
    outs: &[TensorType],
    (line, threads): (usize, usize),
    f: impl Fn(Isa, [&[f32]; N], &mut [i32], &mut [f32]) + Send + Sync + 'static,
) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    let plane = |ty: &TensorType| ty.shape[2..].iter().product::<usize>();
    let from: [usize; N] = std::array::from_fn(|i| plane(&ins[i]));
    let (to, planes) = (plane(&outs[0]), outs[0].shape[0] * outs[0].shape[1]);
    let work = from.iter().fold(to, |most, &len| most.max(len));
    Some(Lowered::with_scratch(line * threads, move |call| {
        let isa = call.team.isa();
        let operands: [&[f32]; N] = std::array::from_fn(|i| call.input::<f32>(i));
        let y = SharedMut::new(call.output::<f32>(0));
        with_lines(call, planes, work, line, &|line, range| {
            for p in range {
                // SAFETY: planes are disjoint.
                let y = unsafe { y.slice(p * to..(p + 1) * to) };
                f(isa, std::array::from_fn(|i| &operands[i][p * from[i]..(p + 1) * from[i]]), line, y);
            }
        });
        Ok(())
    }))
}

pub(super) fn max_pool_grad(
    op: &MaxPoolGrad,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    let w = windows(&op.window, &ins[0].shape, &ins[1].shape);
    let into = Landing { size: spatial(&outs[0].shape), low: lows(&op.into) };
    let taps: Vec<_> = (0..w.kernel[2]).map(|tap| w.inside(tap)).collect();
    by_planes(ins, outs, (w.positions[2], threads), move |isa, operands, place, dx| {
        pool::max_grad(isa, &w, &taps, &into, operands, place, dx);
    })
}

/// What each adaptive output averages, along three axes.
fn boxes(from: [usize; 3], to: [usize; 3]) -> [Vec<Range<usize>>; 3] {
    std::array::from_fn(|a| (0..to[a]).map(|i| adaptive_range(i, from[a], to[a])).collect())
}

pub(super) fn adaptive_avg_pool(ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    let source = spatial(&ins[0].shape);
    let boxes = boxes(source, spatial(&outs[0].shape));
    by_planes(ins, outs, (0, 0), move |isa, [x], _, y| pool::box_mean(isa, &boxes, source, x, y))
}

pub(super) fn adaptive_avg_pool_grad(ins: &[TensorType], outs: &[TensorType]) -> Option<Lowered> {
    let source = spatial(&outs[0].shape);
    let boxes = boxes(source, spatial(&ins[0].shape));
    by_planes(ins, outs, (0, 0), move |_, [dy], _, dx| pool::box_mean_grad(&boxes, source, dy, dx))
}

pub(super) fn bilinear(
    op: &Bilinear,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    let mixes = |s: &Stretch, d: usize| {
        let read = |i| s.reads(i, ins[0].shape[d]).map(|(at, weight)| (at, weight as f32)).to_vec();
        Mixes::new((0..outs[0].shape[d]).map(read))
    };
    resample(mixes(&op.rows, 2), mixes(&op.columns, 3), ins, outs, threads)
}

pub(super) fn bilinear_grad(
    op: &BilinearGrad,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    let mixes = |s: &Stretch, d: usize| {
        let extent = outs[0].shape[d];
        let mut all = vec![Vec::new(); extent];
        for i in 0..ins[0].shape[d] {
            for (r, weight) in s.taps(i) {
                if let Some(at) = lands(s, i, r, extent) {
                    all[at].push((i, weight as f32));
                }
            }
        }
        Mixes::new(all.into_iter())
    };
    resample(mixes(&op.rows, 2), mixes(&op.columns, 3), ins, outs, threads)
}

fn resample(
    rows: Mixes,
    columns: Mixes,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
) -> Option<Lowered> {
    if ins[0].dtype != DType::F32 {
        return None;
    }
    let (from, width) = (ins[0].shape[2] * ins[0].shape[3], ins[0].shape[3]);
    let (height, to) = (outs[0].shape[2], outs[0].shape[3]);
    let planes = outs[0].shape[0] * outs[0].shape[1];
    Some(Lowered::with_scratch(width * threads, move |call| {
        let isa = call.team.isa();
        let x = call.input::<f32>(0);
        let y = SharedMut::new(call.output::<f32>(0));
        with_lines(call, planes * height, to, width, &|line, range| {
            for unit in range {
                let (plane, row) = (unit / height, unit % height);
                // SAFETY: rows are disjoint.
                let y = unsafe { y.slice(unit * to..(unit + 1) * to) };
                let x = &x[plane * from..(plane + 1) * from];
                pool::resample_row(isa, (&rows, &columns), row, x, line, y);
            }
        });
        Ok(())
    }))
}
