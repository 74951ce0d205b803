//! A shard: the box of a value that resides on one of several devices, and which bytes of the whole its bytes are.
//! Both are in the same order, so the shard's bytes within a range of the whole are one range of the shard.

use gulliver_graph::spec::Region;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The box of a value that one device has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Extents of the whole; the last is the bytes of an element.
    whole: Vec<usize>,
    region: Region,
    /// Bytes of the shard that are contiguous in the whole.
    run: usize,
}

impl Shard {
    /// A box of a value; `element` is the size of its elements in bytes.
    pub fn new(whole: &[usize], region: &[Range<usize>], element: usize) -> Shard {
        let whole = [whole, &[element]].concat();
        let region: Region = region.iter().cloned().chain(std::iter::once(0..element)).collect();
        // Dimensions that the box fills make its runs longer.
        let mut run = 1;
        for (range, extent) in region.iter().zip(&whole).rev() {
            run *= range.len();
            if range.len() != *extent {
                break;
            }
        }
        Shard { whole, region, run }
    }

    /// Extents of the whole value.
    pub fn whole(&self) -> &[usize] {
        &self.whole[..self.whole.len() - 1]
    }

    /// Bytes of the whole.
    pub fn whole_bytes(&self) -> usize {
        self.whole.iter().product()
    }

    /// Bytes of the shard.
    pub fn bytes(&self) -> usize {
        self.region.iter().map(Range::len).product()
    }

    /// Whether the shard is the whole value.
    pub fn is_whole(&self) -> bool {
        self.bytes() == self.whole_bytes()
    }

    /// The range of the shard that lies within a range of the whole, both in bytes.
    pub fn within(&self, bytes: Range<usize>) -> Range<usize> {
        self.before(bytes.start)..self.before(bytes.end)
    }

    /// Bytes of the shard that lie before a byte of the whole.
    fn before(&self, byte: usize) -> usize {
        let (mut rest, mut each) = (byte, self.whole_bytes());
        if byte >= each {
            return self.bytes();
        }
        let (mut count, mut own) = (0, self.bytes());
        for (range, extent) in self.region.iter().zip(&self.whole) {
            if own == 0 {
                break;
            }
            each /= extent;
            own /= range.len();
            let position = rest / each;
            rest %= each;
            count += position.clamp(range.start, range.end).saturating_sub(range.start) * own;
            if !range.contains(&position) {
                break;
            }
        }
        count
    }

    /// Calls `run` for every contiguous run of bytes within a range of the whole, with its first byte in the whole,
    /// its first byte in the shard, and its length.
    pub fn runs(&self, bytes: Range<usize>, mut run: impl FnMut(usize, usize, usize)) {
        let Range { start: mut at, end } = self.within(bytes);
        while at < end {
            let length = (self.run - at % self.run).min(end - at);
            run(self.place(at), at, length);
            at += length;
        }
    }

    /// The position in the whole of a byte of the shard.
    fn place(&self, byte: usize) -> usize {
        let (mut rest, mut each, mut place) = (byte, 1, 0);
        for (range, extent) in self.region.iter().zip(&self.whole).rev() {
            place += (range.start + rest % range.len()) * each;
            rest /= range.len();
            each *= extent;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_the_whole_and_the_box_have_in_common() {
        let boxes: [(&[usize], Region); 8] = [
            (&[], vec![]),
            (&[7, 1], vec![2..5, 0..1]),
            (&[4, 6], vec![0..4, 0..6]),
            (&[4, 6], vec![1..3, 0..6]),
            (&[4, 6], vec![0..4, 2..3]),
            (&[3, 4, 5], vec![1..3, 2..4, 0..5]),
            (&[3, 4, 5], vec![0..3, 1..2, 3..5]),
            (&[3, 4], vec![1..1, 0..4]),
        ];
        for (whole, region) in boxes {
            for element in [1, 4] {
                let shard = Shard::new(whole, &region, element);
                // Byte by byte, without arithmetic on stretches.
                let inside = |byte: usize| {
                    let mut rest = byte / element;
                    whole.iter().zip(&region).rev().all(|(extent, range)| {
                        let position = rest % extent;
                        rest /= extent;
                        range.contains(&position)
                    })
                };
                let all = shard.whole_bytes();
                let own: Vec<usize> = (0..all).filter(|&byte| inside(byte)).collect();
                assert_eq!(shard.bytes(), own.len());
                assert_eq!(shard.is_whole(), own.len() == all);
                for start in 0..=all {
                    for end in [start, (start + 1).min(all), (start + 9).min(all), all] {
                        let mut found = Vec::new();
                        shard.runs(start..end, |first, at, length| {
                            (0..length).for_each(|i| found.push((first + i, at + i)));
                        });
                        let expected = own.iter().enumerate().filter(|(_, b)| (start..end).contains(*b));
                        let expected: Vec<_> = expected.map(|(at, byte)| (*byte, at)).collect();
                        assert_eq!(found, expected, "{whole:?} {region:?} {start}..{end}");
                        assert_eq!(shard.within(start..end).len(), found.len());
                    }
                }
            }
        }
    }
}
