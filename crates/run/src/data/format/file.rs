//! Random access to the bytes of files. Files are read, not mapped, so that one that shrinks during a run is an error
//! instead of a signal. Knows no format.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::data::DataError;

/// Bytes read at once in a pass over a whole file.
const PIECE: usize = 256 << 10;

/// Bytes of a file or of memory, readable from any offset.
pub struct FileBytes {
    path: PathBuf,
    length: usize,
    source: Source,
}

enum Source {
    /// Decompressed or generated content.
    Memory(Vec<u8>),
    /// A file that stays open.
    File(File),
}

impl FileBytes {
    /// Bytes in memory; `path` names their origin in messages.
    pub fn owned(path: &Path, bytes: Vec<u8>) -> FileBytes {
        FileBytes { path: path.into(), length: bytes.len(), source: Source::Memory(bytes) }
    }

    /// A regular file at its current length.
    pub fn open(path: &Path) -> Result<FileBytes, DataError> {
        let io = |source| DataError::Io { path: path.into(), source };
        let file = regular(path)?;
        let length = file.metadata().map_err(io)?.len();
        let length =
            usize::try_from(length).map_err(|_| DataError::file(path, "is too large for this machine"))?;
        Ok(FileBytes { path: path.into(), length, source: Source::File(file) })
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes of this range. Fails if the file has become too short.
    pub fn read(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>, DataError> {
        if range.start > range.end || range.end > self.length {
            return Err(DataError::at(&self.path, self.length as u64, "the file ends too early"));
        }
        match &self.source {
            Source::Memory(bytes) => Ok(Cow::Borrowed(&bytes[range])),
            Source::File(file) => {
                let mut out = vec![0; range.len()];
                file.read_exact_at(&mut out, range.start as u64).map_err(|source| match source.kind() {
                    std::io::ErrorKind::UnexpectedEof => self.changed(),
                    _ => DataError::Io { path: self.path.clone(), source },
                })?;
                Ok(Cow::Owned(out))
            }
        }
    }

    /// The error for a file that was changed after it was opened.
    pub fn changed(&self) -> DataError {
        DataError::file(&self.path, "the file was changed during the run")
    }

    /// Whether the first bytes are these.
    pub fn starts_with(&self, start: &[u8]) -> Result<bool, DataError> {
        Ok(*self.read(0..start.len().min(self.length))? == *start)
    }

    /// Calls `each` with consecutive pieces of this range.
    pub fn pieces(
        &self,
        range: Range<usize>,
        mut each: impl FnMut(&[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(PIECE));
            each(&self.read(start..end)?)?;
            start = end;
        }
        Ok(())
    }

    /// Calls `each` with consecutive pieces of the text and their offsets. Fails if the bytes are not UTF-8.
    pub fn text(&self, mut each: impl FnMut(usize, &str) -> Result<(), DataError>) -> Result<(), DataError> {
        let mut start = 0;
        while start < self.length {
            let end = self.length.min(start + PIECE);
            let piece = self.read(start..end)?;
            let text = match std::str::from_utf8(&piece) {
                Ok(text) => text,
                // The end of a piece may cut a character; the end of the file may not.
                Err(error) if error.error_len().is_none() && end < self.length => {
                    std::str::from_utf8(&piece[..error.valid_up_to()]).unwrap_or_default()
                }
                Err(error) => return Err(not_utf8(&self.path, (start + error.valid_up_to()) as u64)),
            };
            each(start, text)?;
            start += text.len();
        }
        Ok(())
    }

    /// Calls `each` with every line, line break included, and its offset.
    pub fn lines(&self, mut each: impl FnMut(usize, &str) -> Result<(), DataError>) -> Result<(), DataError> {
        // The beginning of a line that ends in a later piece, and its offset.
        let (mut begun, mut begun_at) = (String::new(), 0);
        self.text(|mut offset, text| {
            for line in text.split_inclusive('\n') {
                match (begun.is_empty(), line.ends_with('\n')) {
                    (true, true) => each(offset, line)?,
                    (false, true) => {
                        begun.push_str(line);
                        each(begun_at, &begun)?;
                        begun.clear();
                    }
                    (first, false) => {
                        begun_at = if first { offset } else { begun_at };
                        begun.push_str(line);
                    }
                }
                offset += line.len();
            }
            Ok(())
        })?;
        if begun.is_empty() { Ok(()) } else { each(begun_at, &begun) }
    }

    /// A sequential reader of this range, for decompressors.
    pub fn reader(&self, range: Range<usize>) -> impl Read {
        Reader { bytes: self, range }
    }
}

struct Reader<'a> {
    bytes: &'a FileBytes,
    range: Range<usize>,
}

impl Read for Reader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let end = self.range.end.min(self.range.start.saturating_add(out.len()));
        let piece = self.bytes.read(self.range.start..end).map_err(std::io::Error::other)?;
        out[..piece.len()].copy_from_slice(&piece);
        self.range.start = end;
        Ok(piece.len())
    }
}

/// Opens a regular file. Anything else is refused before opening, because opening a pipe waits for a writer.
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

/// A text file, or all `.txt` files of a directory in ascending order of their names, each ended by a line break.
pub fn text(path: &Path) -> Result<FileBytes, DataError> {
    if !path.is_dir() {
        return FileBytes::open(path);
    }
    let mut all = Vec::new();
    for file in sorted(path)?.iter().filter(|file| file.extension().is_some_and(|e| e == "txt")) {
        FileBytes::open(file)?.text(|_, text| {
            all.extend_from_slice(text.as_bytes());
            Ok(())
        })?;
        if !all.ends_with(b"\n") {
            all.push(b'\n');
        }
    }
    match all.is_empty() {
        true => Err(DataError::file(path, "has no .txt files")),
        false => Ok(FileBytes::owned(path, all)),
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

/// The entries of a directory in ascending order.
pub fn sorted(directory: &Path) -> Result<Vec<PathBuf>, DataError> {
    let io = |source| DataError::Io { path: directory.into(), source };
    let mut out = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        out.push(entry.map_err(io)?.path());
    }
    out.sort();
    Ok(out)
}

/// The bytes as text; the error has the offset of the first byte that is not UTF-8.
pub fn utf8<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, DataError> {
    std::str::from_utf8(bytes).map_err(|error| not_utf8(path, error.valid_up_to() as u64))
}

/// The error for a byte that is not UTF-8.
pub fn not_utf8(path: &Path, offset: u64) -> DataError {
    DataError::at(path, offset, "is not UTF-8; convert the file first")
}

/// Whether the bytes start like a gzip file.
pub fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}

/// Upper bound of the decompressed size: deflate never exceeds 1032 to 1.
pub fn inflated_limit(compressed: usize) -> u64 {
    (compressed as u64).saturating_mul(1032)
}

/// Reads at most `limit` bytes from a decompressor without allocating them in advance.
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
    use crate::scratch::ScratchDir;

    fn whole(bytes: &FileBytes) -> Vec<u8> {
        bytes.read(0..bytes.len()).unwrap().into_owned()
    }

    #[test]
    fn directories_of_text_are_joined_in_order() {
        let dir = ScratchDir::new();
        assert!(text(&dir).is_err());
        dir.write("b.txt", b"second");
        dir.write("a.txt", b"first\n");
        dir.write("c.json", b"{}");
        assert_eq!(whole(&text(&dir).unwrap()), b"first\nsecond\n");
        dir.write("c.txt", b"ab\xff");
        let message = text(&dir).err().unwrap().to_string();
        assert!(message.contains("c.txt: at byte 2: is not UTF-8"), "{message}");
    }

    #[test]
    fn files_are_read_anywhere_and_what_cannot_be_opened_is_named() {
        let dir = ScratchDir::new();
        for content in [&b""[..], b"abc"] {
            let bytes = FileBytes::open(&dir.write("f", content)).unwrap();
            assert_eq!((bytes.len(), whole(&bytes)), (content.len(), content.to_vec()));
            assert!(bytes.read(content.len()..content.len() + 1).is_err());
        }
        let bytes = FileBytes::open(&dir.write("f", b"abc")).unwrap();
        assert_eq!(*bytes.read(1..2).unwrap(), *b"b");
        assert_eq!((bytes.starts_with(b"ab").unwrap(), bytes.starts_with(b"abcd").unwrap()), (true, false));
        for bad in [dir.to_path_buf(), dir.join("absent")] {
            let message = FileBytes::open(&bad).err().unwrap().to_string();
            assert!(message.contains(&*bad.to_string_lossy()), "{message}");
        }
    }

    #[test]
    fn text_is_gone_through_in_pieces_without_cutting_characters() {
        let dir = ScratchDir::new();
        let content: String =
            (0..PIECE as u32).map(|i| ['a', 'é', '大', '\n', '\u{1F600}'][(i % 5) as usize]).collect();
        // A long line across pieces, and no line break at the end.
        let content = format!("x{content}{}", "ü".repeat(PIECE));
        let path = dir.write("t", content.as_bytes());
        for bytes in [FileBytes::open(&path).unwrap(), FileBytes::owned(&path, content.clone().into_bytes())]
        {
            let (mut joined, mut lines) = (String::new(), Vec::new());
            bytes
                .text(|offset, text| {
                    assert_eq!(offset, joined.len());
                    joined.push_str(text);
                    Ok(())
                })
                .unwrap();
            assert!(joined == content);
            bytes
                .lines(|offset, line| {
                    lines.push((offset, line.to_string()));
                    Ok(())
                })
                .unwrap();
            let mut at = 0;
            let expected = content.split_inclusive('\n').map(|line| {
                at += line.len();
                (at - line.len(), line.to_string())
            });
            assert!(lines.into_iter().eq(expected));
            let mut inflated = Vec::new();
            bytes.reader(1..content.len()).read_to_end(&mut inflated).unwrap();
            assert!(inflated == content.as_bytes()[1..]);
        }
        for (cut, at) in [(content.len() - 1, content.len() - 2), (PIECE + 1, usize::MAX)] {
            let bytes = FileBytes::owned(&path, content.as_bytes()[..cut].to_vec());
            let end = content.floor_char_boundary(cut);
            let error = bytes.text(|_, _| Ok(()));
            match end == cut {
                true => assert!(error.is_ok()),
                false => assert!(
                    error.unwrap_err().to_string().contains(&format!("at byte {}: is not", at.min(end)))
                ),
            }
        }
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let dir = ScratchDir::new();
        let path = dir.write("t", &vec![b'a'; 3 * PIECE]);
        let bytes = FileBytes::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        assert!(bytes.read(0..10).is_ok());
        let message = bytes.read(5..11).unwrap_err().to_string();
        assert!(message.contains("changed during the run"), "{message}");
        assert!(bytes.text(|_, _| Ok(())).is_err());
        assert!(bytes.reader(0..bytes.len()).read_to_end(&mut Vec::new()).is_err());
    }

    #[test]
    fn pipes_and_devices_are_refused_before_they_are_opened() {
        let dir = ScratchDir::new();
        let pipe = dir.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let socket = dir.join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&pipe, &socket, Path::new("/dev/null"), Path::new("/dev/zero")] {
            let message = regular(path).unwrap_err().to_string();
            assert!(message.contains("is not a regular file"), "{message}");
        }
    }
}
