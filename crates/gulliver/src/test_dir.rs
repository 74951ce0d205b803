//! A directory for one test, gone when the test ends.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

pub(crate) struct TestDir(PathBuf);

impl TestDir {
    /// An empty directory; `name` must be unique among the tests of this crate.
    pub fn new(name: &str) -> TestDir {
        let path = std::env::temp_dir().join(format!("gulliver-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        TestDir(path)
    }
}

impl Deref for TestDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
