//! Random numbers as a pure function of (seed, purpose, index, element): counter-based, so that
//! recompute, cuts, fusion and resume all see the same numbers. Not for cryptography.

/// Philox4x32-10: ten rounds of multiply, xor and swap over a 128-bit counter under a 64-bit key.
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [mut k0, mut k1] = key;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..10 {
        let p0 = u64::from(c0) * 0xD251_1F53;
        let p1 = u64::from(c2) * 0xCD9E_8D57;
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// FNV-1a, 64 bits: turns the name of a purpose or a node into a number for [`RandomStream::new`].
pub fn hash_name(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// An endless sequence of random words that can be read at any position, in any order.
///
/// All readers of one stream (`u32_at`, `normal_at`, `below`…) draw from the same words: use one
/// kind of reader per stream, and a different purpose or index for everything independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    key: [u32; 2],
    salt: [u32; 2],
}

impl RandomStream {
    /// The stream of this seed, purpose (see [`hash_name`]) and index (a step, an epoch, an example).
    pub fn new(seed: u64, purpose: u64, index: u64) -> RandomStream {
        let [p0, p1] = halves(purpose);
        let [i0, i1] = halves(index);
        let [a, b, c, d] = philox(halves(seed), [p0, p1, i0, i1]);
        RandomStream { key: [a, b], salt: [c, d] }
    }

    /// The key and the upper half of the counter of every block, for kernels that make many at once.
    pub fn key_and_salt(&self) -> ([u32; 2], [u32; 2]) {
        (self.key, self.salt)
    }

    /// Words `4 * block` to `4 * block + 3`, for readers that walk in order.
    pub fn block(&self, block: u64) -> [u32; 4] {
        let [lo, hi] = halves(block);
        philox(self.key, [lo, hi, self.salt[0], self.salt[1]])
    }

    /// Word `i`: 32 independent bits.
    pub fn u32_at(&self, i: u64) -> u32 {
        self.block(i / 4)[(i % 4) as usize]
    }

    /// Words `2 * i` and `2 * i + 1` as 64 independent bits.
    pub fn u64_at(&self, i: u64) -> u64 {
        let words = self.block(i / 2);
        let first = 2 * (i % 2) as usize;
        u64::from(words[first]) | u64::from(words[first + 1]) << 32
    }

    /// Uniform in `[0, 1)`, a multiple of 2⁻²⁴.
    pub fn uniform_at(&self, i: u64) -> f32 {
        (self.u32_at(i) >> 8) as f32 * (1.0 / (1 << 24) as f32)
    }

    /// Standard normal, the same bits on every machine; its absolute value stays below 6.8.
    pub fn normal_at(&self, i: u64) -> f32 {
        let words = self.block(i / 4);
        let lane = (i % 4) as usize;
        let pair = lane & !1;
        let (cosine, sine) = box_muller(words[pair], words[pair + 1]);
        if lane == pair { cosine } else { sine }
    }

    /// Normals `4 * block` to `4 * block + 3`, equal to four calls of [`RandomStream::normal_at`].
    pub fn normal_block(&self, block: u64) -> [f32; 4] {
        let [a, b, c, d] = self.block(block);
        let (n0, n1) = box_muller(a, b);
        let (n2, n3) = box_muller(c, d);
        [n0, n1, n2, n3]
    }

    /// Uniform in `0..n` (0 when `n` is 0); the bias is at most `n / 2⁶⁴`.
    pub fn below(&self, i: u64, n: u64) -> u64 {
        ((u128::from(self.u64_at(i)) * u128::from(n)) >> 64) as u64
    }

    /// A uniformly random order of `0..n` (Fisher–Yates).
    pub fn permutation(&self, n: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i as u64, i as u64 + 1) as usize);
        }
        order
    }
}

fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Two independent normals from two words.
fn box_muller(a: u32, b: u32) -> (f32, f32) {
    const SCALE: f64 = 1.0 / (1u64 << 32) as f64;
    let radius = (-2.0 * ln((f64::from(a) + 0.5) * SCALE)).sqrt();
    let (sine, cosine) = sin_cos_turn(f64::from(b) * SCALE);
    ((radius * cosine) as f32, (radius * sine) as f32)
}

/// Natural logarithm of a positive normal number. Only + - * / in a fixed order, because the
/// platform's `ln` differs between machines in the last bit.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh s, |s| < 0.172
    let s = (m - 1.0) / (m + 1.0);
    let series = polynomial(s * s, &ARTANH);
    2.0 * s * series + exponent as f64 * std::f64::consts::LN_2
}

/// Sine and cosine of `turn` whole turns (1 is a full circle), the same bits on every machine.
pub fn sin_cos_turn(turn: f64) -> (f64, f64) {
    let turn = turn - turn.floor();
    let quarter = (turn * 4.0 + 0.5).floor();
    let a = (turn - quarter * 0.25) * std::f64::consts::TAU; // |a| <= pi / 4
    let sine = a * polynomial(a * a, &SINE);
    let cosine = polynomial(a * a, &COSINE);
    match quarter as i64 & 3 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// Taylor coefficients of artanh(s) / s in s².
const ARTANH: [f64; 12] = {
    let mut out = [0.0; 12];
    let mut k = 0;
    while k < 12 {
        out[k] = 1.0 / (2 * k + 1) as f64;
        k += 1;
    }
    out
};

/// Taylor coefficients of sin(a) / a in a².
const SINE: [f64; 9] = alternating_factorials(1);

/// Taylor coefficients of cos(a) in a².
const COSINE: [f64; 9] = alternating_factorials(0);

/// (-1)^k / (2k + first)!
const fn alternating_factorials(first: usize) -> [f64; 9] {
    let mut out = [1.0; 9];
    let mut k = 1;
    while k < 9 {
        let n = 2 * k + first;
        out[k] = -out[k - 1] / ((n - 1) * n) as f64;
        k += 1;
    }
    out
}

fn polynomial<const N: usize>(x: f64, coefficients: &[f64; N]) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        let ones = u32::MAX;
        let table = [
            ([0; 2], [0; 4], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([ones; 2], [ones; 4], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0xa4093822, 0x299f31d0],
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (key, counter, expected) in table {
            assert_eq!(philox(key, counter), expected);
        }
    }

    #[test]
    fn names_hash_as_published() {
        for (name, hash) in
            [("", 0xcbf29ce484222325), ("a", 0xaf63dc4c8601ec8c), ("foobar", 0x85944171f73967e8)]
        {
            assert_eq!(hash_name(name), hash);
        }
    }

    #[test]
    fn polynomials_are_accurate() {
        for i in 0..10_000u32 {
            let x = (f64::from(i) + 0.5) / 10_000.0;
            assert!((ln(x) - x.ln()).abs() <= 4e-15 * x.ln().abs().max(1.0), "ln {x}");
            let (s, c) = sin_cos_turn(x);
            let (es, ec) = (x * std::f64::consts::TAU).sin_cos();
            assert!((s - es).abs() < 2e-15 && (c - ec).abs() < 2e-15, "turn {x}");
        }
    }

    #[test]
    fn streams_differ_in_every_argument() {
        let base = RandomStream::new(1, 2, 3);
        assert_eq!(base, RandomStream::new(1, 2, 3));
        for other in [(2, 2, 3), (1, 3, 3), (1, 2, 4), (1 | 1 << 40, 2, 3), (1, 2 | 1 << 40, 3)] {
            assert_ne!(base, RandomStream::new(other.0, other.1, other.2));
        }
        let far = 1u64 << 40;
        assert_ne!(base.u32_at(0), base.u32_at(far));
    }

    #[test]
    fn moments_are_right() {
        let n = 200_000u64;
        let stream = RandomStream::new(7, hash_name("moments"), 0);
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        assert!((mean(&|i| stream.uniform_at(i).into()) - 0.5).abs() < 3e-3);
        for (power, expected) in [(1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)] {
            let moment = mean(&|i| f64::from(stream.normal_at(i)).powi(power));
            assert!((moment - expected).abs() < 0.06, "moment {power}: {moment}");
        }
        assert!((0..n).all(|i| (0.0..1.0).contains(&stream.uniform_at(i))));
        assert!((0..n).all(|i| stream.below(i, 10) < 10));
        for block in 0..50 {
            let one_by_one = std::array::from_fn(|k| stream.normal_at(4 * block + k as u64));
            assert_eq!(stream.normal_block(block), one_by_one);
        }
    }

    #[test]
    fn extreme_words_give_finite_normals() {
        for a in [0, 1, u32::MAX] {
            for b in [0, 1 << 29, 1 << 30, 1 << 31, u32::MAX] {
                let (x, y) = box_muller(a, b);
                assert!(x.abs() < 6.8 && y.abs() < 6.8, "{x} {y}");
            }
        }
    }

    #[test]
    fn bits_are_pinned() {
        let stream = RandomStream::new(42, hash_name("pin"), 1);
        let bits: Vec<u32> = (0..4).map(|i| stream.normal_at(i).to_bits()).collect();
        assert_eq!(bits, [0xbdcc9657, 0xbf76dc61, 0x3f70805c, 0x3ee33f27]);
    }

    #[test]
    fn permutations_are_permutations() {
        for n in [0, 1, 2, 3, 10, 1000] {
            let mut order = RandomStream::new(5, 6, u64::from(n)).permutation(n);
            assert!(n < 10 || !order.is_sorted());
            order.sort_unstable();
            assert_eq!(order, (0..n).collect::<Vec<_>>());
        }
        // Every one of the six orders of three things turns up about equally often.
        let mut counts = std::collections::BTreeMap::new();
        for i in 0..6000 {
            *counts.entry(RandomStream::new(9, 9, i).permutation(3)).or_insert(0u32) += 1;
        }
        assert!(counts.len() == 6 && counts.values().all(|&c| (850..1150).contains(&c)), "{counts:?}");
    }
}
