//! Matrix products whose left operand is a grid of positions that read channels of an image through the taps of a window.
//! The image is read in place, or from a small zero-padded copy, so nothing is copied per tap. The columns of the right
//! operand, the channels of the result, fill vectors.

use crate::kernel::K_BLOCK;
use crate::kernel::gemm::Panels;
use crate::kernel::grid::{ImageSource, PatchSource, TapGrid, by_image, plane_len, unflatten};
use crate::kernel::pack::{Operand, transposed};
use crate::kernel::tile::{NR, StoreMode};
use crate::team::{SharedMut, Team, share};
use std::ops::Range;

/// Most positions whose results are buffered before they are written to the result.
const POSITIONS: usize = 768;
/// Size of the copy of a source, in floats, above which fewer positions are taken at a time.
const COPY: usize = 1 << 18;
/// Rows (channel, tap) multiplied at once by [`sum_over_positions`].
const ROWS: usize = 384;

/// Layout of a result: channels of image `n` start at `start + n * image` and have `extents`; position `p` has the
/// coordinate `first + stride * p`.
#[derive(Clone, Copy, Debug)]
pub struct ResultLayout {
    /// Channel 0 of image 0.
    pub start: usize,
    /// Distance between images.
    pub image: usize,
    /// Extents of a channel.
    pub extents: [usize; 3],
    /// Coordinate of position 0.
    pub first: [usize; 3],
    /// Distance between positions.
    pub stride: [usize; 3],
}

impl ResultLayout {
    /// Every position of every channel.
    pub fn whole(image: usize, extents: [usize; 3]) -> ResultLayout {
        ResultLayout { start: 0, image, extents, first: [0; 3], stride: [1; 3] }
    }

    /// The same layout from another start.
    pub fn from(self, start: usize) -> ResultLayout {
        ResultLayout { start, ..self }
    }
}

/// (image, position) pairs taken at a time: whole rows, and equally many chunks for every thread.
fn chunk_len(grid: &TapGrid, n: usize, channels: usize, threads: usize) -> usize {
    let (total, px) = ((n * grid.count()).max(1), grid.positions[2].max(1));
    let read = channels.max(1) * grid.step.iter().product::<usize>();
    let most = if grid.in_place() { POSITIONS } else { POSITIONS.min(COPY / read) };
    let unit = if px <= most { px } else { 1 };
    let chunks = total.div_ceil((most / unit * unit).max(1)).next_multiple_of(threads);
    total.div_ceil(unit).div_ceil(chunks) * unit
}

/// Floats of one channel of the largest copy when pairs are taken `len` at a time.
fn largest_plane(grid: &TapGrid, total: usize, len: usize) -> usize {
    // Chunks that start at the same position of an image are alike; a shorter one reads no more.
    let period = grid.count() / common_divisor(grid.count(), len).max(1);
    (0..total.div_ceil(len).min(period))
        .map(|i| plane_len(grid, &(i * len..total.min((i + 1) * len))))
        .max()
        .unwrap_or(0)
}

/// The greatest common divisor.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Floats of one thread's copy and sums in [`sum_over_channels`].
fn over_channels_each(grid: &TapGrid, n: usize, channels: usize, threads: usize) -> [usize; 2] {
    let len = chunk_len(grid, n, channels, threads);
    [channels * largest_plane(grid, n * grid.count(), len), len * NR]
}

/// Floats of scratch [`sum_over_channels`] needs for a source of `n` images.
pub fn over_channels_scratch_len(
    grid: &TapGrid,
    n: usize,
    channels: usize,
    columns: usize,
    threads: usize,
) -> usize {
    let each: usize = over_channels_each(grid, n, channels, threads).iter().sum();
    Panels::len(columns, channels * grid.tap_count()) + threads * each
}

/// For every image, position and column `j`: the sum over (channel, tap) of the element read times element
/// (j, (channel, tap)) of `right`, written to its place in `out`. `right` determines the blocks of the sum. Adds `+0.0`
/// at the end unless the result covers whole channels.
#[allow(clippy::too_many_arguments)]
pub fn sum_over_channels(
    team: &Team,
    grid: &TapGrid,
    images: ImageSource<'_>,
    right: &impl Operand,
    columns: usize,
    out: &SharedMut<'_, f32>,
    places: &ResultLayout,
    scratch: &mut [f32],
) {
    let (k, total) = (images.channels * grid.tap_count(), images.n * grid.count());
    if total * columns == 0 {
        return;
    }
    let threads = team.threads();
    let (packed, scratch) = scratch.split_at_mut(Panels::len(columns, k));
    let packed = Panels::pack(team, columns, k, right, packed);
    let panels = columns.div_ceil(NR);
    let len = chunk_len(grid, images.n, images.channels, threads);
    let [copy, sums] = over_channels_each(grid, images.n, images.channels, threads);
    let chunks = total.div_ceil(len);
    // With too few chunks, columns are divided instead, and every part makes its own copy.
    let across = if chunks >= threads { 1 } else { threads.min(panels) };
    let parts = if across == 1 { threads.min(chunks) } else { across };
    let each = copy + sums;
    assert!(scratch.len() >= parts * each, "scratch has {} floats, {} needed", scratch.len(), parts * each);
    let scratch = SharedMut::new(scratch);
    team.run(parts, &|part| {
        // SAFETY: each part has its own range of scratch.
        let (copy, sums) = unsafe { scratch.slice(part * each..(part + 1) * each) }.split_at_mut(copy);
        let (mine, panels) = match across {
            1 => (share(chunks, 1, parts, part), 0..panels),
            _ => (0..chunks, share(panels, 1, parts, part)),
        };
        let (mut rows, mut steps) = ([0; POSITIONS], [0; K_BLOCK]);
        for pairs in mine.map(|i| i * len..total.min((i + 1) * len)) {
            let source = PatchSource::new(grid, images, pairs.clone(), 0..images.channels, copy);
            let rows = &mut rows[..pairs.len()];
            source.pair_offsets(rows);
            for p in panels.clone() {
                let panel = packed.panel(p);
                // An empty sum is one empty block, which sets the sums to zero.
                let mut ks = 0..if k > 0 { k.min(right.block_end(0)) } else { 0 };
                loop {
                    let steps = &mut steps[..ks.len()];
                    source.tap_offsets(ks.clone(), steps);
                    let store = if ks.start > 0 { StoreMode::Add } else { StoreMode::Set };
                    source.multiply(team.isa(), rows, steps, &panel[ks.start * NR..], sums, store);
                    if ks.end == k {
                        break;
                    }
                    ks = ks.end..k.min(right.block_end(ks.end));
                }
                let lanes = p * NR..columns.min((p + 1) * NR);
                // SAFETY: each (image, position, column) belongs to one part.
                unsafe { put(sums, grid, &pairs, lanes, out, places) };
            }
        }
    });
}

/// Writes sums, in rows of [`NR`] per pair, to their places.
///
/// # Safety
/// Nothing else accesses these elements of `out`.
unsafe fn put(
    mut sums: &[f32],
    grid: &TapGrid,
    pairs: &Range<usize>,
    lanes: Range<usize>,
    out: &SharedMut<'_, f32>,
    places: &ResultLayout,
) {
    let px = grid.positions[2];
    let plane: usize = places.extents.iter().product();
    let whole = places.stride == [1; 3] && places.extents == grid.positions;
    for (image, mut positions) in by_image(grid.count(), pairs) {
        let base = places.start + image * places.image + lanes.start * plane;
        if whole {
            let (these, rest) = sums.split_at(positions.len() * NR);
            sums = rest;
            // SAFETY: the caller's promise.
            unsafe { put_columns(these, lanes.len(), out, base + positions.start, plane) };
            continue;
        }
        while !positions.is_empty() {
            let run = (px - positions.start % px).min(positions.len());
            let (these, rest) = sums.split_at(run * NR);
            sums = rest;
            let p = unflatten(positions.start, grid.positions);
            let at =
                (0..3).fold(0, |at, a| at * places.extents[a] + places.first[a] + places.stride[a] * p[a]);
            let reach = (run - 1) * places.stride[2] + 1;
            for lane in 0..lanes.len() {
                let start = base + lane * plane + at;
                // SAFETY: the caller's promise.
                let line = unsafe { out.slice(start..start + reach) };
                let sums = these[lane..].iter().step_by(NR);
                // Adding zero drops the sign of a zero, in which omitted terms would show.
                line.iter_mut().step_by(places.stride[2]).zip(sums).for_each(|(to, &v)| *to = v + 0.0);
            }
            positions.start += run;
        }
    }
}

/// Transposes rows of [`NR`] sums: lane `j` becomes a contiguous run at `at + j * distance`.
///
/// # Safety
/// Nothing else accesses these runs.
unsafe fn put_columns(sums: &[f32], lanes: usize, out: &SharedMut<'_, f32>, at: usize, distance: usize) {
    let count = sums.len() / NR;
    let square = count / 4 * 4;
    for first in (0..lanes).step_by(4) {
        let width = (lanes - first).min(4);
        let mut runs: [&mut [f32]; 4] = std::array::from_fn(|j| {
            let start = at + (first + j) * distance;
            let run = if j < width { start..start + count } else { 0..0 };
            // SAFETY: the caller's promise; runs of missing lanes are empty.
            unsafe { out.slice(run) }
        });
        for i in (0..square).step_by(4) {
            let rows = std::array::from_fn(|r| {
                <[f32; 4]>::try_from(&sums[(i + r) * NR + first..][..4]).unwrap_or_default()
            });
            for (run, values) in runs.iter_mut().take(width).zip(transposed(rows)) {
                run[i..i + 4].copy_from_slice(&values);
            }
        }
        for (j, run) in runs.iter_mut().take(width).enumerate() {
            for i in square..count {
                run[i] = sums[i * NR + first + j];
            }
        }
    }
}

/// Threads along channels and along columns of [`sum_over_positions`].
fn split(channels: usize, columns: usize, threads: usize) -> (usize, usize) {
    let panels = columns.div_ceil(NR);
    if channels >= 4 * threads || panels < threads { (threads.min(channels).max(1), 1) } else { (1, threads) }
}

/// Floats of one thread's copy, panel and sums in [`sum_over_positions`].
fn over_positions_each(
    grid: &TapGrid,
    n: usize,
    channels: usize,
    columns: usize,
    threads: usize,
) -> [usize; 3] {
    let (tc, tj) = split(channels, columns, threads);
    let (channels, panels) = (channels.div_ceil(tc), columns.div_ceil(NR).div_ceil(tj));
    let copy = channels * largest_plane(grid, n * grid.count(), K_BLOCK);
    [copy, K_BLOCK * NR, panels * channels * grid.tap_count() * NR]
}

/// Floats of scratch [`sum_over_positions`] needs for a source of `n` images.
pub fn over_positions_scratch_len(
    grid: &TapGrid,
    n: usize,
    channels: usize,
    columns: usize,
    threads: usize,
) -> usize {
    threads * over_positions_each(grid, n, channels, columns, threads).iter().sum::<usize>()
}

/// `out[j, (channel, tap)]`: the sum over (image, position) of the element read times element (j, (image, position)) of
/// `right`.
pub fn sum_over_positions(
    team: &Team,
    grid: &TapGrid,
    images: ImageSource<'_>,
    right: &impl Operand,
    columns: usize,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let (taps, total) = (grid.tap_count(), images.n * grid.count());
    let width = images.channels * taps;
    if total * width == 0 {
        out[..columns * width].fill(0.0);
        return;
    }
    let (tc, tj) = split(images.channels, columns, team.threads());
    let lens = over_positions_each(grid, images.n, images.channels, columns, team.threads());
    let each: usize = lens.iter().sum();
    assert!(
        scratch.len() >= tc * tj * each,
        "scratch has {} floats, {} needed",
        scratch.len(),
        tc * tj * each
    );
    let (scratch, out) = (SharedMut::new(scratch), SharedMut::new(out));
    team.run(tc * tj, &|part| {
        let channels = share(images.channels, 1, tc, part / tj);
        let panels = share(columns.div_ceil(NR), 1, tj, part % tj);
        // SAFETY: each part has its own range of scratch.
        let scratch = unsafe { scratch.slice(part * each..(part + 1) * each) };
        let (copy, rest) = scratch.split_at_mut(lens[0]);
        let (panel, sums) = rest.split_at_mut(lens[1]);
        let height = channels.len() * taps;
        let (mut rows, mut steps) = ([0; ROWS], [0; K_BLOCK]);
        for start in (0..total).step_by(K_BLOCK) {
            let pairs = start..total.min(start + K_BLOCK);
            let source = PatchSource::new(grid, images, pairs.clone(), channels.clone(), copy);
            let steps = &mut steps[..pairs.len()];
            source.pair_offsets(steps);
            let store = if start > 0 { StoreMode::Add } else { StoreMode::Set };
            for (p, sums) in panels.clone().zip(sums.chunks_exact_mut(height * NR)) {
                let panel = &mut panel[..pairs.len() * NR];
                right.pack(p * NR..columns.min((p + 1) * NR), pairs.clone(), NR, panel);
                for (i, sums) in sums.chunks_mut(ROWS * NR).enumerate() {
                    let rows = &mut rows[..sums.len() / NR];
                    source.tap_offsets(i * ROWS..i * ROWS + rows.len(), rows);
                    source.multiply(team.isa(), rows, steps, panel, sums, store);
                }
            }
        }
        for (p, sums) in panels.zip(sums.chunks_exact(height * NR)) {
            let lanes = NR.min(columns - p * NR);
            let at = p * NR * width + channels.start * taps;
            // SAFETY: each (channel, column) belongs to one part.
            unsafe { put_columns(sums, lanes, &out, at, width) };
        }
    });
}
