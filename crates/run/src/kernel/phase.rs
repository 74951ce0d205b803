//! The input gradient of a strided convolution without multiplying by the zeros between outputs: input positions with
//! equal remainders (a phase) use the same kernel positions, so each phase is an unstrided problem.

use crate::kernel::conv::{ConvShape, fills_vectors};
use crate::kernel::gather::{self, ResultLayout};
use crate::kernel::grid::{ImageSource, TapGrid};
use crate::kernel::pack::Operand;
use crate::kernel::patch::{PatchWindow, Patches};
use crate::kernel::{K_BLOCK, gemm};
use crate::team::{SharedMut, Team};
use std::ops::Range;

/// Results buffered before they are written to dx; more images at a time fill the tiles better.
const STAGE: usize = 1 << 16;

/// Along one axis: the input positions `first + stride * p` of a phase and its kernel positions `tap + tap_step * q`.
/// They read output `p + shift + slope * q`.
#[derive(Clone, Copy, Debug)]
struct PhaseAxis {
    first: usize,
    positions: usize,
    tap: usize,
    tap_step: usize,
    taps: usize,
    shift: isize,
    slope: isize,
}

impl PhaseAxis {
    /// The positions with `(i + pad) % stride == remainder`.
    fn new(s: &ConvShape, axis: usize, remainder: usize) -> PhaseAxis {
        let (stride, dilation, pad) = (s.stride[axis], s.dilation[axis], s.pad[axis]);
        let first = (remainder as isize - pad).rem_euclid(stride as isize) as usize;
        let mut used = (0..s.kernel[axis]).filter(|k| k * dilation % stride == remainder);
        let (tap, next) = (used.next(), used.next());
        let taps = tap.map_or(0, |_| 1) + next.map_or(0, |_| 1) + used.count();
        let tap = tap.unwrap_or(0);
        let tap_step = next.map_or(1, |n| n - tap);
        PhaseAxis {
            first,
            positions: s.input[axis].saturating_sub(first).div_ceil(stride),
            tap,
            tap_step,
            taps,
            shift: (first as isize + pad - (tap * dilation) as isize) / stride as isize,
            slope: -((tap_step * dilation / stride) as isize),
        }
    }
}

/// The weights of one group as the left operand: the row is the input channel, the reduced index (output channel, kernel
/// position of the phase).
struct Weights<'a> {
    data: &'a [f32],
    shape: &'a ConvShape,
    phase: [PhaseAxis; 3],
}

impl Weights<'_> {
    fn tap_count(&self) -> usize {
        self.phase.iter().map(|m| m.taps).product()
    }

    /// The index among all kernel positions of position `q` of the phase.
    fn tap(&self, q: usize) -> usize {
        let [_, y, x] = self.phase;
        let q = [q / (y.taps * x.taps), q / x.taps % y.taps, q % x.taps];
        (0..3)
            .fold(0, |tap, a| tap * self.shape.kernel[a] + self.phase[a].tap + self.phase[a].tap_step * q[a])
    }
}

impl Operand for Weights<'_> {
    fn pack(&self, outer: Range<usize>, reduced: Range<usize>, width: usize, dst: &mut [f32]) {
        let (taps, each, len) = (self.shape.taps(), self.tap_count(), reduced.len());
        dst.fill(0.0);
        for (k, r) in reduced.enumerate() {
            let base = r / each * self.shape.c * taps + self.tap(r % each);
            for (s, first) in outer.clone().step_by(width).enumerate() {
                let lanes = width.min(outer.end - first);
                let from = self.data[base + first * taps..].iter().step_by(taps);
                dst[(s * len + k) * width..][..lanes].iter_mut().zip(from).for_each(|(to, &v)| *to = v);
            }
        }
    }

    /// Blocks are counted over all kernel positions, including those of other phases.
    fn block_end(&self, from: usize) -> usize {
        let (taps, each) = (self.shape.taps(), self.tap_count());
        let full = from / each * taps + self.tap(from % each);
        let end = (full / K_BLOCK + 1) * K_BLOCK;
        end / taps * each + (0..each).take_while(|&q| self.tap(q) < end % taps).count()
    }
}

/// Whether some stride leaves gaps.
pub fn applies(s: &ConvShape) -> bool {
    s.stride != [1; 3]
}

/// The largest number of positions in one phase.
fn most_positions(s: &ConvShape) -> usize {
    (0..3).map(|a| s.input[a].div_ceil(s.stride[a])).product()
}

/// Number of images computed at a time.
fn images(s: &ConvShape) -> usize {
    (STAGE / (s.c * most_positions(s)).max(1)).clamp(1, s.n.max(1))
}

/// All phases.
fn phases(s: &ConvShape) -> impl Iterator<Item = [PhaseAxis; 3]> {
    let [sz, sy, sx] = s.stride;
    (0..sz * sy * sx).map(move |r| {
        let remainder = [r / (sy * sx), r / sx % sy, r % sx];
        std::array::from_fn(|a| PhaseAxis::new(s, a, remainder[a]))
    })
}

/// How the inputs of a phase read the outputs.
fn grid(s: &ConvShape, phase: &[PhaseAxis; 3]) -> TapGrid {
    TapGrid {
        positions: phase.map(|m| m.positions),
        source: s.output,
        step: [1; 3],
        taps: phase.map(|m| m.taps),
        first: phase.map(|m| m.shift),
        slope: phase.map(|m| m.slope),
    }
}

/// Floats of scratch [`input_grad`] needs.
pub fn input_grad_scratch_len(s: &ConvShape, threads: usize) -> usize {
    if fills_vectors(s.c) {
        let each = |m| gather::over_channels_scratch_len(&grid(s, &m), s.n, s.o, s.c, threads);
        return phases(s).map(each).max().unwrap_or(0);
    }
    let columns = images(s) * most_positions(s);
    s.c * columns + gemm::scratch_len(s.c, columns, s.o * s.taps(), threads)
}

/// As `conv::input_grad`.
pub fn input_grad(team: &Team, s: &ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32], scratch: &mut [f32]) {
    if dx.is_empty() {
        return;
    }
    let dx = SharedMut::new(dx);
    if fills_vectors(s.c) {
        for (phase, group) in phases(s).flat_map(|m| (0..s.groups).map(move |g| (m, g))) {
            let data = &dy[(group * s.o * s.output_len()).min(dy.len())..];
            let images = ImageSource { data, image: s.groups * s.o * s.output_len(), n: s.n, channels: s.o };
            let weights = Weights { data: &w[group * s.o * s.c * s.taps()..], shape: s, phase };
            let places = ResultLayout {
                start: group * s.c * s.input_len(),
                image: s.groups * s.c * s.input_len(),
                extents: s.input,
                first: phase.map(|m| m.first),
                stride: s.stride,
            };
            gather::sum_over_channels(team, &grid(s, &phase), images, &weights, s.c, &dx, &places, scratch);
        }
        return;
    }
    let (stage, scratch) = scratch.split_at_mut(s.c * images(s) * most_positions(s));
    for phase in phases(s) {
        for group in 0..s.groups {
            let data = &w[group * s.o * s.c * s.taps()..];
            let weights = Weights { data, shape: s, phase };
            for first in (0..s.n).step_by(images(s)) {
                let images = images(s).min(s.n - first);
                let patches = Patches {
                    data: &dy[(first * s.groups + group) * s.o * s.output_len()..],
                    image: s.groups * s.o * s.output_len(),
                    window: PatchWindow {
                        positions: phase.map(|m| m.positions),
                        source: s.output,
                        mul: [1; 3],
                        div: [1; 3],
                    },
                    kernel: phase.map(|m| m.taps),
                    shift: phase.map(|m| m.shift),
                    slope: phase.map(|m| m.slope),
                    positions_reduced: false,
                };
                let columns = images * phase.iter().map(|m| m.positions).product::<usize>();
                if columns == 0 {
                    continue;
                }
                let dims = [s.c, columns, s.o * weights.tap_count()];
                let to = gemm::OutputMatrix::rows(&mut stage[..s.c * columns], columns);
                gemm::gemm(team, dims, &weights, &patches, to, false, scratch);
                let stage = &stage[..s.c * columns];
                team.split(s.c, 1, &|channels| {
                    // SAFETY: each channel belongs to one part.
                    unsafe { spread(s, &phase, stage, columns, channels, [first, images, group], &dx) };
                });
            }
        }
    }
}

/// Writes buffered results of some channels to dx.
///
/// # Safety
/// Nothing else accesses these channels of dx.
unsafe fn spread(
    s: &ConvShape,
    phase: &[PhaseAxis; 3],
    stage: &[f32],
    columns: usize,
    channels: Range<usize>,
    [first, images, group]: [usize; 3],
    dx: &SharedMut<'_, f32>,
) {
    let [mz, my, mx] = phase;
    let len = s.input_len();
    for c in channels {
        let mut rows = stage[c * columns..(c + 1) * columns].chunks_exact(mx.positions);
        for image in first..first + images {
            let at = ((image * s.groups + group) * s.c + c) * len;
            // SAFETY: the caller's promise.
            let plane = unsafe { dx.slice(at..at + len) };
            for (z, y) in (0..mz.positions).flat_map(|z| (0..my.positions).map(move |y| (z, y))) {
                let row = (mz.first + z * s.stride[0]) * s.input[1] + my.first + y * s.stride[1];
                let line = &mut plane[row * s.input[2] + mx.first..(row + 1) * s.input[2]];
                let places = line.iter_mut().step_by(s.stride[2]);
                // Adding zero drops the sign of a zero, in which omitted terms would show.
                places.zip(rows.next().unwrap_or_default()).for_each(|(to, &v)| *to = v + 0.0);
            }
        }
    }
}
