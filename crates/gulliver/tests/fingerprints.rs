//! Runs whose bits are on record: models × budgets × strategies × partials, and sweeps in arrays. Whatever is moved or
//! renamed, these stay as they are. `UPDATE_EXPECT=1 cargo test -p gulliver --test fingerprints` renews the record;
//! a commit that does so says why.

#[path = "fingerprints/jobs.rs"]
mod jobs;

use jobs::{JOBS, Place, TRAIN};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread;

/// How each of them is trained; all but those that divide sums come to the bits of one device with as many partials.
const WAYS: &[(&str, &[&str])] = &[
    ("alone", &[]),
    ("4 partials", &["--set", "train.partials=4"]),
    ("tight", &["--set", "train.partials=4", "--memory", "TIGHT"]),
    (
        "tight, disk",
        &["--set", "train.partials=4", "--memory", "TIGHT", "--host-memory", "0", "--disk", "64MiB"],
    ),
    ("data", &["--devices", "2", "--strategy", "data", "--set", "train.partials=4"]),
    ("zero", &["--devices", "2", "--strategy", "zero", "--set", "train.partials=4"]),
    ("harmony-pp", &["--devices", "2", "--strategy", "harmony-pp", "--set", "train.partials=4"]),
    ("filter", &["--devices", "2", "--strategy", "filter"]),
    ("channel", &["--devices", "2", "--strategy", "channel"]),
    ("cut", &["--devices", "2", "--strategy", "cut"]),
];

/// Every way to train one of the jobs, a line each.
fn record_of(name: &str, model: &str, data: &str) -> String {
    let place = Place::new(name);
    let (mut record, job) = (String::new(), format!("{name}.toml"));
    fs::write(place.0.join(&job), format!("[model]\n{model}\n[data]\n{data}\n{TRAIN}")).unwrap();
    let peak = place.train(&job, &["--set", "train.partials=4"]).1;
    // A budget that hurts; only the smallest job has nothing to spare.
    let tight = format!("{}", peak * 7 / 10);
    for (way, arguments) in WAYS {
        let arguments: Vec<&str> =
            arguments.iter().map(|a| if *a == "TIGHT" { &tight } else { *a }).collect();
        writeln!(record, "{name}, {way}: {}", place.train(&job, &arguments).0).unwrap();
    }
    record
}

/// The table of a sweep whose trials are trained as arrays.
fn record_of_sweep() -> String {
    let place = Place::new("sweep");
    let (_, model, data) = JOBS[0];
    fs::write(place.0.join("job.toml"), format!("[model]\n{model}\n[data]\n{data}\n{TRAIN}")).unwrap();
    let sweep = "[sweep]\njob = 'job.toml'\nalgorithm = 'grid'\nmetric = 'loss'\n\
        [space]\noptimizer.lr = [0.1, 0.01]\ntrain.seed = [1, 2]\n";
    fs::write(place.0.join("sweep.toml"), sweep).unwrap();
    place.run(&["sweep", "sweep.toml", "--out", "sweep"]).unwrap();
    let trials = fs::read_to_string(place.0.join("sweep/trials.csv")).unwrap();
    trials.lines().map(|line| format!("sweep: {line}\n")).collect()
}

fn record() -> String {
    thread::scope(|scope| {
        let jobs: Vec<_> = JOBS
            .iter()
            .map(|(name, model, data)| scope.spawn(move || record_of(name, model, data)))
            .collect();
        let all: String = jobs.into_iter().map(|job| job.join().unwrap()).collect();
        all + &record_of_sweep()
    })
}

#[test]
fn bits_are_as_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fingerprints.txt");
    let found = record();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, found).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap();
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}
