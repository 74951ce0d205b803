//! The order in which the examples of an epoch are visited, as a list or, for very many examples, as a formula.

use std::sync::Arc;

use gulliver_graph::random::RandomStream;

/// Above this many examples no list is made of them: 16 MiB.
pub const LISTED: usize = 1 << 22;

/// An order of all numbers below some number.
#[derive(Clone, Debug)]
pub enum Order {
    /// Ascending.
    Ascending,
    /// As listed.
    List(Arc<Vec<u32>>),
    /// As computed.
    Formula(Formula),
}

impl Order {
    /// What comes at this place.
    pub fn at(&self, place: usize) -> usize {
        match self {
            Order::Ascending => place,
            Order::List(list) => list[place] as usize,
            Order::Formula(formula) => formula.at(place as u64) as usize,
        }
    }
}

/// A permutation of `0..count` that needs no memory: rounds of a Feistel network over the next even power of two,
/// repeated until the result is below `count`.
#[derive(Clone, Debug)]
pub struct Formula {
    stream: RandomStream,
    count: u64,
    /// Bits of each half of a number.
    half: u32,
}

impl Formula {
    /// The permutation that `stream` decides.
    pub fn new(stream: RandomStream, count: usize) -> Formula {
        let bits = u64::BITS - (count.max(2) as u64 - 1).leading_zeros();
        Formula { stream, count: count as u64, half: bits.div_ceil(2) }
    }

    fn at(&self, place: u64) -> u64 {
        let mut number = self.once(place);
        // What starts below `count` comes back below it, as the network only permutes.
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
                let order = Order::Formula(Formula::new(RandomStream::new(seed, 2, 3), count));
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
        let order = Order::Formula(Formula::new(RandomStream::new(1, 2, 3), count));
        let distance = |i: usize| order.at(i).abs_diff(order.at(i + 1)) as f64 / count as f64;
        let mean = (0..10_000).map(distance).sum::<f64>() / 10_000.0;
        // That of two independent places is a third.
        assert!((mean - 1.0 / 3.0).abs() < 0.02, "{mean}");
    }
}
