//! Who fetches which elements of a value from whom, exactly.
//!
//! A device fetches each needed box of a value once; a box inside another that it needs too comes with that.
//! Elements come from the holder that is nearest. Partial results that all devices need all of are reduced in
//! slices and gathered; otherwise each device fetches its box from every other and combines.

use super::Spread;
use super::bound::SUMS;
use super::part::Need;
use super::region::{Grid, area, common, contains, held, split};
use gulliver_graph::spec::Region;

/// Calls `add(receiver, sender, elements)` for every fetch of one value that lies as `spreads` say; none if
/// partial sums are wanted that are not there.
pub fn fetches(
    shape: &[usize],
    spreads: &[Spread],
    needs: &[&Need],
    grid: &Grid,
    add: &mut impl FnMut(usize, usize, u64),
) -> Option<()> {
    Lying::new(shape, spreads, grid).fetches(needs, add)
}

/// A value that lies over devices in one way.
pub(crate) struct Lying<'a> {
    grid: &'a Grid<'a>,
    /// Levels, as bits, at which it is a partial result, a partial sum, and divided.
    pub partial: u64,
    pub sums: u64,
    pub along: u64,
    /// By device; none if everyone has all.
    pub holds: Vec<Region>,
}

impl<'a> Lying<'a> {
    /// As these spreads say.
    pub fn new(shape: &[usize], spreads: &[Spread], grid: &'a Grid<'a>) -> Lying<'a> {
        let level_bits = |is: fn(&Spread) -> bool| {
            spreads.iter().enumerate().filter(|(_, s)| is(s)).fold(0u64, |bits, (l, _)| bits | 1 << l)
        };
        let partial = level_bits(|s| matches!(s, Spread::Partial(_)));
        let sums = level_bits(|s| *s == Spread::Partial(SUMS));
        let along = level_bits(|s| matches!(s, Spread::Along(_)));
        let devices = if partial | along == 0 { 0 } else { grid.devices() };
        let holds = (0..devices).map(|d| held(shape, spreads, grid, d)).collect();
        Lying { grid, partial, sums, along, holds }
    }

    /// See [`fetches`].
    pub fn fetches(&self, needs: &[&Need], add: &mut impl FnMut(usize, usize, u64)) -> Option<()> {
        if needs.iter().any(|n| n.unreduced & !self.sums != 0) {
            return None;
        }
        if needs.is_empty() || self.holds.is_empty() {
            return Some(());
        }
        let mut kept: Vec<u64> = needs.iter().map(|n| n.unreduced).collect();
        kept.sort_unstable();
        kept.dedup();
        // The boxes of all devices, one after another, and where each device's end.
        let (mut boxes, mut ends): (Vec<&Region>, Vec<usize>) = (Vec::new(), Vec::new());
        for unreduced in kept {
            boxes.clear();
            ends.clear();
            for d in 0..self.holds.len() {
                largest(&mut boxes, needs.iter().filter(|n| n.unreduced == unreduced).map(|n| &n.boxes[d]));
                ends.push(boxes.len());
            }
            let begin = |d: usize| if d == 0 { 0 } else { ends[d - 1] };
            let reduced = self.partial & !unreduced;
            let mut moving = self.along | reduced;
            let has_all =
                |(d, own): (usize, &Region)| boxes[begin(d)..ends[d]].iter().any(|b| contains(b, own));
            if reduced != 0 && self.holds.iter().enumerate().all(has_all) {
                all_reduce(&self.holds, reduced, self.grid, add);
                moving = self.along;
            }
            for (to, own) in self.holds.iter().enumerate() {
                for needed in &boxes[begin(to)..ends[to]] {
                    // What is divided is held by one of those between whom it is.
                    if moving == self.along && contains(own, needed) {
                        continue;
                    }
                    for (from, other) in self.holds.iter().enumerate().filter(|(from, _)| *from != to) {
                        if self.grid.differ(to, from) & !moving == 0 {
                            add(to, from, common(needed, other));
                        }
                    }
                }
            }
        }
        Some(())
    }
}

/// Adds the boxes that are inside no other of these, each once.
fn largest<'a>(list: &mut Vec<&'a Region>, boxes: impl Iterator<Item = &'a Region>) {
    let first = list.len();
    for new in boxes {
        if area(new) == 0 || list[first..].iter().any(|b| contains(b, new)) {
            continue;
        }
        let mut at = first;
        while at < list.len() {
            if contains(new, list[at]) {
                list.swap_remove(at);
            } else {
                at += 1;
            }
        }
        list.push(new);
    }
}

/// Devices that hold partial results of the same box each reduce a slice of it, then gather the others'.
pub(crate) fn all_reduce(
    holds: &[Region],
    reduced: u64,
    grid: &Grid,
    add: &mut impl FnMut(usize, usize, u64),
) {
    for (to, own) in holds.iter().enumerate() {
        let peers: Vec<usize> =
            (0..grid.devices()).filter(|&from| grid.differ(to, from) & !reduced == 0).collect();
        let slice = |peer: usize| area(&slice_along(own, &peers, peer));
        for &from in peers.iter().filter(|&&from| from != to) {
            add(to, from, slice(to) + slice(from));
        }
    }
}

/// What one of the devices reduces of a box: an equal part along the longest dimension that divides evenly,
/// or else the longest. A single number is reduced by the first; the others' boxes are then empty.
pub(crate) fn slice_along(own: &Region, peers: &[usize], peer: usize) -> Region {
    let even = |d: &usize| own[*d].len().is_multiple_of(peers.len());
    let longest = |d: &usize| own[*d].len();
    let dimension = (0..own.len()).filter(even).max_by_key(longest);
    let Some(d) = dimension.or_else(|| (0..own.len()).max_by_key(longest)) else {
        return if peers.first() == Some(&peer) { Vec::new() } else { std::iter::once(0..0).collect() };
    };
    let place = peers.iter().position(|p| *p == peer).unwrap_or(0);
    let mut slice = own.clone();
    slice[d] = split(&own[d], &vec![1; peers.len()], place);
    slice
}
