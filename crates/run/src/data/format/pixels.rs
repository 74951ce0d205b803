//! Images stored as 8-bit pixels in records of equal size, as in IDX and CIFAR files. Pixels stay in the file; a batch
//! scales them to 0..1 and normalises each channel.

use std::borrow::Cow;
use std::sync::Arc;

use super::file::FileBytes;
use crate::data::{Batch, DataError, DataInfo, Dataset, check_indices, class_counts, class_tensor, tensor};
use crate::host::HostData;

/// Mean and standard deviation per channel.
pub type Statistics = (Vec<f32>, Vec<f32>);

/// A file of records of equal size.
pub struct RecordFile {
    /// The file's content.
    pub bytes: Arc<FileBytes>,
    /// Offset of the pixels of the first record.
    pub offset: usize,
    /// Bytes from one record to the next.
    pub stride: usize,
    /// Number of records.
    pub records: usize,
    /// Class of every record; empty when unknown.
    pub labels: Vec<u8>,
}

/// x `[b, channels, height, width]` f32 and y `[b]` i64.
pub struct Pixels {
    /// The files, in the order of their records.
    pub parts: Vec<RecordFile>,
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// Names of the classes; may be empty.
    pub class_names: Vec<String>,
    /// Subtracted per channel; empty for none.
    pub mean: Vec<f32>,
    /// Divided by, per channel; as long as `mean`.
    pub std: Vec<f32>,
}

impl Pixels {
    /// The file that holds record `i`, and the number of the record in it.
    fn find(&self, mut i: usize) -> Option<(&RecordFile, usize)> {
        for part in &self.parts {
            match i.checked_sub(part.records) {
                None => return Some((part, i)),
                Some(rest) => i = rest,
            }
        }
        None
    }

    fn record(&self, i: usize) -> Result<Cow<'_, [u8]>, DataError> {
        let (part, i) = self.find(i).ok_or(DataError::Index { index: i, examples: self.len() })?;
        let start = part.offset + i * part.stride;
        part.bytes.read(start..start + self.shape.iter().product::<usize>())
    }

    /// Mean and standard deviation of each channel over these examples, of pixels scaled to 0..1. The deviation of a
    /// constant channel is 1.
    pub fn statistics(&self, indices: impl Iterator<Item = usize>) -> Result<Statistics, DataError> {
        let [channels, height, width] = self.shape;
        // Integer sums do not depend on the order of the examples.
        let (mut sums, mut squares) = (vec![0u64; channels], vec![0u64; channels]);
        let mut count = 0u64;
        for i in indices {
            for (c, plane) in self.record(i)?.chunks(height * width).enumerate() {
                sums[c] += plane.iter().map(|&p| u64::from(p)).sum::<u64>();
                squares[c] += plane.iter().map(|&p| u64::from(p) * u64::from(p)).sum::<u64>();
            }
            count += (height * width) as u64;
        }
        let count = count.max(1) as f64;
        let moments = sums.iter().zip(&squares).map(|(&sum, &square)| {
            let mean = sum as f64 / count;
            let deviation = (square as f64 / count - mean * mean).max(0.0).sqrt() / 255.0;
            ((mean / 255.0) as f32, if deviation < 1e-6 { 1.0 } else { deviation as f32 })
        });
        Ok(moments.unzip())
    }
}

impl Dataset for Pixels {
    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.records).sum()
    }

    fn class(&self, i: usize) -> Option<u32> {
        let (part, i) = self.find(i)?;
        part.labels.get(i).map(|&label| label.into())
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError> {
        check_indices(indices, self.len())?;
        let [channels, height, width] = self.shape;
        let tables: Vec<[f32; 256]> = (0..channels)
            .map(|c| {
                let mean = self.mean.get(c).copied().unwrap_or(0.0);
                let std = self.std.get(c).copied().unwrap_or(1.0);
                std::array::from_fn(|p| (p as f32 / 255.0 - mean) / std)
            })
            .collect();
        let mut x = Vec::with_capacity(indices.len() * channels * height * width);
        for &i in indices {
            for (plane, table) in self.record(i)?.chunks(height * width).zip(&tables) {
                x.extend(plane.iter().map(|&p| table[p as usize]));
            }
        }
        let x = tensor(&[indices.len(), channels, height, width], HostData::F32(x));
        let classes: Option<Vec<u32>> = indices.iter().map(|&i| self.class(i)).collect();
        Ok(Batch::with_target(x, classes.map(|classes| class_tensor(classes.into_iter()))))
    }

    fn info(&self) -> DataInfo {
        DataInfo {
            examples: self.len(),
            classes: Some(self.classes),
            shape: self.shape.to_vec(),
            mean: self.mean.clone(),
            std: self.std.clone(),
            class_names: self.class_names.clone(),
            class_counts: class_counts(self, Some(self.classes)),
            ..DataInfo::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn records_of_all_parts_are_normalised() {
        let part = |bytes: &[u8], offset, labels: &[u8]| RecordFile {
            bytes: Arc::new(FileBytes::owned(Path::new("p"), bytes.to_vec())),
            offset,
            stride: 3,
            records: labels.len(),
            labels: labels.to_vec(),
        };
        let mut p = Pixels {
            parts: vec![part(&[9, 0, 255, 9, 51, 255], 1, &[4, 2]), part(&[255, 255], 0, &[1])],
            shape: [2, 1, 1],
            classes: 5,
            class_names: vec![],
            mean: vec![],
            std: vec![],
        };
        let b = p.batch(&[2, 0, 1]).unwrap();
        assert_eq!(b.get("x").unwrap().as_f32().unwrap(), [1.0, 1.0, 0.0, 1.0, 0.2, 1.0]);
        assert_eq!(b.get("x").unwrap().shape(), [3, 2, 1, 1]);
        assert_eq!(b.get("y").unwrap().as_i64().unwrap(), [1, 4, 2]);
        let (mean, std) = p.statistics(0..2).unwrap();
        assert!((mean[0] - 0.1).abs() < 1e-7 && (std[0] - 0.1).abs() < 1e-7);
        assert_eq!((mean[1], std[1]), (1.0, 1.0));
        (p.mean, p.std) = (mean, std);
        let x = p.batch(&[0, 1]).unwrap();
        assert!((x.get("x").unwrap().as_f32().unwrap()[0] + 1.0).abs() < 1e-6);
        assert!(p.batch(&[3]).is_err());
    }
}
