//! Runs whose bits are on record: models × budgets × strategies × partials, and sweeps in arrays. Whatever is moved or
//! renamed, these stay as they are. `UPDATE_EXPECT=1 cargo test -p gulliver --test fingerprints` renews the record;
//! a commit that does so says why.

use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// A name, what is trained, and the data it is trained on.
const JOBS: &[(&str, &str, &str)] = &[
    ("mlp", "name = 'mlp-tiny'", "kind = 'blobs'\nexamples = 64"),
    ("cnn", "name = 'cnn'\nwidth = 4", "kind = 'digits'\nsize = 12\nexamples = 64"),
    ("resnet", "name = 'resnet18'\nwidth = 4", "kind = 'noise'\nshape = [3, 16, 16]\nexamples = 32"),
    (
        "vgg",
        "name = 'vgg11'\nwidth = 4\nhidden = 16\npool = 1",
        "kind = 'noise'\nshape = [3, 32, 32]\nexamples = 32",
    ),
    (
        "mobilenet",
        "name = 'mobilenet_v2'\nwidth = 0.25",
        "kind = 'noise'\nshape = [3, 32, 32]\nexamples = 32",
    ),
    (
        "pointnet",
        "name = 'pointnet'\nwidth = 4\ndropout = 0.3",
        "kind = 'points'\nlength = 16\nexamples = 64",
    ),
    (
        "lstm",
        "name = 'lstm'\nwidth = 16\nlayers = 1\ndropout = 0.2",
        "kind = 'sequences'\nlength = 12\nexamples = 64",
    ),
    (
        "gpt",
        "name = 'gpt'\nwidth = 16\nheads = 2\nlayers = 2\ndropout = 0.1",
        "kind = 'tokens'\ntokens = 20\nmin_length = 4\nlength = 12\nexamples = 64\nbuckets = true",
    ),
    (
        "bert",
        "name = 'bert'\nwidth = 16\nheads = 2\nlayers = 1\nhidden = 32\nvocab = 24\ncontext = 16",
        "kind = 'tokens'\ntokens = 20\nmin_length = 4\nlength = 12\nexamples = 64\nmasked = 0.3",
    ),
];

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

const TRAIN: &str = "[train]\nsteps = 3\nbatch = 8\nlog_every = 1\nnorm_group = 'partial'\nclip_norm = 1.0\n\
    [optimizer]\nname = 'adamw'\nlr = 0.01\n[schedule]\nname = 'cosine'\nwarmup = 1\n[devices]\nthreads = 1\n";

struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("gulliver-fingerprints-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gulliver"));
        command.args(arguments).current_dir(&self.0).env("XDG_CONFIG_HOME", self.0.join("settings"));
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Trains a job; the fingerprint and the peak of a device, or that it cannot be.
    fn train(&self, job: &str, way: &[&str]) -> (String, u64) {
        let out = self.0.join("run");
        let _ = fs::remove_dir_all(&out);
        let arguments = [&["train", job, "--out", "run", "--json", "--no-history"], way].concat();
        match self.run(&arguments) {
            Ok(events) => {
                let done: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
                assert_eq!(done["alarms"], 0, "{job} {way:?}: {done}");
                let peak = done["peak_bytes"]["cpu0"].as_u64().unwrap();
                (done["fingerprint"].as_str().unwrap().to_string(), peak)
            }
            Err(error) => {
                assert!(error.contains("does not fit"), "{job} {way:?}: {error}");
                ("does not fit".into(), 0)
            }
        }
    }
}

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
