//! IDX files (MNIST and its relatives), plain or gzipped: u8 images and u8 labels.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{FileBytes, inflated_limit, is_gzip, read_limited};
use super::pixels::{Pixels, RecordFile};
use crate::data::DataError;

/// An IDX file of unsigned bytes.
pub struct Idx {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The whole (inflated) file.
    pub bytes: FileBytes,
    /// Offset of the first element.
    pub offset: usize,
}

/// Reads a file whose header has `rank` extents. The header must agree with the file's size.
pub fn read(path: &Path, rank: usize) -> Result<Idx, DataError> {
    let stored = FileBytes::open(path)?;
    let header = 4 + 4 * rank;
    let start = stored.read(0..header.min(stored.len()))?;
    let (shape, expected, bytes) = if is_gzip(&start) {
        let whole = || BufReader::with_capacity(1 << 16, stored.reader(0..stored.len()));
        let inflate = |limit| read_limited(path, flate2::bufread::MultiGzDecoder::new(whole()), limit);
        let (shape, expected) = parse_header(path, &inflate(header as u64)?, rank)?;
        if expected > inflated_limit(stored.len()) {
            let what = format!("header promises {expected} bytes, more than the compressed file can hold");
            return Err(DataError::at(path, 4, what));
        }
        (shape, expected, FileBytes::owned(path, inflate(expected + 1)?))
    } else {
        let (shape, expected) = parse_header(path, &start, rank)?;
        drop(start);
        (shape, expected, stored)
    };
    let found = bytes.len() as u64;
    if found != expected {
        let length = if found > expected { "longer".to_string() } else { format!("{found} bytes long") };
        let what = format!("header promises {expected} bytes, but the content is {length}");
        return Err(DataError::at(path, expected.min(found), what));
    }
    Ok(Idx { shape, bytes, offset: header })
}

/// Extents and the size of the whole file.
fn parse_header(path: &Path, start: &[u8], rank: usize) -> Result<(Vec<usize>, u64), DataError> {
    let header = 4 + 4 * rank;
    if start.len() < header {
        let what = format!("file ends within its header of {header} bytes");
        return Err(DataError::at(path, start.len() as u64, what));
    }
    if start[0] != 0 || start[1] != 0 {
        return Err(DataError::at(path, 0, "is not an IDX file: it must start with two zero bytes"));
    }
    if start[2] != 0x08 {
        let what = format!("element type {:#04x}, but only unsigned bytes (0x08) are read", start[2]);
        return Err(DataError::at(path, 2, what));
    }
    if usize::from(start[3]) != rank {
        return Err(DataError::at(path, 3, format!("{} dimensions where {rank} are needed", start[3])));
    }
    let shape: Vec<u64> = start[4..header]
        .chunks_exact(4)
        .map(|b| u64::from(u32::from_be_bytes([b[0], b[1], b[2], b[3]])))
        .collect();
    let size =
        shape.iter().try_fold(1u64, |a, &b| a.checked_mul(b)).and_then(|n| n.checked_add(header as u64));
    match size {
        Some(size) => Ok((shape.iter().map(|&n| n as usize).collect(), size)),
        None => Err(DataError::at(path, 4, format!("absurd dimensions {shape:?}"))),
    }
}

/// Images and their labels, not normalised. Classes are counted unless given.
pub fn open(images: &Path, labels: &Path, classes: Option<usize>) -> Result<Pixels, DataError> {
    let (x, y) = (read(images, 3)?, read(labels, 1)?);
    let [count, height, width] = [x.shape[0], x.shape[1], x.shape[2]];
    if count != y.shape[0] {
        let what = format!("{} labels for the {count} images in {}", y.shape[0], images.display());
        return Err(DataError::at(labels, 4, what));
    }
    if count == 0 || height == 0 || width == 0 {
        return Err(DataError::at(images, 4, format!("no pixels: dimensions {:?}", x.shape)));
    }
    let ids = y.bytes.read(y.offset..y.bytes.len())?.into_owned();
    let found = usize::from(ids.iter().copied().max().unwrap_or(0)) + 1;
    let classes = classes.unwrap_or(found);
    if let Some(at) = ids.iter().position(|&id| usize::from(id) >= classes) {
        let what = format!("label {} is not below the {classes} classes", ids[at]);
        return Err(DataError::at(labels, (y.offset + at) as u64, what));
    }
    let part = RecordFile {
        offset: x.offset,
        bytes: Arc::new(x.bytes),
        stride: height * width,
        records: count,
        labels: ids,
    };
    Ok(Pixels {
        parts: vec![part],
        shape: [1, height, width],
        classes,
        class_names: vec![],
        mean: vec![],
        std: vec![],
    })
}

/// Paths of an image file and its label file.
pub type Pair = (PathBuf, PathBuf);

/// The files of a directory by their usual names: training, and test if present.
pub fn find(directory: &Path) -> Result<(Pair, Option<Pair>), DataError> {
    let file = |prefixes: &[&str], what: &str, rank: usize| {
        let candidates = prefixes.iter().flat_map(|prefix| {
            ["-", "."].into_iter().flat_map(move |dot| {
                ["", ".gz"].map(|gz| directory.join(format!("{prefix}-{what}{dot}idx{rank}-ubyte{gz}")))
            })
        });
        candidates.into_iter().find(|path| path.is_file())
    };
    let pair = |prefixes: &[&str]| Some((file(prefixes, "images", 3)?, file(prefixes, "labels", 1)?));
    let train = pair(&["train"]).ok_or_else(|| {
        DataError::file(directory, "has no train-images-idx3-ubyte[.gz] with train-labels-idx1-ubyte[.gz]")
    })?;
    Ok((train, pair(&["t10k", "test"])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Dataset;
    use crate::scratch::{ScratchDir, torture};
    use std::io::Write;

    fn idx(shape: &[u32], data: &[u8]) -> Vec<u8> {
        let mut out = vec![0, 0, 8, shape.len() as u8];
        shape.iter().for_each(|n| out.extend(n.to_be_bytes()));
        out.extend(data);
        out
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_and_gzipped_directories_agree() {
        let dir = ScratchDir::new();
        let images = idx(&[3, 2, 2], &[0, 51, 102, 153, 204, 255, 0, 51, 1, 2, 3, 4]);
        let labels = idx(&[3], &[2, 0, 1]);
        dir.write("a/train-images-idx3-ubyte", &images);
        dir.write("a/train-labels-idx1-ubyte", &labels);
        dir.write("b/train-images-idx3-ubyte.gz", &gzip(&images));
        dir.write("b/train-labels.idx1-ubyte.gz", &gzip(&labels));
        dir.write("b/t10k-images-idx3-ubyte.gz", &gzip(&images));
        dir.write("b/t10k-labels-idx1-ubyte", &labels);
        for (name, has_test) in [("a", false), ("b", true)] {
            let ((x, y), test) = find(&dir.join(name)).unwrap();
            assert_eq!(test.is_some(), has_test);
            let set = open(&x, &y, None).unwrap();
            let b = set.batch(&[1, 0]).unwrap();
            assert_eq!(b.get("x").unwrap().as_f32().unwrap()[..5], [0.8, 1.0, 0.0, 0.2, 0.0]);
            assert_eq!(b.get("x").unwrap().shape(), [2, 1, 2, 2]);
            assert_eq!(b.get("y").unwrap().as_i64().unwrap(), [0, 2]);
            assert_eq!((set.info().classes, set.len()), (Some(3), 3));
        }
        assert!(find(&dir).is_err());
    }

    #[test]
    fn damaged_files_are_errors_that_name_file_and_offset() {
        let dir = ScratchDir::new();
        let labels = dir.write("l", &idx(&[2], &[0, 1]));
        for (bytes, offset) in [
            (idx(&[2, 1, 1], &[5]), 17),
            (idx(&[2, 1, 1], &[5, 6, 7]), 18),
            (idx(&[u32::MAX, u32::MAX, u32::MAX], &[5]), 4),
            (idx(&[u32::MAX, u32::MAX, 1], &[5]), 17),
            (gzip(&idx(&[u32::MAX, 1000, 1], &[5])), 4),
            (gzip(&idx(&[2, 1, 1], &[5])), 17),
            (idx(&[2, 1], &[5, 6]), 14),
            (vec![0, 0, 9, 3], 4),
        ] {
            let images = dir.write("x", &bytes);
            let message = open(&images, &labels, None).err().unwrap().to_string();
            assert!(message.contains(&format!("x: at byte {offset}: ")), "{message}");
        }
        let images = dir.write("x", &idx(&[2, 1, 1], &[5, 6]));
        assert!(open(&images, &labels, Some(1)).err().unwrap().to_string().contains("l: at byte 9"));
        assert!(open(&images, &dir.write("k", &idx(&[1], &[0])), None).is_err());
        for good in [idx(&[2, 1, 1], &[5, 6]), gzip(&idx(&[2, 1, 1], &[5, 6]))] {
            torture(&good, |bytes| {
                let images = dir.write("x", bytes);
                if let Ok(set) = open(&images, &labels, None) {
                    set.batch(&[0, 1]).unwrap();
                }
            });
        }
    }
}
