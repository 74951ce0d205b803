//! What was trained can be used: files of a run say what they mean, weights go into other models as far as they fit,
//! and data that means something else is not taken for the same.

use crate::process::{Place, fingerprint};
use gulliver_run::checkpoint::{Stored, load};
use std::fs;

const GPT: &str = "[model]\nname = 'gpt'\nwidth = 8\nheads = 2\nlayers = 4\n\
    [data]\nkind = 'text'\npath = 'a.txt'\nlength = 8\nvocabulary = 'chars'\n\
    [train]\nsteps = 4\nbatch = 4\ncheckpoint_every = 2\n";

fn text(end: &str) -> String {
    format!("giants and small machines, bytes and bits{end}\n").repeat(12)
}

#[test]
fn every_file_of_a_run_says_what_it_means() {
    let place = Place::new("says-what");
    place.write("job.toml", GPT);
    place.write("a.txt", text("!"));
    place.train("job.toml", "run", &[]);
    let about: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("run/run.json")).unwrap()).unwrap();
    assert_eq!(about["model"]["name"], "gpt");
    // Given, fitted and default settings alike.
    let settings = &about["model"]["settings"];
    let characters = about["mapping"]["characters"].as_str().unwrap();
    assert_eq!((&settings["layers"], &settings["vocab"]), (&4.into(), &characters.chars().count().into()));
    assert!(settings["dropout"].is_number() && characters.contains('!'), "{about}");
    for file in ["weights.safetensors", "best.safetensors", "checkpoints/step-00000004.safetensors"] {
        let stored = Stored::open(&place.path("run").join(file)).unwrap();
        for (key, part) in [("gulliver.model", "model"), ("gulliver.mapping", "mapping")] {
            let found: serde_json::Value = serde_json::from_str(&stored.metadata[key]).unwrap();
            assert_eq!(found, about[part], "{file} {key}");
        }
    }
}

#[test]
fn a_text_with_other_characters_is_not_resumed_unless_told_to() {
    let place = Place::new("other-text");
    place.write("job.toml", GPT);
    place.write("a.txt", text("!"));
    place.train("job.toml", "run", &[]);
    // As many characters as before, and none of the ids above it means the same.
    place.write("a.txt", text("é"));
    let resume = ["train", "job.toml", "--out", "run", "--json", "--resume", "--steps", "6"];
    let message = place.run(&resume).error();
    for part in ["characters", "'é' is new", "'!' is gone", "--changed-data"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let told = place.run(&[&resume[..], &["--changed-data"]].concat());
    assert_eq!(told.code(), Some(0), "{}", told.stderr);
    let warnings = told.events_called("warning");
    assert!(warnings.iter().any(|w| w["message"].as_str().unwrap().contains("'é' is new")), "{warnings:?}");
}

#[test]
fn weights_that_do_not_fit_are_listed() {
    let place = Place::new("unfit-weights");
    place.write("job.toml", GPT);
    place.write("a.txt", text("!"));
    place.train("job.toml", "deep", &[]);
    let shallow = ["--set", "model.layers=2", "--set", "train.weights=deep", "--json", "--out"];
    let message = place.run(&[&["train", "job.toml"], &shallow[..], &["strict"]].concat()).error();
    for part in ["24 not in the model", "h.2.attn.c_attn.bias", "and 20 more", "train.weights_strict = false"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(!place.path("strict").exists());
    let loose = [&["train", "job.toml"], &shallow[..], &["loose", "--set", "train.weights_strict=false"]];
    let finished = place.run(&loose.concat());
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let warnings = finished.events_called("warning");
    assert!(
        warnings.iter().any(|w| w["message"].as_str().unwrap().contains("24 not in the model")),
        "{warnings:?}"
    );

    let wide =
        ["--set", "model.width=16", "--set", "train.weights=deep/weights.safetensors", "--out", "wide"];
    let message = place.run(&[&["train", "job.toml"], &wide[..]].concat()).error();
    assert!(message.contains("of another shape") && message.contains("f32 [8], not f32 [16]"), "{message}");
    place.write("net.pt", b"PK\x03\x04\0\0\x08\x08\0\0\0\0");
    let pickle = ["train", "job.toml", "--out", "pickle", "--set", "train.weights=net.pt"];
    let message = place.run(&pickle).error();
    assert!(message.contains("torch.load(\"net.pt\""), "{message}");
}

#[test]
fn a_checkpoint_gives_its_weights_and_not_its_optimizer() {
    let place = Place::new("weights-of-checkpoint");
    place.write("job.toml", GPT);
    place.write("a.txt", text("!"));
    place.train("job.toml", "first", &[]);
    let from = |file: &str, out: &str| {
        let set = format!("train.weights=first/{file}");
        fingerprint(&place.train("job.toml", out, &["--set", &set]))
    };
    assert_eq!(from("weights.safetensors", "a"), from("checkpoints/step-00000004.safetensors", "b"));
}

#[test]
fn half_the_bits_are_converted() {
    let place = Place::new("half-weights");
    place.write("job.toml", GPT);
    place.write("a.txt", text("!"));
    place.train("job.toml", "first", &[]);
    // The same weights as bf16, with the metadata and names any other program would write.
    let whole = load(&place.path("first/weights.safetensors")).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in &whole.tensors {
        let start = data.len();
        let upper =
            tensor.as_f32().unwrap().iter().flat_map(|x| (x.to_bits() >> 16).to_le_bytes()[..2].to_vec());
        data.extend(upper);
        let entry = serde_json::json!({"dtype": "BF16", "shape": tensor.shape(), "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_string(&header).unwrap();
    place.write(
        "half.safetensors",
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat(),
    );
    let done = place.train("job.toml", "half", &["--set", "train.weights=half.safetensors"]);
    assert!(done["loss"].as_f64().unwrap().is_finite());
}
