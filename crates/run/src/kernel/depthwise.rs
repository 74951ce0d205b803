//! Convolution with one channel per group, straight from padded copies of single planes: too little
//! reuse for a matrix product. Same sums, same order as `conv` defines.

use crate::kernel::K_BLOCK;
use crate::kernel::conv::ConvShape;
use crate::kernel::pack::{Strided, interleave};
use crate::kernel::patch::Window;
use crate::team::isa::simd;
use crate::team::{SharedMut, Team, share};

/// Most positions computed at once.
const WIDE: usize = 32;
/// Channels side by side in the weight gradient.
const CHANNELS: usize = 8;

/// A zero-padded copy of one channel and how positions and kernel positions walk it. A line is kept
/// as `phases` lines of every `phases`-th element, so neighbouring positions read neighbours.
#[derive(Clone, Copy)]
struct Plane {
    /// Extents of the copy: two outer axes, then elements of one phase.
    extent: [usize; 3],
    phases: usize,
    /// Elements behind each line, read by a last run of positions that is not full.
    room: usize,
    /// Distance between positions along the two outer axes.
    stride: [usize; 2],
    /// Offset of kernel position 0 and change per kernel position, per axis.
    first: [usize; 3],
    slope: [isize; 3],
}

impl Plane {
    fn reading(s: &ConvShape) -> Plane {
        let span = |a: usize| s.output[a].saturating_sub(1) * s.stride[a] + reach(s, a) + 1;
        Plane {
            extent: [span(0), span(1), span(2).div_ceil(s.stride[2])],
            phases: s.stride[2],
            room: room(s.output[2]),
            stride: [s.stride[0], s.stride[1]],
            first: [0; 3],
            slope: s.dilation.map(|d| d as isize),
        }
    }

    /// The copy holds outputs spread out by the stride; kernel positions walk it backwards.
    fn collecting(s: &ConvShape) -> Plane {
        Plane {
            extent: std::array::from_fn(|a| s.input[a] + reach(s, a)),
            phases: 1,
            room: room(s.input[2]),
            stride: [1, 1],
            first: std::array::from_fn(|a| reach(s, a)),
            slope: s.dilation.map(|d| -(d as isize)),
        }
    }

    fn line(&self) -> usize {
        self.extent[2] + self.room
    }

    fn len(&self) -> usize {
        self.extent[0] * self.extent[1] * self.phases * self.line()
    }

    /// Copies the channel in; `shift` is the source coordinate of the copy's first element.
    fn fill(&self, window: &Window, shift: [isize; 3], channel: &[f32], plane: &mut [f32]) {
        let [_, h, w] = window.source;
        for (row, lines) in plane.chunks_exact_mut(self.phases * self.line()).enumerate() {
            let z = window.coordinate(0, row / self.extent[1], shift[0]);
            let y = window.coordinate(1, row % self.extent[1], shift[1]);
            let (Some(z), Some(y)) = (z, y) else {
                lines.fill(0.0);
                continue;
            };
            let from = &channel[(z * h + y) * w..][..w];
            for (phase, line) in lines.chunks_exact_mut(self.line()).enumerate() {
                window.line(from, 0, shift[2] + phase as isize, line);
            }
        }
    }

    /// Where a kernel position reads, relative to the position.
    fn offset(&self, tap: usize, kernel: [usize; 3]) -> usize {
        let tap = [tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]];
        let at = |a: usize| (self.first[a] as isize + tap[a] as isize * self.slope[a]) as usize;
        let lines = (at(0) * self.extent[1] + at(1)) * self.phases + at(2) % self.phases;
        lines * self.line() + at(2) / self.phases
    }
}

/// How many positions are computed at once where `left` are left.
fn run_len(left: usize) -> usize {
    match left {
        ..=8 => 8,
        9..=16 => 16,
        _ => WIDE,
    }
}

/// Positions computed past the end of a line of `len`.
fn room(len: usize) -> usize {
    let left = len % WIDE;
    if left == 0 { 0 } else { run_len(left) - left }
}

/// Distance between the first and last kernel position.
fn reach(s: &ConvShape, axis: usize) -> usize {
    s.kernel[axis].saturating_sub(1) * s.dilation[axis]
}

/// One block of kernel positions at `N` neighbouring positions, read from `plane` on.
#[inline(always)]
fn run<const N: usize>(plane: &[f32], offsets: &[usize], w: &[f32], later: bool, out: &mut [f32]) {
    let mut acc = [0.0f32; N];
    for (&offset, &weight) in offsets.iter().zip(w) {
        let values = &plane[offset..offset + N];
        for j in 0..N {
            acc[j] = weight.mul_add(values[j], acc[j]);
        }
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        *out = if later { *out + acc } else { acc };
    }
}

#[inline(always)]
fn convolve_body(
    p: &Plane,
    plane: &[f32],
    w: &[f32],
    kernel: [usize; 3],
    extent: [usize; 3],
    out: &mut [f32],
) {
    let mut offsets = [0; K_BLOCK];
    for (block, w) in w.chunks(K_BLOCK).enumerate() {
        for (tap, offset) in offsets[..w.len()].iter_mut().enumerate() {
            *offset = p.offset(block * K_BLOCK + tap, kernel);
        }
        let (offsets, later) = (&offsets[..w.len()], block > 0);
        for (row, line) in out.chunks_exact_mut(extent[2]).enumerate() {
            let (z, y) = (row / extent[1] * p.stride[0], row % extent[1] * p.stride[1]);
            let from = &plane[(z * p.extent[1] + y) * p.phases * p.line()..];
            for (c, part) in line.chunks_mut(WIDE).enumerate() {
                let from = &from[c * WIDE..];
                match run_len(part.len()) {
                    8 => run::<8>(from, offsets, w, later, part),
                    16 => run::<16>(from, offsets, w, later, part),
                    _ => run::<WIDE>(from, offsets, w, later, part),
                }
            }
        }
    }
}

/// One value of every channel of a bundle.
type Bundle = [f32; CHANNELS];

/// Takes one image of [`CHANNELS`] interleaved channels into the sums over positions: `x` padded, in
/// `rows` lines of `line` per outermost coordinate. `acc` holds the current block and then the total,
/// one bundle per kernel position each; `seen` counts positions so far.
#[inline(always)]
fn correlate_body(
    s: &ConvShape,
    [rows, line]: [usize; 2],
    x: &[Bundle],
    dy: &[Bundle],
    acc: &mut [Bundle],
    mut seen: usize,
) -> usize {
    let (acc, total) = acc.split_at_mut(s.taps());
    let [_, kh, kw] = s.kernel;
    let offset = |tap: usize| {
        let [z, y, x] = [tap / (kh * kw), tap / kw % kh, tap % kw];
        (z * s.dilation[0] * rows + y * s.dilation[1]) * line + x * s.dilation[2]
    };
    for (row, mut dy) in dy.chunks_exact(s.output[2]).enumerate() {
        let (z, y) = (row / s.output[1], row % s.output[1]);
        let mut from = &x[(z * s.stride[0] * rows + y * s.stride[1]) * line..];
        while !dy.is_empty() {
            let (run, rest) = dy.split_at(dy.len().min(K_BLOCK - seen % K_BLOCK));
            let (mut tap, step) = (0, s.stride[2]);
            while tap < acc.len() {
                let at = &mut acc[tap..];
                tap += match at.len() {
                    9.. => chains::<9>(from, step, run, std::array::from_fn(|i| offset(tap + i)), at),
                    3.. => chains::<3>(from, step, run, std::array::from_fn(|i| offset(tap + i)), at),
                    _ => chains::<1>(from, step, run, [offset(tap)], at),
                };
            }
            seen += run.len();
            if seen.is_multiple_of(K_BLOCK) {
                flush(acc, total, seen > K_BLOCK);
            }
            from = &from[(run.len() * s.stride[2]).min(from.len())..];
            dy = rest;
        }
    }
    seen
}

/// The sums of `N` kernel positions over a run of neighbouring positions, in registers; returns `N`.
#[inline(always)]
fn chains<const N: usize>(
    x: &[Bundle],
    step: usize,
    dy: &[Bundle],
    offsets: [usize; N],
    acc: &mut [Bundle],
) -> usize {
    let mut sums: [Bundle; N] = std::array::from_fn(|i| acc[i]);
    let reads = offsets.map(|o| &x[o..o + (dy.len() - 1) * step + 1]);
    for (p, d) in dy.iter().enumerate() {
        for i in 0..N {
            let v = &reads[i][p * step];
            for l in 0..CHANNELS {
                sums[i][l] = d[l].mul_add(v[l], sums[i][l]);
            }
        }
    }
    acc[..N].copy_from_slice(&sums);
    N
}

/// Adds the finished block to the total, or starts with it, and clears it.
#[inline(always)]
fn flush(acc: &mut [Bundle], total: &mut [Bundle], later: bool) {
    for (a, t) in acc.as_flattened_mut().iter_mut().zip(total.as_flattened_mut()) {
        *t = if later { *t + *a } else { *a };
        *a = 0.0;
    }
}

simd! {
    fn convolve(p: &Plane, plane: &[f32], w: &[f32], kernel: [usize; 3], extent: [usize; 3], out: &mut [f32]) = convolve_body;
    fn correlate(s: &ConvShape, layout: [usize; 2], x: &[Bundle], dy: &[Bundle], acc: &mut [Bundle], seen: usize) -> usize = correlate_body;
}

/// Floats of scratch [`forward`] needs.
pub fn forward_scratch_len(s: &ConvShape, threads: usize) -> usize {
    threads * Plane::reading(s).len()
}

/// Floats of scratch [`input_grad`] needs.
pub fn input_grad_scratch_len(s: &ConvShape, threads: usize) -> usize {
    threads * Plane::collecting(s).len()
}

/// Floats of scratch [`weight_grad`] needs.
pub fn weight_grad_scratch_len(s: &ConvShape, threads: usize) -> usize {
    threads * Correlation::new(s).len()
}

/// As `conv::forward`.
pub fn forward(team: &Team, s: &ConvShape, x: &[f32], w: &[f32], y: &mut [f32], scratch: &mut [f32]) {
    let window = Window { div: [1; 3], mul: [1, 1, s.stride[2]], ..s.reading() };
    let shift = s.pad.map(|p| -p);
    planes(team, s, &Plane::reading(s), (&window, shift), x, w, (y, s.output), scratch);
}

/// As `conv::input_grad`.
pub fn input_grad(team: &Team, s: &ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32], scratch: &mut [f32]) {
    let shift = std::array::from_fn(|a| s.pad[a] - reach(s, a) as isize);
    planes(team, s, &Plane::collecting(s), (&s.collecting(), shift), dy, w, (dx, s.input), scratch);
}

/// Every channel of every image: copy with padding, convolve.
#[allow(clippy::too_many_arguments)]
fn planes(
    team: &Team,
    s: &ConvShape,
    plane: &Plane,
    (window, shift): (&Window, [isize; 3]),
    from: &[f32],
    w: &[f32],
    (to, extent): (&mut [f32], [usize; 3]),
    scratch: &mut [f32],
) {
    let from_len: usize = window.source.iter().product();
    let to_len: usize = extent.iter().product();
    if to_len == 0 {
        return;
    }
    if s.taps() == 0 {
        return to.fill(0.0);
    }
    let (parts, each) = (team.threads(), plane.len());
    let (to, scratch) = (SharedMut::new(to), SharedMut::new(scratch));
    team.run(parts, &|part| {
        // SAFETY: each part has its own stretch of scratch.
        let copy = unsafe { scratch.slice(part * each..(part + 1) * each) };
        for channel in share(s.n * s.groups, 1, parts, part) {
            let taps = &w[channel % s.groups * s.taps()..][..s.taps()];
            plane.fill(window, shift, &from[channel * from_len..(channel + 1) * from_len], copy);
            // SAFETY: each channel belongs to one part.
            let out = unsafe { to.slice(channel * to_len..(channel + 1) * to_len) };
            convolve(team.isa(), plane, copy, taps, s.kernel, extent, out);
            if window.div != [1; 3] {
                out.iter_mut().for_each(|v| *v += 0.0);
            }
        }
    });
}

/// Scratch of the weight gradient for [`CHANNELS`] channels of one image.
struct Correlation {
    /// Extents of the padded, interleaved input.
    extent: [usize; 3],
    input: usize,
    output: usize,
    sums: usize,
    lines: usize,
}

impl Correlation {
    fn new(s: &ConvShape) -> Correlation {
        let extent: [usize; 3] =
            std::array::from_fn(|a| s.output[a].saturating_sub(1) * s.stride[a] + reach(s, a) + 1);
        Correlation {
            extent,
            input: extent.iter().product::<usize>() * CHANNELS,
            output: s.output_len() * CHANNELS,
            sums: 2 * s.taps() * CHANNELS,
            lines: extent[2] * CHANNELS,
        }
    }

    fn len(&self) -> usize {
        self.input + self.output + self.sums + self.lines
    }
}

/// As `conv::weight_grad`.
pub fn weight_grad(team: &Team, s: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut [f32]) {
    let taps = s.taps();
    let (out_len, in_len) = (s.output_len(), s.input_len());
    if s.n * out_len * taps == 0 {
        return dw.fill(0.0);
    }
    let layout = Correlation::new(s);
    let (parts, each) = (team.threads(), layout.len());
    let (dw, scratch) = (SharedMut::new(dw), SharedMut::new(scratch));
    let [_, rows, line] = layout.extent;
    let window = Window { mul: [1; 3], ..s.reading() };
    team.run(parts, &|part| {
        // SAFETY: each part has its own stretch of scratch.
        let scratch = unsafe { scratch.slice(part * each..(part + 1) * each) };
        let (input, rest) = scratch.split_at_mut(layout.input);
        let (output, rest) = rest.split_at_mut(layout.output);
        let (sums, lines) = rest.split_at_mut(layout.sums);
        for bundle in share(s.groups.div_ceil(CHANNELS), 1, parts, part) {
            let first = bundle * CHANNELS;
            let count = CHANNELS.min(s.groups - first);
            sums.fill(0.0);
            lines.fill(0.0);
            output.fill(0.0);
            let mut seen = 0;
            for image in 0..s.n {
                let channel = image * s.groups + first;
                let from = Strided { data: &dy[channel * out_len..], outer: out_len, reduced: 1 };
                interleave(&from, 0, count, out_len, CHANNELS, output);
                let channels = &x[channel * in_len..(channel + count) * in_len];
                for (row, to) in input.chunks_exact_mut(line * CHANNELS).enumerate() {
                    let z = window.coordinate(0, row / rows, -s.pad[0]);
                    let y = window.coordinate(1, row % rows, -s.pad[1]);
                    let (Some(z), Some(y)) = (z, y) else {
                        to.fill(0.0);
                        continue;
                    };
                    for (c, line) in lines.chunks_exact_mut(line).take(count).enumerate() {
                        let at = c * in_len + (z * s.input[1] + y) * s.input[2];
                        window.line(&channels[at..at + s.input[2]], 0, -s.pad[2], line);
                    }
                    let from = Strided { data: lines, outer: line, reduced: 1 };
                    interleave(&from, 0, CHANNELS, line, CHANNELS, to);
                }
                let (x, dy) = (input.as_chunks().0, output.as_chunks().0);
                seen = correlate(team.isa(), s, [rows, line], x, dy, sums.as_chunks_mut().0, seen);
            }
            let (acc, total) = sums.as_chunks_mut().0.split_at_mut(taps);
            if seen % K_BLOCK > 0 {
                flush(acc, total, seen > K_BLOCK);
            }
            // SAFETY: each channel belongs to one part.
            let dw = unsafe { dw.slice(first * taps..(first + count) * taps) };
            for (c, dw) in dw.chunks_exact_mut(taps).enumerate() {
                dw.iter_mut().zip(&*total).for_each(|(dw, total)| *dw = total[c]);
            }
        }
    });
}
