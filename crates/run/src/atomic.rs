//! Whole files or none: a file is written beside its place and moved there once it is on disk.
//! What was there before survives every failure, a full disk and a power cut included.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Ends the name of every unfinished file; such a name also starts with a dot.
pub const UNFINISHED: &str = ".tmp";

/// Replaces `path` by what `write` writes, or leaves it as it was.
///
/// The bytes go to a hidden file in the same directory, are flushed to disk, and only then take the
/// name `path`. If anything fails before that, the hidden file is removed. An error after it (the
/// directory could not be synchronised) means that `path` is whole but might not survive a power cut.
pub fn write_atomic<F>(path: &Path, write: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<File>) -> io::Result<()>,
{
    let (file, unfinished) = create_beside(path)?;
    let moved = write_through(file, write).and_then(|()| fs::rename(&unfinished, path));
    if let Err(error) = moved {
        // The first error is the one worth reporting; a file left behind only costs space.
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    sync_directory(directory_of(path))
}

/// Removes the unfinished files that killed processes left in `dir`. Nobody may be writing there.
pub fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(UNFINISHED) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn write_through<F>(file: File, write: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<File>) -> io::Result<()>,
{
    let mut buffered = BufWriter::with_capacity(1 << 18, file);
    if let Err(error) = write(&mut buffered) {
        // Dropping the writer would flush what is buffered into a file about to be removed.
        let _ = buffered.into_parts();
        return Err(error);
    }
    buffered.flush()?;
    buffered.get_ref().sync_all()
}

/// Creates a new hidden file in the directory of `path`; never opens an existing one.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
    };
    for attempt in 0..1000 {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{attempt}{UNFINISHED}"));
        let candidate = directory_of(path).join(hidden);
        match OpenOptions::new().write(true).create_new(true).open(&candidate) {
            Ok(file) => return Ok((file, candidate)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many unfinished files beside it; remove them"))
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Makes a rename in `directory` durable. Only Unix lets a directory be opened and synchronised.
fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_the_file_and_leaves_nothing_else() {
        let dir = TestDir::new("atomic-replace");
        let path = dir.join("a.txt");
        for text in ["first", "second, longer", ""] {
            write_atomic(&path, |f| f.write_all(text.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(&dir), ["a.txt"]);
        }
    }

    #[test]
    fn a_failed_write_keeps_the_previous_file() {
        let dir = TestDir::new("atomic-keep");
        let path = dir.join("a.txt");
        write_atomic(&path, |f| f.write_all(b"kept")).unwrap();
        let error = write_atomic(&path, |f| {
            f.write_all(&vec![7; 1 << 20])?;
            Err(io::Error::other("disk full"))
        });
        assert_eq!(error.unwrap_err().to_string(), "disk full");
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        assert_eq!(names(&dir), ["a.txt"]);
    }

    #[test]
    fn a_failed_rename_removes_the_unfinished_file() {
        let dir = TestDir::new("atomic-rename");
        let path = dir.join("taken");
        fs::create_dir(&path).unwrap();
        assert!(write_atomic(&path, |f| f.write_all(b"x")).is_err());
        assert_eq!(names(&dir), ["taken"]);
    }

    #[test]
    fn an_unfinished_file_of_another_writer_is_not_touched() {
        let dir = TestDir::new("atomic-other");
        fs::write(dir.join(".a.txt.0.tmp"), "theirs").unwrap();
        write_atomic(&dir.join("a.txt"), |f| f.write_all(b"ours")).unwrap();
        assert_eq!(fs::read_to_string(dir.join(".a.txt.0.tmp")).unwrap(), "theirs");
        assert_eq!(names(&dir), [".a.txt.0.tmp", "a.txt"]);
        fs::write(dir.join("b.tmp"), "not hidden").unwrap();
        fs::write(dir.join(".b"), "not unfinished").unwrap();
        remove_unfinished(&dir).unwrap();
        assert_eq!(names(&dir), [".b", "a.txt", "b.tmp"]);
    }

    #[test]
    fn paths_without_a_file_are_refused() {
        for path in ["/", "..", ""] {
            assert!(write_atomic(Path::new(path), |_| Ok(())).is_err(), "{path:?}");
        }
        assert!(write_atomic(Path::new("/no/such/dir/file"), |_| Ok(())).is_err());
    }
}
