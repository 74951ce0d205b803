//! Pooling of single planes with up to three spatial dimensions; a missing dimension has extent one.
//! Taps outside the source are skipped. A row of windows first takes in its lines, element by element, and
//! then the taps along the line; gradients go the same way back. Sums are divided once, at the end.

use crate::kernel::reduce;
use crate::team::isa::{Isa, simd};
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
    /// The positions whose windows read a source coordinate along one axis, by ascending tap.
    #[inline(always)]
    fn readers(&self, axis: usize, at: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let (stride, taps) = (self.stride[axis] as isize, self.kernel[axis] as isize);
        let last = at as isize + self.low[axis];
        let up = |x: isize| if x <= 0 { 0 } else { (x + stride - 1) / stride };
        let end = up(last + 1).min(self.positions[axis] as isize);
        (up(last + 1 - taps) as usize..end as usize).rev()
    }

    /// The source coordinates of a window along one axis.
    #[inline(always)]
    fn span(&self, axis: usize, position: usize) -> Range<usize> {
        let start = (position * self.stride[axis]) as isize - self.low[axis];
        let limit = |x: isize| x.clamp(0, self.source[axis] as isize) as usize;
        limit(start)..limit(start + self.kernel[axis] as isize)
    }

    /// Along the last axis, the positions whose tap lies inside the source and what the first reads.
    pub fn inside(&self, tap: usize) -> (Range<usize>, usize) {
        let (stride, shift) = (self.stride[2], tap as isize - self.low[2]);
        let up = |x: isize| (x.max(0) as usize).div_ceil(stride).min(self.positions[2]);
        let lead = up(-shift);
        let range = lead..up(self.source[2] as isize - shift).max(lead);
        (range, ((lead * stride) as isize + shift).max(0) as usize)
    }

    /// Elements of a line as the windows along it see it, padding included, and a stride more.
    pub fn line_len(&self) -> usize {
        self.positions[2] * self.stride[2] + self.kernel[2]
    }

    /// The part of such a line that is source, and where in the source it starts.
    fn within_line(&self) -> (Range<usize>, usize) {
        let place = |x: isize| x.clamp(0, self.line_len() as isize) as usize;
        let range = place(self.low[2])..place(self.low[2] + self.source[2] as isize);
        let start = range.start as isize - self.low[2];
        if range.is_empty() { (0..0, 0) } else { (range, start as usize) }
    }
}

/// Takes `lines` of a plane, `width` elements from `start` on of each, into `to`, element by element.
#[inline(always)]
fn take_lines(
    plane: &[f32],
    mut lines: impl Iterator<Item = usize>,
    start: usize,
    to: &mut [f32],
    first: f32,
    step: impl Fn(f32, f32) -> f32,
) {
    let n = to.len();
    let line = |at: usize| &plane[at + start..][..n];
    match (lines.next(), lines.next()) {
        (None, _) => to.fill(first),
        (Some(a), None) => to.copy_from_slice(line(a)),
        (Some(a), Some(b)) => {
            let (a, b) = (line(a), line(b));
            for i in 0..n {
                to[i] = step(a[i], b[i]);
            }
        }
    }
    for at in lines {
        for (to, &x) in to.iter_mut().zip(line(at)) {
            *to = step(*to, x);
        }
    }
}

/// Takes the windows along a line into `y`.
#[inline(always)]
fn take_windows(
    kernel: usize,
    stride: usize,
    line: &[f32],
    y: &mut [f32],
    first: f32,
    step: impl Fn(f32, f32) -> f32,
) {
    // Indices into slices of known lengths, as chains of iterators are left as calls.
    let n = y.len();
    match (kernel, stride) {
        (2, 2) => {
            let pairs = &line.as_chunks::<2>().0[..n];
            for i in 0..n {
                y[i] = step(step(first, pairs[i][0]), pairs[i][1]);
            }
        }
        (3, 2) => {
            let (pairs, next) = (&line.as_chunks::<2>().0[..n], &line[2..].as_chunks::<2>().0[..n]);
            for i in 0..n {
                y[i] = step(step(step(first, pairs[i][0]), pairs[i][1]), next[i][0]);
            }
        }
        (3, 1) => {
            let (a, b, c) = (&line[..n], &line[1..][..n], &line[2..][..n]);
            for i in 0..n {
                y[i] = step(step(step(first, a[i]), b[i]), c[i]);
            }
        }
        _ => {
            y.fill(first);
            for tap in 0..kernel {
                for (y, &x) in y.iter_mut().zip(line[tap..].iter().step_by(stride)) {
                    *y = step(*y, x);
                }
            }
        }
    }
}

/// Rows of positions of one plane; `line` holds [`Windows::line_len`] elements.
#[inline(always)]
fn fold_rows(
    w: &Windows,
    x: &[f32],
    rows: Range<usize>,
    line: &mut [f32],
    y: &mut [f32],
    first: f32,
    step: impl Fn(f32, f32) -> f32,
) {
    line.fill(first);
    let (within, start) = w.within_line();
    for (row, y) in rows.zip(y.chunks_exact_mut(w.positions[2].max(1))) {
        let (z, r) = (w.span(0, row / w.positions[1]), w.span(1, row % w.positions[1]));
        let lines = z.flat_map(|z| r.clone().map(move |r| (z * w.source[1] + r) * w.source[2]));
        take_lines(x, lines, start, &mut line[within.clone()], first, &step);
        take_windows(w.kernel[2], w.stride[2], line, y, first, &step);
    }
}

#[inline(always)]
fn max_rows_body(w: &Windows, x: &[f32], rows: Range<usize>, line: &mut [f32], y: &mut [f32]) {
    let larger = |most: f32, x: f32| if most >= x || most.is_nan() { most } else { x };
    fold_rows(w, x, rows, line, y, f32::NEG_INFINITY, larger);
}

#[inline(always)]
fn mean_rows_body(w: &Windows, x: &[f32], rows: Range<usize>, divisor: f32, line: &mut [f32], y: &mut [f32]) {
    fold_rows(w, x, rows, line, y, 0.0, |sum, x| sum + x);
    for y in y {
        *y /= divisor;
    }
}

/// Gives each position's number to its window along a line.
#[inline(always)]
fn spread(kernel: usize, stride: usize, from: &[f32], line: &mut [f32]) {
    if (kernel, stride) == (2, 2) {
        line[2 * from.len()..].fill(0.0);
        let pairs = &mut line.as_chunks_mut::<2>().0[..from.len()];
        for i in 0..from.len() {
            pairs[i] = [0.0 + from[i]; 2];
        }
        return;
    }
    line.fill(0.0);
    for tap in 0..kernel {
        if stride == 1 {
            for (line, &x) in line[tap..].iter_mut().zip(from) {
                *line += x;
            }
        } else {
            for (line, &x) in line[tap..].iter_mut().step_by(stride).zip(from) {
                *line += x;
            }
        }
    }
}

#[inline(always)]
fn mean_rows_grad_body(
    w: &Windows,
    dy: &[f32],
    rows: Range<usize>,
    divisor: f32,
    line: &mut [f32],
    dx: &mut [f32],
) {
    let (from, wide) = line.split_at_mut(w.positions[2]);
    let (within, start) = w.within_line();
    for (row, dx) in rows.zip(dx.chunks_exact_mut(w.source[2].max(1))) {
        let (z, r) = (row / w.source[1], row % w.source[1]);
        let rows = w.readers(1, r);
        let line = |z: usize, r: usize| (z * w.positions[1] + r) * w.positions[2];
        let lines = w.readers(0, z).flat_map(|z| rows.clone().map(move |r| line(z, r)));
        take_lines(dy, lines, 0, from, 0.0, |sum, x| sum + x);
        spread(w.kernel[2], w.stride[2], from, wide);
        dx.fill(0.0);
        for (dx, &sum) in dx[start..].iter_mut().zip(&wide[within.clone()]) {
            *dx = sum / divisor;
        }
    }
}

simd! {
    /// The largest element of each window of rows of positions of one plane, NaN if any is; `line` holds
    /// [`Windows::line_len`] elements.
    pub fn max_rows(w: &Windows, x: &[f32], rows: Range<usize>, line: &mut [f32], y: &mut [f32]) = max_rows_body;
    /// The sum of each window of rows of positions over `divisor`; `line` as for [`max_rows`].
    pub fn mean_rows(w: &Windows, x: &[f32], rows: Range<usize>, divisor: f32, line: &mut [f32], y: &mut [f32]) = mean_rows_body;
    /// Rows of the source's gradient for [`mean_rows`]; `line` holds an element per position along the
    /// last axis more than there.
    pub fn mean_rows_grad(w: &Windows, dy: &[f32], rows: Range<usize>, divisor: f32, line: &mut [f32], dx: &mut [f32]) = mean_rows_grad_body;
    /// The gradient of max pooling for one plane: `dy` of each window, windows in row-major order, goes to
    /// its first element that equals `y`, if that one lands. `taps` is [`Windows::inside`] of every tap, and
    /// `place` has an element per position along the last axis. Panics if the plane has 2^31 - 1 elements or more.
    pub fn max_grad(w: &Windows, taps: &[(Range<usize>, usize)], into: &Landing, planes: [&[f32]; 3], place: &mut [i32], dx: &mut [f32]) = max_grad_body;
}

/// No place yet: later than all.
const NOWHERE: i32 = i32::MAX;

/// Moves the places of those `y` that equal every `stride`-th element of `x` to `at` and on, if sooner.
#[inline(always)]
fn seek(x: &[f32], stride: usize, at: i32, y: &[f32], place: &mut [i32]) {
    let sooner = |place: i32, x: f32, y: f32, at: i32| {
        place.min(if (x == y) | (x.is_nan() & y.is_nan()) { at } else { NOWHERE })
    };
    // The last may lack a whole stride after it, which the others need to vectorise.
    let n = place.len().min(x.len() / stride);
    if let Some(last) = place.get_mut(n) {
        *last = sooner(*last, x[n * stride], y[n], at + (n * stride) as i32);
    }
    let (place, y) = (&mut place[..n], &y[..n]);
    match stride {
        1 => {
            let x = &x[..n];
            for i in 0..n {
                place[i] = sooner(place[i], x[i], y[i], at + i as i32);
            }
        }
        2 => {
            let x = &x.as_chunks::<2>().0[..n];
            for i in 0..n {
                place[i] = sooner(place[i], x[i][0], y[i], at + 2 * i as i32);
            }
        }
        _ => {
            for i in 0..n {
                place[i] = sooner(place[i], x[i * stride], y[i], at + (i * stride) as i32);
            }
        }
    }
}

/// Where a gradient lands if not where its windows read: the same windows over another extent.
#[derive(Clone, Copy, Debug)]
pub struct Landing {
    /// Extents.
    pub size: [usize; 3],
    /// Elements before it that the first window covers.
    pub low: [isize; 3],
}

#[inline(always)]
fn max_grad_body(
    w: &Windows,
    taps: &[(Range<usize>, usize)],
    into: &Landing,
    [x, y, dy]: [&[f32]; 3],
    place: &mut [i32],
    dx: &mut [f32],
) {
    dx.fill(0.0);
    assert!(x.len() < NOWHERE as usize, "a plane too large");
    let [_, height, width] = w.source;
    let shift: [isize; 3] = std::array::from_fn(|a| w.low[a] - into.low[a]);
    let here = into.size == w.source && shift == [0; 3];
    let land = |axis: usize, at: usize| {
        usize::try_from(at as isize + shift[axis]).ok().filter(|&at| at < into.size[axis])
    };
    let lands = |at: usize| {
        let (z, r, c) = (land(0, at / width / height)?, land(1, at / width % height)?, land(2, at % width)?);
        Some((z * into.size[1] + r) * into.size[2] + c)
    };
    let [_, rows, cols] = w.positions;
    let windows = y.chunks_exact(cols.max(1)).zip(dy.chunks_exact(cols.max(1)));
    for (line, (y, dy)) in windows.enumerate() {
        let (z, r) = (w.span(0, line / rows), w.span(1, line % rows));
        place.fill(NOWHERE);
        for line in z.flat_map(|z| r.clone().map(move |r| z * height + r)) {
            let start = line * width;
            for (range, first) in taps.iter().filter(|(range, _)| !range.is_empty()) {
                let (at, y) = (start + first, &y[range.clone()]);
                seek(&x[at..start + width], w.stride[2], at as i32, y, &mut place[range.clone()]);
            }
        }
        for (&place, &dy) in place.iter().zip(dy) {
            if place == NOWHERE {
                continue;
            }
            if let Some(at) = if here { Some(place as usize) } else { lands(place as usize) } {
                dx[at] += dy;
            }
        }
    }
}

/// The average of each box of one plane; `boxes` lists the ranges along each axis.
pub fn box_mean(isa: Isa, boxes: &[Vec<Range<usize>>; 3], source: [usize; 3], x: &[f32], y: &mut [f32]) {
    let mut y = y.iter_mut();
    each_box(boxes, source, |lines, count| {
        let mut sum = 0.0;
        lines(&mut |line| sum += reduce::sum(isa, &x[line]));
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

/// Calls `f` for every box with a function that visits the runs of neighbouring elements in the box, and
/// its number of elements.
fn each_box(
    boxes: &[Vec<Range<usize>>; 3],
    source: [usize; 3],
    mut f: impl FnMut(&dyn Fn(&mut dyn FnMut(Range<usize>)), usize),
) {
    for z in &boxes[0] {
        for r in &boxes[1] {
            for c in &boxes[2] {
                let runs = |visit: &mut dyn FnMut(Range<usize>)| {
                    if c.len() == source[2] && (r.len() == source[1] || z.len() == 1) {
                        let start = (z.start * source[1] + r.start) * source[2];
                        visit(start..start + z.len() * r.len() * c.len());
                        return;
                    }
                    for (z, r) in z.clone().flat_map(|z| r.clone().map(move |r| (z, r))) {
                        let start = (z * source[1] + r) * source[2];
                        visit(start + c.start..start + c.end);
                    }
                };
                f(&runs, z.len() * r.len() * c.len());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    /// Windows with their source [height, width], kernel, stride and padding along both axes.
    fn windows() -> Vec<Windows> {
        let row = |[h, w]: [usize; 2], [k, l]: [usize; 2], stride: [usize; 2], low: [isize; 2], positions| {
            let [p, q]: [usize; 2] = positions;
            Windows {
                source: [1, h, w],
                positions: [1, p, q],
                kernel: [1, k, l],
                stride: [1, stride[0], stride[1]],
                low: [0, low[0], low[1]],
            }
        };
        vec![
            row([8, 40], [2, 2], [2, 2], [0, 0], [4, 20]),
            row([6, 5], [2, 2], [2, 2], [0, 0], [3, 2]),
            row([9, 41], [3, 3], [2, 2], [1, 1], [5, 21]),
            row([7, 19], [3, 3], [1, 1], [1, 1], [7, 19]),
            row([7, 30], [4, 5], [3, 3], [-1, 2], [2, 9]),
            row([5, 6], [1, 7], [1, 2], [0, 7], [5, 5]),
        ]
    }

    /// What a window reads, by tap, in row-major order.
    fn reads(w: &Windows, row: usize, column: usize) -> Vec<usize> {
        let (r, c) = (w.span(1, row), w.span(2, column));
        r.flat_map(|r| c.clone().map(move |c| r * w.source[2] + c)).collect()
    }

    #[test]
    fn pools_are_those_of_the_definition_for_any_rows() {
        for (w, isa) in windows().iter().flat_map(|w| Isa::all().into_iter().map(move |isa| (w, isa))) {
            let [_, height, width] = w.source;
            let [_, rows, cols] = w.positions;
            let mut x: Vec<f32> = noise(height * width, 3).iter().map(|x| (x * 4.0).round()).collect();
            x[width + 3] = f32::NAN;
            let dy = noise(rows * cols, 4);
            let mut line = vec![f32::NAN; w.line_len() + cols];
            let line_len = w.line_len();
            let (mut most, mut mean) = (vec![0.0; rows * cols], vec![0.0; rows * cols]);
            for (r, y) in most.chunks_mut(cols).enumerate() {
                max_rows(isa, w, &x, r..r + 1, &mut line[..line_len], y);
            }
            mean_rows(isa, w, &x, 0..rows, 3.0, &mut line[..line_len], &mut mean);
            let (mut by_max, mut by_mean) = (vec![0.0f32; x.len()], vec![0.0f64; x.len()]);
            for (p, &dy) in dy.iter().enumerate() {
                let at = reads(w, p / cols, p % cols);
                let values: Vec<f32> = at.iter().map(|&at| x[at]).collect();
                let nan = values.iter().any(|v| v.is_nan());
                let best = values.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                assert!(if nan { most[p].is_nan() } else { most[p] == best }, "{w:?} {p}");
                let sum: f32 = values.iter().sum();
                assert!(if nan { mean[p].is_nan() } else { (mean[p] - sum / 3.0).abs() < 1e-5 }, "{w:?} {p}");
                let first = values.iter().position(|&v| if nan { v.is_nan() } else { v == best });
                if let Some(first) = first {
                    by_max[at[first]] += dy;
                }
                at.iter().for_each(|&at| by_mean[at] += f64::from(dy) / 3.0);
            }
            let (mut place, mut dx) = (vec![0; cols], vec![f32::NAN; x.len()]);
            let taps: Vec<_> = (0..w.kernel[2]).map(|tap| w.inside(tap)).collect();
            let into = Landing { size: w.source, low: w.low };
            max_grad(isa, w, &taps, &into, [&x, &most, &dy], &mut place, &mut dx);
            assert_eq!(bits(&dx), bits(&by_max), "{w:?}");
            let mut whole = vec![f32::NAN; x.len()];
            mean_rows_grad(isa, w, &dy, 0..height, 3.0, &mut line, &mut whole);
            for (r, dx) in dx.chunks_mut(width).enumerate() {
                mean_rows_grad(isa, w, &dy, r..r + 1, 3.0, &mut line, dx);
            }
            assert_eq!(bits(&dx), bits(&whole), "{w:?}");
            assert!(dx.iter().zip(&by_mean).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5), "{w:?}");
        }
    }
}
