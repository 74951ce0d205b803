//! Offsets: buffers with lifetimes are packed into an arena by walking through time and giving each the free piece that
//! fits best. Long-lived buffers take the low end of a piece and short-lived ones the high end, so that these leave no
//! holes. The largest buffers may be placed first. Variants are tried until one has almost no gaps.

use crate::document::plan::ALIGN;
use std::cmp::Reverse;

mod outward;
mod ranked;

/// A buffer to be placed: its size and the inclusive range of times at which it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifespan {
    /// Number of bytes.
    pub bytes: u64,
    /// First time of use.
    pub start: u32,
    /// Last time of use.
    pub end: u32,
}

/// Rounds up to the alignment.
pub fn aligned(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGN) * ALIGN
}

/// Variants in the order they are tried: the lifetime below which buffers are short-lived, and the number of largest
/// buffers that are placed first.
const WAYS: [(u32, usize); 10] =
    [(12, 0), (12, 4), (0, 0), (12, 16), (40, 0), (0, 16), (12, 64), (0, 64), (12, 256), (0, 256)];
/// Variants that are tried without leisure.
const HURRIED: usize = 6;
/// A layout whose gaps are at most this fraction of the peak is good enough.
const GOOD: u64 = 200;
/// Pairs of spans that may be compared, without and with leisure.
const PAIRS: [usize; 2] = [1_000_000, 5_000_000];

/// An offset per span, from `base` up, and the end of the arena. Variants are tried until one keeps within `limit`, if
/// that is possible; fewer without `at_leisure`.
pub fn pack(spans: &[Lifespan], base: u64, limit: Option<u64>, at_leisure: bool) -> (Vec<u64>, u64) {
    let events = Events::of(spans, |span| Reverse(span.bytes));
    let needed = events.live_peak(spans);
    let room = limit.map(|limit| limit.saturating_sub(base)).filter(|room| *room >= needed);
    let enough = room.unwrap_or(needed + needed / GOOD);
    let large = largest(spans, WAYS.iter().map(|w| w.1).max().unwrap_or(0));
    let mut best = (vec![0; spans.len()], u64::MAX);
    let ways = if at_leisure { WAYS.len() } else { HURRIED };
    for (short, grounded) in WAYS.into_iter().take(ways) {
        let ground = Ground::of(spans, &large[..grounded.min(large.len())]);
        let found = walk(spans, &events, short, needed, &ground);
        if found.1 < best.1 {
            best = found;
        }
        if best.1 <= enough {
            break;
        }
    }
    outward::improve(spans, enough, at_leisure, &mut best);
    ranked::improve(spans, enough, PAIRS[usize::from(at_leisure)], &mut best);
    let (mut offsets, top) = best;
    offsets.iter_mut().for_each(|o| *o += base);
    (offsets, base + top)
}

/// The largest spans, largest first.
fn largest(spans: &[Lifespan], count: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..spans.len() as u32).filter(|&i| spans[i as usize].bytes > 0).collect();
    let key = |&i: &u32| (Reverse(spans[i as usize].bytes), i);
    if count < all.len() {
        all.select_nth_unstable_by_key(count, key);
        all.truncate(count);
    }
    all.sort_by_key(key);
    all
}

/// Large spans that are placed first, each as low as those before it allow.
#[derive(Default)]
struct Ground {
    /// (start, end, span), lowest first.
    placed: Vec<(u64, u64, usize)>,
}

impl Ground {
    fn of(spans: &[Lifespan], large: &[u32]) -> Ground {
        let mut ground = Ground::default();
        let mut beside = Vec::new();
        for &i in large {
            let i = i as usize;
            ground.beside(spans, i, &mut beside);
            let size = aligned(spans[i].bytes);
            let mut at = 0;
            for &(start, end) in &beside {
                if start >= at + size {
                    break;
                }
                at = at.max(end);
            }
            let p = ground.placed.partition_point(|other| other.0 <= at);
            ground.placed.insert(p, (at, at + size, i));
        }
        ground
    }

    /// Start and end of those in use at some time when span `i` is, lowest first.
    fn beside(&self, spans: &[Lifespan], i: usize, out: &mut Vec<(u64, u64)>) {
        let span = spans[i];
        out.clear();
        for &(start, end, other) in &self.placed {
            if spans[other].start <= span.end && span.start <= spans[other].end {
                out.push((start, end));
            }
        }
    }
}

/// Most aligned bytes in use at once: no layout needs less.
pub fn live_peak(spans: &[Lifespan]) -> u64 {
    Events::of(spans, |span| Reverse(span.bytes)).live_peak(spans)
}

/// Spans in the order they come and in the order they go.
struct Events {
    by_start: Vec<u32>,
    by_end: Vec<u32>,
}

impl Events {
    /// Spans that come together are in the order of `rank`.
    fn of<K: Ord>(spans: &[Lifespan], rank: impl Fn(&Lifespan) -> K) -> Events {
        let all = || (0..spans.len() as u32).filter(|&i| spans[i as usize].bytes > 0);
        let (mut by_start, mut by_end): (Vec<u32>, Vec<u32>) = (all().collect(), all().collect());
        by_start.sort_by_key(|&i| (spans[i as usize].start, rank(&spans[i as usize]), i));
        by_end.sort_by_key(|&i| (spans[i as usize].end, i));
        Events { by_start, by_end }
    }

    /// Calls `visit` with every span when it comes (true) and goes (false).
    fn each(&self, spans: &[Lifespan], mut visit: impl FnMut(usize, bool)) {
        let mut gone = 0;
        for &i in &self.by_start {
            let now = spans[i as usize].start;
            while spans[self.by_end[gone] as usize].end < now {
                visit(self.by_end[gone] as usize, false);
                gone += 1;
            }
            visit(i as usize, true);
        }
    }

    fn live_peak(&self, spans: &[Lifespan]) -> u64 {
        let (mut now, mut peak) = (0u64, 0u64);
        self.each(spans, |i, comes| {
            let bytes = aligned(spans[i].bytes);
            now = if comes { now + bytes } else { now - bytes };
            peak = peak.max(now);
        });
        peak
    }
}

/// One walk through time: offsets and the height reached.
fn walk(spans: &[Lifespan], events: &Events, short: u32, height: u64, ground: &Ground) -> (Vec<u64>, u64) {
    let mut offsets = vec![0; spans.len()];
    let mut grounded = vec![false; spans.len()];
    let mut reached = 0;
    for &(start, end, i) in &ground.placed {
        (offsets[i], grounded[i]) = (start, true);
        reached = reached.max(end);
    }
    let mut free = Free::new(if short == 0 { 0 } else { height });
    let mut beside = Vec::new();
    events.each(spans, |i, comes| {
        if grounded[i] {
            return;
        }
        let bytes = aligned(spans[i].bytes);
        if comes {
            ground.beside(spans, i, &mut beside);
            offsets[i] = free.take(bytes, spans[i].end - spans[i].start < short, &beside);
            reached = reached.max(offsets[i] + bytes);
        } else {
            free.give(offsets[i], bytes);
        }
    });
    (offsets, reached)
}

/// The free pieces below `top`, by offset; everything above is free. Freed pieces are joined with their neighbours.
struct Free {
    pieces: Vec<(u64, u64)>,
    top: u64,
}

impl Free {
    fn new(height: u64) -> Free {
        Free { pieces: if height > 0 { vec![(0, height)] } else { Vec::new() }, top: height }
    }

    /// An offset for `bytes` bytes outside of the `taken` ranges (lowest first): in the gap that fits best, or else at the
    /// top; `high` takes the upper end of a gap.
    fn take(&mut self, bytes: u64, high: bool, taken: &[(u64, u64)]) -> u64 {
        // Room of the gap, its piece and its ends.
        let mut best: Option<(u64, usize, u64, u64)> = None;
        let mut consider = |p: usize, start: u64, end: u64| {
            let room = end.saturating_sub(start);
            if room >= bytes && best.is_none_or(|(least, ..)| room < least) {
                best = Some((room, p, start, end));
            }
        };
        let mut first = 0;
        for (p, &(start, end)) in self.pieces.iter().enumerate() {
            let mut from = start;
            while taken.get(first).is_some_and(|t| t.1 <= start) {
                first += 1;
            }
            for &(low, high) in taken[first..].iter().take_while(|t| t.0 < end) {
                consider(p, from, low);
                from = from.max(high);
            }
            consider(p, from, end);
        }
        if let Some((_, p, start, end)) = best {
            let at = if high { end - bytes } else { start };
            self.cut(p, at, at + bytes);
            return at;
        }
        // A free piece that ends at the top is the beginning of the new room.
        let open = self.pieces.last().filter(|(_, end)| *end == self.top).map(|p| p.0);
        let start = open.unwrap_or(self.top);
        let mut at = start;
        for &(low, high) in taken {
            if high > at && low < at + bytes {
                at = high;
            }
        }
        if open.is_some() {
            self.pieces.pop();
        }
        if at > start {
            self.pieces.push((start, at));
        }
        self.top = at + bytes;
        at
    }

    /// Takes bytes out of a piece.
    fn cut(&mut self, p: usize, from: u64, to: u64) {
        let (start, end) = self.pieces[p];
        match (start < from, to < end) {
            (true, true) => {
                self.pieces[p].1 = from;
                self.pieces.insert(p + 1, (to, end));
            }
            (true, false) => self.pieces[p].1 = from,
            (false, true) => self.pieces[p].0 = to,
            (false, false) => {
                self.pieces.remove(p);
            }
        }
    }

    fn give(&mut self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        let p = self.pieces.partition_point(|piece| piece.0 < offset);
        let joins_before = p > 0 && self.pieces[p - 1].1 == offset;
        let joins_after = self.pieces.get(p).is_some_and(|piece| piece.0 == end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.pieces[p - 1].1 = self.pieces[p].1;
                self.pieces.remove(p);
            }
            (true, false) => self.pieces[p - 1].1 = end,
            (false, true) => self.pieces[p].0 = offset,
            (false, false) => self.pieces.insert(p, (offset, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_spans(count: usize, mut x: u64) -> Vec<Lifespan> {
        let mut next = move |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        let times = count as u64 * 2 / 3 + 1;
        let span = |_| {
            let start = next(times) as u32;
            Lifespan { bytes: next(5000), start, end: start + next(40) as u32 }
        };
        (0..count).map(span).collect()
    }

    #[test]
    fn spans_alive_together_never_overlap() {
        for count in [0, 1, 2, 10, 300, 1000] {
            let spans = random_spans(count, count as u64);
            let (offsets, top) = pack(&spans, 128, None, true);
            assert!(top >= 128 + live_peak(&spans));
            for (i, a) in spans.iter().enumerate() {
                assert!(offsets[i].is_multiple_of(ALIGN) && offsets[i] >= 128 && offsets[i] + a.bytes <= top);
                for (j, b) in spans.iter().enumerate().take(i) {
                    let together = a.start <= b.end && b.start <= a.end;
                    let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    assert!(!together || apart || a.bytes == 0 || b.bytes == 0, "{i} and {j}");
                }
            }
        }
    }

    #[test]
    fn little_is_lost_on_random_lifetimes() {
        for seed in 0..5 {
            let spans = random_spans(2000, seed);
            let (_, top) = pack(&spans, 0, None, true);
            let needed = live_peak(&spans);
            assert!(top * 100 < needed * 125, "{top} of {needed}");
        }
    }

    #[test]
    fn nested_lifetimes_lose_next_to_nothing() {
        // A forward pass keeps one buffer per layer and needs another for a moment; backward frees them.
        let layers = 50u32;
        let mut spans = Vec::new();
        for layer in 0..layers {
            let back = 4 * layers - 2 * layer;
            spans.push(Lifespan { bytes: 1000 + 64 * u64::from(layer % 3), start: 2 * layer, end: back });
            spans.push(Lifespan { bytes: 3000, start: 2 * layer, end: 2 * layer + 1 });
            spans.push(Lifespan { bytes: 2000, start: back - 1, end: back + 1 });
        }
        let needed = live_peak(&spans);
        let top = pack(&spans, 0, None, true).1;
        assert!(top <= needed + needed / 50, "{top} of {needed}");
    }

    #[test]
    fn space_is_used_again() {
        let span = |start, end| Lifespan { bytes: 64, start, end };
        let (offsets, top) = pack(&[span(0, 1), span(1, 2), span(2, 3)], 0, None, false);
        assert!(top == 128 && offsets[0] == offsets[2] && offsets[1] != offsets[0], "{offsets:?} {top}");
    }
}
