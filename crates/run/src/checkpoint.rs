//! Checkpoints: named tensors and string metadata in one safetensors file, read with every check a
//! hostile or half-written file needs. What the tensors mean is the trainer's business.

mod dir;
mod header;

pub use dir::{Newest, latest, list, prune, step_path};

use crate::atomic::write_atomic;
use crate::executor::RunError;
use crate::host::{HostData, HostTensor};
use gulliver_graph::dtype::DType;
use gulliver_graph::nearest::nearest;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The metadata entry that holds the checksum of everything else in the file.
const CHECKSUM: &str = "gulliver.sha256";

/// What a file held.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Where it was read from; named in errors.
    pub path: PathBuf,
    /// Every tensor by name.
    pub tensors: BTreeMap<String, HostTensor>,
    /// Every metadata entry except the checksum.
    pub metadata: BTreeMap<String, String>,
}

/// Why a checkpoint could not be written, read or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes are not those of a whole, unaltered checkpoint.
    #[error("{}: {cause}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The tensors or metadata cannot be stored.
    #[error("{}: cannot save: {cause}", path.display())]
    Unsaveable {
        /// The file that was not written.
        path: PathBuf,
        /// What is wrong with the content.
        cause: String,
    },
    /// A tensor cannot be read from the device to be saved.
    #[error(transparent)]
    Read(#[from] RunError),
    /// A tensor is not there.
    #[error("{}: no tensor `{name}`{}", path.display(), did_you_mean(near))]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor asked for.
        name: String,
        /// Names in the file that resemble it, nearest first.
        near: Vec<String>,
    },
    /// A tensor holds numbers nobody can go on with.
    #[error("{}: tensor `{name}` holds a number that is not finite; use an earlier checkpoint", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor is there but is not what the model needs.
    #[error("{}: tensor `{name}` is {found}, but the model needs {needed}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The tensor asked for.
        name: String,
        /// Element type and shape in the file.
        found: String,
        /// Element type and shape asked for.
        needed: String,
    },
}

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean `{}`?", near.join("` or `")) }
}

/// Name, element type and shape of a tensor.
pub type Described = (String, DType, Vec<usize>);

/// Gives a tensor by its place in a list of descriptions; it may be asked for several times.
pub type Reader<'r, 'a> = &'r mut dyn FnMut(usize) -> Result<Cow<'a, HostTensor>, RunError>;

/// Writes `tensors` and `metadata` to `path`, replacing a file there only once all is on disk, and
/// returns the [`fingerprint`] of the tensors.
///
/// A checksum of tensors and metadata is added under the metadata key `gulliver.sha256` (replacing
/// a given one). The bytes of the file depend on nothing but the arguments. Memory beyond the
/// arguments is a small buffer.
pub fn save(
    path: &Path,
    tensors: &BTreeMap<String, HostTensor>,
    metadata: &BTreeMap<String, String>,
) -> Result<String, CheckpointError> {
    let (layout, all) = described(tensors);
    save_from(path, &layout, &mut |i| Ok(Cow::Borrowed(all[i])), metadata)
}

/// As [`save`], with tensors that are read one at a time, so that no copy of all of them is needed.
pub fn save_from(
    path: &Path,
    layout: &[Described],
    read: Reader<'_, '_>,
    metadata: &BTreeMap<String, String>,
) -> Result<String, CheckpointError> {
    let unsaveable = |cause: String| CheckpointError::Unsaveable { path: path.to_path_buf(), cause };
    let mut metadata = metadata.clone();
    metadata.remove(CHECKSUM);
    let hasher = hash_tensors(layout, read)?;
    metadata.insert(CHECKSUM.to_string(), checksum(hasher.clone(), &metadata));

    // Wide elements first keeps every tensor aligned to its element size, which PyTorch needs.
    let mut order = by_name(layout);
    order.sort_by_key(|&i| std::cmp::Reverse(layout[i].1.size()));
    let described: Vec<&Described> = order.iter().map(|&i| &layout[i]).collect();
    let header = header::encode(&described, &metadata).map_err(unsaveable)?;
    let mut unread = None;
    let written = write_atomic(path, |file| {
        file.write_all(&header)?;
        order.iter().try_for_each(|&i| {
            let tensor = read(i).map_err(|e| io::Error::other(unread.insert(e).to_string()))?;
            le_chunks(tensor.data(), |chunk| file.write_all(chunk))
        })
    });
    match (unread, written) {
        (Some(e), _) => return Err(e.into()),
        (None, Err(source)) => return Err(CheckpointError::Io { path: path.to_path_buf(), source }),
        (None, Ok(())) => {}
    }
    Ok(hex(&hasher.finalize()))
}

fn described(tensors: &BTreeMap<String, HostTensor>) -> (Vec<Described>, Vec<&HostTensor>) {
    let describe = |(name, t): (&String, &HostTensor)| (name.clone(), t.dtype(), t.shape().to_vec());
    (tensors.iter().map(describe).collect(), tensors.values().collect())
}

fn by_name(layout: &[Described]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..layout.len()).collect();
    order.sort_by_key(|&i| &layout[i].0);
    order
}

/// Reads a checkpoint or any safetensors file whose element types Gulliver has.
///
/// Every length, offset and shape is checked against the size of the file before anything of that
/// size is allocated; the checksum is verified if there is one. Never panics on any content.
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let corrupt = |cause: String| CheckpointError::Corrupt { path: path.to_path_buf(), cause };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::UnexpectedEof => corrupt("truncated: the file ended while it was read".into()),
        _ => CheckpointError::Io { path: path.to_path_buf(), source },
    };

    let mut file = File::open(path).map_err(failed)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    let mut length = [0; header::LENGTH_BYTES as usize];
    file.read_exact(&mut length).map_err(failed)?;
    let header_bytes = header::check_length(u64::from_le_bytes(length), file_bytes).map_err(corrupt)?;
    let mut text = vec![0; header_bytes];
    file.read_exact(&mut text).map_err(failed)?;
    let data_bytes = file_bytes - header::LENGTH_BYTES - header_bytes as u64;
    let header = header::decode(&text, data_bytes).map_err(corrupt)?;

    let mut tensors = BTreeMap::new();
    let mut bytes = Vec::new();
    for (name, place) in header.tensors {
        bytes.resize(place.bytes, 0);
        file.read_exact(&mut bytes).map_err(failed)?;
        if place.dtype == DType::Bool && bytes.iter().any(|&b| b > 1) {
            return Err(corrupt(format!("tensor `{name}` is bool but holds a byte other than 0 and 1")));
        }
        let tensor = HostTensor::from_le_bytes(place.dtype, &place.shape, &bytes)
            .ok_or_else(|| corrupt(format!("tensor `{name}` does not have the size of its shape")))?;
        tensors.insert(name, tensor);
    }

    let mut metadata = header.metadata;
    if let Some(stored) = metadata.remove(CHECKSUM)
        && stored != checksum(hash_all(&tensors), &metadata)
    {
        return Err(corrupt("checksum mismatch: the content changed after it was saved".into()));
    }
    Ok(Checkpoint { path: path.to_path_buf(), tensors, metadata })
}

/// The tensor `name`, if it has this element type and shape and every number is finite; otherwise an
/// error that says what is there instead.
pub fn expect<'a>(
    checkpoint: &'a Checkpoint,
    name: &str,
    dtype: DType,
    shape: &[usize],
) -> Result<&'a HostTensor, CheckpointError> {
    let Some(tensor) = checkpoint.tensors.get(name) else {
        let near = nearest(name, checkpoint.tensors.keys().map(String::as_str), 3);
        return Err(CheckpointError::Missing {
            path: checkpoint.path.clone(),
            name: name.to_string(),
            near: near.into_iter().map(str::to_string).collect(),
        });
    };
    if (tensor.dtype(), tensor.shape()) != (dtype, shape) {
        return Err(CheckpointError::Mismatch {
            path: checkpoint.path.clone(),
            name: name.to_string(),
            found: format!("{} {:?}", tensor.dtype(), tensor.shape()),
            needed: format!("{dtype} {shape:?}"),
        });
    }
    if !tensor.is_finite() {
        return Err(CheckpointError::NotFinite { path: checkpoint.path.clone(), name: name.to_string() });
    }
    Ok(tensor)
}

/// SHA-256, in hexadecimal, of all tensors in name order: the name, a zero byte, the name of the
/// element type, the shape as little-endian u64s, the elements in little-endian bytes. Equal
/// fingerprints mean equal bits.
pub fn fingerprint(tensors: &BTreeMap<String, HostTensor>) -> String {
    hex(&hash_all(tensors).finalize())
}

/// As [`fingerprint`], of tensors that are read one at a time.
pub fn fingerprint_from(layout: &[Described], read: Reader<'_, '_>) -> Result<String, RunError> {
    Ok(hex(&hash_tensors(layout, read)?.finalize()))
}

fn hash_all(tensors: &BTreeMap<String, HostTensor>) -> Sha256 {
    let (layout, all) = described(tensors);
    hash_tensors(&layout, &mut |i| Ok(Cow::Borrowed(all[i]))).expect("tensors at hand can be read")
}

fn hash_tensors(layout: &[Described], read: Reader<'_, '_>) -> Result<Sha256, RunError> {
    let mut hasher = Sha256::new();
    for i in by_name(layout) {
        let (name, dtype, shape) = &layout[i];
        hasher.update(name);
        hasher.update([0]);
        hasher.update(dtype.name());
        for &extent in shape {
            hasher.update((extent as u64).to_le_bytes());
        }
        let Ok(()) = le_chunks(read(i)?.data(), |chunk| {
            hasher.update(chunk);
            Ok::<(), Infallible>(())
        });
    }
    Ok(hasher)
}

/// The checksum of a file: the hash of its tensors continued over its metadata, so that an altered
/// step count is caught as surely as an altered weight.
fn checksum(mut hasher: Sha256, metadata: &BTreeMap<String, String>) -> String {
    for text in metadata.iter().flat_map(|(key, value)| [key, value]) {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hands the elements to `sink` as little-endian bytes, a buffer at a time.
fn le_chunks<E>(data: &HostData, sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    fn encode<T: Copy, const N: usize, E>(
        elements: &[T],
        to_bytes: impl Fn(T) -> [u8; N],
        mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        const BUFFER: usize = 1 << 14;
        let mut buffer = [0; BUFFER];
        for chunk in elements.chunks(BUFFER / N) {
            for (slot, &element) in buffer.chunks_exact_mut(N).zip(chunk) {
                slot.copy_from_slice(&to_bytes(element));
            }
            sink(&buffer[..chunk.len() * N])?;
        }
        Ok(())
    }
    match data {
        HostData::F32(v) => encode(v, f32::to_le_bytes, sink),
        HostData::F16(v) | HostData::BF16(v) => encode(v, u16::to_le_bytes, sink),
        HostData::I64(v) => encode(v, i64::to_le_bytes, sink),
        HostData::I32(v) => encode(v, i32::to_le_bytes, sink),
        HostData::U8(v) | HostData::Bool(v) => encode(v, u8::to_le_bytes, sink),
    }
}

#[cfg(test)]
mod tests;
