//! One process at a time: a lock on a file that ends with the process that has it, however that ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// How often a lock is tried again: a process that was just killed may take a moment to be gone.
const TRIES: u32 = 50;

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody has it.
    #[error("in use by {holder}")]
    Taken {
        /// The process, as far as it is known.
        holder: String,
    },
    /// The file system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Takes the lock of the file `path`, which is made if it is not there. The lock is held until the file is dropped.
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
