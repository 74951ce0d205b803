//! Class weights: examples of some classes count more than others.

use std::sync::Arc;

use gulliver_graph::model::weighted::example_weights;

use crate::data::{Batch, DataError, DataInfo, Dataset, tensor};
use crate::host::HostData;

/// Adds "weight" f32 `[b]` by the class in "y" to the batches of another set, unless they already have weights.
pub struct WeightedClasses {
    whole: Arc<dyn Dataset>,
    /// By class.
    weights: Arc<[f32]>,
    /// Whether the weights of a batch are scaled to a mean of one.
    by_batch: bool,
}

impl WeightedClasses {
    /// For training: the weights of a batch have mean one, so the mean of weight times loss is the weighted mean of the
    /// losses, however the batch is sliced.
    pub fn for_training(whole: Arc<dyn Dataset>, weights: Arc<[f32]>) -> WeightedClasses {
        WeightedClasses { whole, weights, by_batch: true }
    }

    /// For evaluation: the class weights themselves, so that sums over all batches give the weighted mean.
    pub fn for_evaluation(whole: Arc<dyn Dataset>, weights: Arc<[f32]>) -> WeightedClasses {
        WeightedClasses { whole, weights, by_batch: false }
    }

    fn weigh(&self, mut batch: Batch) -> Batch {
        if batch.get("weight").is_some() {
            return batch;
        }
        let Some(classes) = batch.get("y").and_then(|y| y.as_i64()) else { return batch };
        let weights = match self.by_batch {
            true => example_weights(&self.weights, classes.iter().copied()),
            false => {
                let of = |class: &i64| usize::try_from(*class).ok().and_then(|class| self.weights.get(class));
                classes.iter().map(|class| of(class).copied().unwrap_or(1.0)).collect()
            }
        };
        batch.fields.push(("weight".into(), tensor(&[weights.len()], HostData::F32(weights))));
        batch
    }
}

impl Dataset for WeightedClasses {
    fn len(&self) -> usize {
        self.whole.len()
    }

    fn length(&self, i: usize) -> Option<usize> {
        self.whole.length(i)
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        Ok(self.weigh(self.whole.batch(indices)?))
    }

    fn batch_in_epoch(&self, indices: &[usize], epoch: u64) -> Result<Batch, DataError> {
        Ok(self.weigh(self.whole.batch_in_epoch(indices, epoch)?))
    }

    fn info(&self) -> DataInfo {
        self.whole.info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataOptions, open};

    #[test]
    fn batches_have_the_weights_of_their_classes() {
        let options = DataOptions {
            kind: "blobs".into(),
            classes: Some(3),
            examples: Some(30),
            ..DataOptions::default()
        };
        let (set, _) = open(&options).unwrap();
        let weights: Arc<[f32]> = [1.0, 2.0, 5.0].into();
        let raw = WeightedClasses::for_evaluation(set.clone(), weights.clone()).batch(&[0, 5, 7, 9]).unwrap();
        let y = raw.get("y").unwrap().as_i64().unwrap().to_vec();
        let of = |batch: &Batch| batch.get("weight").unwrap().as_f32().unwrap().to_vec();
        assert_eq!(of(&raw), y.iter().map(|&class| weights[class as usize]).collect::<Vec<_>>());
        let scaled = WeightedClasses::for_training(set, weights).batch_in_epoch(&[0, 5, 7, 9], 3).unwrap();
        let sum: f32 = of(&raw).iter().sum();
        let expected = of(&raw).into_iter().map(|w| w * 4.0 / sum);
        assert!(of(&scaled).into_iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
    }
}
