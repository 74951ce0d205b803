//! Whole files as bytes: memory-mapped when plain, inflated when gzipped. Knows no format.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::DataError;

/// Bytes that stay where they are: a mapped file or memory of our own.
pub enum Bytes {
    /// A read-only mapping of a file.
    Mapped(memmap2::Mmap),
    /// Inflated or generated content.
    Owned(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(vec) => vec,
        }
    }
}

/// Opens a regular file. Anything else is refused before it is opened, as opening a pipe waits for a writer.
pub fn regular(path: &Path) -> Result<File, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let check = |meta: std::fs::Metadata| match (meta.is_file(), meta.is_dir()) {
        (true, _) => Ok(()),
        (_, true) => Err(DataError::file(path, "is a folder, and a file is needed")),
        _ => Err(DataError::file(path, "is not a regular file but a pipe, device or socket; name a file")),
    };
    check(std::fs::metadata(path).map_err(io)?)?;
    let file = File::open(path).map_err(io)?;
    check(file.metadata().map_err(io)?)?;
    Ok(file)
}

/// Maps a regular file.
pub fn map(path: &Path) -> Result<Bytes, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let file = regular(path)?;
    let meta = file.metadata().map_err(io)?;
    if meta.len() == 0 {
        return Ok(Bytes::Owned(Vec::new()));
    }
    // SAFETY: the mapping is private to this process and only ever read as plain bytes, for which
    // every value is valid; readers re-check whatever they rely on (such as UTF-8) at each use.
    // Truncating the file during a run ends the process, as with every program that maps files.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    Ok(Bytes::Mapped(map))
}

/// A text file; or all `.txt` files of a directory in ascending order of their names, each ending
/// with a line break.
pub fn text(path: &Path) -> Result<Bytes, DataError> {
    if !path.is_dir() {
        return map(path);
    }
    let mut all = Vec::new();
    for file in sorted(path)?.iter().filter(|file| file.extension().is_some_and(|e| e == "txt")) {
        let content = map(file)?;
        all.extend_from_slice(utf8(file, &content)?.as_bytes());
        if !all.ends_with(b"\n") {
            all.push(b'\n');
        }
    }
    match all.is_empty() {
        true => Err(DataError::file(path, "has no .txt files")),
        false => Ok(Bytes::Owned(all)),
    }
}

/// A whole text file of moderate size, such as a tokenizer.
pub fn small_text(path: &Path) -> Result<String, DataError> {
    const MOST: u64 = 256 << 20;
    let mut bytes = Vec::new();
    let read = regular(path)?.take(MOST + 1).read_to_end(&mut bytes);
    read.map_err(|source| DataError::Io { path: path.into(), source })?;
    if bytes.len() as u64 > MOST {
        return Err(DataError::file(path, "is larger than 256 MiB; is it the right file?"));
    }
    String::from_utf8(bytes).map_err(|error| not_utf8(path, error.utf8_error().valid_up_to() as u64))
}

/// What a directory holds, in ascending order.
pub fn sorted(directory: &Path) -> Result<Vec<PathBuf>, DataError> {
    let io = |source| DataError::Io { path: directory.into(), source };
    let mut out = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        out.push(entry.map_err(io)?.path());
    }
    out.sort();
    Ok(out)
}

/// The bytes as text, or an error with the offset of the first byte that is not UTF-8.
pub fn utf8<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, DataError> {
    std::str::from_utf8(bytes).map_err(|error| not_utf8(path, error.valid_up_to() as u64))
}

/// The error about the first byte that is not UTF-8.
pub fn not_utf8(path: &Path, offset: u64) -> DataError {
    DataError::at(path, offset, "is not UTF-8; convert the file first")
}

/// Whether the bytes start like a gzip file.
pub fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// The largest size to which `compressed` bytes can inflate: deflate never exceeds 1032 to 1.
pub fn inflated_limit(compressed: usize) -> u64 {
    (compressed as u64).saturating_mul(1032)
}

/// Reads at most `limit` bytes from a decompressor, without reserving them beforehand.
pub fn read_limited(path: &Path, reader: impl Read, limit: u64) -> Result<Vec<u8>, DataError> {
    let mut out = Vec::new();
    reader.take(limit).read_to_end(&mut out).map_err(|error| {
        DataError::at(path, out.len() as u64, format!("compressed content is damaged: {error}"))
    })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::scratch::Scratch;

    #[test]
    fn directories_of_text_are_joined_in_order() {
        let dir = Scratch::new();
        assert!(text(&dir.0).is_err());
        dir.write("b.txt", b"second");
        dir.write("a.txt", b"first\n");
        dir.write("c.json", b"{}");
        assert_eq!(&*text(&dir.0).unwrap(), b"first\nsecond\n");
        dir.write("c.txt", b"ab\xff");
        let message = text(&dir.0).err().unwrap().to_string();
        assert!(message.contains("c.txt: at byte 2: is not UTF-8"), "{message}");
    }

    #[test]
    fn maps_files_and_names_what_it_cannot_map() {
        let dir = Scratch::new();
        for content in [&b""[..], b"abc"] {
            assert_eq!(&*map(&dir.write("f", content)).unwrap(), content);
        }
        for bad in [dir.0.clone(), dir.0.join("absent")] {
            let message = map(&bad).err().unwrap().to_string();
            assert!(message.contains(&*bad.to_string_lossy()), "{message}");
        }
    }
}
