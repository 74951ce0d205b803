//! What was predicted of runs and what was measured: a line for each in a file beside the profile. Lines are added at
//! its end, and the oldest go when there are too many.

use crate::check::accuracy;
use crate::error::Error;
use crate::machine;
use gulliver_plan::time::cost::Profile;
use gulliver_run::files::atomic::write_atomic;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Runs that are remembered; the file is cut to as many when it has half as many again.
const RUNS: usize = 1000;

/// Steps of one run, with inputs of the size that was met most often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
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
    /// Purpose profile predicted, if any did: see [`name_of`].
    pub profile: Option<String>,
    /// Seconds of a step, predicted and measured.
    pub seconds: [f64; 2],
    /// Most bytes of the first device's memory, planned and measured.
    pub peak: [u64; 2],
    /// Bytes over links of the first device in all these steps, planned and measured.
    pub bytes: [u64; 2],
}

impl Ran {
    /// `1 - |predicted - measured| / measured`, not below 0.
    pub fn accuracy(&self) -> f64 {
        accuracy(self.seconds[0], self.seconds[1])
    }

    /// Whether peak and bytes were as planned.
    pub fn exact(&self) -> bool {
        self.peak[0] == self.peak[1] && self.bytes[0] == self.bytes[1]
    }
}

/// Where it is: `gulliver/runs.jsonl` in the user's directory of settings.
pub fn default_path() -> Option<PathBuf> {
    Some(machine::default_path()?.with_file_name("runs.jsonl"))
}

/// A name for a profile that no other has: a run is only evidence for the profile that predicted it.
pub fn name_of(profile: &Profile) -> String {
    // FNV-1a: the same everywhere and for ever.
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", machine::render(profile).as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, add))
}

/// Adds a run.
pub fn add(path: &Path, ran: &Ran) -> io::Result<()> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::create_dir_all(dir)?;
    }
    let line = serde_json::to_string(ran)? + "\n";
    // One write at the end: runs that finish together do not mix their lines.
    OpenOptions::new().append(true).create(true).open(path)?.write_all(line.as_bytes())?;
    let text = fs::read_to_string(path)?;
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > RUNS + RUNS / 2 {
        let kept = lines[lines.len() - RUNS..].join("\n") + "\n";
        write_atomic(path, |out| out.write_all(kept.as_bytes()))?;
    }
    Ok(())
}

/// All runs that are remembered, the oldest first; none without a file. Lines that make no sense are left out.
pub fn read(path: &Path) -> Result<Vec<Ran>, Error> {
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|source| Error::File { path: path.to_path_buf(), source })?,
    };
    let sound = |ran: &Ran| ran.seconds.iter().all(|seconds| seconds.is_finite() && *seconds > 0.0);
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(sound).collect())
}

/// How good predictions of runs of one kind were.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// The model.
    pub model: String,
    /// How devices share the work.
    pub strategy: String,
    /// Devices.
    pub devices: usize,
    /// Whether a profile predicted.
    pub profile: bool,
    /// How many runs.
    pub runs: usize,
    /// Mean accuracy of step time.
    pub mean: f64,
    /// The worst.
    pub worst: f64,
    /// How much longer predicted steps are than measured ones, as a share, on average.
    pub bias: f64,
    /// Runs whose peak and bytes were as planned.
    pub exact: usize,
}

/// By model, strategy, devices, and whether there was a profile.
pub fn standings(all: &[Ran]) -> Vec<Standing> {
    let mut groups: BTreeMap<(&str, &str, usize, bool), Vec<&Ran>> = BTreeMap::new();
    for ran in all {
        let key = (ran.model.as_str(), ran.strategy.as_str(), ran.devices, ran.profile.is_some());
        groups.entry(key).or_default().push(ran);
    }
    let standing = |((model, strategy, devices, profile), runs): ((&str, &str, usize, bool), Vec<&Ran>)| {
        let mean = |of: &dyn Fn(&Ran) -> f64| runs.iter().map(|ran| of(ran)).sum::<f64>() / runs.len() as f64;
        Standing {
            model: model.to_string(),
            strategy: strategy.to_string(),
            devices,
            profile,
            runs: runs.len(),
            mean: mean(&Ran::accuracy),
            worst: runs.iter().map(|ran| ran.accuracy()).fold(1.0, f64::min),
            bias: mean(&|ran| ran.seconds[0] / ran.seconds[1] - 1.0),
            exact: runs.iter().filter(|ran| ran.exact()).count(),
        }
    };
    groups.into_iter().map(standing).collect()
}

/// A way of using the machine whose kernels are to take another time than the profile says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Correction {
    /// Threads of a device.
    pub threads: usize,
    /// Devices.
    pub devices: usize,
    /// Runs that say so.
    pub runs: usize,
    /// The median of measured over predicted seconds.
    pub times: f64,
}

/// Fewest runs, steps of each, and share of a difference that a correction is made for.
const EVIDENCE: (usize, u64, f64) = (3, 10, 0.02);

/// What the runs that this very profile predicted say against it.
pub fn corrections(profile: &Profile, all: &[Ran]) -> Vec<Correction> {
    let (least, steps, share) = EVIDENCE;
    let name = name_of(profile);
    let mut ways: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for ran in all.iter().filter(|ran| ran.profile.as_ref() == Some(&name) && ran.steps >= steps) {
        let ratio = ran.seconds[1] / ran.seconds[0];
        ways.entry((ran.threads, ran.devices)).or_default().push(ratio);
    }
    let known =
        |threads, devices| profile.curves.iter().any(|c| (c.threads, c.devices) == (threads, devices));
    let mut found = Vec::new();
    for ((threads, devices), mut ratios) in ways {
        ratios.sort_by(f64::total_cmp);
        let (runs, times) = (ratios.len(), ratios[ratios.len() / 2]);
        if known(threads, devices) && runs >= least && (times - 1.0).abs() > share {
            found.push(Correction { threads, devices, runs, times });
        }
    }
    found
}

/// The profile with these corrections.
pub fn corrected(profile: &Profile, corrections: &[Correction]) -> Profile {
    let mut profile = profile.clone();
    for one in corrections {
        let of = |curves: &&mut gulliver_plan::time::cost::Curves| {
            (curves.threads, curves.devices) == (one.threads, one.devices)
        };
        for curves in profile.curves.iter_mut().filter(of) {
            curves.between *= one.times;
            if let Some(collective) = &mut curves.collective {
                collective.call *= one.times;
                collective.byte *= one.times;
                collective.beside *= one.times;
            }
            let points = curves.families.values_mut().flatten();
            points.for_each(|point| point.seconds *= one.times);
        }
    }
    profile
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use gulliver_graph::work::Load;
    use gulliver_plan::document::links::Links;
    use gulliver_plan::time::cost::{Curves, Point, Rates};

    fn ran(model: &str, profile: Option<&str>, seconds: [f64; 2]) -> Ran {
        let (strategy, profile) = ("alone".to_string(), profile.map(str::to_string));
        let (devices, threads, batch, steps) = (1, 2, 8, 20);
        let (when, peak, bytes) = (1e9, [7, 7], [0, 0]);
        let model = model.to_string();
        Ran { when, model, strategy, devices, threads, batch, steps, profile, seconds, peak, bytes }
    }

    fn profile() -> Profile {
        let load = Load { flops: 1.0, bytes: 1.0, extents: [1.0; 6] };
        let points = vec![Point { load, seconds: 0.5, spread: 0.0 }];
        let families: BTreeMap<_, _> = [("conv".to_string(), points)].into_iter().collect();
        let curves = |threads| Curves::of([threads, 1], Rates::default(), families.clone());
        let (processor, links) = ("x".to_string(), Links::default());
        Profile { cores: 2, processor, links, scaling: Vec::new(), curves: vec![curves(1), curves(2)] }
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

    #[test]
    fn standings_are_by_kind_of_run() {
        let all =
            [ran("a", None, [1.0, 2.0]), ran("b", Some("p"), [1.1, 1.0]), ran("b", Some("p"), [0.7, 1.0])];
        let found = standings(&all);
        assert_eq!((found[0].model.as_str(), found[0].runs, found[0].profile), ("a", 1, false));
        assert!((found[0].mean - 0.5).abs() < 1e-9 && (found[0].bias + 0.5).abs() < 1e-9);
        assert!((found[1].mean - 0.8).abs() < 1e-9 && (found[1].worst - 0.7).abs() < 1e-9);
        assert!((found[1].bias + 0.1).abs() < 1e-9 && found[1].exact == 2);
    }

    #[test]
    fn only_enough_runs_of_the_same_profile_correct_it() {
        let (old, mut all) = (profile(), Vec::new());
        let name = name_of(&old);
        all.extend([1.2, 1.3].map(|took| ran("a", Some(&name), [1.0, took])));
        all.extend([9.0, 9.0, 9.0].map(|took| ran("a", Some("another"), [1.0, took])));
        assert_eq!(corrections(&old, &all), []);
        all.push(ran("b", Some(&name), [2.0, 2.5]));
        let found = corrections(&old, &all);
        assert_eq!(found, [Correction { threads: 2, devices: 1, runs: 3, times: 1.25 }]);
        let new = corrected(&old, &found);
        let seconds = |profile: &Profile| -> Vec<f64> {
            profile.curves.iter().map(|curves| curves.families["conv"][0].seconds).collect()
        };
        assert_eq!(seconds(&new), [0.5, 0.625]);
        // What was predicted before says nothing about the new one.
        assert_eq!(corrections(&new, &all), []);
    }
}
