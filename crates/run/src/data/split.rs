//! Training and validation parts of one data set: a held-out fraction, or one of several folds.

use std::sync::Arc;

use gulliver_graph::random::{RandomStream, hash_name};

use super::{Batch, DataError, DataInfo, Dataset, check_indices, class_counts};

/// Selected examples of another data set.
pub struct Subset {
    /// The whole set.
    pub whole: Arc<dyn Dataset>,
    /// Indices of the examples, in order.
    pub indices: Vec<u32>,
}

impl Subset {
    fn of(&self, indices: &[usize]) -> Result<Vec<usize>, DataError> {
        check_indices(indices, self.indices.len())?;
        Ok(indices.iter().map(|&i| self.indices[i] as usize).collect())
    }
}

impl Dataset for Subset {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn length(&self, i: usize) -> Option<usize> {
        self.whole.length(*self.indices.get(i)? as usize)
    }

    fn class(&self, i: usize) -> Option<u32> {
        self.whole.class(*self.indices.get(i)? as usize)
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        self.whole.batch(&self.of(indices)?)
    }

    fn batch_in_epoch(&self, indices: &[usize], epoch: u64) -> Result<Batch, DataError> {
        self.whole.batch_in_epoch(&self.of(indices)?, epoch)
    }

    fn info(&self) -> DataInfo {
        let info = self.whole.info();
        DataInfo { examples: self.len(), class_counts: class_counts(self, info.classes), ..info }
    }
}

/// Number of validation examples: the rounded fraction, but at least one on each side; 0 if the fraction is 0.
pub fn validation_count(examples: usize, fraction: f64) -> Result<usize, DataError> {
    if !(0.0..1.0).contains(&fraction) {
        return Err(DataError::option("validation", format!("{fraction} is not a fraction from 0 up to 1")));
    }
    if fraction == 0.0 {
        return Ok(0);
    }
    if examples < 2 {
        let what = format!("{examples} examples cannot be split; use validation = 0");
        return Err(DataError::option("validation", what));
    }
    Ok(((examples as f64 * fraction).round() as usize).clamp(1, examples - 1))
}

/// Training and validation indices, each ascending.
pub type SplitIndices = (Vec<u32>, Vec<u32>);

/// Holds out a random fraction, which depends only on the arguments.
pub fn split(examples: usize, fraction: f64, seed: u64) -> Result<SplitIndices, DataError> {
    let held = validation_count(examples, fraction)?;
    let mut order = shuffled(examples, "data.split", seed)?;
    let mut validation = order.split_off(examples - held);
    order.sort_unstable();
    validation.sort_unstable();
    Ok((order, validation))
}

/// Holds out one of several folds. Every example is in exactly one fold, which depends only on its index, the number of
/// examples and the seed. Folds differ in size by at most one example.
pub fn fold(examples: usize, fold: usize, folds: usize, seed: u64) -> Result<SplitIndices, DataError> {
    if folds < 2 {
        return Err(DataError::option("folds", format!("{folds} is not enough; at least 2 are needed")));
    }
    if fold >= folds {
        let what = format!("there is no fold {fold} of {folds}; they are counted from 0");
        return Err(DataError::option("fold", what));
    }
    if folds > examples {
        let what = format!("{folds} folds are more than the {examples} examples");
        return Err(DataError::option("folds", what));
    }
    let mut order = shuffled(examples, "data.folds", seed)?;
    let start = |fold: usize| (fold as u128 * examples as u128 / folds as u128) as usize;
    let mut validation: Vec<u32> = order.drain(start(fold)..start(fold + 1)).collect();
    order.sort_unstable();
    validation.sort_unstable();
    Ok((order, validation))
}

/// All indices in a random order determined by purpose and seed.
fn shuffled(examples: usize, purpose: &str, seed: u64) -> Result<Vec<u32>, DataError> {
    let count = u32::try_from(examples)
        .map_err(|_| DataError::option("path", format!("{examples} examples are more than 2^32")))?;
    Ok(RandomStream::new(seed, hash_name(purpose), 0).permutation(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_complete_and_repeatable() {
        for (n, fraction, held) in [(10, 0.1, 1), (10, 0.0, 0), (1000, 0.25, 250), (2, 0.01, 1), (2, 0.99, 1)]
        {
            let (train, validation) = split(n, fraction, 3).unwrap();
            assert_eq!((train.len(), validation.len()), (n - held, held));
            let mut all = [train.clone(), validation].concat();
            all.sort_unstable();
            assert_eq!(all, (0..n as u32).collect::<Vec<_>>());
            assert_eq!(split(n, fraction, 3).unwrap().0, train);
        }
        assert_ne!(split(1000, 0.5, 1).unwrap(), split(1000, 0.5, 2).unwrap());
        for (n, fraction) in [(1, 0.5), (0, 0.5), (10, 1.0), (10, -0.1), (10, f64::NAN)] {
            assert!(split(n, fraction, 0).is_err());
        }
    }

    #[test]
    fn folds_are_equal_parts_of_the_whole() {
        for (n, folds) in [(10, 2), (10, 3), (100, 7), (5, 5), (1797, 10), (2, 2)] {
            let mut held = Vec::new();
            for i in 0..folds {
                let (train, validation) = fold(n, i, folds, 3).unwrap();
                assert!([n / folds, n.div_ceil(folds)].contains(&validation.len()), "{n} {folds}");
                let mut all = [train, validation.clone()].concat();
                all.sort_unstable();
                assert_eq!(all, (0..n as u32).collect::<Vec<_>>());
                assert_eq!(fold(n, i, folds, 3).unwrap().1, validation);
                held.extend(validation);
            }
            held.sort_unstable();
            assert_eq!(held, (0..n as u32).collect::<Vec<_>>());
        }
        assert_ne!(fold(1000, 0, 2, 1).unwrap(), fold(1000, 0, 2, 2).unwrap());
    }

    #[test]
    fn impossible_folds_say_what_is_wrong() {
        for (n, i, folds, expected) in [
            (10, 0, 0, "`folds`: 0 is not enough"),
            (10, 0, 1, "`folds`: 1 is not enough"),
            (10, 3, 3, "`fold`: there is no fold 3 of 3"),
            (2, 0, 3, "`folds`: 3 folds are more than the 2 examples"),
            (0, 0, 2, "`folds`: 2 folds are more than the 0 examples"),
            (usize::MAX, 0, 2, "more than 2^32"),
        ] {
            let error = fold(n, i, folds, 0).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
