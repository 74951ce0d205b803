//! The box that one of several devices has of a value, and which bytes of the whole its bytes are. Both are in
//! the same order, so the bytes that a stretch of the whole has in the box are one stretch of the box.

use gulliver_graph::spec::Region;
use std::ops::Range;

/// See the top of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boxed {
    /// Extents of the whole; the last is the bytes of an element.
    whole: Vec<usize>,
    region: Region,
    /// Bytes of the box that follow each other in the whole too.
    run: usize,
}

impl Boxed {
    /// A box of a value with elements of so many bytes.
    pub(crate) fn new(whole: &[usize], region: &[Range<usize>], element: usize) -> Boxed {
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
        Boxed { whole, region, run }
    }

    /// Extents of the whole.
    pub(crate) fn whole(&self) -> &[usize] {
        &self.whole[..self.whole.len() - 1]
    }

    /// Bytes of the whole.
    pub(crate) fn whole_bytes(&self) -> usize {
        self.whole.iter().product()
    }

    /// Bytes of the box.
    pub(crate) fn bytes(&self) -> usize {
        self.region.iter().map(Range::len).product()
    }

    /// Whether the box is all there is.
    pub(crate) fn is_whole(&self) -> bool {
        self.bytes() == self.whole_bytes()
    }

    /// The bytes of the box that lie in these of the whole.
    pub(crate) fn within(&self, bytes: Range<usize>) -> Range<usize> {
        self.before(bytes.start)..self.before(bytes.end)
    }

    /// How many bytes of the box lie before a byte of the whole.
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

    /// Calls `run` for every run of bytes that lies in these of the whole: its first byte there, its first byte in
    /// the box, and its length.
    pub(crate) fn runs(&self, bytes: Range<usize>, mut run: impl FnMut(usize, usize, usize)) {
        let Range { start: mut at, end } = self.within(bytes);
        while at < end {
            let length = (self.run - at % self.run).min(end - at);
            run(self.place(at), at, length);
            at += length;
        }
    }

    /// Where a byte of the box is in the whole.
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
                let boxed = Boxed::new(whole, &region, element);
                // Byte by byte, without arithmetic on stretches.
                let inside = |byte: usize| {
                    let mut rest = byte / element;
                    whole.iter().zip(&region).rev().all(|(extent, range)| {
                        let position = rest % extent;
                        rest /= extent;
                        range.contains(&position)
                    })
                };
                let all = boxed.whole_bytes();
                let own: Vec<usize> = (0..all).filter(|&byte| inside(byte)).collect();
                assert_eq!(boxed.bytes(), own.len());
                assert_eq!(boxed.is_whole(), own.len() == all);
                for start in 0..=all {
                    for end in [start, (start + 1).min(all), (start + 9).min(all), all] {
                        let mut found = Vec::new();
                        boxed.runs(start..end, |first, at, length| {
                            (0..length).for_each(|i| found.push((first + i, at + i)));
                        });
                        let expected = own.iter().enumerate().filter(|(_, b)| (start..end).contains(*b));
                        let expected: Vec<_> = expected.map(|(at, byte)| (*byte, at)).collect();
                        assert_eq!(found, expected, "{whole:?} {region:?} {start}..{end}");
                        assert_eq!(boxed.within(start..end).len(), found.len());
                    }
                }
            }
        }
    }
}
