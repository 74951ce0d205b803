//! Random token ids, for benchmarks of language models.

use gulliver_graph::model::IGNORED;
use gulliver_graph::random::{RandomStream, hash_name};

use super::generated::Draw;
use crate::data::format::sequences::{mask_and_length, pad};
use crate::data::{Batch, DataError, DataInfo, Dataset, check_indices, class_tensor};

/// x `[b, t]`; y `[b]` random classes, or without classes the next ids `[b, t]`. Examples of varying lengths also have
/// "mask" and "length".
pub struct Tokens {
    /// Source of the ids.
    pub seed: u64,
    /// Number of the first example.
    pub first: u64,
    /// Number of examples.
    pub examples: usize,
    /// Number of different ids.
    pub vocabulary: usize,
    /// Shortest example.
    pub min_length: usize,
    /// Longest example.
    pub length: usize,
    /// Number of classes, or none for next-token prediction.
    pub classes: Option<usize>,
}

impl Tokens {
    fn length_of(&self, i: usize) -> usize {
        let mut draw = Draw::new(self.seed, "data.tokens.length", self.first + i as u64);
        self.min_length + draw.below(self.length - self.min_length + 1)
    }

    fn ids(&self, i: usize, count: usize) -> Vec<u32> {
        let stream = RandomStream::new(self.seed, hash_name("data.tokens"), self.first + i as u64);
        (0..count as u64).map(|t| stream.below(t, self.vocabulary as u64) as u32).collect()
    }
}

impl Dataset for Tokens {
    fn len(&self) -> usize {
        self.examples
    }

    fn length(&self, i: usize) -> Option<usize> {
        (self.min_length < self.length && i < self.examples).then(|| self.length_of(i))
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.examples)?;
        let lengths: Vec<usize> = indices.iter().map(|&i| self.length_of(i)).collect();
        let all: Vec<Vec<u32>> = indices.iter().zip(&lengths).map(|(&i, &n)| self.ids(i, n + 1)).collect();
        let rows = |shift: usize| -> Vec<&[u32]> {
            all.iter().zip(&lengths).map(|(ids, &n)| &ids[shift..shift + n]).collect()
        };
        let y = match self.classes {
            None => pad(&rows(1), IGNORED),
            Some(classes) => class_tensor(indices.iter().map(|&i| {
                let mut draw = Draw::new(self.seed, "data.tokens.class", self.first + i as u64);
                draw.below(classes) as u32
            })),
        };
        let mut batch = Batch::of([("x", pad(&rows(0), 0)), ("y", y)]);
        if self.min_length < self.length {
            let (mask, length) = mask_and_length(&lengths);
            batch.fields.extend(Batch::of([("mask", mask), ("length", length)]).fields);
        }
        Ok(batch)
    }

    fn info(&self) -> DataInfo {
        DataInfo {
            examples: self.examples,
            classes: self.classes,
            shape: vec![if self.min_length < self.length { 0 } else { self.length }],
            vocabulary: Some(self.vocabulary),
            ..DataInfo::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varying_tokens_have_a_mask() {
        let set = Tokens {
            seed: 3,
            first: 9,
            examples: 40,
            vocabulary: 11,
            min_length: 2,
            length: 9,
            classes: Some(2),
        };
        let indices: Vec<usize> = (0..40).collect();
        let b = set.batch(&indices).unwrap();
        let lengths = b.get("length").unwrap().as_i64().unwrap();
        assert!((0..40).all(|i| set.length(i) == Some(lengths[i] as usize)));
        assert_eq!((*lengths.iter().min().unwrap(), *lengths.iter().max().unwrap()), (2, 9));
        assert_eq!(b.get("mask").unwrap().shape(), [40, 9]);
    }
}
