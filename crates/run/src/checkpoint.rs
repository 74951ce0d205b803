//! Checkpoints: named tensors and string metadata in one safetensors file. Reading checks everything that a damaged or
//! hostile file could get wrong. The meaning of the tensors is left to the trainer.

mod dir;
mod file;
mod header;

pub use dir::{Newest, latest, list, prune, step_path};
pub use file::{CheckpointFile, TakePiece};

use crate::device::RunError;
use crate::device::cpu::disk::CHUNK;
use crate::files::atomic::write_atomic;
use crate::host::{HostTensor, swap_if_big_endian};
use gulliver_graph::dtype::DType;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes of a tensor read or written at a time: a chunk of a disk tier.
pub const PIECE: usize = CHUNK;

/// The metadata entry that holds the checksum of everything else in the file.
const CHECKSUM: &str = "gulliver.sha256";

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The file, named in errors.
    pub path: PathBuf,
    /// Every tensor by name.
    pub tensors: BTreeMap<String, HostTensor>,
    /// Every metadata entry except the checksum.
    pub metadata: BTreeMap<String, String>,
}

/// Why a checkpoint could not be written, read or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is incomplete or altered.
    #[error("{}: {cause}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// A file of `torch.save`, which may contain code and is not read.
    #[error(
        "{}: is a PyTorch file, not safetensors; convert it in Python: import torch, safetensors.torch as s; \
         s.save_file(torch.load(\"{name}\", weights_only=True), \"{stem}.safetensors\")",
        path.display(),
        name = path.file_name().unwrap_or_default().to_string_lossy(),
        stem = path.file_stem().unwrap_or_default().to_string_lossy()
    )]
    Pickle {
        /// The file.
        path: PathBuf,
    },
    /// The tensors or metadata cannot be stored.
    #[error("{}: cannot save: {cause}", path.display())]
    Unsaveable {
        /// The file that was not written.
        path: PathBuf,
        /// What is wrong with the content.
        cause: String,
    },
    /// A tensor cannot be read from the device.
    #[error(transparent)]
    Read(#[from] RunError),
    /// A tensor is absent.
    #[error("{}: no tensor `{name}`{}", path.display(), did_you_mean(near))]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor asked for.
        name: String,
        /// Similar names in the file, nearest first.
        near: Vec<String>,
    },
    /// A tensor holds numbers that are not finite.
    #[error("{}: tensor `{name}` holds a number that is not finite; use an earlier checkpoint", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor has another type or shape than the model needs.
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
pub type TensorInfo = (String, DType, Vec<usize>);

/// Fills a buffer with bytes of a tensor in memory order, given the index of the tensor and the offset of the first byte.
/// May be called several times for the same bytes.
pub type ReadPiece<'r> = &'r mut dyn FnMut(usize, u64, &mut [u8]) -> Result<(), RunError>;

/// Writes `tensors` and `metadata` to `path` atomically and returns the [`fingerprint`] of the tensors.
///
/// Adds a checksum of tensors and metadata under the metadata key `gulliver.sha256`, replacing a given one. The bytes of
/// the file depend only on the arguments. Needs only a small buffer of memory beyond the arguments.
pub fn save(
    path: &Path,
    tensors: &BTreeMap<String, HostTensor>,
    metadata: &BTreeMap<String, String>,
) -> Result<String, CheckpointError> {
    let (layout, all) = described(tensors);
    save_from(path, &layout, &mut reader(&all), metadata)
}

/// As [`save`], reading tensors in pieces of [`PIECE`] bytes, so that no copy of a tensor is needed.
pub fn save_from(
    path: &Path,
    layout: &[TensorInfo],
    read: ReadPiece<'_>,
    metadata: &BTreeMap<String, String>,
) -> Result<String, CheckpointError> {
    let unsaveable = |cause: String| CheckpointError::Unsaveable { path: path.to_path_buf(), cause };
    let mut metadata = metadata.clone();
    metadata.remove(CHECKSUM);
    let hasher = hash_tensors(layout, read)?;
    metadata.insert(CHECKSUM.to_string(), checksum(hasher.clone(), &metadata));

    // Wide elements first: every tensor is then aligned to its element size, as PyTorch requires.
    let mut order = by_name(layout);
    order.sort_by_key(|&i| std::cmp::Reverse(layout[i].1.size()));
    let described: Vec<&TensorInfo> = order.iter().map(|&i| &layout[i]).collect();
    let header = header::encode(&described, &metadata).map_err(unsaveable)?;
    let mut unread = None;
    let written = write_atomic(path, |file| {
        file.write_all(&header)?;
        let mut sink = |piece: &[u8]| file.write_all(piece);
        order.iter().try_for_each(|&i| match pieces(&layout[i], i, read, &mut sink) {
            Err(Stopped::Read(e)) => Err(io::Error::other(unread.insert(e).to_string())),
            Err(Stopped::Write(e)) => Err(e),
            Ok(()) => Ok(()),
        })
    });
    match (unread, written) {
        (Some(e), _) => return Err(e.into()),
        (None, Err(source)) => return Err(CheckpointError::Io { path: path.to_path_buf(), source }),
        (None, Ok(())) => {}
    }
    Ok(hex(&hasher.finalize()))
}

fn described(tensors: &BTreeMap<String, HostTensor>) -> (Vec<TensorInfo>, Vec<&HostTensor>) {
    let describe = |(name, t): (&String, &HostTensor)| (name.clone(), t.dtype(), t.shape().to_vec());
    (tensors.iter().map(describe).collect(), tensors.values().collect())
}

fn by_name(layout: &[TensorInfo]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..layout.len()).collect();
    order.sort_by_key(|&i| &layout[i].0);
    order
}

/// Reads a whole checkpoint, or any safetensors file with element types of Gulliver, after the checks of
/// [`CheckpointFile::open`].
pub fn load(path: &Path) -> Result<Checkpoint, CheckpointError> {
    CheckpointFile::open(path)?.load()
}

/// SHA-256, in hexadecimal, of all tensors in the order of their names: the name, a zero byte, the name of the element
/// type, the shape as little-endian u64s, the elements in little-endian bytes. Equal fingerprints mean equal bits.
pub fn fingerprint(tensors: &BTreeMap<String, HostTensor>) -> String {
    hex(&hash_all(tensors).finalize())
}

/// As [`fingerprint`], reading tensors in pieces of [`PIECE`] bytes.
pub fn fingerprint_from(layout: &[TensorInfo], read: ReadPiece<'_>) -> Result<String, RunError> {
    Ok(hex(&hash_tensors(layout, read)?.finalize()))
}

fn hash_all(tensors: &BTreeMap<String, HostTensor>) -> Sha256 {
    let (layout, all) = described(tensors);
    hash_tensors(&layout, &mut reader(&all)).expect("tensors in memory can be read")
}

fn hash_tensors(layout: &[TensorInfo], read: ReadPiece<'_>) -> Result<Sha256, RunError> {
    let mut hasher = Sha256::new();
    for i in by_name(layout) {
        let (name, dtype, shape) = &layout[i];
        describe(&mut hasher, name, dtype.name(), shape);
        let mut sink = |piece: &[u8]| {
            hasher.update(piece);
            Ok(())
        };
        match pieces(&layout[i], i, read, &mut sink) {
            Err(Stopped::Read(e)) => return Err(e),
            Err(Stopped::Write(_)) | Ok(()) => {}
        }
    }
    Ok(hasher)
}

/// Hashes the description of a tensor, which precedes its elements.
fn describe(hasher: &mut Sha256, name: &str, type_name: &str, shape: &[usize]) {
    hasher.update(name);
    hasher.update([0]);
    hasher.update(type_name);
    for &extent in shape {
        hasher.update((extent as u64).to_le_bytes());
    }
}

/// The checksum of a file: the hash of its tensors continued over its metadata, which detects altered metadata too.
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

enum Stopped {
    Read(RunError),
    Write(io::Error),
}

/// Passes the elements to `sink` as little-endian bytes, a piece at a time.
fn pieces(
    (_, dtype, shape): &TensorInfo,
    i: usize,
    read: ReadPiece<'_>,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), Stopped> {
    let bytes = shape.iter().product::<usize>() * dtype.size();
    let mut piece = vec![0; PIECE.min(bytes)];
    for first in (0..bytes).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(bytes - first)];
        read(i, first as u64, piece).map_err(Stopped::Read)?;
        swap_if_big_endian(*dtype, piece);
        sink(piece).map_err(Stopped::Write)?;
    }
    Ok(())
}

fn reader(all: &[&HostTensor]) -> impl FnMut(usize, u64, &mut [u8]) -> Result<(), RunError> {
    |i, first, bytes| {
        bytes.copy_from_slice(&all[i].as_bytes()[first as usize..][..bytes.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
