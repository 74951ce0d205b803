//! Convolution operands that never exist in memory: for a channel and a kernel position, the values that a run of
//! positions reads, zero outside. Shared by the forward pass and both gradients.

use crate::kernel::K_BLOCK;
use crate::kernel::pack::{Operand, Strided, interleave};
use std::ops::Range;

/// How positions along three axes read a source: coordinate `(position * mul + shift) / div`, and zero if that is outside
/// the source or not an integer.
#[derive(Clone, Copy, Debug)]
pub struct PatchWindow {
    /// Extents of the positions.
    pub positions: [usize; 3],
    /// Extents of the source.
    pub source: [usize; 3],
    /// Factor on the position.
    pub mul: [usize; 3],
    /// Divisor; 1 along an axis whose factor is not.
    pub div: [usize; 3],
}

impl PatchWindow {
    /// The source coordinate along one axis, if there is one.
    pub fn coordinate(&self, axis: usize, position: usize, shift: isize) -> Option<usize> {
        let t = usize::try_from((position * self.mul[axis]) as isize + shift).ok()?;
        let at = t / self.div[axis];
        (t.is_multiple_of(self.div[axis]) && at < self.source[axis]).then_some(at)
    }

    /// Fills `dst` with the values that positions `from..` of the last axis read from one source line.
    pub fn line(&self, line: &[f32], from: usize, shift: isize, dst: &mut [f32]) {
        let (mul, div) = (self.mul[2], self.div[2]);
        let start = (from * mul) as isize + shift;
        // Positions `lead..end` have coordinates `first, first + mul, …` (before division) in range.
        let limit = (line.len() * div) as isize;
        let up = |x: isize| (x.max(0) as usize).div_ceil(mul).min(dst.len());
        let lead = up(-start);
        let end = up(limit - start).max(lead);
        let first = (start + (lead * mul) as isize).max(0) as usize;
        dst[..lead].fill(0.0);
        dst[end..].fill(0.0);
        let dst = &mut dst[lead..end];
        if dst.is_empty() {
            return;
        }
        if div == 1 {
            match mul {
                1 => dst.copy_from_slice(&line[first..first + dst.len()]),
                2 => every(&line[first..], 2, dst),
                _ => every(&line[first..], mul, dst),
            }
        } else {
            debug_assert_eq!(mul, 1, "a window either multiplies or divides");
            dst.fill(0.0);
            let next = first.next_multiple_of(div);
            let hits = dst.iter_mut().skip(next - first).step_by(div);
            hits.zip(&line[(next / div).min(line.len())..]).for_each(|(v, &x)| *v = x);
        }
    }
}

/// Takes every `step`-th element.
#[inline(always)]
fn every(from: &[f32], step: usize, to: &mut [f32]) {
    let last = (to.len() - 1) * step;
    let from = &from[..=last];
    for (to, from) in to.iter_mut().zip(from.chunks(step)) {
        *to = from[0];
    }
}

/// The matrix with one axis (image, position) and the other (channel, kernel position).
pub struct Patches<'a> {
    /// The source, starting at the first channel of the group.
    pub data: &'a [f32],
    /// Distance between images.
    pub image: usize,
    /// How positions read a channel.
    pub window: PatchWindow,
    /// Extents of the kernel.
    pub kernel: [usize; 3],
    /// Shift of kernel position 0 per axis.
    pub shift: [isize; 3],
    /// Change of the shift per kernel position.
    pub slope: [isize; 3],
    /// Whether (image, position) is the reduced axis.
    pub positions_reduced: bool,
}

impl Patches<'_> {
    /// The values that `positions` (flattened with the image) read through `tap` (channel, kernel position).
    fn gather(&self, tap: usize, positions: Range<usize>, dst: &mut [f32]) {
        let w = &self.window;
        let [kd, kh, kw] = self.kernel;
        let (c, tap) = (tap / (kd * kh * kw), tap % (kd * kh * kw));
        let tap = [tap / (kh * kw), tap / kw % kh, tap % kw];
        let shift: [isize; 3] = std::array::from_fn(|a| self.shift[a] + tap[a] as isize * self.slope[a]);
        let [pd, ph, pw] = w.positions;
        let [sd, sh, sw] = w.source;
        let mut row = positions.start / pw;
        let mut x = positions.start % pw;
        let mut dst = &mut dst[..positions.len()];
        while !dst.is_empty() {
            let (run, rest) = dst.split_at_mut((pw - x).min(dst.len()));
            let (image, z, y) = (row / (pd * ph), row / ph % pd, row % ph);
            match (w.coordinate(0, z, shift[0]), w.coordinate(1, y, shift[1])) {
                (Some(z), Some(y)) => {
                    let at = image * self.image + ((c * sd + z) * sh + y) * sw;
                    w.line(&self.data[at..at + sw], x, shift[2], run);
                }
                _ => run.fill(0.0),
            }
            (row, x, dst) = (row + 1, 0, rest);
        }
    }
}

impl Operand for Patches<'_> {
    fn pack(&self, outer: Range<usize>, reduced: Range<usize>, width: usize, dst: &mut [f32]) {
        let len = reduced.len();
        if self.positions_reduced {
            const MOST: usize = 16;
            assert!(width <= MOST && len <= K_BLOCK, "slivers of {width} x {len} are too large");
            let mut rows = [0.0; MOST * K_BLOCK];
            for (s, sliver) in dst.chunks_exact_mut(width * len).enumerate() {
                let first = outer.start + s * width;
                let n = width.min(outer.end - first);
                if n < width {
                    sliver.fill(0.0);
                }
                for (i, row) in rows.chunks_exact_mut(K_BLOCK).take(n).enumerate() {
                    self.gather(first + i, reduced.clone(), row);
                }
                let rows = Strided { data: &rows, outer: K_BLOCK, reduced: 1 };
                interleave(&rows, 0, n, len, width, sliver);
            }
            return;
        }
        // A whole number of slivers at a time through a small buffer.
        let mut run = [0.0; 768];
        let step = run.len() / width * width;
        for (k, tap) in reduced.enumerate() {
            for from in outer.clone().step_by(step) {
                let n = step.min(outer.end - from);
                self.gather(tap, from..from + n, &mut run);
                run[n..n.next_multiple_of(width)].fill(0.0);
                let first = (from - outer.start) / width;
                let parts = run[..n.next_multiple_of(width)].chunks_exact(width);
                for (part, sliver) in parts.zip(dst[first * width * len..].chunks_exact_mut(width * len)) {
                    sliver[k * width..(k + 1) * width].copy_from_slice(part);
                }
            }
        }
    }
}
