//! A lock on a file, which the system releases when the process that holds it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Number of retries: a process that was just killed may take a moment to end.
const TRIES: u32 = 50;

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("in use by {holder}")]
    Taken {
        /// The process, if known.
        holder: String,
    },
    /// The file system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Locks the file `path`, which is created if absent. The lock is held until the returned file is dropped.
pub fn lock(path: &Path) -> Result<File, LockError> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut taken = file.try_lock();
    for _ in 0..TRIES {
        if !matches!(taken, Err(TryLockError::WouldBlock)) {
            break;
        }
        sleep(Duration::from_millis(10));
        taken = file.try_lock();
    }
    match taken {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let _ = file.take(64).read_to_string(&mut text);
            let holder = match text.trim().parse::<u32>() {
                Ok(id) => format!("process {id}"),
                Err(_) => "another process".into(),
            };
            return Err(LockError::Taken { holder });
        }
        Err(TryLockError::Error(source)) => return Err(source.into()),
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchDir;

    #[test]
    fn a_lock_is_held_by_one_until_it_is_dropped() {
        let dir = ScratchDir::new();
        let path = dir.join("a.lock");
        let held = lock(&path).unwrap();
        let message = lock(&path).unwrap_err().to_string();
        assert_eq!(message, format!("in use by process {}", std::process::id()));
        drop(held);
        lock(&path).unwrap();
        assert!(matches!(lock(&dir.join("no/dir")), Err(LockError::Io(_))));
    }
}
