//! How kernels over single elements divide work between threads, and how they read a broadcast operand.

use crate::lower::call::Call;

/// Elements a thread takes at least.
pub(super) const GRAIN: usize = 4096;

/// Runs `f` on ranges of `0..len`, on one thread if there is little to do.
pub(super) fn ranges(call: &Call<'_>, len: usize, f: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
    if len < 2 * GRAIN { f(0..len) } else { call.team.split(len, 64, f) }
}

/// Runs `f` on ranges of `0..units`, each of about `work` elements, on one thread if there is little to do.
pub(super) fn units(call: &Call<'_>, units: usize, work: usize, f: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
    if units * work < 2 * GRAIN { f(0..units) } else { call.team.split(units, 1, f) }
}

/// Where a broadcast operand is read as one goes along the elements of the result.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// Outer loops: extent and stride.
    outer: Vec<(usize, usize)>,
    /// Elements of the innermost run, and whether it advances (1) or stays (0).
    pub run: usize,
    stride: usize,
    /// The operand is read alike again after so many elements.
    pub period: usize,
    /// Element by element, from first to last.
    pub whole: bool,
}

impl Walk {
    pub(super) fn new(shape: &[usize], out: &[usize]) -> Walk {
        let mut dims: Vec<(usize, usize)> = Vec::new();
        for (d, &extent) in out.iter().enumerate().filter(|(_, extent)| **extent != 1) {
            let stride = match (d + shape.len()).checked_sub(out.len()) {
                Some(i) if shape[i] != 1 => shape[i + 1..].iter().product(),
                _ => 0,
            };
            match dims.last_mut() {
                Some((before, last)) if *last == stride * extent => {
                    (*before, *last) = (*before * extent, stride)
                }
                _ => dims.push((extent, stride)),
            }
        }
        let moving = dims.iter().position(|(_, stride)| *stride > 0);
        let period = moving.map_or(1, |at| dims[at..].iter().map(|(extent, _)| extent).product());
        let whole = shape.iter().product::<usize>() == out.iter().product::<usize>();
        let (run, stride) = dims.pop().unwrap_or((1, 0));
        Walk { outer: dims, run: run.max(1), stride, period, whole }
    }

    /// Whether the operand stays at one element within a run.
    pub(super) fn stays(&self) -> bool {
        self.stride == 0
    }

    /// Where an element of the result reads the operand.
    pub(super) fn at(&self, element: usize) -> usize {
        let (mut row, offset) = (element / self.run, element % self.run);
        let mut at = offset * self.stride;
        for (extent, stride) in self.outer.iter().rev() {
            at += row % extent * stride;
            row /= extent;
        }
        at
    }

    /// Lays out what the elements from `start` on read.
    pub(super) fn gather<T: Copy>(&self, x: &[T], mut start: usize, mut out: &mut [T]) {
        while !out.is_empty() {
            let len = (self.run - start % self.run).min(out.len());
            let (piece, rest) = out.split_at_mut(len);
            let at = self.at(start);
            if self.stays() {
                piece.fill(x[at]);
            } else {
                piece.copy_from_slice(&x[at..at + len]);
            }
            (start, out) = (start + len, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_operands_are_laid_out_as_the_result_reads_them() {
        let cases: [(&[usize], &[usize], usize, usize); 7] = [
            (&[3, 4], &[3, 4], 12, 12),
            (&[4], &[3, 4], 4, 4),
            (&[3, 1], &[3, 4], 4, 12),
            (&[], &[3, 4], 12, 1),
            (&[3, 1, 1], &[2, 3, 4, 5], 20, 60),
            (&[2, 1, 4, 1], &[2, 3, 4, 5], 5, 120),
            (&[1, 4], &[3, 4], 4, 4),
        ];
        for (shape, out, run, period) in cases {
            let walk = Walk::new(shape, out);
            assert_eq!((walk.run, walk.period), (run, period), "{shape:?} {out:?}");
            let x: Vec<usize> = (0..shape.iter().product()).collect();
            let total: usize = out.iter().product();
            let element = |mut e: usize| {
                let (mut at, mut scale) = (0, 1);
                for d in (0..out.len()).rev() {
                    let p = e % out[d];
                    e /= out[d];
                    if let Some(i) = (d + shape.len()).checked_sub(out.len()) {
                        at += if shape[i] == 1 { 0 } else { p * scale };
                        scale *= shape[i];
                    }
                }
                at
            };
            for start in 0..total {
                let mut got = vec![usize::MAX; (total - start).min(17)];
                walk.gather(&x, start, &mut got);
                let want: Vec<usize> = (start..start + got.len()).map(element).collect();
                assert_eq!(got, want, "{shape:?} {out:?} from {start}");
            }
        }
    }
}
