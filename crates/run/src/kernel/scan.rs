//! Along one axis of a matrix of columns: running sums and where the largest element is. Sums run in
//! double precision and are rounded once per element.

use crate::kernel::reduce;
use crate::team::isa::{Isa, simd};

/// Columns handled side by side: long stretches of a row, whose state stays in the nearest cache.
const COLUMNS: usize = 512;

/// Running sums down the rows of `x`, `width` columns each, or up if `reverse`; the first is `0 + x`.
#[inline(always)]
fn running_sums_body(x: &[f32], width: usize, reverse: bool, y: &mut [f32]) {
    let rows = x.len().checked_div(width).unwrap_or(0);
    if width == 1 {
        let mut sum = 0.0f64;
        for r in 0..rows {
            let r = if reverse { rows - 1 - r } else { r };
            sum += f64::from(x[r]);
            y[r] = sum as f32;
        }
        return;
    }
    for c0 in (0..width).step_by(COLUMNS) {
        let n = COLUMNS.min(width - c0);
        let mut sums = [0.0f64; COLUMNS];
        for r in 0..rows {
            let at = if reverse { rows - 1 - r } else { r } * width + c0;
            let (x, y) = (&x[at..at + n], &mut y[at..at + n]);
            for ((sum, y), &x) in sums.iter_mut().zip(y).zip(x) {
                *sum += f64::from(x);
                *y = *sum as f32;
            }
        }
    }
}

/// An integer that is ordered as the numbers are, with equal zeros and all NaN largest.
#[inline(always)]
fn rank(x: f32) -> i32 {
    let bits = (x + 0.0).to_bits() as i32;
    let rank = bits ^ ((bits >> 31) & i32::MAX);
    if x.is_nan() { i32::MAX } else { rank }
}

/// The row of the largest element of each column: the first of several, the first NaN if there is one.
#[inline(always)]
fn largest_body(x: &[f32], width: usize, y: &mut [i64]) {
    for (block, y) in y.chunks_mut(COLUMNS).enumerate() {
        let c0 = block * COLUMNS;
        let (mut most, mut place) = ([i32::MIN; COLUMNS], [0u32; COLUMNS]);
        for (r, row) in x.chunks_exact(width).enumerate() {
            let row = &row[c0..c0 + y.len()];
            let (most, place, r) = (&mut most[..row.len()], &mut place[..row.len()], r as u32);
            for i in 0..row.len() {
                // Maxima of integers, because choices would become slow conditional stores.
                let rank = rank(row[i]);
                place[i] = place[i].max(if rank > most[i] { r } else { 0 });
                most[i] = most[i].max(rank);
            }
        }
        for (y, &place) in y.iter_mut().zip(&place) {
            *y = i64::from(place);
        }
    }
}

/// The first element equal to `most`, or the first NaN if that is one.
#[inline(always)]
fn first_body(x: &[f32], most: f32) -> usize {
    /// Elements looked at together before looking for the place.
    const STRETCH: usize = 64;
    let hit = |x: f32| (x == most) | (x.is_nan() & most.is_nan());
    let found = x.chunks(STRETCH).position(|x| x.iter().fold(false, |any, &x| any | hit(x)));
    let start = found.map_or(0, |stretch| stretch * STRETCH);
    start + x[start..].iter().position(|&x| hit(x)).unwrap_or(0)
}

simd! {
    /// Running sums down the rows of `x`, `width` columns each, or up if `reverse`.
    pub fn running_sums(x: &[f32], width: usize, reverse: bool, y: &mut [f32]) = running_sums_body;
    fn largest_of_columns(x: &[f32], width: usize, y: &mut [i64]) = largest_body;
    fn first(x: &[f32], most: f32) -> usize = first_body;
}

/// The row of the largest element of each column of a matrix with as many columns as `y`: the first of
/// several, the first NaN if there is one, 0 of nothing. Panics if there are 2^32 rows or more.
pub fn largest(isa: Isa, x: &[f32], y: &mut [i64]) {
    match y {
        [] => {}
        [y] => {
            *y = first(isa, x, reduce::max(isa, x)) as i64;
        }
        _ => {
            assert!(u32::try_from(x.len() / y.len()).is_ok(), "more rows than can be counted");
            largest_of_columns(isa, x, y.len(), y);
        }
    }
}

/// The largest elements of a row and their indices, largest first, as many as `values` holds; of equals
/// the lower index comes first, and NaN counts as larger than any number. `order` holds an element per
/// element of the row.
pub fn top(x: &[f32], order: &mut [i32], values: &mut [f32], indices: &mut [i64]) {
    let k = values.len();
    if k == 0 {
        return;
    }
    order.iter_mut().enumerate().for_each(|(i, o)| *o = i as i32);
    // A total order, so that the unstable algorithms have one answer.
    let compare = |&i: &i32, &j: &i32| {
        let (a, b) = (x[i as usize], x[j as usize]);
        let by_value =
            b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal));
        by_value.then(i.cmp(&j))
    };
    if k < order.len() {
        order.select_nth_unstable_by(k - 1, compare);
    }
    order[..k].sort_unstable_by(compare);
    for ((value, index), &i) in values.iter_mut().zip(indices).zip(&*order) {
        (*value, *index) = (x[i as usize], i64::from(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::noise;

    #[test]
    fn specials_are_ordered_as_stated() {
        let nan = f32::NAN;
        let low = f32::NEG_INFINITY;
        let rows: [(&[f32], i64, &[i64]); 6] = [
            (&[1.0, 3.0, nan, 3.0, 2.0], 2, &[2, 1, 3, 4, 0]),
            (&[low, low], 0, &[0, 1]),
            (&[low, -1.0, low], 1, &[1, 0, 2]),
            (&[nan, nan, 5.0], 0, &[0, 1, 2]),
            (&[0.0, -0.0, 0.0], 0, &[0, 1, 2]),
            (&[2.0, 7.0, 7.0], 1, &[1, 2, 0]),
        ];
        for (x, best, sorted) in rows {
            for isa in Isa::all() {
                let mut one = [9];
                largest(isa, x, &mut one);
                assert_eq!(one[0], best, "{x:?}");
                let twice: Vec<f32> = x.iter().flat_map(|&x| [x, x]).collect();
                let mut two = [9, 9];
                largest(isa, &twice, &mut two);
                assert_eq!(two, [best; 2], "{x:?}");
            }
            for k in 0..=x.len() {
                let (mut order, mut values, mut indices) = (vec![0; x.len()], vec![0.0; k], vec![0; k]);
                top(x, &mut order, &mut values, &mut indices);
                assert_eq!(indices, sorted[..k], "{x:?}");
            }
        }
    }

    #[test]
    fn columns_do_not_depend_on_their_neighbours() {
        for (isa, rows, width) in Isa::all().into_iter().flat_map(|isa| [(isa, 23, 37), (isa, 200, 600)]) {
            let x = noise(rows * width, 5);
            for reverse in [false, true] {
                let mut y = vec![0.0; x.len()];
                running_sums(isa, &x, width, reverse, &mut y);
                let mut best = vec![0; width];
                largest(isa, &x, &mut best);
                for c in 0..width {
                    let column: Vec<f32> = (0..rows).map(|r| x[r * width + c]).collect();
                    let (mut alone, mut one) = (vec![0.0; rows], [0]);
                    running_sums(isa, &column, 1, reverse, &mut alone);
                    largest(isa, &column, &mut one);
                    assert!((0..rows).all(|r| y[r * width + c].to_bits() == alone[r].to_bits()));
                    assert_eq!(best[c], one[0]);
                }
            }
        }
    }
}
