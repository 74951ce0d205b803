//! The order of the examples in an epoch: a list or, for very many examples, a computed permutation.

use std::sync::Arc;

use gulliver_graph::random::RandomStream;

/// Most examples for which the order is kept as a list, of 16 MiB.
pub const LISTED: usize = 1 << 22;

/// A permutation of the examples.
#[derive(Clone, Debug)]
pub enum EpochOrder {
    /// Ascending.
    Ascending,
    /// As listed.
    List(Arc<Vec<u32>>),
    /// As computed.
    Computed(Permutation),
}

impl EpochOrder {
    /// The example at this position.
    pub fn at(&self, place: usize) -> usize {
        match self {
            EpochOrder::Ascending => place,
            EpochOrder::List(list) => list[place] as usize,
            EpochOrder::Computed(permutation) => permutation.at(place as u64) as usize,
        }
    }
}

/// A permutation of `0..count` without a list: a Feistel network over the next even power of two, repeated until the
/// result is below `count`.
#[derive(Clone, Debug)]
pub struct Permutation {
    stream: RandomStream,
    count: u64,
    /// Bits of half a number.
    half: u32,
}

impl Permutation {
    /// The permutation determined by `stream`.
    pub fn new(stream: RandomStream, count: usize) -> Permutation {
        let bits = u64::BITS - (count.max(2) as u64 - 1).leading_zeros();
        Permutation { stream, count: count as u64, half: bits.div_ceil(2) }
    }

    fn at(&self, place: u64) -> u64 {
        let mut number = self.once(place);
        // Ends, because the network is a permutation and `place` is below `count`.
        while number >= self.count {
            number = self.once(number);
        }
        number
    }

    fn once(&self, number: u64) -> u64 {
        const ROUNDS: u64 = 6;
        let mask = (1u64 << self.half) - 1;
        let (mut left, mut right) = (number >> self.half, number & mask);
        for round in 0..ROUNDS {
            let mixed = u64::from(self.stream.u32_at(round << self.half | right)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_permutations_that_the_stream_decides() {
        for count in [1, 2, 3, 4, 5, 16, 17, 1000, 4096, 5000] {
            let of = |seed| {
                let order = EpochOrder::Computed(Permutation::new(RandomStream::new(seed, 2, 3), count));
                (0..count).map(|place| order.at(place)).collect::<Vec<_>>()
            };
            let mut all = of(1);
            assert_eq!(all, of(1));
            assert!(count < 16 || (all != of(2) && !all.is_sorted()), "{count}");
            all.sort_unstable();
            assert!(all.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn neighbours_come_far_apart() {
        let count = 1 << 20;
        let order = EpochOrder::Computed(Permutation::new(RandomStream::new(1, 2, 3), count));
        let distance = |i: usize| order.at(i).abs_diff(order.at(i + 1)) as f64 / count as f64;
        let mean = (0..10_000).map(distance).sum::<f64>() / 10_000.0;
        // The expected distance of two independent positions is a third.
        assert!((mean - 1.0 / 3.0).abs() < 0.02, "{mean}");
    }
}
