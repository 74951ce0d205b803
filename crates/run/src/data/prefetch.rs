//! Makes batches ahead of time in one background thread, in order. If no thread can be started, each batch is made when
//! it is asked for, with the same result.

use std::panic;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use super::{Batch, DataError, Dataset, Sampler};
use crate::team::start;

/// Makes the batch of this step in the calling thread.
pub fn make(dataset: &dyn Dataset, sampler: &Sampler, step: u64) -> Result<Batch, DataError> {
    dataset.batch_in_epoch(&sampler.indices(step), sampler.epoch(step))
}

/// An iterator over the batches of consecutive steps. Dropping it stops the thread after its present batch.
pub struct Prefetch {
    receiver: Option<Receiver<Result<Batch, DataError>>>,
    worker: Option<JoinHandle<()>>,
    /// Makes batches on demand, if no thread could be started.
    here: Option<Box<dyn Iterator<Item = Result<Batch, DataError>> + Send>>,
}

impl Prefetch {
    /// Makes the batches of `steps`. At most `depth` (at least 1) wait, besides the one being made.
    pub fn new(
        dataset: Arc<dyn Dataset>,
        sampler: Arc<Sampler>,
        steps: std::ops::Range<u64>,
        depth: usize,
    ) -> Prefetch {
        let (sender, receiver) = sync_channel(depth.max(1));
        let (set, order, all) = (Arc::clone(&dataset), Arc::clone(&sampler), steps.clone());
        let work = move || {
            for step in steps {
                if sender.send(make(&*dataset, &sampler, step)).is_err() {
                    break;
                }
            }
        };
        match start("prefetch", work) {
            Ok(worker) => Prefetch { receiver: Some(receiver), worker: Some(worker), here: None },
            Err(_) => {
                let here = all.map(move |step| make(&*set, &order, step));
                Prefetch { receiver: None, worker: None, here: Some(Box::new(here)) }
            }
        }
    }
}

impl Iterator for Prefetch {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(here) = &mut self.here {
            return here.next();
        }
        let received = self.receiver.as_ref()?.recv().ok();
        if received.is_none()
            && let Some(worker) = self.worker.take()
            && let Err(payload) = worker.join()
        {
            panic::resume_unwind(payload);
        }
        received
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // A worker blocked on a full channel wakes up when the receiver is dropped.
        self.receiver = None;
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataInfo, class_tensor};
    use crate::team::refused;

    /// Fails for every batch that contains example 5.
    struct Countdown;

    impl Dataset for Countdown {
        fn len(&self) -> usize {
            20
        }

        fn length(&self, _: usize) -> Option<usize> {
            None
        }

        fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
            self.batch_in_epoch(indices, 0)
        }

        fn batch_in_epoch(&self, indices: &[usize], epoch: u64) -> Result<Batch, DataError> {
            match indices.contains(&5) {
                true => Err(DataError::Index { index: 5, examples: 20 }),
                false => Ok(Batch::of([(
                    "y",
                    class_tensor(indices.iter().map(|&i| i as u32 + epoch as u32 * 100)),
                )])),
            }
        }

        fn info(&self) -> DataInfo {
            DataInfo::default()
        }
    }

    fn show(result: Result<Batch, DataError>) -> Result<Batch, String> {
        result.map_err(|e| e.to_string())
    }

    #[test]
    fn same_batches_and_errors_as_without() {
        let sampler = Arc::new(Sampler::new(20, 3, 2, true, false, None).unwrap());
        let direct: Vec<_> = (4..40).map(|s| show(make(&Countdown, &sampler, s))).collect();
        assert!(direct.iter().any(|r| r.is_err()));
        for depth in [0, 1, 4, 100] {
            let ahead: Vec<_> =
                Prefetch::new(Arc::new(Countdown), sampler.clone(), 4..40, depth).map(show).collect();
            assert_eq!(ahead, direct);
        }
        let without = refused::after(0, || Prefetch::new(Arc::new(Countdown), sampler.clone(), 4..40, 2));
        assert!(without.worker.is_none());
        assert_eq!(without.map(show).collect::<Vec<_>>(), direct, "where no thread can be started");
    }

    #[test]
    fn dropping_early_does_not_hang() {
        let sampler = Arc::new(Sampler::new(20, 3, 2, true, false, None).unwrap());
        for taken in [0, 1, 5] {
            let mut ahead = Prefetch::new(Arc::new(Countdown), sampler.clone(), 0..u64::MAX, 2);
            for _ in 0..taken {
                assert!(ahead.next().is_some());
            }
        }
    }
}
