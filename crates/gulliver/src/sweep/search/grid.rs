//! Every point of the grid, in its order.

use super::{Ask, Trial, WAVE};
use crate::sweep::file::Sweep;

/// See [`super::next`].
pub fn next(sweep: &Sweep, trials: &[Trial]) -> Vec<Ask> {
    let points = sweep.grid.iter().enumerate().skip(trials.len()).take(WAVE as usize);
    points.map(|(i, point)| Ask { trial: i as u64, point: point.clone(), level: sweep.top() }).collect()
}
