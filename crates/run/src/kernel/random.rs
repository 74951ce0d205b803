//! Random words in bulk: blocks of the counter-based generator side by side, the same words that the
//! graph's streams give one at a time.

use crate::kernel::isa::{Isa, simd};
use gulliver_graph::random::Stream;

/// Blocks made at once, of four words each.
const BLOCKS: usize = 16;
const WORDS: usize = 4 * BLOCKS;

/// Words `4 * block` and on, for the key and salt of a stream.
#[inline(always)]
fn words([key, salt]: [[u32; 2]; 2], block: u64) -> [u32; WORDS] {
    let count = |i: usize| block.wrapping_add(i as u64);
    let mut a: [u32; BLOCKS] = std::array::from_fn(|i| count(i) as u32);
    let mut b: [u32; BLOCKS] = std::array::from_fn(|i| (count(i) >> 32) as u32);
    let (mut c, mut d) = ([salt[0]; BLOCKS], [salt[1]; BLOCKS]);
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        for i in 0..BLOCKS {
            let p0 = u64::from(a[i]) * 0xD251_1F53;
            let p1 = u64::from(c[i]) * 0xCD9E_8D57;
            a[i] = (p1 >> 32) as u32 ^ b[i] ^ k0;
            b[i] = p1 as u32;
            c[i] = (p0 >> 32) as u32 ^ d[i] ^ k1;
            d[i] = p0 as u32;
        }
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    let mut out = [0; WORDS];
    for (i, out) in out.chunks_exact_mut(4).enumerate() {
        out.copy_from_slice(&[a[i], b[i], c[i], d[i]]);
    }
    out
}

#[inline(always)]
fn keep_body(key: [[u32; 2]; 2], first: u64, rate: f32, scale: f32, y: &mut [f32]) {
    let mut done = 0;
    while done < y.len() {
        let at = first.wrapping_add(done as u64);
        let skip = (at % 4) as usize;
        let words = words(key, at / 4);
        let n = (WORDS - skip).min(y.len() - done);
        for (y, word) in y[done..done + n].iter_mut().zip(&words[skip..]) {
            let uniform = (word >> 8) as f32 * (1.0 / (1 << 24) as f32);
            *y = if uniform >= rate { *y * scale } else { 0.0 };
        }
        done += n;
    }
}

simd! { fn keep(key: [[u32; 2]; 2], first: u64, rate: f32, scale: f32, y: &mut [f32]) = keep_body; }

/// Multiplies element `i` of `y` by `scale` where number `first + i` of the stream, uniform in [0, 1), is
/// at least `rate`, and makes it zero elsewhere.
pub fn dropout(isa: Isa, stream: &Stream, first: u64, rate: f32, scale: f32, y: &mut [f32]) {
    let (key, salt) = stream.key_and_salt();
    keep(isa, [key, salt], first, rate, scale, y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    #[test]
    fn decides_as_the_stream_one_at_a_time() {
        let stream = Stream::new(7, 8, 9);
        for first in [0, 1, 3, 62, 1 << 34, (1 << 34) - 2, u64::MAX - 500] {
            for len in [0, 1, 3, 64, 65, 300] {
                let x = noise(len, first);
                let kept = |i: usize| stream.uniform_at(first + i as u64) >= 0.3;
                let want: Vec<f32> =
                    x.iter().enumerate().map(|(i, x)| if kept(i) { x * 1.5 } else { 0.0 }).collect();
                for isa in Isa::all() {
                    let mut y = x.clone();
                    dropout(isa, &stream, first, 0.3, 1.5, &mut y);
                    assert_eq!(bits(&y), bits(&want), "{first} {len} {isa:?}");
                }
            }
        }
    }
}
