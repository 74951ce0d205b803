//! Copies between tiers. Long ones go past the caches: what leaves the device is not read again soon, and
//! the room for what arrives need not be read only to be overwritten.

pub mod checksum;

/// Shorter copies stay in the caches.
const LONG: usize = 1 << 16;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Copies bytes, past the caches if there are many.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`] of so many bytes.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes < LONG || !cfg!(target_arch = "x86_64") {
        // SAFETY: the caller's contract.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the three ranges make up all bytes, and the second begins at a line of `to`.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        copy_lines(from.add(head), to.add(head), lines);
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
    }
}

/// # Safety
/// As for [`copy`]; `to` is a multiple of [`LINE`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(from: *const u8, to: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    for line in 0..lines {
        // SAFETY: four words of a line that lies within both ranges; those of `to` are aligned. Every
        // processor of this architecture has the instructions.
        unsafe {
            let words = [0, 1, 2, 3].map(|word| 4 * line + word);
            let read = words.map(|word| _mm_loadu_si128(from.add(word)));
            for (word, value) in words.into_iter().zip(read) {
                _mm_stream_si128(to.add(word), value);
            }
        }
    }
    // SAFETY: as above. Such stores are ordered before later ones only by a fence.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_lines(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, lines * LINE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_and_no_others_are_copied() {
        let from: Vec<u8> = (0..3 * LONG).map(|i| (i ^ (i >> 8)) as u8).collect();
        for bytes in [0, 1, 63, 64, LONG - 1, LONG, LONG + 1, 2 * LONG + 77] {
            for (skip, start) in [(0, 0), (1, 0), (0, 1), (17, 40), (64, 63)] {
                let mut to = vec![0xaa; start + bytes + 70];
                // SAFETY: both ranges lie within their buffers.
                unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(start), bytes) };
                assert!(to[start..start + bytes] == from[skip..skip + bytes], "{bytes} {skip} {start}");
                let others = to[..start].iter().chain(&to[start + bytes..]);
                assert!(others.into_iter().all(|&b| b == 0xaa), "{bytes} {skip} {start}");
            }
        }
    }
}
