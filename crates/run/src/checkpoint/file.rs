//! A checkpoint file, verified and then read in pieces, so that a model need not fit in memory twice.

use super::header::{self, Header, StoredTensor, StoredType};
use super::{CHECKSUM, Checkpoint, CheckpointError, PIECE, checksum, describe};
use crate::device::RunError;
use crate::host::{HostTensor, all_finite, swap_if_big_endian};
use gulliver_graph::dtype::DType;
use gulliver_graph::nearest::nearest;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A safetensors file that passed every check.
#[derive(Debug)]
pub struct CheckpointFile {
    /// The file, named in errors.
    pub path: PathBuf,
    /// Every metadata entry except the checksum.
    pub metadata: BTreeMap<String, String>,
    /// Each tensor with its offset in the file.
    tensors: BTreeMap<String, (StoredTensor, u64)>,
    file: File,
}

/// Receives a piece of a tensor in memory order, with the offset of its first byte.
pub type TakePiece<'t> = &'t mut dyn FnMut(u64, &[u8]) -> Result<(), RunError>;

/// Receives a piece of a tensor in file order, which it may modify.
type GivePiece<'g> = &'g mut dyn FnMut(u64, &mut [u8]) -> Result<(), CheckpointError>;

impl CheckpointFile {
    /// Opens a checkpoint, or any safetensors file with element types of Gulliver.
    ///
    /// Checks every length, offset and shape against the size of the file before allocating memory, and verifies the
    /// checksum if there is one. Never panics, for any content.
    pub fn open(path: &Path) -> Result<CheckpointFile, CheckpointError> {
        let corrupt = |cause: String| CheckpointError::Corrupt { path: path.to_path_buf(), cause };
        let (file, header, mut position) = open_header(path)?;
        let mut tensors = BTreeMap::new();
        for (name, place) in header.tensors {
            let first = position;
            position += place.bytes as u64;
            tensors.insert(name, (place, first));
        }
        let mut metadata = header.metadata;
        let stored = metadata.remove(CHECKSUM);
        let mut opened = CheckpointFile { path: path.to_path_buf(), metadata, tensors, file };
        if let Some(stored) = stored
            && stored != checksum(opened.hash()?, &opened.metadata)
        {
            return Err(corrupt("checksum mismatch: the content changed after it was saved".into()));
        }
        Ok(opened)
    }

    /// The metadata of a file. Reads and checks only the header.
    pub fn metadata_of(path: &Path) -> Result<BTreeMap<String, String>, CheckpointError> {
        Ok(open_header(path)?.1.metadata)
    }

    /// Whether Gulliver wrote the file: its header has a checksum.
    pub fn is_ours(path: &Path) -> Result<bool, CheckpointError> {
        Ok(CheckpointFile::metadata_of(path)?.contains_key(CHECKSUM))
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Element type and shape of a tensor as text, and whether [`CheckpointFile::read`] can read it as `dtype` and
    /// `shape`.
    pub fn fits(&self, name: &str, dtype: DType, shape: &[usize]) -> Option<(String, bool)> {
        let (place, _) = self.tensors.get(name)?;
        let fits = place.shape == shape && convertible(place.element, dtype);
        Some((format!("{} {:?}", place.element, place.shape), fits))
    }

    /// Passes the tensor `name` to `take` in pieces of [`PIECE`] bytes; the last may be shorter. Fails if the shape
    /// differs, the type cannot be converted, or a number is not finite; pieces before that number have then been passed
    /// on. Floats of 16 and 64 bits become the nearest f32.
    pub fn read(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        take: TakePiece<'_>,
    ) -> Result<(), CheckpointError> {
        let path = self.path.clone();
        let Some((place, _)) = self.tensors.get(name) else {
            let near = nearest(name, self.tensors.keys().map(String::as_str), 3);
            let near = near.into_iter().map(str::to_string).collect();
            return Err(CheckpointError::Missing { path, name: name.to_string(), near });
        };
        let element = place.element;
        if place.shape != shape || !convertible(element, dtype) {
            let found = format!("{element} {:?}", place.shape);
            let needed = format!("{dtype} {shape:?}");
            return Err(CheckpointError::Mismatch { path, name: name.to_string(), found, needed });
        }
        let mut converted = Vec::new();
        // Bytes in the file of the elements of one converted piece.
        let (own, size) = (PIECE / dtype.size() * element.size, dtype.size());
        self.pieces(name, own, &mut |first, piece| {
            let piece = match element.dtype == Some(dtype) {
                true => {
                    swap_if_big_endian(dtype, piece);
                    &*piece
                }
                false => {
                    to_f32(element, piece, &mut converted);
                    &converted
                }
            };
            if !all_finite(dtype, piece) {
                let name = name.to_string();
                return Err(CheckpointError::NotFinite { path: path.clone(), name });
            }
            Ok(take(first / element.size as u64 * size as u64, piece)?)
        })
    }

    /// Passes the bytes of an existing tensor to `give`, in file order, `own` bytes at a time.
    fn pieces(&mut self, name: &str, own: usize, give: GivePiece<'_>) -> Result<(), CheckpointError> {
        let (place, start) = &self.tensors[name];
        self.file.seek(SeekFrom::Start(*start)).map_err(|e| failed(&self.path, e))?;
        let mut piece = vec![0; own.min(place.bytes)];
        for first in (0..place.bytes).step_by(own) {
            let piece = &mut piece[..own.min(place.bytes - first)];
            self.file.read_exact(piece).map_err(|e| failed(&self.path, e))?;
            if place.element.dtype == Some(DType::Bool) && piece.iter().any(|&b| b > 1) {
                let cause = format!("tensor `{name}` is bool but holds a byte other than 0 and 1");
                return Err(CheckpointError::Corrupt { path: self.path.clone(), cause });
            }
            give(first as u64, piece)?;
        }
        Ok(())
    }

    fn hash(&mut self) -> Result<Sha256, CheckpointError> {
        let mut hasher = Sha256::new();
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        for name in names {
            let (place, _) = &self.tensors[&name];
            let type_name = place.element.dtype.map_or(place.element.name, DType::name);
            describe(&mut hasher, &name, type_name, &place.shape);
            self.pieces(&name, PIECE, &mut |_, piece| {
                hasher.update(piece);
                Ok(())
            })?;
        }
        Ok(hasher)
    }

    /// Reads the whole file.
    pub fn load(mut self) -> Result<Checkpoint, CheckpointError> {
        let mut tensors = BTreeMap::new();
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        for name in names {
            let mut bytes = Vec::new();
            self.pieces(&name, PIECE, &mut |_, piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            let (place, _) = &self.tensors[&name];
            let read = |dtype| HostTensor::from_le_bytes(dtype, &place.shape, &bytes);
            let tensor = place.element.dtype.and_then(read).ok_or_else(|| CheckpointError::Corrupt {
                path: self.path.clone(),
                cause: format!(
                    "tensor `{name}` has elements of type {}, which are not used here",
                    place.element
                ),
            })?;
            tensors.insert(name, tensor);
        }
        Ok(Checkpoint { path: self.path, tensors, metadata: self.metadata })
    }
}

/// Opens a file and decodes its header. Also returns the offset of the data.
fn open_header(path: &Path) -> Result<(File, Header, u64), CheckpointError> {
    let corrupt = |cause: String| CheckpointError::Corrupt { path: path.to_path_buf(), cause };
    let failed = |source: io::Error| failed(path, source);
    // Opening a pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(corrupt("is not a regular file".into()));
    }
    let mut file = File::open(path).map_err(failed)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    let mut length = [0; header::LENGTH_BYTES as usize];
    file.read_exact(&mut length).map_err(failed)?;
    let header_bytes = match header::check_length(u64::from_le_bytes(length), file_bytes) {
        Err(_) if is_pickle(&length) => {
            return Err(CheckpointError::Pickle { path: path.to_path_buf() });
        }
        checked => checked.map_err(corrupt)?,
    };
    let mut text = vec![0; header_bytes];
    file.read_exact(&mut text).map_err(failed)?;
    let position = header::LENGTH_BYTES + header_bytes as u64;
    let header = header::decode(&text, file_bytes - position).map_err(corrupt)?;
    Ok((file, header, position))
}

/// Whether a file starts like one of `torch.save`: a zip archive or a pickle.
fn is_pickle(start: &[u8]) -> bool {
    start.starts_with(b"PK\x03\x04") || start.starts_with(&[0x80, 2])
}

fn convertible(element: StoredType, dtype: DType) -> bool {
    element.dtype == Some(dtype) || dtype == DType::F32 && ["F16", "BF16", "F64"].contains(&element.name)
}

/// Converts floats of another width to f32, in memory order.
fn to_f32(element: StoredType, bytes: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for one in bytes.chunks_exact(element.size) {
        let number = match *one {
            [a, b] if element.name == "F16" => half::f16::from_le_bytes([a, b]).to_f32(),
            [a, b] => half::bf16::from_le_bytes([a, b]).to_f32(),
            [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
            _ => f32::NAN,
        };
        out.extend(number.to_ne_bytes());
    }
}

fn failed(path: &Path, source: io::Error) -> CheckpointError {
    let path = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::UnexpectedEof => {
            CheckpointError::Corrupt { path, cause: "truncated: the file ended while it was read".into() }
        }
        _ => CheckpointError::Io { path, source },
    }
}
