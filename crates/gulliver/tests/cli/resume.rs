//! A run that is killed again and again ends with the bits of one that never was.

use crate::process::{Place, Random, fingerprint};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Dropout, momentum, one cycle of the learning rate, batch statistics, shuffling over several epochs.
pub const POINTS: &str = "[model]\nname = 'pointnet'\nwidth = 4\ndropout = 0.3\n\
    [data]\nkind = 'points'\nlength = 32\nexamples = 64\n\
    [train]\nsteps = 60\nbatch = 8\neval_every = 7\ncheckpoint_every = 5\nlog_every = 1\n\
    [optimizer]\nname = 'sgd'\nlr = 0.05\nmomentum = 0.9\n[schedule]\nname = 'one-cycle'\n";

/// A learning rate that depends on what evaluations came to, partial gradients, sequences of all lengths.
const TOKENS: &str = "[model]\nname = 'gpt'\nwidth = 16\nheads = 2\nlayers = 1\ndropout = 0.2\n\
    [data]\nkind = 'tokens'\ntokens = 20\nmin_length = 4\nlength = 12\nexamples = 40\nbuckets = true\n\
    [train]\nsteps = 60\nbatch = 8\npartials = 2\neval_every = 3\ncheckpoint_every = 4\nlog_every = 1\n\
    [optimizer]\nname = 'adamw'\nlr = 0.02\n[schedule]\nname = 'reduce-on-plateau'\npatience = 1\n";

/// What `metrics.csv` says of every step, but for speeds, which nobody can repeat.
fn rows(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join("metrics.csv")).unwrap();
    text.lines().filter(|row| !row.contains("samples_per_second")).map(String::from).collect()
}

/// Names of the checkpoints of a run, oldest first.
pub fn checkpoints(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("checkpoints")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn unfinished(dir: &Path) -> Vec<String> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    let all = [names(dir), names(&dir.join("checkpoints"))].concat();
    all.into_iter().filter(|name| name.ends_with(".tmp")).collect()
}

const RESUME: &[&str] = &["train", "job.toml", "--out", "killed", "--json", "--resume"];

#[test]
fn killed_at_any_moment_a_run_ends_with_the_same_bits() {
    for (name, job) in [("points", POINTS), ("tokens", TOKENS)] {
        let place = Place::new(&format!("killed-{name}"));
        place.write("job.toml", job);
        let whole = place.train("job.toml", "whole", &[]);
        let mut random = Random(7);
        for kill in 0..9 {
            let mut running = place.start(RESUME);
            match kill % 3 {
                0 => drop(running.wait_for("checkpoint", 1 + random.below(2))),
                1 => drop(running.wait_for("step", 1 + random.below(9))),
                _ => sleep(Duration::from_micros(random.below(60_000) as u64)),
            }
            running.kill();
            running.finish();
        }
        let done = place.train("job.toml", "killed", &["--resume"]);
        assert_eq!(fingerprint(&done), fingerprint(&whole), "{name}");
        assert_eq!(rows(&place.path("killed")), rows(&place.path("whole")), "{name}");
        assert_eq!(unfinished(&place.path("killed")), [""; 0]);

        // Nothing is left to do, and nothing more is done.
        let again = place.train("job.toml", "killed", &["--resume"]);
        assert_eq!((fingerprint(&again), &again["metrics"]), (fingerprint(&whole), &whole["metrics"]));
        assert_eq!(rows(&place.path("killed")), rows(&place.path("whole")), "{name}");
    }
}

#[test]
fn torn_checkpoints_and_leftovers_do_not_matter() {
    let place = Place::new("torn");
    place.write("job.toml", POINTS);
    let whole = place.train("job.toml", "whole", &[]);
    let dir = place.path("killed");
    let mut running = place.start(RESUME);
    assert!(running.wait_for("checkpoint", 3));
    running.kill();
    running.finish();
    let mut files = checkpoints(&dir);
    files.retain(|path| path.extension().is_some_and(|e| e == "safetensors"));
    // Killed between a save and the removal of what it replaces, there may be one more than are kept.
    assert!((2..=3).contains(&files.len()), "{files:?}");
    let newest = files.last().unwrap();
    let bytes = fs::read(newest).unwrap();
    fs::write(newest, &bytes[..bytes.len() * 2 / 3]).unwrap();
    for leftover in [".job.toml.0.tmp", ".metrics.csv.0.tmp", "checkpoints/.step-00000005.safetensors.0.tmp"]
    {
        fs::write(dir.join(leftover), "half a fi").unwrap();
    }
    let finished = place.run(&[RESUME, &["--set", "train.keep_checkpoints=1"]].concat());
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let warnings = finished.events_called("warning");
    let skipped = warnings.iter().filter(|w| w["message"].as_str().unwrap().starts_with("skipped: "));
    assert_eq!(skipped.count(), 1, "{warnings:?}");
    assert_eq!(fingerprint(finished.events().last().unwrap()), fingerprint(&whole));
    assert_eq!(rows(&dir), rows(&place.path("whole")));
    assert_eq!(unfinished(&dir), [""; 0]);
    assert_eq!(checkpoints(&dir).len(), 1);
}
