//! Offsets: buffers with lifetimes are packed into an arena, largest first, each at the lowest offset
//! where it fits beside those alive at the same time.

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

/// An offset per span, from `base` up, and the end of the arena.
pub fn pack(spans: &[Span], base: u64) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(spans[i].bytes), spans[i].start, i));
    let mut offsets = vec![base; spans.len()];
    // Placed spans by offset, so that the first gap among those alive together is found in one walk.
    let mut placed: Vec<usize> = Vec::with_capacity(spans.len());
    let mut top = base;
    for i in order {
        let span = spans[i];
        let size = aligned(span.bytes);
        if size == 0 {
            continue;
        }
        let mut offset = base;
        for &j in &placed {
            let other = spans[j];
            if other.end < span.start || span.end < other.start {
                continue;
            }
            if offsets[j] >= offset + size {
                break;
            }
            offset = offset.max(offsets[j] + aligned(other.bytes));
        }
        offsets[i] = offset;
        let at = placed.partition_point(|&j| offsets[j] <= offset);
        placed.insert(at, i);
        top = top.max(offset + size);
    }
    (offsets, top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_alive_together_never_overlap() {
        let mut x = 1u64;
        let mut next = move |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        let spans: Vec<Span> = (0..300)
            .map(|_| {
                let start = next(200) as u32;
                Span { bytes: next(5000), start, end: start + next(40) as u32 }
            })
            .collect();
        let (offsets, top) = pack(&spans, 128);
        for (i, a) in spans.iter().enumerate() {
            assert!(offsets[i].is_multiple_of(ALIGN) && offsets[i] >= 128 && offsets[i] + a.bytes <= top);
            for (j, b) in spans.iter().enumerate().take(i) {
                let together = a.start <= b.end && b.start <= a.end;
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(!together || apart || a.bytes == 0 || b.bytes == 0, "{i} and {j}");
            }
        }
    }

    #[test]
    fn space_is_used_again() {
        let span = |start, end| Span { bytes: 64, start, end };
        assert_eq!(pack(&[span(0, 1), span(1, 2), span(2, 3)], 0), (vec![0, 64, 0], 128));
    }
}
