//! A checkpoint file, checked from end to end and then read a piece at a time, so that a model need not fit
//! in memory twice.

use super::header::{self, Place};
use super::{CHECKSUM, Checkpoint, CheckpointError, PIECE, checksum, describe, swap_if_big_endian};
use crate::executor::RunError;
use crate::host::{HostTensor, all_finite};
use gulliver_graph::dtype::DType;
use gulliver_graph::nearest::nearest;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// See the top of this file.
#[derive(Debug)]
pub struct Stored {
    /// Named in errors.
    pub path: PathBuf,
    /// Every metadata entry except the checksum.
    pub metadata: BTreeMap<String, String>,
    /// With the first byte of each in the file.
    tensors: BTreeMap<String, (Place, u64)>,
    file: File,
}

/// Takes a piece of a tensor, as it would lie in memory, with the number of its first byte.
pub type Taker<'t> = &'t mut dyn FnMut(u64, &[u8]) -> Result<(), RunError>;

/// The same for pieces as they are in the file, which it may change.
type Giver<'g> = &'g mut dyn FnMut(u64, &mut [u8]) -> Result<(), CheckpointError>;

impl Stored {
    /// Opens a checkpoint or any safetensors file whose element types Gulliver has.
    ///
    /// Every length, offset and shape is checked against the size of the file before anything of that
    /// size is allocated; the checksum is verified if there is one. Never panics on any content.
    pub fn open(path: &Path) -> Result<Stored, CheckpointError> {
        let corrupt = |cause: String| CheckpointError::Corrupt { path: path.to_path_buf(), cause };
        let failed = |source: io::Error| failed(path, source);
        let mut file = File::open(path).map_err(failed)?;
        let file_bytes = file.metadata().map_err(failed)?.len();
        let mut length = [0; header::LENGTH_BYTES as usize];
        file.read_exact(&mut length).map_err(failed)?;
        let header_bytes = header::check_length(u64::from_le_bytes(length), file_bytes).map_err(corrupt)?;
        let mut text = vec![0; header_bytes];
        file.read_exact(&mut text).map_err(failed)?;
        let mut position = header::LENGTH_BYTES + header_bytes as u64;
        let header = header::decode(&text, file_bytes - position).map_err(corrupt)?;

        let mut tensors = BTreeMap::new();
        for (name, place) in header.tensors {
            let first = position;
            position += place.bytes as u64;
            tensors.insert(name, (place, first));
        }
        let mut metadata = header.metadata;
        let stored = metadata.remove(CHECKSUM);
        let mut opened = Stored { path: path.to_path_buf(), metadata, tensors, file };
        if let Some(stored) = stored
            && stored != checksum(opened.hash()?, &opened.metadata)
        {
            return Err(corrupt("checksum mismatch: the content changed after it was saved".into()));
        }
        Ok(opened)
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Hands out the tensor `name` in pieces of [`PIECE`] bytes, the last one shorter, if it has this
    /// element type and shape and every number is finite; otherwise an error that says what is there
    /// instead. Pieces before the first number that is not finite have been handed out by then.
    pub fn read(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        take: Taker<'_>,
    ) -> Result<(), CheckpointError> {
        let path = self.path.clone();
        let Some((place, _)) = self.tensors.get(name) else {
            let near = nearest(name, self.tensors.keys().map(String::as_str), 3);
            let near = near.into_iter().map(str::to_string).collect();
            return Err(CheckpointError::Missing { path, name: name.to_string(), near });
        };
        if (place.dtype, place.shape.as_slice()) != (dtype, shape) {
            let found = format!("{} {:?}", place.dtype, place.shape);
            let needed = format!("{dtype} {shape:?}");
            return Err(CheckpointError::Mismatch { path, name: name.to_string(), found, needed });
        }
        self.pieces(name, &mut |first, piece| {
            swap_if_big_endian(dtype, piece);
            if !all_finite(dtype, piece) {
                let name = name.to_string();
                return Err(CheckpointError::NotFinite { path: path.clone(), name });
            }
            Ok(take(first, piece)?)
        })
    }

    /// The bytes of a tensor that is there, as the file has them.
    fn pieces(&mut self, name: &str, give: Giver<'_>) -> Result<(), CheckpointError> {
        let (place, start) = &self.tensors[name];
        self.file.seek(SeekFrom::Start(*start)).map_err(|e| failed(&self.path, e))?;
        let mut piece = vec![0; PIECE.min(place.bytes)];
        for first in (0..place.bytes).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(place.bytes - first)];
            self.file.read_exact(piece).map_err(|e| failed(&self.path, e))?;
            if place.dtype == DType::Bool && piece.iter().any(|&b| b > 1) {
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
            describe(&mut hasher, &name, place.dtype, &place.shape);
            self.pieces(&name, &mut |_, piece| {
                hasher.update(piece);
                Ok(())
            })?;
        }
        Ok(hasher)
    }

    /// Everything at once.
    pub fn load(mut self) -> Result<Checkpoint, CheckpointError> {
        let mut tensors = BTreeMap::new();
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        for name in names {
            let mut bytes = Vec::new();
            self.pieces(&name, &mut |_, piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            let (place, _) = &self.tensors[&name];
            let tensor = HostTensor::from_le_bytes(place.dtype, &place.shape, &bytes);
            let tensor = tensor.ok_or_else(|| CheckpointError::Corrupt {
                path: self.path.clone(),
                cause: format!("tensor `{name}` does not have the size of its shape"),
            })?;
            tensors.insert(name, tensor);
        }
        Ok(Checkpoint { path: self.path, tensors, metadata: self.metadata })
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
