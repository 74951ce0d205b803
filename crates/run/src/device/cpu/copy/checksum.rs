//! Checksums of bytes, made while they are copied, so that they come from memory once. They find damage, not
//! malice.

use crate::device::cpu::copy;

/// Bytes summed and then copied, while they are in a cache.
const TOGETHER: usize = 1 << 16;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Four chains side by side, as a product takes its time.
type Lanes = [u64; 4];

/// A number that differs if any one word of the bytes does, or if they are those of another offset; other
/// changes leave it as it is once in 2^64 times.
pub fn checksum(offset: u64, bytes: &[u8]) -> u64 {
    let mut lanes = begin(offset, bytes.len());
    let rest = add(&mut lanes, bytes);
    finish(lanes, rest)
}

/// Copies bytes to where there are as many; their [`checksum`].
pub fn copy_summed(offset: u64, from: &[u8], to: &mut [u8]) -> u64 {
    assert_eq!(from.len(), to.len());
    let mut lanes = begin(offset, from.len());
    let mut rest: &[u8] = &[];
    for (from, to) in from.chunks(TOGETHER).zip(to.chunks_mut(TOGETHER)) {
        rest = add(&mut lanes, from);
        // SAFETY: two slices of the same length, one of which is borrowed exclusively.
        unsafe { copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    }
    finish(lanes, rest)
}

fn begin(offset: u64, bytes: usize) -> Lanes {
    [offset, !offset, bytes as u64, !(bytes as u64)]
}

fn mix(sum: u64, word: &[u8; 8]) -> u64 {
    (sum ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(29)
}

/// Sums what fills all lanes; what does not.
fn add<'a>(lanes: &mut Lanes, bytes: &'a [u8]) -> &'a [u8] {
    let (groups, rest) = bytes.as_chunks::<32>();
    for group in groups {
        let (words, _) = group.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = mix(*lane, word);
        }
    }
    rest
}

fn finish(lanes: Lanes, rest: &[u8]) -> u64 {
    let (words, rest) = rest.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = words.iter().chain([&last]).fold(0, mix);
    lanes.iter().fold(sum, |sum, lane| mix(sum, &lane.to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_tell_bits_places_and_lengths_apart() {
        for bytes in [0, 1, 7, 8, 31, 32, 33, 4096, TOGETHER, 2 * TOGETHER + 45] {
            let mut data: Vec<u8> = (0..bytes).map(|i| (i * 31 + (i >> 8)) as u8).collect();
            let sum = checksum(0, &data);
            let mut copied = vec![0; bytes];
            assert_eq!(copy_summed(0, &data, &mut copied), sum, "{bytes}");
            assert!(copied == data, "{bytes}");
            assert_ne!(checksum(4096, &data), sum, "bytes of another place");
            data.push(0);
            assert_ne!(checksum(0, &data), sum, "another length");
            data.pop();
            for position in [0, bytes / 2, bytes.saturating_sub(1)].into_iter().filter(|&p| p < bytes) {
                data[position] ^= 0x10;
                assert_ne!(checksum(0, &data), sum, "{position} of {bytes}");
                data[position] ^= 0x10;
            }
        }
    }
}
