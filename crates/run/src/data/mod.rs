//! Batches from files or from built-in data. A [`Dataset`] gives random access to examples, a [`sampler::Sampler`]
//! chooses those of each step, a [`prefetch::Prefetch`] makes batches ahead of time. Every batch is a pure function of
//! the files, the options, the seed and the step.

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

/// Named tensors whose first axis is the example: "x" and "y". Padded sequences also have "mask" (bool `[b, t]`, 0 for
/// padding) and "length" (i64 `[b]`).
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

    /// Number of examples: the first extent of the first tensor.
    pub fn rows(&self) -> usize {
        self.fields.first().and_then(|(_, tensor)| tensor.shape().first()).copied().unwrap_or(0)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.fields.iter().map(|(_, tensor)| tensor.as_bytes().len()).sum()
    }

    /// "x", and "y" if there is one.
    pub(crate) fn with_target(x: HostTensor, y: Option<HostTensor>) -> Batch {
        let mut batch = Batch::of([("x", x)]);
        batch.fields.extend(y.map(|y| ("y".to_string(), y)));
        batch
    }

    pub(crate) fn of<const N: usize>(fields: [(&str, HostTensor); N]) -> Batch {
        Batch { fields: fields.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect() }
    }
}

/// Description of a data set. It includes everything learned from the training files (characters, class names, mean and
/// deviation), which is stored beside the weights.
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
    /// Names of the classes in the order of their ids; may be empty.
    pub class_names: Vec<String>,
    /// All characters in the order of their ids, for the vocabulary "chars".
    pub characters: Option<String>,
    /// Mean subtracted from "x", per channel or column; may be empty.
    pub mean: Vec<f32>,
    /// Standard deviation that "x" was then divided by.
    pub std: Vec<f32>,
    /// Names of the feature columns of a table, in the order of "x".
    pub columns: Vec<String>,
    /// Value for a missing cell of each column; empty when missing cells are refused.
    pub fill: Vec<f32>,
    /// Numbers to predict per example, when "y" is numbers; `None` when it is a class or tokens.
    pub targets: Option<usize>,
    /// Examples of each class; empty when they were not counted.
    pub class_counts: Vec<u64>,
    /// The `tokenizer.json` in full, for the vocabulary "tokenizer".
    pub tokenizer: Option<Arc<str>>,
    /// Messages for the user about files that were left out.
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
    fn length(&self, _i: usize) -> Option<usize> {
        None
    }

    /// The class of example `i`, if it is known without reading the example.
    fn class(&self, _i: usize) -> Option<u32> {
        None
    }

    /// Collates these examples into one batch; variable lengths are padded to the longest.
    fn batch(&self, indices: &[usize]) -> Result<Batch, DataError>;

    /// As [`Dataset::batch`] for training, where augmentation depends on the epoch.
    fn batch_in_epoch(&self, indices: &[usize], _epoch: u64) -> Result<Batch, DataError> {
        self.batch(indices)
    }

    /// Describes the set.
    fn info(&self) -> DataInfo;
}

/// Why data could not be read. The user must correct the file or the option.
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
    /// The file as a whole is wrong.
    #[error("{path}: {what}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong and what to do.
        what: String,
    },
    /// The file is wrong at a byte.
    #[error("{path}: at byte {offset}: {what}")]
    Offset {
        /// The file.
        path: PathBuf,
        /// Offset in the file, or in its decompressed content.
        offset: u64,
        /// What is wrong and what to do.
        what: String,
    },
    /// The file is wrong in a line.
    #[error("{path}: line {line}: {what}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong, with the name of the column.
        what: String,
    },
    /// An option is invalid.
    #[error("data option `{option}`: {what}")]
    Option {
        /// Its name in [`DataOptions`].
        option: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
    /// An example does not exist.
    #[error("example {index} does not exist: the data set has {examples}")]
    Index {
        /// The index asked for.
        index: usize,
        /// Number of examples.
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

/// Number of examples of each class; empty if a class is unknown.
fn class_counts(set: &dyn Dataset, classes: Option<usize>) -> Vec<u64> {
    /// Most classes that are counted: a wrong label may be any number.
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

/// Fails for the first index that is out of range.
fn check_indices(indices: &[usize], examples: usize) -> Result<(), DataError> {
    match indices.iter().find(|&&i| i >= examples) {
        Some(&index) => Err(DataError::Index { index, examples }),
        None => Ok(()),
    }
}

fn tensor(shape: &[usize], data: HostData) -> HostTensor {
    HostTensor::new(shape, data).expect("as many elements as the shape has")
}

/// Class ids as "y".
fn class_tensor(ids: impl Iterator<Item = u32>) -> HostTensor {
    let ids: Vec<i64> = ids.map(i64::from).collect();
    tensor(&[ids.len()], HostData::I64(ids))
}
