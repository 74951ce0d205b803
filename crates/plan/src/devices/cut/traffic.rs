//! The fetches of one value, exactly: receiver, sender and elements.
//!
//! A device fetches each needed box once, and a box within another needed box not at all. Elements come from the nearest
//! holder. Partial results that all devices need in full are all-reduced; otherwise each device fetches its box from
//! every other device and adds.

use super::Sharding;
use super::mesh::{DeviceMesh, area, common, contains, held_box, split_range};
use super::parts::NeededBoxes;
use super::sized::SUMS;
use gulliver_graph::spec::Region;

/// Levels, as bits, at which a value is a partial result, a partial sum, and split.
pub(crate) struct ShardedLevels {
    pub partial: u64,
    pub sums: u64,
    pub along: u64,
}

impl ShardedLevels {
    /// Of these shardings, by level.
    pub fn of(shardings: &[Sharding]) -> ShardedLevels {
        let bits = |is: fn(&Sharding) -> bool| {
            shardings.iter().enumerate().filter(|(_, s)| is(s)).fold(0u64, |bits, (l, _)| bits | 1 << l)
        };
        ShardedLevels {
            partial: bits(|s| matches!(s, Sharding::Partial(_))),
            sums: bits(|s| *s == Sharding::Partial(SUMS)),
            along: bits(|s| matches!(s, Sharding::Split(_))),
        }
    }
}

/// A value with one sharding.
pub(crate) struct HeldBoxes<'a> {
    mesh: &'a DeviceMesh<'a>,
    pub levels: ShardedLevels,
    /// The box that each device holds; empty if every device holds the whole value.
    pub holds: Vec<Region>,
}

impl<'a> HeldBoxes<'a> {
    /// The boxes that the shardings give.
    pub fn new(shape: &[usize], shardings: &[Sharding], mesh: &'a DeviceMesh<'a>) -> HeldBoxes<'a> {
        let levels = ShardedLevels::of(shardings);
        let devices = if levels.partial | levels.along == 0 { 0 } else { mesh.devices() };
        let holds = (0..devices).map(|d| held_box(shape, shardings, mesh, d)).collect();
        HeldBoxes { mesh, levels, holds }
    }

    /// Calls `add(receiver, sender, elements)` for every fetch that these needs cause. `None` if partial sums are needed
    /// that the value does not have.
    pub fn fetches(&self, needs: &[&NeededBoxes], add: &mut impl FnMut(usize, usize, u64)) -> Option<()> {
        let ShardedLevels { partial, sums, along } = self.levels;
        if needs.iter().any(|n| n.unreduced & !sums != 0) {
            return None;
        }
        if needs.is_empty() || self.holds.is_empty() {
            return Some(());
        }
        let mut kept: Vec<u64> = needs.iter().map(|n| n.unreduced).collect();
        kept.sort_unstable();
        kept.dedup();
        // The boxes of all devices in order, and the end of those of each device.
        let (mut boxes, mut ends): (Vec<&Region>, Vec<usize>) = (Vec::new(), Vec::new());
        for unreduced in kept {
            boxes.clear();
            ends.clear();
            for d in 0..self.holds.len() {
                largest(&mut boxes, needs.iter().filter(|n| n.unreduced == unreduced).map(|n| &n.boxes[d]));
                ends.push(boxes.len());
            }
            let begin = |d: usize| if d == 0 { 0 } else { ends[d - 1] };
            let reduced = partial & !unreduced;
            let mut moving = along | reduced;
            let has_all =
                |(d, own): (usize, &Region)| boxes[begin(d)..ends[d]].iter().any(|b| contains(b, own));
            if reduced != 0 && self.holds.iter().enumerate().all(has_all) {
                all_reduce(&self.holds, reduced, self.mesh, add);
                moving = along;
            }
            for (to, own) in self.holds.iter().enumerate() {
                for needed in &boxes[begin(to)..ends[to]] {
                    // A split value has exactly one owner within its group.
                    if moving == along && contains(own, needed) {
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

/// Adds the boxes that no other of them contains, each once.
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

/// All-reduce among holders of partial results of one box: each reduces a slice, then gathers the other slices.
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

/// The slice of a box that one of the devices reduces: an equal part along the longest dimension that divides evenly, or
/// else along the longest. The first device reduces a single number; the slices of the others are empty.
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
