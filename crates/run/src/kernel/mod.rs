//! CPU kernels: pure functions on slices that know nothing about graphs, plans or devices.
//!
//! # Numerics
//!
//! Every output element is defined by the operator's arithmetic and the order stated here. It never
//! depends on the number of threads, the instruction set, alignment, or the extents of other axes (a
//! row alone has the bits it has among others). A fused multiply-add is one rounding everywhere:
//! `f32::mul_add` is hardware FMA where there is one and exact software elsewhere, and Rust never
//! contracts `a * b + c` on its own. Which NaN comes out (sign, payload) is not specified.
//!
//! - **Matrix products** ([`gemm`], [`conv`], tile products of [`attention`]): the reduced index is cut
//!   into blocks of [`K_BLOCK`] from 0. Within a block, `acc = fma(a[k], b[k], acc)` with `k` ascending
//!   from `acc = +0.0`. Blocks are added in order: `total = block0; total = total + block1; …`. When
//!   accumulating into C, `total = C + block0` and on. An empty sum is `+0.0` (or C).
//! - **Reductions** ([`reduce`]): element `j` belongs to lane `j % LANES`; each lane is a sequential
//!   chain over its elements starting at the neutral element; then lane `l` takes in lane `l + 8`,
//!   then `l + 4`, `l + 2`, `l + 1`. Down the rows of a matrix, `j` is the row index.
//! - **Convolutions**: a padded or missed tap multiplies an exact `+0.0` and stays in its place in
//!   the sum. Forward reduces (channel, kernel position), the input gradient (output channel, kernel
//!   position), the weight gradient (image, output position), each flattened in that order. A strided
//!   input gradient ends with adding `+0.0`, which lets kernels leave out the zeros between outputs.
//! - **Pooling and resampling** ([`pool`]): a window's lines element by element in order, then along the
//!   line, those outside skipped; an element's gradient in the same way from its windows by ascending
//!   tap (averages) or ascending window (maxima, boxes). Neighbouring elements of a box are reductions,
//!   added in order. Divisions come last, once.
//! - **Recurrent layers** ([`recurrent`]): matrix products as above, gates element by element.
//! - **Running sums** ([`scan`]) in double precision along the axis, rounded once per element.
//! - **Attention**: see [`attention`].
//! - **Softmax, losses, normalisation** ([`softmax`], [`loss`], [`norm`]): sums over a row or run are
//!   reductions; what several samples contribute to a channel is added in order of the samples, except
//!   that in batch normalisation the lanes of a channel go on from sample to sample, for the moments
//!   in double precision.
//! - **Element-wise programs** ([`elementwise`], [`block_reduce`]): element by element what the operators alone give; what is
//!   reduced of them has the order of a reduction of the whole.
//! - **Functions** ([`math`]): fixed sequences of basic operations, the same on every machine.

pub mod attention;
pub mod block_reduce;
pub mod conv;
mod depthwise;
pub mod elementwise;
mod gather;
pub mod gemm;
mod grid;
pub mod loss;
pub mod math;
pub mod norm;
pub mod pack;
pub mod patch;
mod phase;
pub mod pool;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod scan;
pub mod softmax;
pub mod tile;
pub mod update;

/// Length of the blocks of the reduced index in matrix products.
pub const K_BLOCK: usize = 256;

/// Independent chains of a reduction.
pub const LANES: usize = 16;

#[cfg(test)]
pub(crate) mod testing {
    //! What kernel tests share: reproducible noise and comparison by bits.

    /// Values in [-1, 1) from a small mixing function, with some exact zeros.
    pub fn noise(len: usize, seed: u64) -> Vec<f32> {
        let value = |i: usize| {
            let mut z =
                (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd1b5_4a32_d192_ed03);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let unit = ((z >> 40) as f32) / (1u64 << 23) as f32 - 1.0;
            if z.is_multiple_of(23) { 0.0 } else { unit }
        };
        (0..len).map(value).collect()
    }

    /// The bit patterns, so that comparison is exact and signed zeros count.
    pub fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|v| v.to_bits()).collect()
    }
}
