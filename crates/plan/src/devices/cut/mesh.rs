//! Boxes of values over a mesh of devices: where the parts of a divided extent begin and end, what a device
//! holds of a value, and how large boxes and what they have in common are.

use super::{MeshLevel, Sharding};
use gulliver_graph::spec::Region;
use std::ops::Range;

/// The positions of `range` that group `part` of these shares has: from `⌊e·S_i/S⌋` to `⌊e·S_{i+1}/S⌋` with the
/// shares before a group as `S_i`.
pub fn split_range(range: &Range<usize>, shares: &[u64], part: usize) -> Range<usize> {
    let all: u64 = shares.iter().sum();
    let at = |groups: usize| {
        let before: u64 = shares[..groups].iter().sum();
        let product = (range.len() as u64).checked_mul(before);
        let wide = || (range.len() as u128 * u128::from(before) / u128::from(all)) as u64;
        range.start + product.map_or_else(wide, |product| product / all) as usize
    };
    at(part)..at(part + 1)
}

/// The devices of some levels, each with the group it belongs to at every level.
#[derive(Clone, Debug)]
pub struct DeviceMesh<'a> {
    /// The levels.
    pub levels: &'a [MeshLevel],
    /// By device, then level.
    pub groups: Vec<Vec<usize>>,
    /// By pair of devices: the levels at which they are in different groups, as bits.
    differ: Vec<u64>,
}

impl<'a> DeviceMesh<'a> {
    /// All devices in order: the last level's group changes fastest.
    pub fn new(levels: &'a [MeshLevel]) -> DeviceMesh<'a> {
        let mut groups = vec![Vec::new()];
        for level in levels {
            let each = |g: &Vec<usize>| {
                let g = g.clone();
                (0..level.shares.len()).map(move |i| [g.as_slice(), &[i]].concat()).collect::<Vec<_>>()
            };
            groups = groups.iter().flat_map(each).collect();
        }
        let bits = |a: &Vec<usize>, b: &Vec<usize>| {
            let pairs = a.iter().zip(b).enumerate();
            pairs.filter(|(_, (x, y))| x != y).fold(0, |bits, (l, _)| bits | 1 << l)
        };
        let differ = groups.iter().flat_map(|a| groups.iter().map(move |b| bits(a, b))).collect();
        DeviceMesh { levels, groups, differ }
    }

    /// How many devices.
    pub fn devices(&self) -> usize {
        self.groups.len()
    }

    /// The first level at which two devices are in different groups: the link between them.
    pub fn link(&self, a: usize, b: usize) -> usize {
        let first = self.differ(a, b).trailing_zeros() as usize;
        first.min(self.levels.len().saturating_sub(1))
    }

    /// The levels at which two devices are in different groups, as bits.
    pub fn differ(&self, a: usize, b: usize) -> u64 {
        self.differ[a * self.groups.len() + b]
    }
}

/// All of a value.
pub fn whole_box(shape: &[usize]) -> Region {
    shape.iter().map(|&e| 0..e).collect()
}

/// What a device holds of a value: the same box for every partial result of it.
pub fn held_box(shape: &[usize], shardings: &[Sharding], mesh: &DeviceMesh, device: usize) -> Region {
    let mut region = whole_box(shape);
    for ((level, sharding), &group) in mesh.levels.iter().zip(shardings).zip(&mesh.groups[device]) {
        if let Sharding::Split(d) = sharding {
            region[*d] = split_range(&region[*d], &level.shares, group);
        }
    }
    region
}

/// Elements of a box.
pub fn area(region: &[Range<usize>]) -> u64 {
    region.iter().map(|r| r.len() as u64).product()
}

/// Elements that two boxes have in common.
pub fn common(a: &[Range<usize>], b: &[Range<usize>]) -> u64 {
    let both = |(a, b): (&Range<usize>, &Range<usize>)| a.end.min(b.end).saturating_sub(a.start.max(b.start));
    a.iter().zip(b).map(|p| both(p) as u64).product()
}

/// What is in both boxes.
pub fn intersect(a: &mut Region, b: &[Range<usize>]) {
    for (a, b) in a.iter_mut().zip(b) {
        let start = a.start.max(b.start);
        *a = start..a.end.min(b.end).max(start);
    }
}

/// Whether all of `inner` is in `outer`.
pub fn contains(outer: &[Range<usize>], inner: &[Range<usize>]) -> bool {
    common(outer, inner) == area(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_a_partition_in_proportion() {
        for (extent, shares) in [
            (8, vec![1, 1]),
            (7, vec![1, 1, 1]),
            (10, vec![3, 1]),
            (9, vec![1, 2, 3, 1]),
            (5, vec![1; 5]),
            (3, vec![1; 4]),
            (1000, vec![7, 11, 13]),
        ] {
            let range = 5..5 + extent;
            let parts: Vec<_> = (0..shares.len()).map(|i| split_range(&range, &shares, i)).collect();
            assert_eq!(parts[0].start, 5);
            assert_eq!(parts.last().unwrap().end, 5 + extent);
            assert!(parts.windows(2).all(|w| w[0].end == w[1].start));
            let all: u64 = shares.iter().sum();
            for (part, share) in parts.iter().zip(&shares) {
                let ideal = extent as f64 * *share as f64 / all as f64;
                assert!((part.len() as f64 - ideal).abs() < 1.0 + 1e-9, "{extent} {shares:?}");
            }
        }
    }

    #[test]
    fn what_devices_hold_covers_a_value_once_for_each_copy() {
        for shares in [vec![1, 1], vec![1; 3], vec![2, 1, 4], vec![1; 5], vec![1; 6], vec![3; 7]] {
            let levels =
                [MeshLevel { shares, bandwidth: 1.0 }, MeshLevel { shares: vec![1, 2], bandwidth: 1.0 }];
            let mesh = DeviceMesh::new(&levels);
            let shape = [14, 9];
            for first in [Sharding::Replicated, Sharding::Split(0), Sharding::Split(1)] {
                for second in [Sharding::Replicated, Sharding::Split(0), Sharding::Split(1)] {
                    let mut seen = vec![0usize; 14 * 9];
                    for device in 0..mesh.devices() {
                        let region = held_box(&shape, &[first, second], &mesh, device);
                        for i in region[0].clone() {
                            region[1].clone().for_each(|j| seen[i * 9 + j] += 1);
                        }
                    }
                    let copies =
                        |s, l: &MeshLevel| if s == Sharding::Replicated { l.shares.len() } else { 1 };
                    let expected = copies(first, &levels[0]) * copies(second, &levels[1]);
                    assert!(seen.iter().all(|&n| n == expected), "{first:?} {second:?}");
                }
            }
        }
    }

    #[test]
    fn devices_count_with_the_last_level_fastest() {
        let levels = [MeshLevel::even(2, 1.0), MeshLevel { shares: vec![1, 3, 2], bandwidth: 1.0 }];
        let mesh = DeviceMesh::new(&levels);
        assert_eq!(mesh.groups[4], [1, 1]);
        assert_eq!((mesh.link(0, 3), mesh.link(0, 1)), (0, 1));
    }
}
