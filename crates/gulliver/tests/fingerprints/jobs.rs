//! Small jobs of every make of model, and a place to train them in.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A name, what is trained, and the data it is trained on.
pub const JOBS: &[(&str, &str, &str)] = &[
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

/// How long and how, of all of them.
pub const TRAIN: &str = "[train]\nsteps = 3\nbatch = 8\nlog_every = 1\nnorm_group = 'partial'\nclip_norm = 1.0\n\
    [optimizer]\nname = 'adamw'\nlr = 0.01\n[schedule]\nname = 'cosine'\nwarmup = 1\n[devices]\nthreads = 1\n";

/// A directory of its own for the real program, gone at the end.
pub struct Place(pub PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Cores there are.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

impl Place {
    /// An empty one; `name` must be unique among these tests.
    pub fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("gulliver-fingerprints-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    /// What the program prints on standard output, or else on standard error.
    pub fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let program = env!("CARGO_BIN_EXE_gulliver");
        // Plans of several devices depend on whether there is a core for each: everywhere as on two.
        let mut command = match cores() {
            1 | 2 => Command::new(program),
            _ => {
                let mut command = Command::new("taskset");
                command.args(["-c", "0,1", program]);
                command
            }
        };
        command.args(arguments).current_dir(&self.0).env("XDG_CONFIG_HOME", self.0.join("settings"));
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Trains a job; the fingerprint and the peak of a device, or that it cannot be.
    pub fn train(&self, job: &str, way: &[&str]) -> (String, u64) {
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
