//! Whole files or none: a file is written beside its place and moved there once it is on disk.
//! What was there before survives every failure, a full disk and a power cut included. Only regular files are
//! replaced: devices and pipes are written to, and a symbolic link stays a link to what was written.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Ends the name of every unfinished file; such a name also starts with a dot.
pub const UNFINISHED: &str = ".tmp";

/// Replaces the regular file `path`, or makes it, with what `write` writes; or leaves it as it was.
///
/// The bytes go to a hidden file in the same directory, are flushed to disk, and only then take the
/// name `path`. If anything fails before that, the hidden file is removed. An error after it (the
/// directory could not be synchronised) means that `path` is whole but might not survive a power cut.
///
/// A symbolic link is followed. What is there and is not a regular file, such as a device or a pipe, is
/// written to directly and stays what it is; directories and sockets are refused.
pub fn write_atomic<F>(path: &Path, write: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<File>) -> io::Result<()>,
{
    let path = &followed(path)?;
    if let Kind::Stream = kind(path)? {
        let mut buffered = BufWriter::with_capacity(1 << 18, OpenOptions::new().write(true).open(path)?);
        return write(&mut buffered).and_then(|()| buffered.flush());
    }
    let (file, unfinished) = create_beside(path)?;
    let moved = write_through(file, write).and_then(|()| fs::rename(&unfinished, path));
    if let Err(error) = moved {
        // The first error is the one worth reporting; a file left behind only costs space.
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    sync_directory(directory_of(path))
}

/// Whether [`write_atomic`] could write to `path` now, found without changing anything there. A pipe is not
/// opened, since its reader would see that as the end.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let path = &followed(path)?;
    match kind(path)? {
        Kind::Stream if is_pipe(path) => Ok(()),
        Kind::Stream => OpenOptions::new().write(true).open(path).map(drop),
        Kind::Regular => {
            let (_, unfinished) = create_beside(path)?;
            fs::remove_file(unfinished)
        }
    }
}

/// What a path names, or would name once written.
enum Kind {
    /// A regular file, or nothing yet.
    Regular,
    /// A device or a pipe.
    Stream,
}

fn kind(path: &Path) -> io::Result<Kind> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(Kind::Regular),
        Ok(found) if found.is_dir() => {
            Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory, not a file"))
        }
        Ok(_) => Ok(Kind::Stream),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kind::Regular),
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_pipe(_: &Path) -> bool {
    false
}

/// The path behind a chain of symbolic links, whether or not something is there.
fn followed(path: &Path) -> io::Result<PathBuf> {
    const LONGEST: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..LONGEST {
        match fs::read_link(&path) {
            // Links below /proc name open files; what they read as need not be a path.
            Ok(_) if fs::metadata(&path).is_ok_and(|found| !found.is_file()) => return Ok(path),
            Ok(target) => path = directory_of(&path).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
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
    use crate::scratch::ScratchDir;

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
        let dir = ScratchDir::new();
        let path = dir.join("a.txt");
        for text in ["first", "second, longer", ""] {
            write_atomic(&path, |f| f.write_all(text.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(&dir), ["a.txt"]);
        }
    }

    #[test]
    fn a_failed_write_keeps_the_previous_file() {
        let dir = ScratchDir::new();
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
        let dir = ScratchDir::new();
        let path = dir.join("taken");
        fs::create_dir(&path).unwrap();
        assert!(write_atomic(&path, |f| f.write_all(b"x")).is_err());
        assert_eq!(names(&dir), ["taken"]);
    }

    #[test]
    fn an_unfinished_file_of_another_writer_is_not_touched() {
        let dir = ScratchDir::new();
        fs::write(dir.join(".a.txt.0.tmp"), "theirs").unwrap();
        write_atomic(&dir.join("a.txt"), |f| f.write_all(b"ours")).unwrap();
        assert_eq!(fs::read_to_string(dir.join(".a.txt.0.tmp")).unwrap(), "theirs");
        assert_eq!(names(&dir), [".a.txt.0.tmp", "a.txt"]);
        fs::write(dir.join("b.tmp"), "not hidden").unwrap();
        fs::write(dir.join(".b"), "not unfinished").unwrap();
        remove_unfinished(&dir).unwrap();
        assert_eq!(names(&dir), [".b", "a.txt", "b.tmp"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_devices_and_pipes_stay_what_they_are() {
        use std::os::unix::fs::{FileTypeExt, symlink};
        let dir = ScratchDir::new();
        for (link, target) in [("there", "target"), ("dangling", "not-yet")] {
            fs::write(dir.join("target"), "old").unwrap();
            symlink(target, dir.join(link)).unwrap();
            check_writable(&dir.join(link)).unwrap();
            write_atomic(&dir.join(link), |f| f.write_all(b"new")).unwrap();
            assert!(fs::symlink_metadata(dir.join(link)).unwrap().is_symlink(), "{link}");
            assert_eq!(fs::read_to_string(dir.join(target)).unwrap(), "new");
        }
        symlink("circle", dir.join("circle")).unwrap();
        assert!(write_atomic(&dir.join("circle"), |_| Ok(())).is_err());

        symlink("/dev/full", dir.join("full")).unwrap();
        check_writable(&dir.join("full")).unwrap();
        let error = write_atomic(&dir.join("full"), |f| f.write_all(b"lost")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
        write_atomic(Path::new("/dev/null"), |f| f.write_all(b"gone")).unwrap();

        let pipe = dir.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        check_writable(&pipe).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        write_atomic(&pipe, |f| f.write_all(b"through")).unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }

    #[test]
    fn checking_changes_nothing() {
        let dir = ScratchDir::new();
        fs::write(dir.join("a.txt"), "kept").unwrap();
        for good in ["a.txt", "new.txt"] {
            check_writable(&dir.join(good)).unwrap();
        }
        assert_eq!(names(&dir), ["a.txt"]);
        assert_eq!(fs::read_to_string(dir.join("a.txt")).unwrap(), "kept");
        for bad in ["", "no/such/dir/file", "a.txt/below", ".."] {
            assert!(check_writable(&dir.join(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn paths_without_a_file_are_refused() {
        for path in ["/", "..", ""] {
            assert!(write_atomic(Path::new(path), |_| Ok(())).is_err(), "{path:?}");
        }
        assert!(write_atomic(Path::new("/no/such/dir/file"), |_| Ok(())).is_err());
    }
}
