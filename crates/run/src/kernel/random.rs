//! Random words in bulk: blocks of the counter-based generator side by side, the same words that the
//! graph's streams give one at a time.

use crate::team::isa::{Isa, simd};
use gulliver_graph::random::RandomStream;

/// Blocks made at once, of four words each. Loops of this length are vectorised rather than unrolled.
const BLOCKS: usize = 64;
const WORDS: usize = 4 * BLOCKS;

/// Words `4 * first` and on, for the key and salt of a stream; `blocks` times four of them.
#[inline(always)]
fn words([key, salt]: [[u32; 2]; 2], first: u64, blocks: usize) -> [u32; WORDS] {
    let (mut a, mut b) = ([0; BLOCKS], [0; BLOCKS]);
    let (mut c, mut d) = ([salt[0]; BLOCKS], [salt[1]; BLOCKS]);
    for i in 0..BLOCKS {
        let count = first.wrapping_add(i as u64);
        (a[i], b[i]) = (count as u32, (count >> 32) as u32);
    }
    let [mut k0, mut k1] = key;
    let blocks = blocks.min(BLOCKS);
    for _ in 0..10 {
        for i in 0..blocks {
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
    for i in 0..BLOCKS {
        out[4 * i] = a[i];
        out[4 * i + 1] = b[i];
        out[4 * i + 2] = c[i];
        out[4 * i + 3] = d[i];
    }
    out
}

#[inline(always)]
fn keep_body(key: [[u32; 2]; 2], first: u64, rate: f32, scale: f32, y: &mut [f32]) {
    let mut done = 0;
    while done < y.len() {
        let at = first.wrapping_add(done as u64);
        let skip = (at % 4) as usize;
        let n = (WORDS - skip).min(y.len() - done);
        let words = words(key, at / 4, (skip + n).div_ceil(4));
        for (y, word) in y[done..done + n].iter_mut().zip(&words[skip..]) {
            // Through a signed integer, for which there is an instruction.
            let uniform = (word >> 8) as i32 as f32 * (1.0 / (1 << 24) as f32);
            *y = if uniform >= rate { *y * scale } else { 0.0 };
        }
        done += n;
    }
}

simd! { fn keep(key: [[u32; 2]; 2], first: u64, rate: f32, scale: f32, y: &mut [f32]) = keep_body; }

/// Multiplies element `i` of `y` by `scale` where number `first + i` of the stream, uniform in [0, 1), is
/// at least `rate`, and makes it zero elsewhere.
pub fn dropout(isa: Isa, stream: &RandomStream, first: u64, rate: f32, scale: f32, y: &mut [f32]) {
    let (key, salt) = stream.key_and_salt();
    keep(isa, [key, salt], first, rate, scale, y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{bits, noise};

    #[test]
    fn decides_as_the_stream_one_at_a_time() {
        let stream = RandomStream::new(7, 8, 9);
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
