//! Files that users name: text read only from regular files of a bearable size, and files that are replaced as a whole
//! or not at all.

use crate::error::Error;
use crate::units;
use gulliver_run::files::atomic::{check_writable, write_atomic};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Whether [`write_file`] could write there; asked before the work whose result is to be written.
pub fn check_file(path: &Path) -> Result<(), Error> {
    check_writable(path).map_err(|source| Error::File { path: path.to_path_buf(), source })
}

/// Writes a file as a whole: readers see the old file or the new one.
pub fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    write_atomic(path, |file| write(file)).map_err(|source| Error::File { path: path.to_path_buf(), source })
}

/// The text of a regular file of at most `most` bytes; `what` is what it should be, such as `a profile`.
pub fn read_text(path: &Path, what: &str, most: u64) -> Result<String, Error> {
    let failed = |source: io::Error| Error::File { path: path.to_path_buf(), source };
    let refused = |problem: String| Error::Invalid(format!("{}: {problem}", path.display()));
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        let is = if found.is_dir() { "is a directory" } else { "is a device or pipe" };
        return Err(refused(format!("{is}; {what} is a regular file")));
    }
    let too_large = |size: u64| {
        let (size, most) = (units::bytes(size), units::bytes(most));
        refused(format!("has {size}; {what} has at most {most}"))
    };
    if found.len() > most {
        return Err(too_large(found.len()));
    }
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(most + 1).read_to_string(&mut text).map_err(failed)?;
    match text.len() as u64 > most {
        true => Err(too_large(text.len() as u64)),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn only_regular_files_of_a_bearable_size_are_read() {
        let dir = TestDir::new("text-file");
        let path = dir.join("a.toml");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(read_text(&path, "a profile", 10).unwrap(), "0123456789");
        let error = |path: &Path, most| read_text(path, "a profile", most).unwrap_err().to_string();
        let path_of = path.display().to_string();
        assert_eq!(error(&path, 9), format!("{path_of}: has 10 B; a profile has at most 9 B"));
        assert!(error(&dir, 9).ends_with("is a directory; a profile is a regular file"));
        // Ten gigabytes that take no room.
        File::options().write(true).open(&path).unwrap().set_len(10 << 30).unwrap();
        assert_eq!(error(&path, 1 << 20), format!("{path_of}: has 10.0 GiB; a profile has at most 1.0 MiB"));
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(error(&path, 9).contains("UTF-8"));
        assert!(error(&dir.join("none"), 9).contains("No such file"));
        if cfg!(unix) {
            let pipe = dir.join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            for device in [pipe.as_path(), Path::new("/dev/zero")] {
                assert!(error(device, 9).ends_with("is a device or pipe; a profile is a regular file"));
            }
        }
    }
}
