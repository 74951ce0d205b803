//! Placing buffers outwards from one moment: those in use then lie one on the other without a gap, longest
//! lived lowest; the others take the room these leave, going forwards and backwards in time. Where that leads
//! too high, that moment is tried next.

use super::{Events, Free, Lifespan, aligned};
use std::cmp::Reverse;

/// Moments that are tried.
const MOMENTS: usize = 6;

/// What buffers are ordered by.
type Rank = fn(&Lifespan) -> (i64, i64);

/// Orders of the buffers in use at the moment, from the lowest up.
const ORDERS: [Rank; 3] = [
    |span| (-i64::from(span.end - span.start), i64::from(span.start)),
    |span| (-i64::from(span.end), i64::from(span.start)),
    |span| (i64::from(span.start), -i64::from(span.end)),
];

/// Improves on the best layout so far, until it is no higher than `enough`; in a hurry, one order is tried.
pub(super) fn improve(spans: &[Lifespan], enough: u64, at_leisure: bool, best: &mut (Vec<u64>, u64)) {
    if best.1 <= enough {
        return;
    }
    let last = spans.iter().map(|s| s.end).max().unwrap_or(0);
    let mirrored: Vec<Lifespan> =
        spans.iter().map(|s| Lifespan { start: last - s.end, end: last - s.start, ..*s }).collect();
    // Longest first among those that come together.
    let [ahead, behind] =
        [spans, &mirrored].map(|spans| Events::of(spans, |span| Reverse((span.end, span.bytes))));
    for order in ORDERS.into_iter().take(if at_leisure { ORDERS.len() } else { 1 }) {
        let mut moment = busiest(spans, last);
        let mut tried = Vec::new();
        while best.1 > enough && tried.len() < MOMENTS && !tried.contains(&moment) {
            tried.push(moment);
            let mut offsets = vec![0; spans.len()];
            let mut now: Vec<u32> = (0..spans.len() as u32)
                .filter(|&i| {
                    let span = &spans[i as usize];
                    span.start <= moment && moment <= span.end && span.bytes > 0
                })
                .collect();
            now.sort_by_key(|&i| (order(&spans[i as usize]), i));
            let mut top = 0;
            for &i in &now {
                offsets[i as usize] = top;
                top += aligned(spans[i as usize].bytes);
            }
            let forwards = ahead.place(spans, moment, top, &mut offsets);
            let backwards = behind.place(&mirrored, last - moment, top, &mut offsets);
            let (high, at) = forwards.max((backwards.0, last.saturating_sub(backwards.1)));
            if high.max(top) < best.1 {
                *best = (offsets, high.max(top));
            }
            moment = at;
        }
    }
}

/// A time at which most bytes are in use.
fn busiest(spans: &[Lifespan], last: u32) -> u32 {
    let mut change = vec![0i64; last as usize + 2];
    for span in spans {
        change[span.start as usize] += aligned(span.bytes) as i64;
        change[span.end as usize + 1] -= aligned(span.bytes) as i64;
    }
    let (mut now, mut most) = (0, (0, 0));
    for (t, change) in change.into_iter().enumerate() {
        now += change;
        if now > most.0 {
            most = (now, t as u32);
        }
    }
    most.1
}

impl Events {
    /// Places the buffers that come after a moment; those of the moment lie below `top`. The height reached, and when.
    fn place(&self, spans: &[Lifespan], moment: u32, top: u64, offsets: &mut [u64]) -> (u64, u32) {
        let mut free = Free { pieces: Vec::new(), top };
        let (mut high, mut at) = (top, moment);
        let mut gone = self.by_end.partition_point(|&i| spans[i as usize].end < moment);
        let first = self.by_start.partition_point(|&i| spans[i as usize].start <= moment);
        for &i in &self.by_start[first..] {
            let span = spans[i as usize];
            while spans[self.by_end[gone] as usize].end < span.start {
                let old = self.by_end[gone] as usize;
                free.give(offsets[old], aligned(spans[old].bytes));
                gone += 1;
            }
            let bytes = aligned(span.bytes);
            let offset = free.take(bytes, false, &[]);
            offsets[i as usize] = offset;
            if offset + bytes > high {
                (high, at) = (offset + bytes, span.start);
            }
        }
        (high, at)
    }
}
