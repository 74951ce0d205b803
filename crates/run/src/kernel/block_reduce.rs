//! Reductions by kind, and reductions of values that are produced block by block. The lane order, and so the bits, are
//! those of [`super::reduce`] on the finished matrix.

use crate::kernel::LANES;
use crate::kernel::reduce::{self, add, fold_into, greater, lesser, take, tree};
use crate::team::isa::{Isa, simd};
use gulliver_graph::spec::ReduceKind;

/// The neutral element.
pub fn neutral(kind: ReduceKind) -> f32 {
    match kind {
        ReduceKind::Sum => 0.0,
        ReduceKind::Max => f32::NEG_INFINITY,
        ReduceKind::Min => f32::INFINITY,
    }
}

/// The reduction of a row.
pub fn row(isa: Isa, kind: ReduceKind, x: &[f32]) -> f32 {
    match kind {
        ReduceKind::Sum => reduce::sum(isa, x),
        ReduceKind::Max => reduce::max(isa, x),
        ReduceKind::Min => reduce::min(isa, x),
    }
}

/// The reduction of two results.
pub fn join(kind: ReduceKind, a: f32, b: f32) -> f32 {
    row(Isa::portable(), kind, &[a, b])
}

simd! {
    /// Takes the next piece of a row into its lanes. The length of all pieces but the last is a multiple of [`LANES`].
    pub fn take_piece(kind: ReduceKind, x: &[f32], lanes: &mut [f32; LANES]) = take_piece_body;
    /// Takes a row into one lane of every column.
    pub fn take_columns(kind: ReduceKind, x: &[f32], lane: &mut [f32]) = take_columns_body;
    /// Combines [`LANES`] lanes of `out.len()` columns, `stride` apart, into one result per column. Overwrites the lanes.
    pub fn finish_columns(kind: ReduceKind, lanes: &mut [f32], stride: usize, out: &mut [f32]) = finish_columns_body;
}

#[inline(always)]
fn take_piece_body(kind: ReduceKind, x: &[f32], lanes: &mut [f32; LANES]) {
    let mut own = *lanes;
    match kind {
        ReduceKind::Sum => fold_into(&mut own, x, add),
        ReduceKind::Max => fold_into(&mut own, x, greater),
        ReduceKind::Min => fold_into(&mut own, x, lesser),
    }
    *lanes = own;
}

#[inline(always)]
fn take_columns_body(kind: ReduceKind, x: &[f32], lane: &mut [f32]) {
    match kind {
        ReduceKind::Sum => take(lane, x, add),
        ReduceKind::Max => take(lane, x, greater),
        ReduceKind::Min => take(lane, x, lesser),
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

/// The result of a row from its lanes.
pub fn finish_row(kind: ReduceKind, lanes: [f32; LANES]) -> f32 {
    match kind {
        ReduceKind::Sum => tree(lanes, add),
        ReduceKind::Max => tree(lanes, greater),
        ReduceKind::Min => tree(lanes, lesser),
    }
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
