//! The directory of a run's checkpoints: `step-00000100.safetensors` and so on. Finds the newest
//! whole one and removes those no longer wanted.

use super::{CheckpointError, Stored};
use crate::files::atomic::UNFINISHED;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";

/// What [`latest`] found.
#[derive(Debug)]
pub struct Newest {
    /// The step of the newest checkpoint that could be read, and its file.
    pub found: Option<(u64, Stored)>,
    /// Why each newer one could not.
    pub skipped: Vec<CheckpointError>,
}

/// The file of step `step` in the checkpoint directory `dir`.
pub fn step_path(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{step:08}{SUFFIX}"))
}

/// The step of a file name made by [`step_path`].
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let step = digits.parse().ok()?;
    (format!("{step:08}") == digits).then_some(step)
}

/// Every checkpoint file in `dir`, oldest step first; other files are ignored, and a missing
/// directory is an empty one. Nothing is opened.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let mut steps: Vec<u64> = names(dir)?.iter().filter_map(|name| step_of(name)).collect();
    steps.sort_unstable();
    Ok(steps.into_iter().map(|step| (step, step_path(dir, step))).collect())
}

/// The newest checkpoint in `dir` that passes every check of [`Stored::open`].
pub fn latest(dir: &Path) -> Result<Newest, CheckpointError> {
    let mut skipped = Vec::new();
    for (step, path) in list(dir)?.into_iter().rev() {
        match Stored::open(&path) {
            Ok(stored) => return Ok(Newest { found: Some((step, stored)), skipped }),
            Err(error) => skipped.push(error),
        }
    }
    Ok(Newest { found: None, skipped })
}

/// After a save of step `saved`: removes all checkpoints in `dir` but that and the `keep - 1` before it,
/// and the unfinished files of saves that were killed; returns what it removed. Those of later steps go
/// too: the run went back before them because they could not be read. Only the process that writes to
/// `dir` may call this, and not during a save.
pub fn prune(dir: &Path, keep: usize, saved: u64) -> Result<Vec<PathBuf>, CheckpointError> {
    let (mut steps, later): (Vec<_>, Vec<_>) = list(dir)?.into_iter().partition(|(step, _)| *step <= saved);
    steps.truncate(steps.len().saturating_sub(keep.max(1)));
    steps.extend(later);
    let unfinished = names(dir)?
        .into_iter()
        .filter(|name| name.starts_with(&format!(".{PREFIX}")) && name.ends_with(UNFINISHED))
        .map(|name| dir.join(name));
    let unwanted: Vec<PathBuf> = steps.into_iter().map(|(_, path)| path).chain(unfinished).collect();
    for path in &unwanted {
        fs::remove_file(path).map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
    }
    Ok(unwanted)
}

fn names(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let read = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|source| CheckpointError::Io { path: dir.to_path_buf(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::save;
    use super::*;
    use crate::host::{HostData, HostTensor};
    use crate::scratch::ScratchDir;
    use std::collections::BTreeMap;

    fn save_step(dir: &Path, step: u64) {
        let value = HostTensor::new(&[1], HostData::I64(vec![step as i64])).unwrap();
        save(&step_path(dir, step), &BTreeMap::from([("w".into(), value)]), &BTreeMap::new()).unwrap();
    }

    fn steps(dir: &Path) -> Vec<u64> {
        list(dir).unwrap().into_iter().map(|(step, _)| step).collect()
    }

    #[test]
    fn names_are_recognised_exactly() {
        for (name, step) in [
            ("step-00000100.safetensors", Some(100)),
            ("step-123456789.safetensors", Some(123456789)),
            ("step-100.safetensors", None),
            ("step-+0000100.safetensors", None),
            (".step-00000100.safetensors.0.tmp", None),
            ("best.safetensors", None),
        ] {
            assert_eq!(step_of(name), step, "{name}");
        }
    }

    #[test]
    fn latest_skips_and_reports_corrupt_files() {
        let dir = ScratchDir::new();
        assert!(latest(&dir.join("missing")).unwrap().found.is_none());
        for step in [5, 20, 100] {
            save_step(&dir, step);
        }
        fs::write(dir.join("notes.txt"), "ignored").unwrap();
        fs::write(step_path(&dir, 200), "half a checkpoint").unwrap();
        let newest = latest(&dir).unwrap();
        let (step, stored) = newest.found.unwrap();
        assert_eq!((step, stored.load().unwrap().tensors["w"].as_i64()), (100, Some(&[100][..])));
        assert_eq!(newest.skipped.len(), 1);
        assert!(newest.skipped[0].to_string().contains("step-00000200.safetensors: "));
    }

    #[test]
    fn prune_keeps_the_newest() {
        let dir = ScratchDir::new();
        for step in [5, 20, 100] {
            save_step(&dir, step);
        }
        fs::write(dir.join(".step-00000007.safetensors.0.tmp"), "killed").unwrap();
        fs::write(dir.join("keep.me"), "").unwrap();
        assert_eq!(prune(&dir, 2, 100).unwrap().len(), 2);
        assert_eq!(steps(&dir), [20, 100]);
        assert!(prune(&dir, 2, 100).unwrap().is_empty());
        save_step(&dir, 30);
        prune(&dir, 2, 30).unwrap();
        assert_eq!(steps(&dir), [20, 30]);
        prune(&dir, 0, 30).unwrap();
        assert_eq!(steps(&dir), [30]);
        assert!(dir.join("keep.me").exists());
    }
}
