//! CIFAR-10 and CIFAR-100 in binary form: records of one or two label bytes and 3 x 32 x 32 pixels.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{FileBytes, regular};
use super::pixels::{Pixels, RecordFile};
use crate::data::DataError;

const PIXELS: usize = 3 * 32 * 32;

/// The data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cifar {
    /// 10 classes, one label byte.
    Ten,
    /// 100 classes; a coarse label byte, which is ignored, and a fine one.
    Hundred,
}

impl Cifar {
    fn label_bytes(self) -> usize {
        match self {
            Cifar::Ten => 1,
            Cifar::Hundred => 2,
        }
    }

    fn classes(self) -> usize {
        match self {
            Cifar::Ten => 10,
            Cifar::Hundred => 100,
        }
    }
}

/// The records of these files in order, not normalised.
pub fn open(which: Cifar, files: &[PathBuf]) -> Result<Pixels, DataError> {
    let parts = files.iter().map(|path| part(which, path)).collect::<Result<_, _>>()?;
    let class_names = files.first().map(|file| class_names(which, file)).unwrap_or_default();
    Ok(Pixels { parts, shape: [3, 32, 32], classes: which.classes(), class_names, mean: vec![], std: vec![] })
}

/// The class names in the list distributed with the files; empty if the list is absent or incomplete.
fn class_names(which: Cifar, file: &Path) -> Vec<String> {
    let list = match which {
        Cifar::Ten => "batches.meta.txt",
        Cifar::Hundred => "fine_label_names.txt",
    };
    let content = regular(&file.with_file_name(list)).ok().and_then(|file| {
        let mut content = String::new();
        file.take(1 << 16).read_to_string(&mut content).ok().map(|_| content)
    });
    let content = content.unwrap_or_default();
    let names: Vec<String> =
        content.lines().map(str::trim).filter(|n| !n.is_empty()).map(String::from).collect();
    if names.len() == which.classes() { names } else { Vec::new() }
}

fn part(which: Cifar, path: &Path) -> Result<RecordFile, DataError> {
    let bytes = FileBytes::open(path)?;
    let (label_bytes, stride) = (which.label_bytes(), which.label_bytes() + PIXELS);
    if bytes.is_empty() || bytes.len() % stride != 0 {
        let what = format!("{} bytes are not whole records of {stride}", bytes.len());
        return Err(DataError::at(path, (bytes.len() / stride * stride) as u64, what));
    }
    let mut labels = Vec::with_capacity(bytes.len() / stride);
    for start in (0..bytes.len()).step_by(stride) {
        let at = start + label_bytes - 1;
        labels.extend_from_slice(&bytes.read(at..at + 1)?);
    }
    if let Some(at) = labels.iter().position(|&label| usize::from(label) >= which.classes()) {
        let what = format!("label {} is not below {}", labels[at], which.classes());
        return Err(DataError::at(path, (at * stride + label_bytes - 1) as u64, what));
    }
    Ok(RecordFile { bytes: Arc::new(bytes), offset: label_bytes, stride, records: labels.len(), labels })
}

/// Training and test files of a directory by their usual names. A path to a file is the only training file.
pub fn find(which: Cifar, path: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError> {
    if path.exists() && !path.is_dir() {
        return Ok((vec![path.into()], vec![]));
    }
    let (train, test): (Vec<String>, &str) = match which {
        Cifar::Ten => ((1..=5).map(|i| format!("data_batch_{i}.bin")).collect(), "test_batch.bin"),
        Cifar::Hundred => (vec!["train.bin".into()], "test.bin"),
    };
    let train: Vec<PathBuf> = train.iter().map(|name| path.join(name)).filter(|p| p.is_file()).collect();
    if train.is_empty() {
        let names = if which == Cifar::Ten { "data_batch_1.bin to data_batch_5.bin" } else { "train.bin" };
        return Err(DataError::file(path, format!("has no {names}")));
    }
    Ok((train, Some(path.join(test)).filter(|p| p.is_file()).into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Dataset;
    use crate::scratch::ScratchDir;

    #[test]
    fn records_are_read_and_checked() {
        let dir = ScratchDir::new();
        for (which, labels, train, test) in [
            (Cifar::Ten, &[&[3u8][..], &[9]], "data_batch_2.bin", "test_batch.bin"),
            (Cifar::Hundred, &[&[7, 42], &[0, 99]], "train.bin", "test.bin"),
        ] {
            let good: Vec<u8> = labels
                .iter()
                .enumerate()
                .flat_map(|(i, l)| [l, &vec![255 * i as u8; PIXELS][..]].concat())
                .collect();
            dir.write(train, &good);
            dir.write(test, &good);
            let (files, tests) = find(which, &dir).unwrap();
            assert_eq!((files.len(), tests.len()), (1, 1));
            let set = open(which, &files).unwrap();
            let b = set.batch(&[0, 1]).unwrap();
            let x = b.get("x").unwrap().as_f32().unwrap();
            assert!(x[..PIXELS].iter().all(|&v| v == 0.0) && x[PIXELS..].iter().all(|&v| v == 1.0));
            let y: Vec<i64> = labels.iter().map(|l| i64::from(*l.last().unwrap())).collect();
            assert_eq!(b.get("y").unwrap().as_i64().unwrap(), y);

            for cut in [0, 1, good.len() / 2 - 1, good.len() - 1] {
                assert!(open(which, &[dir.write("bad.bin", &good[..cut])]).is_err());
            }
            let mut wrong = good.clone();
            wrong[labels[0].len() - 1] = 200;
            assert!(
                open(which, &[dir.write("bad.bin", &wrong)]).err().unwrap().to_string().contains("label 200")
            );
        }
        assert!(find(Cifar::Ten, &dir.join("absent")).is_err());
    }
}
