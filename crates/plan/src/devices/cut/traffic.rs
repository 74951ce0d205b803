//! Who fetches which elements of a value from whom, exactly.
//!
//! A device fetches each needed box of a value once; a box inside another that it needs too comes with that.
//! Elements come from the holder that is nearest. Partial results that all devices need all of are reduced in
//! slices and gathered; otherwise each device fetches its box from every other and combines.

use super::Sharding;
use super::mesh::{DeviceMesh, area, common, contains, held_box, split_range};
use super::parts::NeededBoxes;
use super::sized::SUMS;
use gulliver_graph::spec::Region;

/// Calls `add(receiver, sender, elements)` for every fetch of one value that lies as `shardings` say; none if
/// partial sums are wanted that are not there.
pub fn fetches(
    shape: &[usize],
    shardings: &[Sharding],
    needs: &[&NeededBoxes],
    mesh: &DeviceMesh,
    add: &mut impl FnMut(usize, usize, u64),
) -> Option<()> {
    HeldBoxes::new(shape, shardings, mesh).fetches(needs, add)
}

/// A value that lies over devices in one way.
pub(crate) struct HeldBoxes<'a> {
    mesh: &'a DeviceMesh<'a>,
    /// Levels, as bits, at which it is a partial result, a partial sum, and divided.
    pub partial: u64,
    pub sums: u64,
    pub along: u64,
    /// By device; none if everyone has all.
    pub holds: Vec<Region>,
}

impl<'a> HeldBoxes<'a> {
    /// As these shardings say.
    pub fn new(shape: &[usize], shardings: &[Sharding], mesh: &'a DeviceMesh<'a>) -> HeldBoxes<'a> {
        let level_bits = |is: fn(&Sharding) -> bool| {
            shardings.iter().enumerate().filter(|(_, s)| is(s)).fold(0u64, |bits, (l, _)| bits | 1 << l)
        };
        let partial = level_bits(|s| matches!(s, Sharding::Partial(_)));
        let sums = level_bits(|s| *s == Sharding::Partial(SUMS));
        let along = level_bits(|s| matches!(s, Sharding::Split(_)));
        let devices = if partial | along == 0 { 0 } else { mesh.devices() };
        let holds = (0..devices).map(|d| held_box(shape, shardings, mesh, d)).collect();
        HeldBoxes { mesh, partial, sums, along, holds }
    }

    /// See [`fetches`].
    pub fn fetches(&self, needs: &[&NeededBoxes], add: &mut impl FnMut(usize, usize, u64)) -> Option<()> {
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
                all_reduce(&self.holds, reduced, self.mesh, add);
                moving = self.along;
            }
            for (to, own) in self.holds.iter().enumerate() {
                for needed in &boxes[begin(to)..ends[to]] {
                    // What is divided is held by one of those between whom it is.
                    if moving == self.along && contains(own, needed) {
                        continue;
                    }
                    for (from, other) in self.holds.iter().enumerate().filter(|(from, _)| *from != to) {
                        if self.mesh.differ(to, from) & !moving == 0 {
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
    mesh: &DeviceMesh,
    add: &mut impl FnMut(usize, usize, u64),
) {
    for (to, own) in holds.iter().enumerate() {
        let peers: Vec<usize> =
            (0..mesh.devices()).filter(|&from| mesh.differ(to, from) & !reduced == 0).collect();
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
    slice[d] = split_range(&own[d], &vec![1; peers.len()], place);
    slice
}
