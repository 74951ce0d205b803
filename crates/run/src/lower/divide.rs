//! Division of element-wise and row-wise work over a team.

use super::call::Pod;
use crate::team::{SharedMut, Team};
use std::ops::Range;

/// Least elements per thread: fewer are not worth waking another one.
pub(super) const GRAIN: usize = 4096;

/// Runs `f` on ranges of `0..len`, on one thread if there is little to do.
pub(super) fn ranges(team: &Team, len: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    if len < 2 * GRAIN { f(0..len) } else { team.split(len, 64, f) }
}

/// Runs `f` on ranges of `0..rows`, on one thread if all rows together are few elements of `work`.
pub(super) fn over_rows(team: &Team, rows: usize, work: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    if work < 2 * GRAIN { f(0..rows) } else { team.split(rows, 1, f) }
}

/// Calls `f(i, row)` for every row of `len` elements of `y`, on one thread if `y` and `work` are few elements.
pub(super) fn each_row<T: Pod>(
    team: &Team,
    y: &mut [T],
    len: usize,
    work: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let rows = y.len().checked_div(len).unwrap_or(0);
    let y = SharedMut::new(y);
    over_rows(team, rows, work.max(y.len()), &|range| {
        for i in range {
            // SAFETY: rows are disjoint.
            f(i, unsafe { y.slice(i * len..(i + 1) * len) });
        }
    });
}
