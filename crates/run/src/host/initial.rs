//! Numbers that are drawn rather than computed: first values of weights and states, and inputs that are
//! noise by nature. Each is a function of seed, name and position alone.

use crate::host::{HostData, HostTensor};
use gulliver_graph::graph::Init;
use gulliver_graph::random::{RandomStream, hash_name};

/// Elements made at a time; whole blocks of the generator.
const PIECE: usize = 1 << 12;

/// The first elements of a weight or state, a piece at a time with the position of its first, so that
/// they can go where they belong without a copy of the whole.
pub fn pieces(seed: u64, name: &str, init: Init, count: usize, mut give: impl FnMut(usize, &[f32])) {
    let stream = RandomStream::new(seed, hash_name(name), 0);
    let mut piece = [0.0f32; PIECE];
    for first in (0..count).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(count - first)];
        match init {
            Init::Constant(c) => piece.fill(c),
            Init::Normal(std) => normal(&stream, first, piece, 0.0, std),
            Init::NormalAround(mean, std) => normal(&stream, first, piece, mean, std),
            Init::Uniform(bound) => {
                let at = |i: usize| (2.0 * stream.uniform_at((first + i) as u64) - 1.0) * bound;
                piece.iter_mut().enumerate().for_each(|(i, x)| *x = at(i));
            }
        }
        give(first, piece);
    }
}

/// Elements from position `first`, a multiple of four, on.
fn normal(stream: &RandomStream, first: usize, piece: &mut [f32], mean: f32, std: f32) {
    for (b, block) in piece.chunks_mut(4).enumerate() {
        let drawn = stream.normal_block((first / 4 + b) as u64);
        block.iter_mut().zip(drawn).for_each(|(x, z)| *x = mean + std * z);
    }
}

/// Standard normal numbers for one step.
pub fn noise(seed: u64, step: u64, stream: u64, shape: &[usize]) -> HostTensor {
    let stream = RandomStream::new(seed, stream, step);
    let count: usize = shape.iter().product();
    let data = (0..count as u64).map(|i| stream.normal_at(i)).collect();
    HostTensor::new(shape, HostData::F32(data)).expect("as many as the shape says")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_functions_of_their_position() {
        let stream = RandomStream::new(5, hash_name("w"), 0);
        for count in [0, 1, 3, 4095, 4096, 4097, 10_001] {
            for (init, at) in [
                (Init::Constant(2.5), &(|_| 2.5f32) as &dyn Fn(u64) -> f32),
                (Init::Normal(0.5), &|i| 0.5 * stream.normal_at(i)),
                (Init::NormalAround(1.0, 0.1), &|i| 1.0 + 0.1 * stream.normal_at(i)),
                (Init::Uniform(0.3), &|i| (2.0 * stream.uniform_at(i) - 1.0) * 0.3),
            ] {
                let mut all = Vec::new();
                pieces(5, "w", init, count, |first, piece| {
                    assert_eq!(first, all.len());
                    all.extend_from_slice(piece);
                });
                assert_eq!(all.len(), count);
                assert!(all.iter().enumerate().all(|(i, &x)| x == at(i as u64)), "{init:?} {count}");
            }
        }
    }
}
