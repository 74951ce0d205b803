//! Predicted and measured steps of runs: a file beside the profile with one line for each run. New lines are appended;
//! the oldest are removed when there are too many.

use crate::error::Error;
use crate::machine;
use gulliver_plan::time::cost::MachineProfile;
use gulliver_run::files::atomic::write_atomic;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Runs that are kept; the file is cut to this number when it has half as many again.
const RUNS: usize = 1000;

/// The steps of one run with the most frequent size of input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Seconds since 1970.
    pub when: f64,
    /// The model.
    pub model: String,
    /// How devices share the work; `alone` on one device.
    pub strategy: String,
    /// Devices.
    pub devices: usize,
    /// Threads of each.
    pub threads: usize,
    /// Samples of a step.
    pub batch: u64,
    /// Steps that were measured.
    pub steps: u64,
    /// The [name](name_of) of the profile that predicted, if there was one.
    pub profile: Option<String>,
    /// Seconds of a step, predicted and measured.
    pub seconds: [f64; 2],
    /// Most bytes of the first device's memory, planned and measured.
    pub peak: [u64; 2],
    /// Bytes over links of the first device in all these steps, planned and measured.
    pub bytes: [u64; 2],
}

/// The usual path: `gulliver/runs.jsonl` in the user's directory of settings.
pub fn default_path() -> Option<PathBuf> {
    Some(machine::default_path()?.with_file_name("runs.jsonl"))
}

/// A unique name of a profile: a run is evidence only for the profile that predicted it.
pub fn name_of(profile: &MachineProfile) -> String {
    // FNV-1a: the same on every machine and in every version.
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", machine::render(profile).as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, add))
}

/// Adds a run.
pub fn add(path: &Path, ran: &RunRecord) -> io::Result<()> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::create_dir_all(dir)?;
    }
    let line = serde_json::to_string(ran)? + "\n";
    // One append: lines of runs that finish together do not mix.
    OpenOptions::new().append(true).create(true).open(path)?.write_all(line.as_bytes())?;
    let text = fs::read_to_string(path)?;
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > RUNS + RUNS / 2 {
        let kept = lines[lines.len() - RUNS..].join("\n") + "\n";
        write_atomic(path, |out| out.write_all(kept.as_bytes()))?;
    }
    Ok(())
}

/// All runs in the file, oldest first; none without a file. Lines that cannot be read are left out.
pub fn read(path: &Path) -> Result<Vec<RunRecord>, Error> {
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|source| Error::File { path: path.to_path_buf(), source })?,
    };
    let sound = |ran: &RunRecord| ran.seconds.iter().all(|seconds| seconds.is_finite() && *seconds > 0.0);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(sound).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn ran(model: &str, profile: Option<&str>, seconds: [f64; 2]) -> RunRecord {
        let (strategy, profile) = ("alone".to_string(), profile.map(str::to_string));
        let (devices, threads, batch, steps) = (1, 2, 8, 20);
        let (when, peak, bytes) = (1e9, [7, 7], [0, 0]);
        let model = model.to_string();
        RunRecord { when, model, strategy, devices, threads, batch, steps, profile, seconds, peak, bytes }
    }

    #[test]
    fn runs_are_added_read_and_forgotten() {
        let dir = TestDir::new("history");
        let path = dir.join("new").join("runs.jsonl");
        assert_eq!(read(&path).unwrap(), []);
        for i in 0..5 {
            add(&path, &ran(&format!("m{i}"), None, [1.0, 2.0])).unwrap();
        }
        fs::write(&path, fs::read_to_string(&path).unwrap() + "half a li\n").unwrap();
        let models: Vec<String> = read(&path).unwrap().into_iter().map(|ran| ran.model).collect();
        assert_eq!(models, ["m0", "m1", "m2", "m3", "m4"]);
        let line = serde_json::to_string(&ran("old", None, [1.0, 1.0])).unwrap() + "\n";
        fs::write(&path, line.repeat(RUNS + RUNS / 2)).unwrap();
        add(&path, &ran("new", None, [1.0, 1.0])).unwrap();
        let all = read(&path).unwrap();
        assert_eq!((all.len(), all[0].model.as_str(), all[RUNS - 1].model.as_str()), (RUNS, "old", "new"));
    }
}
