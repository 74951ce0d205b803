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
    let level_bits = |is: fn(&Spread) -> bool| {
        spreads.iter().enumerate().filter(|(_, s)| is(s)).fold(0u64, |bits, (l, _)| bits | 1 << l)
    };
    let partial = level_bits(|s| matches!(s, Spread::Partial(_)));
    let sums = level_bits(|s| *s == Spread::Partial(SUMS));
    let along = level_bits(|s| matches!(s, Spread::Along(_)));
    if needs.iter().any(|n| n.unreduced & !sums != 0) {
        return None;
    }
    if needs.is_empty() || (partial | along) == 0 {
        return Some(());
    }
    let holds: Vec<Region> = (0..grid.devices()).map(|d| held(shape, spreads, grid, d)).collect();
    let mut kept: Vec<u64> = needs.iter().map(|n| n.unreduced).collect();
    kept.sort_unstable();
    kept.dedup();
    for unreduced in kept {
        let boxes: Vec<Vec<&Region>> = (0..grid.devices())
            .map(|d| largest(needs.iter().filter(|n| n.unreduced == unreduced).map(|n| &n.boxes[d])))
            .collect();
        let reduced = partial & !unreduced;
        let mut moving = along | reduced;
        let everyone = boxes.iter().zip(&holds).all(|(list, own)| list.iter().any(|b| contains(b, own)));
        if reduced != 0 && everyone {
            all_reduce(&holds, reduced, grid, add);
            moving = along;
        }
        for (to, list) in boxes.iter().enumerate() {
            for (from, own) in holds.iter().enumerate().filter(|(from, _)| *from != to) {
                if differ(grid, to, from) & !moving == 0 {
                    list.iter().for_each(|b| add(to, from, common(b, own)));
                }
            }
        }
    }
    Some(())
}

/// The levels at which two devices are in different groups.
pub(crate) fn differ(grid: &Grid, a: usize, b: usize) -> u64 {
    let pairs = grid.groups[a].iter().zip(&grid.groups[b]).enumerate();
    pairs.filter(|(_, (x, y))| x != y).fold(0, |bits, (l, _)| bits | 1 << l)
}

/// The boxes that are inside no other, each once.
fn largest<'a>(boxes: impl Iterator<Item = &'a Region>) -> Vec<&'a Region> {
    let mut list: Vec<&Region> = Vec::new();
    for new in boxes {
        if area(new) == 0 || list.iter().any(|b| contains(b, new)) {
            continue;
        }
        list.retain(|b| !contains(new, b));
        list.push(new);
    }
    list
}

/// Devices that hold partial results of the same box each reduce a slice of it, then gather the others'.
fn all_reduce(holds: &[Region], reduced: u64, grid: &Grid, add: &mut impl FnMut(usize, usize, u64)) {
    for (to, own) in holds.iter().enumerate() {
        let peers: Vec<usize> =
            (0..grid.devices()).filter(|&from| differ(grid, to, from) & !reduced == 0).collect();
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
