//! Files for one test, removed when it ends, and damaged copies of them.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// An empty directory of its own.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub fn new() -> ScratchDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("gulliver-run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        ScratchDir(path)
    }

    /// Writes a file, and the directories above it.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Deref for ScratchDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Calls `read` with every truncation and several mutations of every byte of `good`; `read` may fail but must return.
pub fn torture(good: &[u8], mut read: impl FnMut(&[u8])) {
    for cut in 0..good.len() {
        read(&good[..cut]);
    }
    for at in 0..good.len() {
        for flip in [0x01, 0x10, 0x80, 0xff] {
            let mut bad = good.to_vec();
            bad[at] ^= flip;
            read(&bad);
        }
    }
    read(&[good, &[0]].concat());
}
