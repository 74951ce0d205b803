//! Random crops and flips of images. The change of an example depends only on the seed, the epoch and the example, not
//! on its batch.

use std::sync::Arc;

use gulliver_graph::random::{RandomStream, hash_name};

use crate::data::{Batch, DataError, DataInfo, Dataset};
use crate::host::{HostData, HostTensor};

/// The changes to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augment {
    /// Rows and columns of zeros added around the image before a random crop of its size.
    pub padding: usize,
    /// Whether every other image is mirrored left to right.
    pub flip: bool,
    /// Source of the random choices.
    pub seed: u64,
}

/// Images `[b, channels, height, width]`, augmented in training batches only: `batch` is unchanged.
pub struct Augmented {
    inner: Arc<dyn Dataset>,
    augment: Augment,
}

impl Augmented {
    /// Fails unless "x" of `inner` is an image.
    pub fn new(inner: Arc<dyn Dataset>, augment: Augment) -> Result<Augmented, DataError> {
        if augment.padding > 1 << 20 {
            return Err(DataError::option("padding", format!("{} is absurdly large", augment.padding)));
        }
        let shape = inner.info().shape;
        match shape.len() == 3 {
            true => Ok(Augmented { inner, augment }),
            false => {
                let what = format!("only images can be augmented, but x has shape {shape:?}");
                Err(DataError::option("augment", what))
            }
        }
    }

    fn apply(&self, x: &mut HostTensor, indices: &[usize], epoch: u64) {
        let &[_, _, height, width] = x.shape() else { return };
        let HostData::F32(values) = x.data_mut() else { return };
        let Augment { padding, flip, seed } = self.augment;
        let per_example = values.len() / indices.len().max(1);
        let epoch_key = RandomStream::new(seed, hash_name("data.augment"), epoch).u64_at(0);
        let mut old = vec![0.0f32; height * width];
        for (example, &i) in values.chunks_mut(per_example.max(1)).zip(indices) {
            let stream = RandomStream::new(seed, epoch_key, i as u64);
            let span = 2 * padding as u64 + 1;
            let down = stream.below(0, span) as isize - padding as isize;
            let right = stream.below(1, span) as isize - padding as isize;
            let mirror = flip && stream.below(2, 2) == 1;
            for plane in example.chunks_mut(height * width) {
                old.copy_from_slice(plane);
                for row in 0..height {
                    for column in 0..width {
                        let from_column = if mirror { width - 1 - column } else { column };
                        let r = row.checked_add_signed(down).filter(|&r| r < height);
                        let c = from_column.checked_add_signed(right).filter(|&c| c < width);
                        plane[row * width + column] = match (r, c) {
                            (Some(r), Some(c)) => old[r * width + c],
                            _ => 0.0,
                        };
                    }
                }
            }
        }
    }
}

impl Dataset for Augmented {
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
        self.inner.batch(indices)
    }

    fn batch_in_epoch(&self, indices: &[usize], epoch: u64) -> Result<Batch, DataError> {
        let mut batch = self.inner.batch_in_epoch(indices, epoch)?;
        if let Some((_, x)) = batch.fields.iter_mut().find(|(name, _)| name == "x") {
            self.apply(x, indices, epoch);
        }
        Ok(batch)
    }

    fn info(&self) -> DataInfo {
        self.inner.info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::builtin::digits::Digits;
    use crate::data::builtin::generated::{Generated, Noise};

    fn x(batch: &Batch, row: usize) -> Vec<f32> {
        let all = batch.get("x").unwrap();
        let width = all.shape()[1..].iter().product::<usize>();
        all.as_f32().unwrap()[row * width..(row + 1) * width].to_vec()
    }

    fn digits(examples: usize, size: [usize; 2]) -> Arc<dyn Dataset> {
        Arc::new(Generated { seed: 1, first: 0, examples, generator: Digits { size, normalise: true } })
    }

    #[test]
    fn depends_on_seed_epoch_and_example_only() {
        let digits = digits(50, [16, 16]);
        let make =
            |padding, flip, seed| Augmented::new(digits.clone(), Augment { padding, flip, seed }).unwrap();
        let a = make(2, true, 7);
        let whole = a.batch_in_epoch(&[3, 4, 5], 1).unwrap();
        assert_eq!(x(&whole, 1), x(&a.batch_in_epoch(&[4], 1).unwrap(), 0));
        let differs = |other: Batch| (0..3).any(|i| x(&other, i) != x(&whole, i));
        assert!(differs(a.batch_in_epoch(&[3, 4, 5], 2).unwrap()));
        assert!(differs(make(2, true, 8).batch_in_epoch(&[3, 4, 5], 1).unwrap()));
        assert!(differs(a.batch(&[3, 4, 5]).unwrap()));
        assert_eq!(a.batch(&[3]).unwrap(), digits.batch(&[3]).unwrap());
        assert_eq!(make(0, false, 7).batch_in_epoch(&[3], 9).unwrap(), digits.batch(&[3]).unwrap());
        // A flip alone either keeps or mirrors.
        let (mut kept, mut mirrored) = (0, 0);
        for i in 0..50 {
            let old = x(&digits.batch(&[i]).unwrap(), 0);
            let new = x(&make(0, true, 7).batch_in_epoch(&[i], 0).unwrap(), 0);
            let mirror: Vec<f32> = old.chunks(16).flat_map(|row| row.iter().rev().copied()).collect();
            kept += usize::from(new == old);
            mirrored += usize::from(new == mirror);
        }
        assert!(kept + mirrored == 50 && kept > 10 && mirrored > 10, "{kept} {mirrored}");
    }

    #[test]
    fn rectangles_are_mirrored_and_moved_within_their_own_rows() {
        let digits = digits(20, [8, 12]);
        let set = Augmented::new(digits.clone(), Augment { padding: 2, flip: true, seed: 7 }).unwrap();
        for i in 0..20 {
            let (old, new) =
                (x(&digits.batch(&[i]).unwrap(), 0), x(&set.batch_in_epoch(&[i], 3).unwrap(), 0));
            let found = (-2..=2isize).flat_map(|down| (-2..=2isize).map(move |right| (down, right))).any(
                |(down, right)| {
                    [false, true].into_iter().any(|mirror| {
                        (0..8usize).all(|row| {
                            (0..12usize).all(|column| {
                                let from = if mirror { 11 - column } else { column };
                                let (r, c) = (row.checked_add_signed(down), from.checked_add_signed(right));
                                let expected = match (r.filter(|&r| r < 8), c.filter(|&c| c < 12)) {
                                    (Some(r), Some(c)) => old[r * 12 + c],
                                    _ => 0.0,
                                };
                                new[row * 12 + column] == expected
                            })
                        })
                    })
                },
            );
            assert!(found, "{i}");
        }
    }

    #[test]
    fn only_images() {
        let noise = Noise { shape: vec![4], classes: 2 };
        let flat = Generated { seed: 0, first: 0, examples: 3, generator: noise };
        assert!(Augmented::new(Arc::new(flat), Augment { padding: 1, flip: true, seed: 0 }).is_err());
    }
}
