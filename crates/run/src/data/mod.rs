//! From files (or from nothing) to batches. A [`Dataset`] is random-access examples, a
//! [`sampler::Sampler`] says which of them form step n, a [`prefetch::Prefetch`] makes them ahead
//! of time. Every batch is a pure function of the files, the options, the seed and the step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::host::{HostData, HostTensor};

pub mod builtin;
pub mod format;
pub mod mapping;
pub mod open;
pub mod options;
pub mod order;
pub mod prefetch;
pub mod sampler;
pub mod split;
pub mod transform;

pub use open::open;
pub use options::{DataOptions, KINDS};
pub use prefetch::Prefetch;
pub use sampler::{Buckets, Sampler};
pub use transform::weighted::WeightedClasses;

/// One batch: named tensors whose first axis is the example. "x" and "y"; padded sequences also
/// have "mask" (bool `[b, t]`, 1 where real) and "length" (i64 `[b]`).
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Name and tensor, in a fixed order.
    pub fields: Vec<(String, HostTensor)>,
}

impl Batch {
    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&HostTensor> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, tensor)| tensor)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.fields.iter().map(|(_, tensor)| tensor.as_bytes().len()).sum()
    }

    /// "x", and "y" if it is known.
    pub(crate) fn with_target(x: HostTensor, y: Option<HostTensor>) -> Batch {
        let mut batch = Batch::of([("x", x)]);
        batch.fields.extend(y.map(|y| ("y".to_string(), y)));
        batch
    }

    pub(crate) fn of<const N: usize>(fields: [(&str, HostTensor); N]) -> Batch {
        Batch { fields: fields.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect() }
    }
}

/// What a data set holds. Whatever was learned from the training files (characters, class names,
/// mean and standard deviation) is here too, to be stored beside the weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataInfo {
    /// Number of examples.
    pub examples: usize,
    /// Number of classes, when "y" is a class.
    pub classes: Option<usize>,
    /// Shape of "x" per example; 0 stands for a variable extent.
    pub shape: Vec<usize>,
    /// Number of token ids, when "x" is a sequence of them.
    pub vocabulary: Option<usize>,
    /// Names of the classes in the order of their ids; empty when they have none.
    pub class_names: Vec<String>,
    /// All characters in the order of their ids, for the vocabulary "chars".
    pub characters: Option<String>,
    /// What was subtracted from "x", per channel or column; empty when nothing was.
    pub mean: Vec<f32>,
    /// What "x" was then divided by.
    pub std: Vec<f32>,
    /// Names of the feature columns of a table, in the order of "x".
    pub columns: Vec<String>,
    /// What stands in for a missing cell of each column; empty when such cells are refused.
    pub fill: Vec<f32>,
    /// Numbers to predict per example, when "y" is numbers; `None` when it is a class or tokens.
    pub targets: Option<usize>,
    /// Training examples of each class; empty when they were not counted.
    pub class_counts: Vec<u64>,
    /// The `tokenizer.json` in full, for the vocabulary "tokenizer".
    pub tokenizer: Option<Arc<str>>,
    /// One line each for the user: what was left out and why.
    pub notes: Vec<String>,
}

/// Random-access examples.
pub trait Dataset: Send + Sync {
    /// Number of examples.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of example `i` for variable-length data; `None` when all have one shape.
    fn length(&self, i: usize) -> Option<usize>;

    /// The class of example `i`, when it is known without reading the example.
    fn class(&self, _i: usize) -> Option<u32> {
        None
    }

    /// Collates these examples into one batch, padding to the longest for variable length.
    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError>;

    /// The same for training: random augmentation may differ per epoch, and only per epoch.
    fn batch_in_epoch(&self, indices: &[usize], _epoch: u64) -> Result<Batch, DataError> {
        self.batch(indices)
    }

    /// What the set holds.
    fn info(&self) -> DataInfo;
}

/// Why data could not be read. The user must act: on the file, or on the option named.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file as a whole is not what it should be.
    #[error("{path}: {what}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
    /// The file is wrong at a known byte.
    #[error("{path}: at byte {offset}: {what}")]
    Offset {
        /// The file.
        path: PathBuf,
        /// Bytes from its start (of the uncompressed content, if it is compressed).
        offset: u64,
        /// What is wrong and what to do.
        what: String,
    },
    /// The file is wrong in a known line.
    #[error("{path}: line {line}: {what}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong, with the column's name.
        what: String,
    },
    /// An option does not make sense.
    #[error("data option `{option}`: {what}")]
    Option {
        /// Its name in [`DataOptions`].
        option: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
    /// An example was asked for that does not exist.
    #[error("example {index} does not exist: the data set has {examples}")]
    Index {
        /// The index asked for.
        index: usize,
        /// How many there are.
        examples: usize,
    },
}

impl DataError {
    pub(crate) fn file(path: &Path, what: impl Into<String>) -> DataError {
        DataError::File { path: path.into(), what: what.into() }
    }

    pub(crate) fn at(path: &Path, offset: u64, what: impl Into<String>) -> DataError {
        DataError::Offset { path: path.into(), offset, what: what.into() }
    }

    pub(crate) fn option(option: &'static str, what: impl Into<String>) -> DataError {
        DataError::Option { option, what: what.into() }
    }
}

/// Examples of each of `classes` classes; empty when a class is not known.
fn class_counts(set: &dyn Dataset, classes: Option<usize>) -> Vec<u64> {
    /// Nobody balances more classes than this, and a wrong label may claim any number of them.
    const MOST: usize = 1 << 20;
    let Some(classes) = classes.filter(|&n| n <= MOST) else { return Vec::new() };
    let mut counts = vec![0; classes];
    for i in 0..set.len() {
        match set.class(i).and_then(|class| counts.get_mut(class as usize)) {
            Some(count) => *count += 1,
            None => return Vec::new(),
        }
    }
    counts
}

/// Errors for the first index that is out of range.
fn check_indices(indices: &[usize], examples: usize) -> Result<(), DataError> {
    match indices.iter().find(|&&i| i >= examples) {
        Some(&index) => Err(DataError::Index { index, examples }),
        None => Ok(()),
    }
}

fn tensor(shape: &[usize], data: HostData) -> HostTensor {
    HostTensor::new(shape, data).expect("loaders make as many elements as the shape says")
}

/// A vector of class ids as "y".
fn class_tensor(ids: impl Iterator<Item = u32>) -> HostTensor {
    let ids: Vec<i64> = ids.map(i64::from).collect();
    tensor(&[ids.len()], HostData::I64(ids))
}
