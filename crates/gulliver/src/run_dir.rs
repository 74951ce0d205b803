//! The directory of a run: its path, its lock, and the rule that files which no run has written are never replaced.

use crate::error::Error;
use gulliver_run::checkpoint::{self, CheckpointFile};
use gulliver_run::files::atomic::remove_unfinished;
use gulliver_run::files::lock::{LockError, lock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The complete job.
pub const JOB: &str = "job.toml";
/// The model and the meaning of its inputs and outputs, as JSON: see [`About`].
pub const ABOUT: &str = "run.json";
/// The plan of a training step.
pub const PLAN: &str = "plan.json";
/// Every measured value.
pub const METRICS: &str = "metrics.csv";
/// The model as trained.
pub const WEIGHTS: &str = "weights.safetensors";
/// The model after its best evaluation.
pub const BEST: &str = "best.safetensors";
/// The lock of the process that trains here.
const LOCK: &str = "run.lock";

/// The model of a run, and the job file that started it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// The version that wrote it.
    pub gulliver: String,
    /// The job file the run was started with.
    pub job_file: PathBuf,
    /// The model and all its settings.
    pub model: serde_json::Value,
    /// The meaning of inputs and outputs.
    pub mapping: serde_json::Value,
}

impl About {
    /// That of the run in `dir`; none if it cannot be read.
    pub fn read(dir: &Path) -> Option<About> {
        serde_json::from_slice(&fs::read(dir.join(ABOUT)).ok()?).ok()
    }
}

/// A run directory locked by this process. Unless [`RunDir::keep`] is called, everything made for it is removed again.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Directories that this process made, deepest first.
    made: Vec<PathBuf>,
    /// Whether it made the lock's file too.
    made_lock: bool,
    kept: bool,
    /// Unlocked when dropped.
    _lock: File,
}

impl RunDir {
    /// The directory `out`; or else one below `runs/` named after the job file: with `resume` the newest that was
    /// started with this very file, otherwise a new one.
    pub fn take(job: &Path, out: Option<&Path>, resume: bool) -> Result<RunDir, Error> {
        let stem = job.file_stem().map_or("job".into(), |s| s.to_string_lossy().into_owned());
        let name = |n: u32| Path::new("runs").join(if n == 1 { stem.clone() } else { format!("{stem}-{n}") });
        let found = out.map(Path::to_path_buf).or_else(|| resume.then(|| newest(&stem, job)).flatten());
        if let Some(dir) = found {
            let run = RunDir::lock(&dir)?;
            run.check(resume)?;
            return Ok(run);
        }
        for n in 1.. {
            match RunDir::lock(&name(n)) {
                Ok(run) if run.is_empty() => return Ok(run),
                Ok(_) | Err(Error::DirectoryInUse { .. }) => continue,
                Err(e) => return Err(e),
            }
        }
        unreachable!("some directory is free")
    }

    fn lock(dir: &Path) -> Result<RunDir, Error> {
        let failed = |path: &Path, source| Error::File { path: path.to_path_buf(), source };
        let path = dir.join(LOCK);
        let above = dir.ancestors().filter(|above| !above.as_os_str().is_empty());
        let made = above.take_while(|above| !above.exists()).map(Path::to_path_buf).collect();
        let made_lock = !path.exists();
        fs::create_dir_all(dir).map_err(|source| failed(dir, source))?;
        let held = lock(&path).map_err(|error| match error {
            LockError::Taken { holder } => Error::DirectoryInUse { dir: dir.to_path_buf(), holder },
            LockError::Io(source) => failed(&path, source),
        })?;
        Ok(RunDir { path: dir.to_path_buf(), made, made_lock, kept: false, _lock: held })
    }

    /// Whether there is nothing here but the lock.
    fn is_empty(&self) -> bool {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).all(|name| name == LOCK)
    }

    /// Refuses a new run in the directory of another, and files that no run has written.
    fn check(&self, resume: bool) -> Result<(), Error> {
        let ours = is_run(&self.path);
        if ours && !resume {
            return Err(Error::DirectoryTaken(self.path.clone()));
        }
        let is_foreign = |name: &&&str| {
            let path = self.path.join(name);
            let weights = name.ends_with(".safetensors");
            path.symlink_metadata().is_ok()
                && (!ours || weights && CheckpointFile::is_ours(&path).is_ok_and(|ours| !ours))
        };
        match [JOB, ABOUT, PLAN, METRICS, WEIGHTS, BEST].iter().find(is_foreign) {
            Some(name) => Err(Error::ForeignFile(self.path.join(name))),
            None => Ok(()),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory of its checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.join("checkpoints")
    }

    /// Keeps the directory from now on, and removes unfinished files of a killed process.
    pub fn keep(&mut self) -> Result<(), Error> {
        self.kept = true;
        for dir in [&self.path, &self.checkpoints()] {
            fs::create_dir_all(dir)
                .and_then(|()| remove_unfinished(dir))
                .map_err(|source| Error::File { path: dir.to_path_buf(), source })?;
        }
        Ok(())
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.kept {
            // Leftovers do no harm.
            if self.made_lock {
                let _ = fs::remove_file(self.path.join(LOCK));
            }
            for dir in &self.made {
                let _ = fs::remove_dir(dir);
            }
        }
    }
}

/// The directory below `runs/`, among those of this job file, that was last written to.
fn newest(stem: &str, job: &Path) -> Option<PathBuf> {
    let named = |name: &str| match name.strip_prefix(stem) {
        Some("") => true,
        Some(rest) => rest.strip_prefix('-').is_some_and(|n| n.parse::<u32>().is_ok()),
        None => false,
    };
    let entries = fs::read_dir("runs").ok()?.flatten();
    let dirs =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(named)).map(|entry| entry.path());
    let written = |dir: &PathBuf| {
        let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
        (modified(&dir.join("checkpoints")).or(modified(dir)), dir.clone())
    };
    dirs.filter(|dir| is_of(dir, job)).max_by_key(written)
}

/// Whether a run was started here.
fn is_run(dir: &Path) -> bool {
    dir.join(ABOUT).exists() || checkpoint::list(&dir.join("checkpoints")).is_ok_and(|all| !all.is_empty())
}

/// Whether a run was started here with this job file; any run counts if that is not known.
fn is_of(dir: &Path, job: &Path) -> bool {
    match About::read(dir) {
        Some(about) => absolute(job).is_ok_and(|job| about.job_file == job),
        None => is_run(dir),
    }
}

/// A path that does not depend on the current directory.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    std::path::absolute(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn about(job: &Path) -> String {
        let job_file = absolute(job).unwrap();
        let null = serde_json::Value::Null;
        let about = About { gulliver: "1".into(), job_file, model: null.clone(), mapping: null };
        serde_json::to_string(&about).unwrap()
    }

    #[test]
    fn one_process_at_a_time_and_no_traces_of_what_did_not_start() {
        let dir = TestDir::new("run-dir-lock");
        let out = dir.join("new");
        let held = RunDir::take(Path::new("a.toml"), Some(&out), false).unwrap();
        let message = RunDir::take(Path::new("a.toml"), Some(&out), true).unwrap_err().to_string();
        assert!(message.contains(&format!("in use by process {}", std::process::id())), "{message}");
        drop(held);
        assert!(!out.exists());
        RunDir::take(Path::new("a.toml"), Some(&out), false).unwrap().keep().unwrap();
        assert!(out.join("checkpoints").exists());
    }

    #[test]
    fn what_no_run_has_written_is_not_replaced() {
        for name in [JOB, WEIGHTS, METRICS, PLAN] {
            let dir = TestDir::new(&format!("run-dir-{name}"));
            fs::write(dir.join(name), "mine").unwrap();
            for resume in [false, true] {
                let message = RunDir::take(Path::new("a.toml"), Some(&dir), resume).unwrap_err().to_string();
                assert!(message.contains(name) && message.contains("--out"), "{message}");
            }
            let names: Vec<_> = fs::read_dir(&*dir).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, [name], "nothing else is left there");
        }
    }

    #[test]
    fn a_run_is_gone_on_with_only_when_asked() {
        let dir = TestDir::new("run-dir-resume");
        for name in [JOB, METRICS] {
            fs::write(dir.join(name), "").unwrap();
        }
        fs::write(dir.join(ABOUT), about(Path::new("a.toml"))).unwrap();
        let taken = RunDir::take(Path::new("a.toml"), Some(&dir), false).unwrap_err();
        assert!(matches!(taken, Error::DirectoryTaken(_)));
        RunDir::take(Path::new("a.toml"), Some(&dir), true).unwrap();
        assert!(is_of(&dir, Path::new("a.toml")) && !is_of(&dir, Path::new("b.toml")));
        // Weights from elsewhere, even in a run's own directory.
        let tensor = gulliver_run::host::HostTensor::zeros(gulliver_graph::dtype::DType::F32, &[1]);
        checkpoint::save(&dir.join(WEIGHTS), &[("w".to_string(), tensor)].into(), &Default::default())
            .unwrap();
        RunDir::take(Path::new("a.toml"), Some(&dir), true).unwrap();
        let foreign = b"\x02\0\0\0\0\0\0\0{}";
        fs::write(dir.join(WEIGHTS), foreign).unwrap();
        let message = RunDir::take(Path::new("a.toml"), Some(&dir), true).unwrap_err().to_string();
        assert!(message.contains(WEIGHTS), "{message}");
    }
}
