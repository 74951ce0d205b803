//! Masked language modelling: some tokens are hidden in x, and y holds them. The choice depends only on the seed, the
//! epoch and the example.

use std::sync::Arc;

use gulliver_graph::model::IGNORED;
use gulliver_graph::random::{RandomStream, hash_name};

use crate::data::{Batch, DataError, DataInfo, Dataset, tensor};
use crate::host::HostData;

/// Chooses a share of the tokens of another set, at least one per example. Of these, 80 % become the mask, 10 % a random
/// token, and 10 % stay. y is the original token where one was chosen and [`IGNORED`] elsewhere. The id of the mask is
/// the first after those of the other set.
pub struct Masked {
    whole: Arc<dyn Dataset>,
    seed: u64,
    share: f32,
    mask: i64,
}

impl Masked {
    /// Hides this share, above 0 and up to 1, of the tokens of `whole`.
    pub fn new(whole: Arc<dyn Dataset>, share: f64, seed: u64) -> Result<Masked, DataError> {
        let info = whole.info();
        let (Some(vocabulary), None) = (info.vocabulary, info.classes) else {
            let what = "only sequences of tokens without classes can be masked";
            return Err(DataError::option("masked", what));
        };
        if !(share > 0.0 && share <= 1.0) {
            return Err(DataError::option("masked", format!("{share} is not a share above 0 and up to 1")));
        }
        Ok(Masked { whole, seed, share: share as f32, mask: vocabulary as i64 })
    }

    /// Hides tokens of one example in `x` and writes them to `y`.
    fn hide(&self, example: usize, epoch: u64, x: &mut [i64], y: &mut [i64]) {
        // Unique as long as both examples and epochs are below 2³².
        let index = epoch << 32 | example as u64;
        let stream = |purpose| RandomStream::new(self.seed, hash_name(purpose), index);
        let (choice, fate, token) =
            (stream("data.masked.choice"), stream("data.masked.fate"), stream("data.masked.token"));
        let mut chosen: Vec<usize> =
            (0..x.len()).filter(|&t| choice.uniform_at(t as u64) < self.share).collect();
        if chosen.is_empty() && !x.is_empty() {
            chosen.push(stream("data.masked.one").below(0, x.len() as u64) as usize);
        }
        for t in chosen {
            y[t] = x[t];
            match fate.below(t as u64, 10) {
                0..8 => x[t] = self.mask,
                8 => x[t] = token.below(t as u64, self.mask as u64) as i64,
                _ => {}
            }
        }
    }
}

impl Dataset for Masked {
    fn len(&self) -> usize {
        self.whole.len()
    }

    fn length(&self, i: usize) -> Option<usize> {
        self.whole.length(i)
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        self.batch_in_epoch(indices, 0)
    }

    fn batch_in_epoch(&self, indices: &[usize], epoch: u64) -> Result<Batch, DataError> {
        let mut batch = self.whole.batch_in_epoch(indices, epoch)?;
        let lengths = batch.get("length").and_then(|t| t.as_i64()).map(<[i64]>::to_vec);
        let Some((_, tokens)) = batch.fields.iter_mut().find(|(name, _)| name == "x") else {
            return Ok(batch);
        };
        let shape = tokens.shape().to_vec();
        let width = shape.last().copied().unwrap_or(0);
        let mut y = vec![IGNORED; shape.iter().product()];
        if let HostData::I64(x) = tokens.data_mut() {
            let rows = x.chunks_mut(width.max(1)).zip(y.chunks_mut(width.max(1)));
            for (row, ((x, y), &example)) in rows.zip(indices).enumerate() {
                let length = lengths.as_ref().map_or(width, |all| all[row] as usize);
                self.hide(example, epoch, &mut x[..length], &mut y[..length]);
            }
        }
        let y = tensor(&shape, HostData::I64(y));
        for (_, old) in batch.fields.iter_mut().filter(|(name, _)| name == "y") {
            *old = y.clone();
        }
        Ok(batch)
    }

    fn info(&self) -> DataInfo {
        let info = self.whole.info();
        DataInfo { vocabulary: info.vocabulary.map(|n| n + 1), ..info }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::builtin::tokens::Tokens;

    fn tokens(min_length: usize, classes: Option<usize>) -> Arc<dyn Dataset> {
        Arc::new(Tokens { seed: 1, first: 0, examples: 64, vocabulary: 50, min_length, length: 40, classes })
    }

    fn ids(batch: &Batch, name: &str) -> Vec<i64> {
        batch.get(name).unwrap().as_i64().unwrap().to_vec()
    }

    #[test]
    fn hidden_tokens_are_asked_for_and_nothing_else() {
        for (min_length, share) in [(40, 0.15), (2, 0.5), (1, 1e-9)] {
            let whole = tokens(min_length, None);
            let set = Masked::new(whole.clone(), share, 3).unwrap();
            assert_eq!(set.info().vocabulary, Some(51));
            let all: Vec<usize> = (0..64).collect();
            let (plain, hidden) = (whole.batch(&all).unwrap(), set.batch(&all).unwrap());
            let (before, x, y) = (ids(&plain, "x"), ids(&hidden, "x"), ids(&hidden, "y"));
            let real: Vec<bool> = match plain.get("mask").map(|m| m.data().clone()) {
                Some(HostData::Bool(mask)) => mask.iter().map(|&m| m == 1).collect(),
                _ => vec![true; x.len()],
            };
            let chosen: Vec<usize> = (0..y.len()).filter(|&i| y[i] != IGNORED).collect();
            assert!(chosen.iter().all(|&i| real[i] && y[i] == before[i]));
            assert!((0..x.len()).all(|i| chosen.contains(&i) || x[i] == before[i]));
            let width = x.len() / 64;
            assert!((0..64).all(|row| chosen.iter().any(|i| i / width == row)), "one in every example");
            let tokens = real.iter().filter(|r| **r).count() as f64;
            if share > 0.1 {
                let off = chosen.len() as f64 / tokens - share;
                assert!(off.abs() < 0.05, "{off}");
                let masked = chosen.iter().filter(|&&i| x[i] == 50).count() as f64 / chosen.len() as f64;
                assert!((masked - 0.8).abs() < 0.07, "{masked}");
                assert!(chosen.iter().any(|&i| x[i] == y[i]));
                assert!(chosen.iter().any(|&i| x[i] != y[i] && x[i] != 50));
            }
        }
    }

    #[test]
    fn what_is_hidden_depends_on_seed_epoch_and_example_only() {
        let set = |seed| Masked::new(tokens(40, None), 0.15, seed).unwrap();
        let two = set(3).batch_in_epoch(&[7, 8], 2).unwrap();
        let one = set(3).batch_in_epoch(&[8], 2).unwrap();
        assert_eq!(ids(&two, "x")[40..], ids(&one, "x"));
        assert_eq!(ids(&two, "y")[40..], ids(&one, "y"));
        for (seed, epoch) in [(3, 1), (4, 2)] {
            assert_ne!(set(seed).batch_in_epoch(&[7, 8], epoch).unwrap(), two);
        }
    }

    #[test]
    fn only_plain_tokens_and_sensible_shares() {
        assert!(Masked::new(tokens(40, Some(3)), 0.15, 0).is_err());
        for share in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(Masked::new(tokens(40, None), share, 0).is_err(), "{share}");
        }
    }
}
