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

fn table(names: [&str; 2], shift: usize) -> String {
    let row = |i: usize| format!("{},{}.5,{}\n", shift + i % 7, i % 5, names[i % 2]);
    std::iter::once("u,v,class\n".to_string()).chain((0..40).map(row)).collect()
}

#[test]
fn weights_of_other_classes_need_a_word_and_keep_their_normalisation() {
    let place = Place::new("other-classes");
    let job = "[model]\nname = 'mlp'\nsizes = [2, 8, 2]\n[data]\nkind = 'csv'\npath = 'a.csv'\nlabel_column = 'class'\n\
        [train]\nsteps = 3\nbatch = 4\n";
    place.write("job.toml", job);
    place.write("a.csv", table(["cat", "dog"], 0));
    place.train("job.toml", "first", &[]);
    place.write("a.csv", table(["hen", "owl"], 90));
    let tuned = ["train", "job.toml", "--json", "--set", "train.weights=first", "--out", "tuned"];
    let message = place.run(&tuned).error();
    for part in ["class names", "`hen`", "`cat`", "train.weights_strict = false"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let finished = place.run(&[&tuned[..], &["--set", "train.weights_strict=false"]].concat());
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let mapping = |run: &str| -> serde_json::Value {
        let about = fs::read(place.path(run).join("run.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&about).unwrap()["mapping"].clone()
    };
    let (first, tuned) = (mapping("first"), mapping("tuned"));
    assert_eq!(
        (&tuned["mean"], &tuned["std"]),
        (&first["mean"], &first["std"]),
        "inputs mean what they meant"
    );
    assert_eq!(tuned["class_names"], serde_json::json!(["hen", "owl"]));
}

#[test]
fn a_text_is_continued_as_it_was_learned() {
    let place = Place::new("generate");
    let job = "[model]\nname = 'NAME'\nwidth = 16\nlayers = 1\ndropout = 0.0\n\
        [data]\nkind = 'text'\npath = 'a.txt'\nlength = 12\nstride = 5\nvocabulary = 'chars'\nvalidation = 0\n\
        [train]\nsteps = 150\nbatch = 16\n[optimizer]\nlr = 0.02\n";
    place.write("a.txt", "abcdefgh".repeat(40));
    for (name, more) in [("gpt", "--set model.heads=2 --set model.context=12"), ("lstm", "")] {
        place.write("job.toml", job.replace("NAME", name));
        place.train("job.toml", name, &more.split_whitespace().collect::<Vec<_>>());
        // Far beyond what the model can read at once.
        let generate = |more: &[&str]| {
            let run = place.run(&[&["generate", name, "--prompt", "cde", "--length", "40"], more].concat());
            assert_eq!(run.code(), Some(0), "{}", run.stderr);
            run.stdout.trim_end().to_string()
        };
        assert_eq!(generate(&["--temperature", "0"]), "abcdefgh".repeat(6)[2..45], "{name}");
        assert_eq!(generate(&["--top-k", "1", "--seed", "9"]), "abcdefgh".repeat(6)[2..45], "{name}");
        let hot = ["--temperature", "50", "--seed"];
        let [a, b, c] = ["1", "1", "2"].map(|seed| generate(&[&hot[..], &[seed]].concat()));
        assert!(a == b && a != c, "{name}: {a} {b} {c}");
        let wrong = place.run(&["generate", name, "--prompt", "xyz"]).error();
        assert!(wrong.contains("prompt: character 'x' is not in the vocabulary"), "{wrong}");
        let wrong = place.run(&["predict", name, "a.txt"]).error();
        assert!(wrong.contains("use gulliver generate"), "{wrong}");
    }
}

#[test]
fn an_evaluation_says_what_training_said() {
    let place = Place::new("evaluate");
    let job = "[model]\nname = 'mlp'\nsizes = [2, 8, 2]\n[data]\nkind = 'csv'\npath = 'a.csv'\nlabel_column = 'class'\n\
        [train]\nsteps = 20\nbatch = 4\n";
    place.write("a.csv", table(["cat", "dog"], 0));
    place.write("job.toml", job);
    place.write("text.toml", GPT);
    place.write("a.txt", text("!"));
    place.train("job.toml", "run", &["--set", "data.validation=0"]);
    // All rows are training rows: predictions and answers give the same accuracy by hand.
    let found = place.run(&["evaluate", "run", "a.csv", "--json", "--batch", "7"]);
    let found: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
    let lines = place.run(&["predict", "run", "a.csv"]).stdout;
    let classes = lines.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().to_string());
    let right = classes.enumerate().filter(|(i, class)| class == ["cat", "dog"][i % 2]).count();
    assert_eq!(found["metrics"]["accuracy"], right as f64 / 40.0, "{found}");
    assert_eq!((&found["examples"], &found["classes"]), (&40.into(), &serde_json::json!(["cat", "dog"])));
    let matrix = &found["confusion"];
    assert_eq!(matrix[0][0].as_u64().unwrap() + matrix[1][1].as_u64().unwrap(), right as u64);

    place.write("unknown.csv", "u,v\n1,2\n");
    let message = place.run(&["evaluate", "run", "unknown.csv"]).error();
    assert!(message.contains("`class`") && message.contains("use gulliver predict"), "{message}");
    place.train("text.toml", "text", &[]);
    let text = place.run(&["evaluate", "text", "a.txt"]);
    assert!(text.stdout.contains("perplexity"), "{} {}", text.stdout, text.stderr);
}
