//! The examples of each step: a pure function of (options, seed, step), so resuming needs only the step number.

use std::sync::{Arc, Mutex};

use gulliver_graph::random::{RandomStream, hash_name};

use super::order::{EpochOrder, LISTED, Permutation};
use super::{DataError, Dataset};
use crate::team::lock;

/// Batches of similar lengths: examples are sorted by length within shuffled windows of `window` batches, and then the
/// batches are shuffled.
#[derive(Clone, Debug)]
pub struct Buckets {
    /// The length of every example.
    pub lengths: Arc<[u32]>,
    /// Batches per window; larger means less padding and less randomness.
    pub window: usize,
}

impl Buckets {
    /// Buckets in windows of 50 batches; `None` when the examples all have one shape.
    pub fn of(dataset: &dyn Dataset) -> Option<Buckets> {
        let lengths: Option<Arc<[u32]>> =
            (0..dataset.len()).map(|i| dataset.length(i).map(|n| n.min(u32::MAX as usize) as u32)).collect();
        Some(Buckets { lengths: lengths?, window: 50 })
    }
}

/// The order of the examples. The order of the last epoch asked for is cached.
#[derive(Debug)]
pub struct Sampler {
    examples: usize,
    batch: usize,
    seed: u64,
    shuffle: bool,
    drop_last: bool,
    buckets: Option<Buckets>,
    cache: Mutex<Option<(u64, EpochOrder)>>,
}

impl Sampler {
    /// `drop_last` leaves out the last batch of an epoch if it is smaller, so that all have one size.
    pub fn new(
        examples: usize,
        batch: usize,
        seed: u64,
        shuffle: bool,
        drop_last: bool,
        buckets: Option<Buckets>,
    ) -> Result<Sampler, DataError> {
        if batch == 0 {
            return Err(DataError::option("batch", "must be at least 1"));
        }
        if examples == 0 || u32::try_from(examples).is_err() {
            let what = format!("cannot sample from {examples} examples; 1 to 2^32 - 1 are possible");
            return Err(DataError::option("examples", what));
        }
        if drop_last && batch > examples {
            let what = format!("{batch} is more than the {examples} examples; use a smaller batch");
            return Err(DataError::option("batch", what));
        }
        if let Some(b) = &buckets
            && (b.lengths.len() != examples || b.window == 0)
        {
            let what = format!("{} lengths for {examples} examples, window {}", b.lengths.len(), b.window);
            return Err(DataError::option("buckets", what));
        }
        Ok(Sampler { examples, batch, seed, shuffle, drop_last, buckets, cache: Mutex::new(None) })
    }

    /// Batches per epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        let full = self.examples / self.batch;
        let partial = !self.drop_last && !self.examples.is_multiple_of(self.batch);
        (full + usize::from(partial)) as u64
    }

    /// The epoch a step belongs to, counted from 0.
    pub fn epoch(&self, step: u64) -> u64 {
        step / self.steps_per_epoch()
    }

    /// The examples of a step, counted from 0 over all epochs.
    pub fn indices(&self, step: u64) -> Vec<usize> {
        let order = self.order(self.epoch(step));
        let start = (step % self.steps_per_epoch()) as usize * self.batch;
        let end = (start + self.batch).min(self.examples);
        (start..end).map(|place| order.at(place)).collect()
    }

    fn order(&self, epoch: u64) -> EpochOrder {
        let mut cache = lock(&self.cache);
        match &*cache {
            Some((cached, order)) if *cached == epoch => order.clone(),
            _ => {
                let order = self.make_order(epoch);
                *cache = Some((epoch, order.clone()));
                order
            }
        }
    }

    fn make_order(&self, epoch: u64) -> EpochOrder {
        let stream = RandomStream::new(self.seed, hash_name("data.order"), epoch);
        match (&self.buckets, self.shuffle) {
            (Some(buckets), _) => EpochOrder::List(Arc::new(self.bucketed(buckets, &stream, epoch))),
            (None, false) => EpochOrder::Ascending,
            (None, true) if self.examples > LISTED => {
                EpochOrder::Computed(Permutation::new(stream, self.examples))
            }
            (None, true) => EpochOrder::List(Arc::new(stream.permutation(self.examples as u32))),
        }
    }

    fn bucketed(&self, buckets: &Buckets, stream: &RandomStream, epoch: u64) -> Vec<u32> {
        let mut order = match self.shuffle {
            true => stream.permutation(self.examples as u32),
            false => (0..self.examples as u32).collect(),
        };
        // An incomplete last batch is not sorted: otherwise it would collect the longest examples, and they would be
        // dropped more often than others.
        let full = self.examples / self.batch;
        let tail = order.split_off(full * self.batch);
        for window in order.chunks_mut(self.batch.saturating_mul(buckets.window)) {
            window.sort_by_key(|&i| buckets.lengths[i as usize]);
        }
        if self.shuffle {
            let batches =
                RandomStream::new(self.seed, hash_name("data.batches"), epoch).permutation(full as u32);
            order = batches
                .iter()
                .flat_map(|&b| &order[b as usize * self.batch..(b as usize + 1) * self.batch])
                .copied()
                .collect();
        }
        order.extend(tail);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(n: usize) -> Buckets {
        Buckets { lengths: (0..n as u32).map(|i| i * 7919 % 101).collect(), window: 5 }
    }

    #[test]
    fn every_epoch_is_a_permutation_and_any_call_order_agrees() {
        for (n, batch, shuffle, drop_last, bucket) in [
            (10, 3, true, false, false),
            (10, 3, true, true, false),
            (100, 7, true, false, true),
            (100, 10, true, true, true),
            (100, 7, false, false, true),
            (5, 8, false, false, false),
            (5, 5, true, true, false),
        ] {
            let make = || Sampler::new(n, batch, 11, shuffle, drop_last, bucket.then(|| lengths(n))).unwrap();
            let (a, b) = (make(), make());
            let steps = a.steps_per_epoch();
            let forward: Vec<_> = (0..3 * steps).map(|s| a.indices(s)).collect();
            let mut backward: Vec<_> = (0..3 * steps).rev().map(|s| b.indices(s)).collect();
            backward.reverse();
            assert_eq!(forward, backward);
            for epoch in forward.chunks(steps as usize) {
                let mut all = epoch.concat();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), if drop_last { n / batch * batch } else { n });
            }
            assert_eq!(forward[0] != forward[steps as usize] || n == 1, shuffle);
        }
    }

    #[test]
    fn very_many_examples_are_shuffled_without_a_list() {
        let many = LISTED + 5;
        let sampler = Sampler::new(many, 1 << 16, 3, true, false, None).unwrap();
        let mut seen = vec![false; many];
        for step in 0..sampler.steps_per_epoch() {
            for i in sampler.indices(step) {
                assert!(!std::mem::replace(&mut seen[i], true));
            }
        }
        assert!(seen.iter().all(|seen| *seen));
        let most = Sampler::new(u32::MAX as usize, 4, 3, true, true, None).unwrap();
        assert_ne!(most.indices(0), most.indices(most.steps_per_epoch()));
        let plain = Sampler::new(u32::MAX as usize, 4, 3, false, true, None).unwrap();
        assert_eq!(plain.indices(1 << 29), [1 << 31, (1 << 31) + 1, (1 << 31) + 2, (1 << 31) + 3]);
    }

    #[test]
    fn buckets_pad_less() {
        let padding = |buckets| {
            let sampler = Sampler::new(1000, 10, 1, true, true, buckets).unwrap();
            let all = lengths(1000).lengths;
            let waste = |step| {
                let of: Vec<u32> = sampler.indices(step).iter().map(|&i| all[i]).collect();
                of.iter().map(|l| of.iter().max().unwrap() - l).sum::<u32>()
            };
            (0..100).map(waste).sum::<u32>()
        };
        assert!(padding(Some(lengths(1000))) * 3 < padding(None));
    }

    #[test]
    fn impossible_requests_are_errors() {
        for (n, batch, drop_last) in [(0, 1, false), (3, 0, false), (3, 4, true)] {
            assert!(Sampler::new(n, batch, 0, true, drop_last, None).is_err());
        }
        assert!(Sampler::new(3, 1, 0, true, true, Some(lengths(2))).is_err());
    }
}
