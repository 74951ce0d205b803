//! Jobs, data and checkpoints damaged at random: whatever they have become, a run ends, well or with one
//! line of error.

use crate::files::{csv, idx, npy_floats, npy_labels};
use crate::process::{Place, Random};
use gulliver::job::Job;
use gulliver::local::together;
use gulliver::setup::{PlanningOptions, setup};
use gulliver_run::checkpoint::CheckpointFile;
use gulliver_run::train::{self, Resumed};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Changes, removes, repeats or inserts a few bytes.
fn damaged(good: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len().max(1));
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), random.below(256) as u8),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 if at < bytes.len() => {
                let end = (at + random.below(20)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ if at < bytes.len() => {
                bytes[at] = [0, 255, b'9', b'-', random.below(256) as u8][random.below(5)]
            }
            _ => {}
        }
    }
    bytes
}

/// Sets a job up and trains it, without a process of its own; the error, if that is how it ended.
fn try_job(file: &Path) -> Result<(), String> {
    let job =
        Job::load_with(file, vec!["devices.threads=1".to_string().into()]).map_err(|e| e.to_string())?;
    // Damage that asks for a long or large run is not what this is about.
    let large = |n: u64, limit: u64| n > limit;
    let numbers = job.model.params().iter().any(|(_, v)| v.to_string().len() > 4);
    if numbers || large(job.train.batch, 64) || job.data.options.examples.is_some_and(|n| n > 1000) {
        return Ok(());
    }
    let mut ready = setup(&job, None, None, &PlanningOptions::default()).map_err(|e| e.to_string())?;
    let mut session = together(ready.strategy, ready.planners, &ready.devices, job.train.seed)
        .map_err(|e| e.to_string())?;
    if let Some(path) = &job.train.weights {
        let mut stored = CheckpointFile::open(path).map_err(|e| e.to_string())?;
        let options = &ready.prepared.options;
        train::load_weights(&mut session, &mut stored, options, true).map_err(|e| e.to_string())?;
    }
    ready.prepared.options.steps = ready.prepared.options.steps.min(2);
    let done = train::train(
        &mut session,
        &mut ready.prepared.schedule,
        &ready.prepared.sources,
        &ready.prepared.options,
        &Resumed::default(),
        &AtomicBool::new(false),
        &mut |_| {},
    );
    done.map(|_| ()).map_err(|e| e.to_string())
}

fn files(place: &Place) -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let job = |data: &str, more: &str| {
        let train = format!("[train]\nsteps = 2\nbatch = 4\n{more}\n[optimizer]\nname = 'sgd'\nlr = 0.01\n");
        format!("[model]\nname = 'mlp-tiny'\n[data]\n{data}\n{train}")
    };
    let gpt = "[model]\nname = 'gpt'\nwidth = 8\nheads = 2\nlayers = 1\n\
               [data]\nkind = 'text'\npath = 'a.txt'\nlength = 8\nvocabulary = 'chars'\n[train]\nsteps = 2\nbatch = 4\n";
    let text = "giants and small machines, bytes and bits\n".repeat(6);
    place.write("csv.toml", job("kind = 'csv'\npath = 'a.csv'\nlabel_column = 'class'", ""));
    place.write("npy.toml", job("kind = 'npy'\npath = 'x.npy'\nlabels = 'y.npy'", ""));
    place.write("idx.toml", job("kind = 'idx'\npath = 'x.idx'\nlabels = 'y.idx'", ""));
    place.write("weights.toml", job("kind = 'spirals'\nexamples = 20", "weights = 'w.safetensors'"));
    place.write("text.toml", gpt);
    place.write("start.toml", job("kind = 'spirals'\nexamples = 20", ""));
    place.train("start.toml", "start", &[]);
    let weights = std::fs::read(place.path("start/weights.safetensors")).unwrap();
    vec![
        ("csv.toml", "a.csv", csv(20).into_bytes()),
        ("npy.toml", "x.npy", npy_floats(&[20, 3], |i| i as f32 / 60.0)),
        ("npy.toml", "y.npy", npy_labels(20, |i| i as i64 % 3)),
        ("idx.toml", "x.idx", idx(&[20, 4, 4], |i| i as u8)),
        ("idx.toml", "y.idx", idx(&[20], |i| i as u8 % 3)),
        ("text.toml", "a.txt", text.into_bytes()),
        ("weights.toml", "w.safetensors", weights),
        ("text.toml", "text.toml", gpt.as_bytes().to_vec()),
    ]
}

#[test]
fn damaged_files_end_in_one_line() {
    let place = Place::new("damage");
    let files = files(&place);
    for (_, file, bytes) in &files {
        place.write(file, bytes);
    }
    let mut random = Random(11);
    for (job, file, good) in &files {
        assert_eq!(try_job(&place.path(job)), Ok(()), "{job}");
        let mut failed = 0;
        for _ in 0..80 {
            let bytes = damaged(good, &mut random);
            place.write(file, &bytes);
            if let Err(message) = try_job(&place.path(job)) {
                failed += 1;
                assert!(!message.is_empty() && !message.contains("please report"), "{file}: {message}");
            }
        }
        assert!(failed > 8, "{file}: damage is hardly noticed");
        // A few in a process of their own: what matters in the end is how that ends.
        for n in 0..3 {
            place.write(file, damaged(good, &mut random));
            let out = format!("{file}-{n}");
            let sets = ["--set", "train.steps=2", "--set", "devices.memory=64MiB"];
            let finished = place.run(&[&["train", job, "--out", &out], &sets[..]].concat());
            if finished.code() != Some(0) {
                finished.error();
            }
        }
        place.write(file, good);
    }
}
