//! Operands of matrix products as the blocked algorithm wants them: slivers of a few outer indices,
//! reduced index major. Anything that can write slivers can be multiplied without existing in memory.

use std::ops::Range;

/// A matrix operand seen as (outer index, reduced index): rows of A or columns of B.
pub trait Operand: Sync {
    /// Writes the elements of `outer` x `reduced` to `dst` in slivers of `width` outer indices:
    /// element (i, k) at `(i' / width) * len * width + k' * width + i' % width`, where `i'` and `k'`
    /// count from the range starts and `len` is the length of `reduced`. Places past the last outer
    /// index are zeroed. `dst` holds exactly the slivers.
    fn pack(&self, outer: Range<usize>, reduced: Range<usize>, width: usize, dst: &mut [f32]);

    /// The operand itself if it is plain strided memory, so that packing can be skipped.
    fn strided(&self) -> Option<Strided<'_>> {
        None
    }
}

/// Plain memory: element (i, k) at `i * outer + k * reduced`.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Distance between outer indices.
    pub outer: usize,
    /// Distance between reduced indices.
    pub reduced: usize,
}

impl Strided<'_> {
    /// Whether all of `outer` x `reduced` lies inside the slice.
    pub fn covers(&self, outer: usize, reduced: usize) -> bool {
        outer == 0
            || reduced == 0
            || (outer - 1) * self.outer + (reduced - 1) * self.reduced < self.data.len()
    }
}

impl Operand for Strided<'_> {
    fn pack(&self, outer: Range<usize>, reduced: Range<usize>, width: usize, dst: &mut [f32]) {
        let len = reduced.len();
        for (s, sliver) in dst.chunks_exact_mut(width * len).enumerate() {
            let i0 = outer.start + s * width;
            let n = width.min(outer.end - i0);
            let base = i0 * self.outer + reduced.start * self.reduced;
            if n < width {
                sliver.fill(0.0);
            }
            if self.outer == 1 {
                for (k, row) in sliver.chunks_exact_mut(width).enumerate() {
                    let from = base + k * self.reduced;
                    row[..n].copy_from_slice(&self.data[from..from + n]);
                }
            } else {
                interleave(self, base, n, len, width, sliver);
            }
        }
    }

    fn strided(&self) -> Option<Strided<'_>> {
        Some(*self)
    }
}

/// Writes `n` runs over the reduced index side by side, four runs at a time: runs are read in order
/// and each pass writes neighbouring places.
fn interleave(from: &Strided<'_>, base: usize, n: usize, len: usize, width: usize, sliver: &mut [f32]) {
    let run = |i: usize| &from.data[base + i * from.outer..][..(len - 1) * from.reduced + 1];
    let mut i = 0;
    while i + 4 <= n {
        let [a, b, c, d] = [run(i), run(i + 1), run(i + 2), run(i + 3)];
        for (k, row) in sliver.chunks_exact_mut(width).enumerate() {
            let k = k * from.reduced;
            row[i..i + 4].copy_from_slice(&[a[k], b[k], c[k], d[k]]);
        }
        i += 4;
    }
    for i in i..n {
        let a = run(i);
        for (k, row) in sliver.chunks_exact_mut(width).enumerate() {
            row[i] = a[k * from.reduced];
        }
    }
}
