//! Reductions taken while their elements are being made, block by block, in the lane order of [`super::reduce`]:
//! whoever reduces the finished matrix with that module gets the same bits.

use crate::kernel::LANES;
use crate::kernel::reduce;
use crate::team::isa::{Isa, simd};
use gulliver_graph::spec::ReduceKind;

/// What a reduction of nothing is.
pub fn neutral(kind: ReduceKind) -> f32 {
    match kind {
        ReduceKind::Sum => 0.0,
        ReduceKind::Max => f32::NEG_INFINITY,
        ReduceKind::Min => f32::INFINITY,
    }
}

/// A whole row.
pub fn row(isa: Isa, kind: ReduceKind, x: &[f32]) -> f32 {
    match kind {
        ReduceKind::Sum => reduce::sum(isa, x),
        ReduceKind::Max => reduce::max(isa, x),
        ReduceKind::Min => reduce::min(isa, x),
    }
}

/// Two rows' results become one, as if they were a row.
pub fn join(kind: ReduceKind, a: f32, b: f32) -> f32 {
    row(Isa::portable(), kind, &[a, b])
}

/// One number into another; NaN if either is.
#[inline(always)]
fn step(kind: ReduceKind) -> impl Fn(f32, f32) -> f32 + Copy {
    move |a: f32, b: f32| match kind {
        ReduceKind::Sum => a + b,
        ReduceKind::Max => {
            if b > a || b.is_nan() {
                b
            } else {
                a
            }
        }
        ReduceKind::Min => {
            if b < a || b.is_nan() {
                b
            } else {
                a
            }
        }
    }
}

simd! {
    /// The next elements of a row into its lanes; all but the last piece of a row are whole lanes.
    pub fn take_piece(kind: ReduceKind, x: &[f32], lanes: &mut [f32; LANES]) = take_piece_body;
    /// One row into the lane of every column.
    pub fn take_columns(kind: ReduceKind, x: &[f32], lane: &mut [f32]) = take_columns_body;
    /// `LANES` lanes of `out.len()` columns, `stride` apart, to one result per column; the lanes are lost.
    pub fn finish_columns(kind: ReduceKind, lanes: &mut [f32], stride: usize, out: &mut [f32]) = finish_columns_body;
}

#[inline(always)]
fn take_piece_body(kind: ReduceKind, x: &[f32], lanes: &mut [f32; LANES]) {
    match kind {
        ReduceKind::Sum => piece(x, lanes, step(ReduceKind::Sum)),
        ReduceKind::Max => piece(x, lanes, step(ReduceKind::Max)),
        ReduceKind::Min => piece(x, lanes, step(ReduceKind::Min)),
    }
}

#[inline(always)]
fn piece(x: &[f32], lanes: &mut [f32; LANES], step: impl Fn(f32, f32) -> f32) {
    let mut own = *lanes;
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for l in 0..LANES {
            own[l] = step(own[l], chunk[l]);
        }
    }
    for (lane, &x) in own.iter_mut().zip(rest) {
        *lane = step(*lane, x);
    }
    *lanes = own;
}

#[inline(always)]
fn take_columns_body(kind: ReduceKind, x: &[f32], lane: &mut [f32]) {
    match kind {
        ReduceKind::Sum => into(x, lane, step(ReduceKind::Sum)),
        ReduceKind::Max => into(x, lane, step(ReduceKind::Max)),
        ReduceKind::Min => into(x, lane, step(ReduceKind::Min)),
    }
}

#[inline(always)]
fn into(x: &[f32], lane: &mut [f32], step: impl Fn(f32, f32) -> f32) {
    for (lane, &x) in lane.iter_mut().zip(x) {
        *lane = step(*lane, x);
    }
}

#[inline(always)]
fn finish_columns_body(kind: ReduceKind, lanes: &mut [f32], stride: usize, out: &mut [f32]) {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half * stride);
        for (low, high) in low.chunks_mut(stride).zip(high.chunks(stride)) {
            take_columns_body(kind, &high[..out.len()], &mut low[..out.len()]);
        }
        half /= 2;
    }
    out.copy_from_slice(&lanes[..out.len()]);
}

/// The result of a row whose pieces were taken.
pub fn finish_row(kind: ReduceKind, lanes: [f32; LANES]) -> f32 {
    reduce::tree(lanes, step(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};
    use crate::team::Team;

    const KINDS: [ReduceKind; 3] = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];

    #[test]
    fn pieces_of_a_row_have_the_bits_of_the_row() {
        for kind in KINDS {
            for len in [0, 1, 15, 16, 40, 333, 1000] {
                let x = noise(len, 3);
                for isa in Isa::all() {
                    let mut lanes = [neutral(kind); LANES];
                    x.chunks(48).for_each(|piece| take_piece(isa, kind, piece, &mut lanes));
                    let got = finish_row(kind, lanes);
                    assert_eq!(got.to_bits(), row(isa, kind, &x).to_bits(), "{kind:?} {len} {isa:?}");
                }
            }
        }
    }

    #[test]
    fn rows_taken_into_columns_have_the_bits_of_the_matrix() {
        let (rows, cols) = (37, 21);
        let x = noise(rows * cols, 5);
        let team = Team::new(1);
        for kind in KINDS {
            let mut want = vec![0.0; cols];
            match kind {
                ReduceKind::Sum => reduce::sum_columns(&team, &x, rows, &mut want),
                ReduceKind::Max => reduce::max_columns(&team, &x, rows, &mut want),
                ReduceKind::Min => reduce::min_columns(&team, &x, rows, &mut want),
            }
            for isa in Isa::all() {
                let stride = cols + 3;
                let mut lanes = vec![neutral(kind); LANES * stride];
                for (r, row) in x.chunks(cols).enumerate() {
                    take_columns(isa, kind, row, &mut lanes[r % LANES * stride..][..cols]);
                }
                let mut got = vec![0.0; cols];
                finish_columns(isa, kind, &mut lanes, stride, &mut got);
                assert_eq!(bits(&got), bits(&want), "{kind:?} {isa:?}");
            }
        }
    }
}
