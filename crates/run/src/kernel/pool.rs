//! Pooling of single planes with up to three spatial dimensions; a missing dimension has extent one.
//! Taps outside the source are skipped. An element takes in its taps, or receives from its windows'
//! taps, in row-major order of the taps; sums are divided once, at the end.

use crate::kernel::isa::{Isa, simd};
use std::ops::Range;

/// How windows lie over a source: position `p` reads `p * stride + tap - low` along each axis.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Extents of what the windows read.
    pub source: [usize; 3],
    /// How many windows there are.
    pub positions: [usize; 3],
    /// Taps of a window.
    pub kernel: [usize; 3],
    /// Elements between neighbouring windows.
    pub stride: [usize; 3],
    /// Elements before the source that the first window reads; negative skips elements.
    pub low: [isize; 3],
}

impl Windows {
    /// The position whose tap reads a source coordinate along one axis.
    fn reader(&self, axis: usize, at: usize, tap: usize) -> Option<usize> {
        let at = usize::try_from(at as isize + self.low[axis] - tap as isize).ok()?;
        let position = at / self.stride[axis];
        (at.is_multiple_of(self.stride[axis]) && position < self.positions[axis]).then_some(position)
    }

    /// The source coordinates of a window along one axis.
    #[inline(always)]
    fn span(&self, axis: usize, position: usize) -> Range<usize> {
        let start = (position * self.stride[axis]) as isize - self.low[axis];
        let limit = |x: isize| x.clamp(0, self.source[axis] as isize) as usize;
        limit(start)..limit(start + self.kernel[axis] as isize)
    }

    /// Along the last axis, the positions whose tap lies inside the source and what the first reads.
    fn inside(&self, tap: usize) -> (Range<usize>, usize) {
        let (stride, shift) = (self.stride[2], tap as isize - self.low[2]);
        let up = |x: isize| (x.max(0) as usize).div_ceil(stride).min(self.positions[2]);
        let lead = up(-shift);
        let range = lead..up(self.source[2] as isize - shift).max(lead);
        (range, ((lead * stride) as isize + shift).max(0) as usize)
    }
}

/// Takes every `stride`-th element of `from` into the elements of `to`, of which there is at least one.
#[inline(always)]
fn take_in(from: &[f32], stride: usize, to: &mut [f32], step: impl Fn(f32, f32) -> f32) {
    // All but the last have a whole stride after them, which makes known strides vectorise.
    let Some((last, others)) = to.split_last_mut() else { return };
    *last = step(*last, from[others.len() * stride]);
    if stride == 1 {
        for (to, &from) in others.iter_mut().zip(from) {
            *to = step(*to, from);
        }
    } else if stride == 2 {
        for (to, from) in others.iter_mut().zip(from.chunks_exact(2)) {
            *to = step(*to, from[0]);
        }
    } else {
        for (to, from) in others.iter_mut().zip(from.chunks_exact(stride)) {
            *to = step(*to, from[0]);
        }
    }
}

/// One row of positions: all their taps, taken in one after another.
#[inline(always)]
fn fold_row(w: &Windows, x: &[f32], row: usize, y: &mut [f32], step: impl Fn(f32, f32) -> f32) {
    let (z, r) = (row / w.positions[1], row % w.positions[1]);
    for z in w.span(0, z) {
        for r in w.span(1, r) {
            let line = &x[(z * w.source[1] + r) * w.source[2]..][..w.source[2]];
            for tap in 0..w.kernel[2] {
                let (range, first) = w.inside(tap);
                if !range.is_empty() {
                    take_in(&line[first..], w.stride[2], &mut y[range], &step);
                }
            }
        }
    }
}

#[inline(always)]
fn max_row_body(w: &Windows, x: &[f32], row: usize, y: &mut [f32]) {
    y.fill(f32::NEG_INFINITY);
    fold_row(w, x, row, y, |most, x| if most >= x || most.is_nan() { most } else { x });
}

#[inline(always)]
fn mean_row_body(w: &Windows, x: &[f32], row: usize, divisor: f32, y: &mut [f32]) {
    y.fill(0.0);
    fold_row(w, x, row, y, |sum, x| sum + x);
    for y in y {
        *y /= divisor;
    }
}

#[inline(always)]
fn mean_row_grad_body(w: &Windows, dy: &[f32], row: usize, divisor: f32, dx: &mut [f32]) {
    dx.fill(0.0);
    let (z, r) = (row / w.source[1], row % w.source[1]);
    for z in (0..w.kernel[0]).filter_map(|tap| w.reader(0, z, tap)) {
        for r in (0..w.kernel[1]).filter_map(|tap| w.reader(1, r, tap)) {
            let line = &dy[(z * w.positions[1] + r) * w.positions[2]..][..w.positions[2]];
            for tap in 0..w.kernel[2] {
                let (range, first) = w.inside(tap);
                if range.is_empty() {
                    continue;
                }
                let dx = &mut dx[first..];
                if w.stride[2] == 1 {
                    for (dx, dy) in dx.iter_mut().zip(&line[range]) {
                        *dx += dy;
                    }
                } else {
                    for (dx, dy) in dx.chunks_mut(w.stride[2]).zip(&line[range]) {
                        dx[0] += dy;
                    }
                }
            }
        }
    }
    for dx in dx {
        *dx /= divisor;
    }
}

simd! {
    /// The largest element of each window of one row of positions, NaN if any is.
    pub fn max_row(w: &Windows, x: &[f32], row: usize, y: &mut [f32]) = max_row_body;
    /// The sum of each window of one row of positions over `divisor`.
    pub fn mean_row(w: &Windows, x: &[f32], row: usize, divisor: f32, y: &mut [f32]) = mean_row_body;
    /// One row of the source's gradient for [`mean_row`].
    pub fn mean_row_grad(w: &Windows, dy: &[f32], row: usize, divisor: f32, dx: &mut [f32]) = mean_row_grad_body;
}

/// Where a gradient lands if not where its windows read: the same windows over another extent.
#[derive(Clone, Copy, Debug)]
pub struct Landing {
    /// Extents.
    pub size: [usize; 3],
    /// Elements before it that the first window covers.
    pub low: [isize; 3],
}

/// The gradient of max pooling for one plane: `dy` of each window, windows in row-major order, goes to
/// its first element that equals `y`, if that one lands.
pub fn max_grad(w: &Windows, into: &Landing, x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
    dx.fill(0.0);
    let [_, height, width] = w.source;
    let shift: [isize; 3] = std::array::from_fn(|a| w.low[a] - into.low[a]);
    let here = into.size == w.source && shift == [0; 3];
    let land = |axis: usize, at: usize| {
        usize::try_from(at as isize + shift[axis]).ok().filter(|&at| at < into.size[axis])
    };
    let place = |at: usize| {
        let (z, r, c) = (land(0, at / width / height)?, land(1, at / width % height)?, land(2, at % width)?);
        Some((z * into.size[1] + r) * into.size[2] + c)
    };
    let [_, rows, cols] = w.positions;
    let windows = y.chunks_exact(cols.max(1)).zip(dy.chunks_exact(cols.max(1)));
    for (line, (y, dy)) in windows.enumerate() {
        let (z, r) = (w.span(0, line / rows), w.span(1, line % rows));
        for (p, (&y, &dy)) in y.iter().zip(dy).enumerate() {
            let c = w.span(2, p);
            let mut first = usize::MAX;
            // Backwards and without leaving early: where the largest is cannot be predicted.
            for z in z.clone().rev() {
                for r in r.clone().rev() {
                    let start = (z * height + r) * width;
                    for c in c.clone().rev() {
                        let x = x[start + c];
                        let equal = (x == y) | (x.is_nan() & y.is_nan());
                        first = if equal { start + c } else { first };
                    }
                }
            }
            if first == usize::MAX {
                continue;
            }
            if let Some(at) = if here { Some(first) } else { place(first) } {
                dx[at] += dy;
            }
        }
    }
}

/// The average of each box of one plane; `boxes` lists the ranges along each axis.
pub fn box_mean(boxes: &[Vec<Range<usize>>; 3], source: [usize; 3], x: &[f32], y: &mut [f32]) {
    let mut y = y.iter_mut();
    each_box(boxes, source, |lines, count| {
        let mut sum = 0.0;
        lines(&mut |line| x[line].iter().for_each(|x| sum += x));
        if let Some(y) = y.next() {
            *y = sum / count as f32;
        }
    });
}

/// The gradient of [`box_mean`]: every element receives an equal share from each of its boxes, in order.
pub fn box_mean_grad(boxes: &[Vec<Range<usize>>; 3], source: [usize; 3], dy: &[f32], dx: &mut [f32]) {
    dx.fill(0.0);
    let mut dy = dy.iter();
    each_box(boxes, source, |lines, count| {
        let share = dy.next().map_or(0.0, |dy| dy / count as f32);
        lines(&mut |line| dx[line].iter_mut().for_each(|dx| *dx += share));
    });
}

/// Calls `f` for every box with a function that visits the box's lines, and its number of elements.
fn each_box(
    boxes: &[Vec<Range<usize>>; 3],
    source: [usize; 3],
    mut f: impl FnMut(&dyn Fn(&mut dyn FnMut(Range<usize>)), usize),
) {
    for z in &boxes[0] {
        for r in &boxes[1] {
            for c in &boxes[2] {
                let lines = |visit: &mut dyn FnMut(Range<usize>)| {
                    for (z, r) in z.clone().flat_map(|z| r.clone().map(move |r| (z, r))) {
                        let start = (z * source[1] + r) * source[2];
                        visit(start + c.start..start + c.end);
                    }
                };
                f(&lines, z.len() * r.len() * c.len());
            }
        }
    }
}

/// Linear combinations of a few source elements along one axis: per result, pairs of position and weight.
#[derive(Clone, Debug, Default)]
pub struct Mixes {
    taps: Vec<(usize, f32)>,
    ends: Vec<usize>,
}

impl Mixes {
    /// From the pairs of every result, in the order in which they are to be added.
    pub fn new(mixes: impl Iterator<Item = Vec<(usize, f32)>>) -> Mixes {
        let mut all = Mixes::default();
        for taps in mixes {
            all.taps.extend(taps);
            all.ends.push(all.taps.len());
        }
        all
    }

    /// The pairs of one result.
    fn of(&self, i: usize) -> &[(usize, f32)] {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.taps[start..self.ends[i]]
    }
}

/// `to` = Σ weight · line, in order, each a fused multiply-add from zero.
#[inline(always)]
fn mix_body(taps: &[(usize, f32)], x: &[f32], width: usize, to: &mut [f32]) {
    to.fill(0.0);
    for &(line, weight) in taps {
        for (to, &x) in to.iter_mut().zip(&x[line * width..(line + 1) * width]) {
            *to = x.mul_add(weight, *to);
        }
    }
}

#[inline(always)]
fn mix_within_body(mixes: &Mixes, line: &[f32], to: &mut [f32]) {
    let mut start = 0;
    for (to, &end) in to.iter_mut().zip(&mixes.ends) {
        *to = match &mixes.taps[start..end] {
            // Two taps are what upsampling has.
            &[(a, u), (b, v)] => line[b].mul_add(v, line[a].mul_add(u, 0.0)),
            taps => {
                let mut sum = 0.0;
                for &(at, weight) in taps {
                    sum = line[at].mul_add(weight, sum);
                }
                sum
            }
        };
        start = end;
    }
}

simd! {
    fn mix(taps: &[(usize, f32)], x: &[f32], width: usize, to: &mut [f32]) = mix_body;
    fn mix_within(mixes: &Mixes, line: &[f32], to: &mut [f32]) = mix_within_body;
}

/// Row `row` of a separable resampling of a plane: its lines are mixed into `line` by `rows`, and the
/// elements of that by `columns`.
pub fn resample_row(
    isa: Isa,
    (rows, columns): (&Mixes, &Mixes),
    row: usize,
    x: &[f32],
    line: &mut [f32],
    to: &mut [f32],
) {
    mix(isa, rows.of(row), x, line.len(), line);
    mix_within(isa, columns, line, to);
}
