//! The same job gives the same bits, run after run and with any number of threads; another seed gives
//! others.

use crate::files::npy_floats;
use crate::process::{Place, fingerprint};
use gulliver_graph::optim::OPTIMIZERS;

/// Name, model and data of a small job for every family.
const JOBS: &[(&str, &str, &str, &str)] = &[
    ("mlp", "name = 'mlp-tiny'", "kind = 'digits'\nsize = 12\nexamples = 40", "clip_norm = 0.5"),
    ("cnn", "name = 'cnn'\nwidth = 8", "kind = 'digits'\nsize = 12\nexamples = 40\naugment = true", ""),
    ("resnet", "name = 'resnet18'\nwidth = 4", "kind = 'noise'\nshape = [3, 8, 8]\nexamples = 40", ""),
    (
        "partials",
        "name = 'cnn'\nwidth = 4",
        "kind = 'noise'\nshape = [3, 8, 8]\nexamples = 40",
        "partials = 4",
    ),
    (
        "mobilenet",
        "name = 'mobilenet_v2'\nwidth = 0.1",
        "kind = 'noise'\nshape = [3, 32, 32]\nexamples = 40",
        "batch = 4",
    ),
    (
        "gpt",
        "name = 'gpt'\nwidth = 32\nheads = 2\nlayers = 2\ndropout = 0.2",
        "kind = 'sequences'\nlength = 24\nexamples = 40",
        "partials = 2",
    ),
    (
        "mlm",
        "name = 'bert'\nwidth = 32\nheads = 2\nlayers = 1\nhidden = 48",
        "kind = 'sequences'\nlength = 24\nexamples = 40\nmasked = 0.15",
        "",
    ),
    (
        "classify",
        "name = 'bert'\nwidth = 32\nheads = 2\nlayers = 1\nhidden = 48\nhead = 'classify'",
        "kind = 'tokens'\ntokens = 50\nclasses = 3\nmin_length = 3\nlength = 12\nexamples = 40\nbuckets = true",
        "",
    ),
    (
        "lstm",
        "name = 'lstm'\nwidth = 16\ndropout = 0.2",
        "kind = 'sequences'\nlength = 12\nexamples = 40",
        "clip_value = 0.1",
    ),
    (
        "gru",
        "name = 'lstm'\ncell = 'gru'\nwidth = 16",
        "kind = 'tokens'\ntokens = 30\nmin_length = 2\nlength = 12\nexamples = 40",
        "",
    ),
    (
        "pointnet",
        "name = 'pointnet'\nwidth = 4\ntransform = true\ndropout = 0.3",
        "kind = 'points'\nlength = 32\nexamples = 40",
        "",
    ),
    (
        "dcgan",
        "name = 'dcgan'\nlatent = 8\ngenerator = 4\ndiscriminator = 4",
        "kind = 'digits'\nsize = 64\nexamples = 20",
        "batch = 2",
    ),
    (
        "cosmoflow",
        "name = 'cosmoflow'\nchannels = 2\nsize = 8\nlayers = 2\nwidth = 4\nhidden = 8\ndropout = 0.1",
        "kind = 'npy'\npath = 'volumes.npy'\nlabels = 'targets.npy'",
        "",
    ),
];

#[test]
fn every_family_is_the_same_on_any_number_of_threads() {
    let place = Place::new("bits");
    let wave = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 40.0;
    place.write("volumes.npy", npy_floats(&[40, 2, 8, 8, 8], wave));
    place.write("targets.npy", npy_floats(&[40, 4], wave));
    for (name, model, data, train) in JOBS {
        let batch = if train.contains("batch") { "" } else { "batch = 8" };
        let job = format!(
            "[model]\n{model}\n[data]\n{data}\n[train]\nsteps = 3\neval_every = 2\n{batch}\n{train}\n\
             [optimizer]\nname = 'adamw'\nlr = 0.01\n"
        );
        let file = format!("{name}.toml");
        place.write(&file, job);
        let run = |out: &str, set: &str| {
            let done = place.train(&file, &format!("{name}-{out}"), &["--set", set]);
            assert!(done["loss"].is_number(), "{name}: {done}");
            (fingerprint(&done), done["loss"].clone(), done["metrics"].clone())
        };
        let one = run("one", "devices.threads=1");
        for (out, set) in
            [("two", "devices.threads=2"), ("again", "devices.threads=2"), ("three", "devices.threads=3")]
        {
            assert_eq!(run(out, set), one, "{name} {out}");
        }
        assert_ne!(run("seed", "train.seed=1").0, one.0, "{name}");
    }
}

#[test]
fn every_optimizer_is_the_same_on_any_number_of_threads() {
    let place = Place::new("optimizers");
    place.write(
        "job.toml",
        "[model]\nname = 'mlp-tiny'\n[data]\nkind = 'spirals'\nexamples = 64\n[train]\nsteps = 4\n",
    );
    let mut seen = Vec::new();
    for row in OPTIMIZERS {
        let name = format!("optimizer.name={}", row.name);
        let run = |threads: &str| {
            let threads = format!("devices.threads={threads}");
            let out = format!("{}-{threads}", row.name);
            fingerprint(&place.train("job.toml", &out, &["--set", &name, "--set", &threads]))
        };
        let one = run("1");
        assert_eq!(run("3"), one, "{}", row.name);
        assert!(!seen.contains(&one), "{} does what another does", row.name);
        seen.push(one);
    }
}
