//! A grid of positions that read the channels of images through the taps of a window, each element at
//! the sum of an offset of the position and an offset of the tap: in the images themselves, or in a copy
//! of what some positions read, framed with zeros.

use crate::kernel::tile::{self, NR, Store};
use crate::team::isa::Isa;
use std::ops::Range;

/// Floats of a channel that is read where it lies.
const NEAR: usize = 400;

/// Along each axis, position `p` reads through tap `t` the coordinate `p * step + first + t * slope`
/// of the source, and zero outside it.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Extents of the positions.
    pub positions: [usize; 3],
    /// Extents of a channel of the source.
    pub source: [usize; 3],
    /// Change of the coordinate per position.
    pub step: [usize; 3],
    /// Extents of the taps.
    pub taps: [usize; 3],
    /// Coordinate of position 0 through tap 0.
    pub first: [isize; 3],
    /// Change of the coordinate per tap.
    pub slope: [isize; 3],
}

/// The source of a grid: channel `c` of image `n` starts at `n * image + c * plane`.
#[derive(Clone, Copy)]
pub struct Images<'a> {
    /// The elements, from the first channel of the group.
    pub data: &'a [f32],
    /// Distance between images.
    pub image: usize,
    /// Images.
    pub n: usize,
    /// Channels.
    pub channels: usize,
}

/// Part of a source with coordinates from `low`, zeros where it reaches outside.
#[derive(Clone, Copy, Debug)]
struct Region {
    low: [isize; 3],
    extents: [usize; 3],
}

impl Region {
    fn len(&self) -> usize {
        self.extents.iter().product()
    }

    /// Copies one channel.
    fn copy(&self, source: [usize; 3], plane: &[f32], to: &mut [f32]) {
        let [_, ey, ex] = self.extents;
        let inside =
            |a: usize, p: usize| usize::try_from(self.low[a] + p as isize).ok().filter(|&at| at < source[a]);
        let lead = (-self.low[2]).clamp(0, ex as isize) as usize;
        let end = (source[2] as isize - self.low[2]).clamp(lead as isize, ex as isize) as usize;
        for (row, to) in to.chunks_exact_mut(ex.max(1)).enumerate() {
            match (inside(0, row / ey), inside(1, row % ey)) {
                (Some(z), Some(y)) if lead < end => {
                    let from = (z * source[1] + y) * source[2];
                    let from = (from as isize + self.low[2] + lead as isize) as usize;
                    to[..lead].fill(0.0);
                    to[lead..end].copy_from_slice(&plane[from..from + end - lead]);
                    to[end..].fill(0.0);
                }
                _ => to.fill(0.0),
            }
        }
    }
}

pub fn unflatten(i: usize, e: [usize; 3]) -> [usize; 3] {
    [i / (e[1] * e[2]), i / e[2] % e[1], i % e[2]]
}

impl Grid {
    pub fn count(&self) -> usize {
        self.positions.iter().product()
    }

    pub fn tap_count(&self) -> usize {
        self.taps.iter().product()
    }

    /// Change of the coordinate from the first to the last tap.
    fn reach(&self, axis: usize) -> isize {
        self.taps[axis].saturating_sub(1) as isize * self.slope[axis]
    }

    /// The region that a box of positions reads.
    fn region(&self, corner: [usize; 3], extents: [usize; 3]) -> Region {
        let low = |a: usize| (corner[a] * self.step[a]) as isize + self.first[a] + self.reach(a).min(0);
        let extent = |a: usize| (extents[a] - 1) * self.step[a] + self.reach(a).unsigned_abs() + 1;
        Region { low: std::array::from_fn(low), extents: std::array::from_fn(extent) }
    }

    /// Whether the source is read where it lies: no position reads outside, and neighbouring channels
    /// are not so far apart that each takes a page and a place in the cache of its own.
    pub fn in_place(&self) -> bool {
        self.count() == 0 || {
            let all = self.region([0; 3], self.positions);
            let inside = |a: usize| all.low[a] >= 0 && all.low[a] as usize + all.extents[a] <= self.source[a];
            (0..3).all(inside) && self.source.iter().product::<usize>() <= NEAR
        }
    }

    /// What the smallest box with all of a range of flattened positions reads.
    fn tight(&self, range: &Range<usize>) -> Region {
        let (low, high) = (unflatten(range.start, self.positions), unflatten(range.end - 1, self.positions));
        let (mut corner, mut extents) = ([0; 3], self.positions);
        for a in 0..3 {
            if low[..a] == high[..a] {
                (corner[a], extents[a]) = (low[a], high[a] + 1 - low[a]);
            }
        }
        self.region(corner, extents)
    }

    /// As [`Grid::tight`] with whole rows, so that regions of several images have one pitch.
    fn slab(&self, range: &Range<usize>) -> Region {
        let flat = |a: usize| self.positions[a] == 1 && self.taps[a] == 1;
        let axis = (0..2).take_while(|&a| flat(a)).count();
        let row: usize = self.positions[axis + 1..].iter().product();
        let (mut corner, mut extents) = ([0; 3], self.positions);
        corner[axis] = range.start / row;
        extents[axis] = (range.end - 1) / row + 1 - corner[axis];
        self.region(corner, extents)
    }

    /// Where a position reads through the tap nearest to the start of its region.
    fn position_offset(&self, region: &Region, position: usize) -> usize {
        let p = unflatten(position, self.positions);
        (0..3).fold(0, |at, a| {
            let coordinate = (p[a] * self.step[a]) as isize + self.first[a] + self.reach(a).min(0);
            at * region.extents[a] + (coordinate - region.low[a]) as usize
        })
    }

    /// How far a tap lies from the one nearest to the start.
    fn tap_offset(&self, extents: [usize; 3], tap: usize) -> usize {
        let t = unflatten(tap, self.taps);
        (0..3).fold(0, |at, a| {
            at * extents[a] + (t[a] as isize * self.slope[a] - self.reach(a).min(0)) as usize
        })
    }
}

/// What some (image, position) pairs read: where it lies, or a copy. A channel of the copy holds the
/// regions of the images one after the other.
pub struct Source<'a> {
    grid: &'a Grid,
    data: &'a [f32],
    pairs: Range<usize>,
    /// Distance between images where they lie.
    image: Option<usize>,
    /// Distance between channels.
    plane: usize,
    /// Extents that give a region its pitch.
    extents: [usize; 3],
}

/// The images of a range of pairs, each with its range of positions.
pub fn by_image(count: usize, pairs: &Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let pairs = pairs.clone();
    let images = pairs.start / count..pairs.end.div_ceil(count).max(pairs.start / count);
    images
        .map(move |i| (i, pairs.start.max(i * count) - i * count..pairs.end.min((i + 1) * count) - i * count))
}

/// The regions that pairs read, image by image, each with the place in a channel where it starts.
fn regions(grid: &Grid, pairs: &Range<usize>) -> impl Iterator<Item = (usize, Region, usize)> {
    let single = pairs.start / grid.count() == (pairs.end - 1) / grid.count();
    by_image(grid.count(), pairs).scan(0, move |at, (image, positions)| {
        let region = if single { grid.tight(&positions) } else { grid.slab(&positions) };
        let start = *at;
        *at += region.len();
        Some((image, region, start))
    })
}

/// Floats of one channel of a copy: an odd number of cache lines, so that the same place in many channels
/// does not fall on one place of the cache.
pub fn plane_len(grid: &Grid, pairs: &Range<usize>) -> usize {
    const LINE: usize = 16;
    let len: usize = regions(grid, pairs).map(|(_, r, _)| r.len()).sum();
    if grid.in_place() { 0 } else { (len.div_ceil(LINE) | 1) * LINE }
}

impl<'a> Source<'a> {
    pub fn new(
        grid: &'a Grid,
        images: Images<'a>,
        pairs: Range<usize>,
        channels: Range<usize>,
        copy: &'a mut [f32],
    ) -> Source<'a> {
        let plane = grid.source.iter().product();
        if grid.in_place() {
            let data = &images.data[pairs.start / grid.count() * images.image + channels.start * plane..];
            return Source { grid, data, pairs, image: Some(images.image), plane, extents: grid.source };
        }
        let len = plane_len(grid, &pairs);
        let mut extents = [0; 3];
        for (image, region, start) in regions(grid, &pairs) {
            extents = region.extents;
            for (j, c) in channels.clone().enumerate() {
                let from = &images.data[image * images.image + c * plane..][..plane];
                region.copy(grid.source, from, &mut copy[j * len + start..][..region.len()]);
            }
        }
        Source { grid, data: &copy[..channels.len() * len], pairs, image: None, plane: len, extents }
    }

    /// Offsets of all pairs through the tap nearest to the start.
    pub fn pair_offsets(&self, to: &mut [usize]) {
        let (grid, px) = (self.grid, self.grid.positions[2]);
        let whole = Region { low: [0; 3], extents: self.extents };
        let mut places = to.iter_mut();
        let mut regions = regions(grid, &self.pairs);
        for (i, (_, mut positions)) in by_image(grid.count(), &self.pairs).enumerate() {
            let (region, start) = match (self.image, regions.next()) {
                (None, Some((_, region, start))) => (region, start),
                (image, _) => (whole, i * image.unwrap_or(0)),
            };
            // One row of positions at a time: neighbours are a step apart.
            while !positions.is_empty() {
                let run = (px - positions.start % px).min(positions.len());
                let at = start + grid.position_offset(&region, positions.start);
                for (i, to) in places.by_ref().take(run).enumerate() {
                    *to = at + i * grid.step[2];
                }
                positions.start += run;
            }
        }
    }

    /// Offsets of (channel, tap) pairs, flattened in that order.
    pub fn tap_offsets(&self, pairs: Range<usize>, to: &mut [usize]) {
        let taps = self.grid.tap_count().max(1);
        let (mut channel, mut tap) = (pairs.start / taps, pairs.start % taps);
        for to in &mut to[..pairs.len()] {
            *to = channel * self.plane + self.grid.tap_offset(self.extents, tap);
            tap += 1;
            if tap == taps {
                (channel, tap) = (channel + 1, 0);
            }
        }
    }

    /// `sums (+)=` what lies at `rows[i] + steps[k]` times row k of the panel, rows of [`NR`].
    pub fn multiply(
        &self,
        isa: Isa,
        rows: &[usize],
        steps: &[usize],
        panel: &[f32],
        sums: &mut [f32],
        store: Store,
    ) {
        let furthest = rows.iter().max().zip(steps.iter().max()).map_or(0, |(row, step)| row + step);
        assert!(steps.is_empty() || furthest < self.data.len(), "a position reads outside its image");
        assert!(panel.len() >= steps.len() * NR && sums.len() >= rows.len() * NR, "rows of {NR} are missing");
        let base = self.data.as_ptr();
        // SAFETY: the checks above; panel, sums and source are slices of their own.
        unsafe { tile::gathered(isa, base, rows, steps, panel.as_ptr(), sums.as_mut_ptr(), store) };
    }
}
