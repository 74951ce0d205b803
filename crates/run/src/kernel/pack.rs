//! Operands of matrix products in the layout of the blocked algorithm: slivers of a few outer indices, reduced index
//! major. An operand that can write slivers need not exist in memory.

use crate::kernel::K_BLOCK;
use crate::kernel::tile::{MR, NR};
use std::ops::Range;

/// A matrix operand seen as (outer index, reduced index): rows of A or columns of B.
pub trait Operand: Sync {
    /// Writes the elements of `outer` x `reduced` to `dst` in slivers of `width` outer indices:
    /// element (i, k) at `(i' / width) * len * width + k' * width + i' % width`, where `i'` and `k'`
    /// count from the range starts and `len` is the length of `reduced`. Elements past the last outer
    /// index are zeroed. `dst` holds exactly the slivers.
    fn pack(&self, outer: Range<usize>, reduced: Range<usize>, width: usize, dst: &mut [f32]);

    /// End of the block of the reduced index that starts at `from`. The left operand determines the blocks; the caller
    /// limits the end to the index.
    fn block_end(&self, from: usize) -> usize {
        from + K_BLOCK
    }

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
        if outer == 0 || reduced == 0 {
            return true;
        }
        let (i, k) = ((outer - 1).saturating_mul(self.outer), (reduced - 1).saturating_mul(self.reduced));
        i.saturating_add(k) < self.data.len()
    }
}

impl Operand for Strided<'_> {
    fn pack(&self, outer: Range<usize>, reduced: Range<usize>, width: usize, dst: &mut [f32]) {
        match width {
            // Known widths let the compiler turn the inner copies into a few vector moves.
            NR => pack_strided(self, outer, reduced, NR, dst),
            MR => pack_strided(self, outer, reduced, MR, dst),
            _ => pack_strided(self, outer, reduced, width, dst),
        }
    }

    fn strided(&self) -> Option<Strided<'_>> {
        Some(*self)
    }
}

/// Plain memory whose reduced index is a nest of loops: element (i, k) at `i * outer` plus, for every
/// loop, its distance times its position, where the positions are the digits of `k`, slowest first.
#[derive(Clone, Copy, Debug)]
pub struct Nested<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Distance between outer indices.
    pub outer: usize,
    /// Extent and distance of each loop.
    pub loops: &'a [(usize, usize)],
}

impl Operand for Nested<'_> {
    fn pack(&self, outer: Range<usize>, reduced: Range<usize>, width: usize, dst: &mut [f32]) {
        if let Some(strided) = self.strided() {
            return strided.pack(outer, reduced, width, dst);
        }
        let (above, (run, step)) = match self.loops {
            [above @ .., innermost] => (above, *innermost),
            [] => (&[][..], (1, 0)),
        };
        for (s, mut sliver) in dst.chunks_exact_mut(width * reduced.len()).enumerate() {
            let first = outer.start + s * width;
            let outer = first..outer.end.min(first + width);
            let mut k = reduced.start;
            while k < reduced.end {
                let within = k % run..run.min(k % run + reduced.end - k);
                let digits = above.iter().rev();
                let start = digits.fold((k / run, 0), |(k, at), (e, step)| (k / e, at + k % e * step)).1;
                let (part, rest) = sliver.split_at_mut(within.len() * width);
                k += within.len();
                let line = Strided { data: &self.data[start..], outer: self.outer, reduced: step };
                line.pack(outer.clone(), within, width, part);
                sliver = rest;
            }
        }
    }

    fn strided(&self) -> Option<Strided<'_>> {
        let reduced = match self.loops {
            [] => 0,
            [(_, step)] | [(_, step), (1, _)] => *step,
            _ => return None,
        };
        Some(Strided { data: self.data, outer: self.outer, reduced })
    }
}

/// Outer indices packed before the next reduced index: rows of memory are read in runs of several cache lines, and few
/// slivers are written at a time.
const ABREAST: usize = 96;

/// Rows prefetched ahead: each is a short run at a distance, which the hardware does not predict.
const AHEAD: usize = 8;

/// Prefetches `len` floats; any address is allowed.
#[inline(always)]
fn ask_for(from: *const f32, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len).step_by(16) {
        use std::arch::x86_64::*;
        // SAFETY: an instruction of the architecture that reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, len);
}

#[inline(always)]
fn pack_strided(of: &Strided<'_>, outer: Range<usize>, reduced: Range<usize>, width: usize, dst: &mut [f32]) {
    let len = reduced.len();
    if of.outer == 1 {
        let abreast = ABREAST / width * width;
        for (g, group) in dst.chunks_mut(abreast * len).enumerate() {
            let first = outer.start + g * abreast;
            let outer = first..outer.end.min(first + abreast);
            let whole = outer.len() / width;
            for k in 0..len {
                let from = &of.data[(reduced.start + k) * of.reduced..][outer.clone()];
                ask_for(from.as_ptr().wrapping_add(AHEAD * of.reduced), outer.len());
                for (s, from) in from.chunks_exact(width).enumerate() {
                    group[(s * len + k) * width..][..width].copy_from_slice(from);
                }
                if whole * width < outer.len() {
                    let (tail, to) =
                        (&from[whole * width..], &mut group[(whole * len + k) * width..][..width]);
                    to.fill(0.0);
                    to[..tail.len()].copy_from_slice(tail);
                }
            }
        }
        return;
    }
    for (s, sliver) in dst.chunks_exact_mut(width * len).enumerate() {
        let i0 = outer.start + s * width;
        let n = width.min(outer.end - i0);
        if n < width {
            sliver.fill(0.0);
        }
        interleave(of, i0 * of.outer + reduced.start * of.reduced, n, len, width, sliver);
    }
}

/// Interleaves `n` runs over the reduced index: a transposition, in squares of four by four where the runs are
/// contiguous, and in pairs.
pub(crate) fn interleave(
    from: &Strided<'_>,
    base: usize,
    n: usize,
    len: usize,
    width: usize,
    sliver: &mut [f32],
) {
    let run = |i: usize| &from.data[base + i * from.outer..][..(len - 1) * from.reduced + 1];
    let square = if from.reduced == 1 { len / 4 * 4 } else { 0 };
    let (fours, pairs) = (n / 4 * 4, n / 2 * 2);
    for i in (0..fours).step_by(4) {
        let runs = [run(i), run(i + 1), run(i + 2), run(i + 3)];
        squares(runs, 4 * from.outer, &mut sliver[..square * width], i, width);
        for k in square..len {
            let at = k * from.reduced;
            let row = &mut sliver[k * width + i..k * width + i + 4];
            row.copy_from_slice(&[runs[0][at], runs[1][at], runs[2][at], runs[3][at]]);
        }
    }
    for i in (fours..pairs).step_by(2) {
        let runs = [run(i), run(i + 1)];
        for (k, row) in sliver.chunks_exact_mut(width).enumerate() {
            let at = k * from.reduced;
            row[i..i + 2].copy_from_slice(&[runs[0][at], runs[1][at]]);
        }
    }
    for i in pairs..n {
        let run = run(i);
        for (k, row) in sliver.chunks_exact_mut(width).enumerate() {
            row[i] = run[k * from.reduced];
        }
    }
}

/// Writes element k of the runs to columns `i..i + 4` of row k, for all rows of `width` in `rows`; their number is a
/// multiple of four. Prefetches the next four runs, `next` elements further on.
fn squares(runs: [&[f32]; 4], next: usize, rows: &mut [f32], i: usize, width: usize) {
    let len = rows.len() / width;
    assert!(i + 4 <= width && runs.iter().all(|r| r.len() >= len), "runs of {len} into rows of {width}");
    let to = rows.as_mut_ptr();
    for k in (0..len / 4 * 4).step_by(4) {
        ask_for(runs[k / 4 % 4].as_ptr().wrapping_add(next + k / 16 * 16), 1);
        // SAFETY: four elements from `k` on are in every run.
        let at = |r: usize| unsafe { runs[r].as_ptr().add(k).cast::<[f32; 4]>().read() };
        for (q, row) in transposed([at(0), at(1), at(2), at(3)]).into_iter().enumerate() {
            // SAFETY: columns up to `i + 4 <= width` of rows `k..k + 4` are in `rows`.
            unsafe { to.add((k + q) * width + i).cast::<[f32; 4]>().write(row) };
        }
    }
}

/// The transpose of a square.
#[inline(always)]
pub(crate) fn transposed(rows: [[f32; 4]; 4]) -> [[f32; 4]; 4] {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        // SAFETY: these instructions belong to the architecture; sizes are four floats each.
        unsafe {
            let [mut a, mut b, mut c, mut d] = rows.map(|r| _mm_loadu_ps(r.as_ptr()));
            _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
            std::mem::transmute::<[__m128; 4], [[f32; 4]; 4]>([a, b, c, d])
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::array::from_fn(|k| rows.map(|r| r[k]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::noise;

    #[test]
    fn nests_of_loops_pack_element_by_element() {
        let data = noise(600, 1);
        let nests: [&[(usize, usize)]; 5] =
            [&[], &[(7, 3)], &[(3, 1), (5, 40)], &[(2, 100), (3, 30), (4, 1)], &[(4, 0), (3, 2)]];
        for loops in nests {
            let total: usize = loops.iter().map(|l| l.0).product();
            for (outer, width) in [(1, MR), (20, MR), (1, NR), (9, NR)] {
                let nest = Nested { data: &data, outer, loops };
                for (rows, ks) in [(0..5, 0..total), (2..20, 0..total), (3..19, total / 3..total)] {
                    let mut dst = vec![f32::NAN; rows.len().next_multiple_of(width) * ks.len()];
                    nest.pack(rows.clone(), ks.clone(), width, &mut dst);
                    for (slot, &got) in dst.iter().enumerate() {
                        let (i, within) = (slot / (ks.len() * width) * width, slot % (ks.len() * width));
                        let (i, mut k) = (i + within % width, ks.start + within / width);
                        let mut at = (rows.start + i) * outer;
                        for &(extent, step) in loops.iter().rev() {
                            at += k % extent * step;
                            k /= extent;
                        }
                        let want = if i < rows.len() { data[at] } else { 0.0 };
                        assert_eq!(got.to_bits(), want.to_bits(), "{loops:?} {rows:?} {ks:?} {slot}");
                    }
                }
            }
        }
    }
}
