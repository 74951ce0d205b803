//! Data sets that change the batches of another data set.

pub mod augment;
pub mod masked;
pub mod weighted;

use super::{Batch, DataError, DataInfo, Dataset};
use std::sync::Arc;

/// A change of batches.
pub trait Transform: Send + Sync {
    /// Changes the batch of these examples; `epoch` is `None` outside training.
    fn apply(&self, batch: &mut Batch, indices: &[usize], epoch: Option<u64>);

    /// The description of the changed set.
    fn describe(&self, info: DataInfo) -> DataInfo {
        info
    }
}

/// The examples of another set, changed by a transform.
pub struct Transformed<T> {
    inner: Arc<dyn Dataset>,
    transform: T,
}

impl<T: Transform> Dataset for Transformed<T> {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn length(&self, i: usize) -> Option<usize> {
        self.inner.length(i)
    }

    fn class(&self, i: usize) -> Option<u32> {
        self.inner.class(i)
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        let mut batch = self.inner.batch(indices)?;
        self.transform.apply(&mut batch, indices, None);
        Ok(batch)
    }

    fn batch_in_epoch(&self, indices: &[usize], epoch: u64) -> Result<Batch, DataError> {
        let mut batch = self.inner.batch_in_epoch(indices, epoch)?;
        self.transform.apply(&mut batch, indices, Some(epoch));
        Ok(batch)
    }

    fn info(&self) -> DataInfo {
        self.transform.describe(self.inner.info())
    }
}
