//! Offsets: buffers with lifetimes are packed into an arena by walking through time and giving each the
//! free piece that fits it best. Long-lived buffers take the low end of a piece and short-lived ones the
//! high end, so that what comes and goes does not leave holes between what stays. Several ideas of what
//! is long-lived and how high the arena is are tried, and the lowest arena wins; n log n each.

use std::collections::{BTreeMap, BTreeSet};

/// Offsets are multiples of this many bytes: a cache line, and every vector register.
pub const ALIGN: u64 = 64;

/// A buffer to be placed: its size and the inclusive range of times at which it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
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

/// Buffers that live at most this long are short-lived; zero treats all alike.
const SHORT: [u32; 5] = [0, 4, 12, 40, 200];
/// Heights of the arena that are tried for each, between what is needed and the best so far.
const TRIES: u32 = 3;

/// An offset per span, from `base` up, and the end of the arena.
pub fn pack(spans: &[Span], base: u64) -> (Vec<u64>, u64) {
    let events = Events::of(spans);
    let needed = events.live_peak(spans);
    let mut best = (vec![0; spans.len()], u64::MAX);
    'search: for short in SHORT {
        let mut height = needed;
        for _ in 0..TRIES {
            let found = walk(spans, &events, short, height);
            let top = found.1;
            if top < best.1 {
                best = found;
            }
            if best.1 == needed {
                break 'search;
            }
            // A little more room may let both ends meet without an overhang.
            if top <= height || short == 0 {
                break;
            }
            height = aligned(height + (best.1 - height) / 2);
        }
    }
    let (mut offsets, top) = best;
    offsets.iter_mut().for_each(|o| *o += base);
    (offsets, base + top)
}

/// Most aligned bytes in use at once: no layout needs less.
pub fn live_peak(spans: &[Span]) -> u64 {
    Events::of(spans).live_peak(spans)
}

/// Spans in the order they come, largest first among those that come together, and in the order they go.
struct Events {
    by_start: Vec<u32>,
    by_end: Vec<u32>,
}

impl Events {
    fn of(spans: &[Span]) -> Events {
        let all = || (0..spans.len() as u32).filter(|&i| spans[i as usize].bytes > 0);
        let (mut by_start, mut by_end): (Vec<u32>, Vec<u32>) = (all().collect(), all().collect());
        by_start.sort_by_key(|&i| (spans[i as usize].start, std::cmp::Reverse(spans[i as usize].bytes), i));
        by_end.sort_by_key(|&i| (spans[i as usize].end, i));
        Events { by_start, by_end }
    }

    /// Calls `visit` with every span when it comes (true) and goes (false).
    fn each(&self, spans: &[Span], mut visit: impl FnMut(usize, bool)) {
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

    fn live_peak(&self, spans: &[Span]) -> u64 {
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
fn walk(spans: &[Span], events: &Events, short: u32, height: u64) -> (Vec<u64>, u64) {
    let mut offsets = vec![0u64; spans.len()];
    let mut free = Free::new(if short == 0 { 0 } else { height });
    events.each(spans, |i, comes| {
        let bytes = aligned(spans[i].bytes);
        if comes {
            offsets[i] = free.take(bytes, spans[i].end - spans[i].start < short);
        } else {
            free.give(offsets[i], bytes);
        }
    });
    (offsets, free.reached)
}

/// The free pieces of the arena. Beyond `top` all is free.
struct Free {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    top: u64,
    reached: u64,
}

impl Free {
    fn new(height: u64) -> Free {
        let mut free = Free { by_offset: BTreeMap::new(), by_size: BTreeSet::new(), top: height, reached: 0 };
        if height > 0 {
            free.insert(0, height);
        }
        free
    }

    fn insert(&mut self, offset: u64, bytes: u64) {
        self.by_offset.insert(offset, bytes);
        self.by_size.insert((bytes, offset));
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(bytes, offset));
    }

    /// The piece that fits best, or else new room at the top; `high` takes its upper end.
    fn take(&mut self, bytes: u64, high: bool) -> u64 {
        let found = self.by_size.range((bytes, 0)..).next().copied();
        let at = match found {
            Some((size, offset)) => {
                self.remove(offset, size);
                let rest = size - bytes;
                let (at, left) = if high { (offset + rest, offset) } else { (offset, offset + bytes) };
                if rest > 0 {
                    self.insert(left, rest);
                }
                at
            }
            None => {
                // A free piece that ends at the top is the beginning of the new room.
                let last = self.by_offset.last_key_value().map(|(o, b)| (*o, *b));
                let at = match last {
                    Some((offset, size)) if offset + size == self.top => {
                        self.remove(offset, size);
                        offset
                    }
                    _ => self.top,
                };
                self.top = at + bytes;
                at
            }
        };
        self.reached = self.reached.max(at + bytes);
        at
    }

    fn give(&mut self, offset: u64, bytes: u64) {
        let (mut start, mut end) = (offset, offset + bytes);
        if let Some((&before, &size)) = self.by_offset.range(..offset).next_back()
            && before + size == offset
        {
            self.remove(before, size);
            start = before;
        }
        if let Some(&size) = self.by_offset.get(&end) {
            self.remove(end, size);
            end += size;
        }
        self.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_spans(count: usize, mut x: u64) -> Vec<Span> {
        let mut next = move |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        let times = count as u64 * 2 / 3 + 1;
        let span = |_| {
            let start = next(times) as u32;
            Span { bytes: next(5000), start, end: start + next(40) as u32 }
        };
        (0..count).map(span).collect()
    }

    #[test]
    fn spans_alive_together_never_overlap() {
        for count in [0, 1, 2, 10, 300, 1000] {
            let spans = random_spans(count, count as u64);
            let (offsets, top) = pack(&spans, 128);
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
            let (_, top) = pack(&spans, 0);
            let needed = live_peak(&spans);
            assert!(top * 100 < needed * 125, "{top} of {needed}");
        }
    }

    #[test]
    fn nested_lifetimes_lose_nothing() {
        // A forward pass keeps one buffer per layer and needs another for a moment; backward frees them.
        let layers = 50u32;
        let mut spans = Vec::new();
        for layer in 0..layers {
            let back = 4 * layers - 2 * layer;
            spans.push(Span { bytes: 1000 + 64 * u64::from(layer % 3), start: 2 * layer, end: back });
            spans.push(Span { bytes: 3000, start: 2 * layer, end: 2 * layer + 1 });
            spans.push(Span { bytes: 2000, start: back - 1, end: back + 1 });
        }
        assert_eq!(pack(&spans, 0).1, live_peak(&spans));
    }

    #[test]
    fn space_is_used_again() {
        let span = |start, end| Span { bytes: 64, start, end };
        assert_eq!(pack(&[span(0, 1), span(1, 2), span(2, 3)], 0), (vec![0, 64, 0], 128));
    }
}
