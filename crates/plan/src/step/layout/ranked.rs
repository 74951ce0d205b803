//! Placing buffers one after the other, each as low as those before it allow: largest first, and again with
//! the one that ended highest moved to the front. Loses least of all ways, and takes longest.

use super::{Lifespan, aligned, largest};

/// Most passes.
const PASSES: usize = 80;
/// With no more buffers than that, one pass is worth it if as large a share is lost.
const FEW: (usize, u64) = (10_000, 10);

/// Improves on the best layout so far, until it is no higher than `enough` or about `pairs` pairs of buffers were
/// compared.
pub(super) fn improve(spans: &[Lifespan], enough: u64, pairs: usize, best: &mut (Vec<u64>, u64)) {
    if best.1 <= enough {
        return;
    }
    let mut order = largest(spans, spans.len());
    let once = order.len() <= FEW.0 && best.1 - enough > enough / FEW.1;
    let passes = (pairs / (order.len() * order.len() / 4).max(1)).clamp(usize::from(once), PASSES);
    let mut placed = Vec::with_capacity(order.len());
    for _ in 0..passes {
        if best.1 <= enough {
            return;
        }
        place(spans, &order, &mut placed);
        let Some(highest) = placed.iter().max_by_key(|p| (p.high, p.span)) else { return };
        if highest.high < best.1 {
            best.1 = highest.high;
            placed.iter().for_each(|p| best.0[p.span as usize] = p.low);
        }
        if let Some(at) = order.iter().position(|i| *i == highest.span) {
            order[..=at].rotate_right(1);
        }
    }
}

/// A buffer and where it lies.
#[derive(Clone, Copy)]
struct Placed {
    low: u64,
    high: u64,
    start: u32,
    end: u32,
    span: u32,
}

/// Places spans in this order; the result is lowest first.
fn place(spans: &[Lifespan], order: &[u32], placed: &mut Vec<Placed>) {
    placed.clear();
    for &i in order {
        let Lifespan { bytes, start, end } = spans[i as usize];
        let size = aligned(bytes);
        let mut low = 0;
        for other in placed.iter() {
            if other.low >= low + size {
                break;
            }
            if other.start <= end && start <= other.end {
                low = low.max(other.high);
            }
        }
        let at = placed.partition_point(|other| other.low <= low);
        placed.insert(at, Placed { low, high: low + size, start, end, span: i });
    }
}
