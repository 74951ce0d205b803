//! Everything that can be wrong with an invocation, a job, its data or its checkpoints is one line of
//! error, for people and for programs; and none of it takes the run directory.

use crate::files::{csv, idx, npy, npy_floats, npy_labels};
use crate::process::Place;
use gulliver_run::checkpoint::{load, save};
use gulliver_run::host::{HostData, HostTensor};
use std::fs;

const DIGITS: &str = "[model]\nname = 'cnn'\nwidth = 4\n[data]\nkind = 'digits'\nsize = 12\nexamples = 40\n\
    [train]\nsteps = 2\nbatch = 8\n";
const GPT: &str = "[model]\nname = 'gpt'\nwidth = 16\nheads = 2\nlayers = 1\n\
    [data]\nkind = 'sequences'\nlength = 24\nexamples = 40\n[train]\nsteps = 2\nbatch = 8\n";
const MLP: &str = "[model]\nname = 'mlp-tiny'\n[data]\nkind = 'csv'\npath = 'good.csv'\nlabel_column = 'class'\n\
    [train]\nsteps = 2\nbatch = 8\n";

fn place(name: &str) -> Place {
    let place = Place::new(name);
    place.write("digits.toml", DIGITS);
    place.write("gpt.toml", GPT);
    place.write("mlp.toml", MLP);
    place.write("good.csv", csv(40));
    place
}

/// Runs a job that must fail; the error says all of `parts` and the directory is still free.
fn fails(place: &Place, job: &str, sets: &[&str], parts: &[&str]) {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let finished = place.run(&[&["train", job, "--out", "failed", "--json"], &sets[..]].concat());
    let error = finished.error();
    for part in parts {
        assert!(error.contains(part), "{job} {sets:?}: `{error}` does not say `{part}`");
    }
    let last = finished.events().pop().unwrap();
    assert_eq!((last["event"].as_str(), last["message"].as_str()), (Some("error"), Some(&*error)));
    assert!(!place.path("failed/job.toml").exists(), "{job} {sets:?} took the directory");
}

/// A flag with a wrong value is named as it was typed.
#[test]
fn wrong_flags() {
    let place = place("flags");
    for (flags, start) in [
        (&["--memory", "5XB"][..], "--memory 5XB: "),
        (&["--host-memory", "much"], "--host-memory much: "),
        (&["--disk", "-1"], "--disk -1: "),
        (&["--devices", "0"], "--devices 0: "),
        (&["--devices", "2x5XB"], "--devices 2x5XB: "),
        (&["--strategy", "dat"], "--strategy dat: "),
        (&["--set", "devices.memory=5XB"], "--set devices.memory=5XB: devices.memory: "),
    ] {
        for command in ["train", "plan"] {
            let line = match flags {
                [flag, value] if *flag != "--set" => vec![format!("{flag}={value}")],
                _ => flags.iter().map(|text| text.to_string()).collect(),
            };
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            let error = place.run(&[&[command, "digits.toml"], &line[..]].concat()).error();
            assert!(error.starts_with(start), "{flags:?}: {error}");
        }
    }
}

/// Where the system starts no threads, that is said.
#[test]
#[cfg(target_os = "linux")]
fn without_threads() {
    let place = place("threads");
    // No address space is large enough for the stack of another thread.
    let stack = ("RUST_MIN_STACK", (1u64 << 60).to_string());
    let arguments = ["train", "digits.toml", "--out", "failed", "--set", "devices.threads=2"];
    let error = place.run_with(&stack, &arguments).error();
    assert!(error.starts_with("cannot start a thread: ") && error.contains("ulimit -u"), "{error}");
    let error =
        place.run_with(&stack, &[&arguments[..5], &["devices.threads=1", "--devices", "2"]].concat()).error();
    assert!(error.contains("cannot start a thread: "), "{error}");
    // One thread is enough for one.
    let alone = place.run_with(&stack, &[&arguments[..5], &["devices.threads=1"]].concat());
    assert_eq!(alone.code(), Some(0), "{}", alone.stderr);
}

#[test]
fn wrong_jobs() {
    let place = place("wrong-jobs");
    place.write("syntax.toml", "[model\nname = 3");
    place.write("bytes.toml", b"[model]\nname = \"\xff\"");
    let table: &[(&str, &[&str], &[&str])] = &[
        ("missing.toml", &[], &["missing.toml: cannot read the job file"]),
        (".", &[], &["cannot read the job file"]),
        ("syntax.toml", &[], &["syntax.toml:1"]),
        ("bytes.toml", &[], &["bytes.toml:2", "UTF-8"]),
        ("digits.toml", &["model.name=cmn"], &["model.name", "`cnn`"]),
        ("digits.toml", &["model.widht=3"], &["model.widht", "`width`"]),
        ("digits.toml", &["data.kind=digit"], &["data.kind", "`digits`"]),
        ("digits.toml", &["data.length=3"], &["data.length", "no such option"]),
        ("digits.toml", &["train.stepz=3"], &["train.stepz", "`steps`"]),
        ("digits.toml", &["train.partials=3"], &["train.partials", "8", "3"]),
        ("digits.toml", &["optimizer.name=adan"], &["optimizer.name", "`adam`"]),
        ("digits.toml", &["schedule.name=cycle"], &["schedule.name"]),
        ("digits.toml", &["trane.steps=3"], &["trane", "sections are model, data, train"]),
        ("digits.toml", &["train.batch=-1"], &["train.batch", "-1"]),
        ("digits.toml", &["model.size=16"], &["model.size", "16", "12"]),
        ("digits.toml", &["model.classes=9"], &["model.classes", "9", "10 classes"]),
        ("digits.toml", &["model.name=mlp", "model.sizes=[100,10]", "model.width=1"], &["model.width"]),
        ("mlp.toml", &["model.sizes=[4,2]"], &["starts with 4", "rows of 3 numbers"]),
        ("mlp.toml", &["model.sizes=[3,8,1]"], &["model.sizes", "1", "2 classes"]),
        ("mlp.toml", &["data.regression=true", "data.label_column=u"], &["good.csv", "`a`"]),
        ("digits.toml", &["data.examples=4"], &["batch", "8", "4"]),
        ("mlp.toml", &["train.batch=37"], &["batch", "37", "36"]),
        ("gpt.toml", &["model.context=16"], &["model.context", "16", "24"]),
        ("gpt.toml", &["model.vocab=100"], &["model.vocab", "100", "256"]),
        ("gpt.toml", &["model.name=cnn", "model.width=4"], &["model.heads"]),
        (
            "gpt.toml",
            &["data.kind=tokens", "data.classes=2", "model.head=lm"],
            &["model.head", "a class for each text", "model.head = \"classify\""],
        ),
        ("gpt.toml", &["data.kind=tokens", "data.classes=2", "data.masked=0.2"], &["masked"]),
        ("gpt.toml", &["data.masked=1.0"], &["data.masked"]),
        (
            "digits.toml",
            &["devices.memory=1KiB"],
            &["budget is 1.0 KiB", "no plan of this job needs less than"],
        ),
        (
            "digits.toml",
            &["devices.memory=100KiB"],
            &["budget is 100.0 KiB", "no plan of this job needs less than"],
        ),
        ("digits.toml", &["train.weights=nowhere.safetensors"], &["nowhere.safetensors"]),
        ("digits.toml", &["model.width=1000000"], &[]),
        ("digits.toml", &["train.batch=4294967296", "data.examples=1"], &["batch"]),
    ];
    for (job, sets, parts) in table {
        fails(&place, job, sets, parts);
    }
    // Sequences of all lengths: the longest of all counts, not those of the first batch.
    place.write("lines.txt", format!("{}{}\n", "short line\n".repeat(100), "long ".repeat(60)));
    let lines = ["data.kind=lines", "data.path=lines.txt", "model.context=32"];
    place
        .write("lines.toml", GPT.replace("kind = 'sequences'\nlength = 24\nexamples = 40", "kind = 'lines'"));
    fails(&place, "lines.toml", &lines, &["model.context", "32", "300"]);
    let finished = place.run(&["train", "digits.toml", "--out", "failed", "--on-nan", "perhaps"]);
    assert!(finished.error().contains("choose one of stop, skip"));
    place.write("file", "not a directory");
    let finished = place.run(&["train", "digits.toml", "--out", "file"]);
    assert!(finished.error().starts_with("file"));
}

#[test]
fn wrong_data() {
    let place = place("wrong-data");
    let job = |kind: &str, options: &str| {
        format!(
            "[model]\nname = 'mlp-tiny'\n[data]\nkind = '{kind}'\n{options}\n[train]\nsteps = 2\nbatch = 4\n"
        )
    };
    place.write("csv.toml", job("csv", "path = 'bad'\nlabel_column = 'class'"));
    place.write("npy.toml", job("npy", "path = 'bad'\nlabels = 'y.npy'"));
    place.write("idx.toml", job("idx", "path = 'bad'\nlabels = 'y.idx'"));
    place.write("text.toml", job("text", "path = 'bad'\nlength = 8"));
    place.write("y.npy", npy_labels(20, |i| i as i64 % 2));
    place.write("y.idx", idx(&[20], |i| i as u8 % 3));
    let good = npy_floats(&[20, 3], |i| i as f32);
    let pixels = idx(&[20, 4, 4], |i| i as u8);
    let table: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("csv.toml", csv(20).replacen("3,", "nan,", 1).into(), &["bad: line", "column `u`", "nan"]),
        ("csv.toml", csv(20).replacen("3,", "inf,", 1).into(), &["bad: line", "column `u`", "inf"]),
        ("csv.toml", csv(20).replacen("3,", "x,", 1).into(), &["bad: line", "column `u`", "`x`"]),
        ("csv.toml", csv(20).replacen("3,", "", 1).into(), &["bad: line", "3 fields"]),
        ("csv.toml", csv(0).into(), &["bad"]),
        ("csv.toml", vec![], &["bad: is empty"]),
        ("csv.toml", vec![0xff, 0xfe], &["bad", "UTF-8"]),
        (
            "npy.toml",
            npy_floats(&[20, 3], |i| if i == 31 { f32::NAN } else { 1.0 }),
            &["number 1 of example 10"],
        ),
        ("npy.toml", npy_floats(&[20, 3], |i| if i == 5 { f32::INFINITY } else { 1.0 }), &["bad", "inf"]),
        ("npy.toml", npy_floats(&[19, 3], |_| 1.0), &["20 examples", "19"]),
        ("npy.toml", good[..good.len() - 1].to_vec(), &["bad: at byte", "promises"]),
        ("npy.toml", npy("<f4", &[1 << 60, 1 << 60], &[]), &["bad", "promises"]),
        ("npy.toml", npy_floats(&[0, 3], |_| 1.0), &["no examples"]),
        ("npy.toml", vec![], &["bad"]),
        ("idx.toml", pixels[..pixels.len() - 1].to_vec(), &["bad"]),
        ("idx.toml", idx(&[19, 4, 4], |_| 0), &["19", "20"]),
        ("idx.toml", idx(&[0, 4, 4], |_| 0), &["bad"]),
        ("idx.toml", vec![0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255], &["bad"]),
        ("text.toml", b"short".to_vec(), &["bad", "too few"]),
        ("text.toml", b"\xc3(".repeat(100), &["bad: at byte 0", "UTF-8"]),
        ("text.toml", vec![], &["bad: is empty"]),
    ];
    for (job, bytes, parts) in table {
        place.write("bad", bytes);
        fails(&place, job, &[], parts);
    }
    // What a field of the job is to blame for is said with file, line and field.
    let table: &[(&str, &[&str], &str)] = &[
        ("mlp.toml", &["data.label_column=kind"], "--set data.label_column=kind: data.label_column: "),
        ("mlp.toml", &["data.ignore_columns=[\"zzz\"]"], "data.ignore_columns: "),
        ("mlp.toml", &["data.delimiter=ab"], "data.delimiter: \"ab\" cannot separate columns"),
        (
            "mlp.toml",
            &["data.missing=median"],
            "data.missing: must be \"refuse\", \"mean\", \"zero\" or a finite",
        ),
        ("mlp.toml", &["data.path=absent.csv"], "--set data.path=absent.csv: data.path: "),
        ("mlp.toml", &["data.mean=[1.0]"], "data.mean: "),
        ("mlp.toml", &["train.batch=37"], "train.batch: 37 is more than the 36 examples"),
        ("gpt.toml", &["data.examples=1000000000"], "data.examples: 1000000000 windows"),
        ("gpt.toml", &["data.vocabulary=words"], "data.vocabulary: unknown vocabulary `words`"),
        (
            "digits.toml",
            &["data.size=[1,2,3]"],
            "data.size: must be one number or [rows, columns], not 3 numbers",
        ),
        ("digits.toml", &["data.size=5000"], "data.size: 5000 is not from 1 to 4096"),
    ];
    for (job, sets, part) in table {
        fails(&place, job, sets, &[part]);
    }
    place.write("line.toml", MLP.replace("'class'", "'kind'"));
    fails(&place, "line.toml", &[], &["line.toml:6: data.label_column: ", "it has: "]);
    // A pipe is refused, not waited for.
    let pipe = place.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (job, set) in [
        ("csv.toml", "data.path=pipe"),
        ("npy.toml", "data.path=pipe"),
        ("npy.toml", "data.labels=pipe"),
        ("idx.toml", "data.path=pipe"),
        ("text.toml", "data.path=pipe"),
        ("text.toml", "data.validation_path=pipe"),
    ] {
        place.write("bad", if job == "text.toml" { b"a long text ".repeat(20) } else { good.clone() });
        fails(&place, job, &[set], &["pipe: is not a regular file"]);
    }
    // However long a cell is, the message is not.
    place.write("bad", csv(20).replacen("3,", &format!("{},", "w".repeat(10_000_000)), 1));
    fails(&place, "csv.toml", &[], &["bad: line", "column `u`", "wwww…"]);
    fs::remove_file(place.path("bad")).unwrap();
    for job in ["csv.toml", "npy.toml", "idx.toml", "text.toml"] {
        fails(&place, job, &[], &["bad"]);
    }
    place.write("bad", good);
    place.write("y.npy", npy_labels(20, |i| if i == 7 { -1 } else { 0 }));
    fails(&place, "npy.toml", &[], &["y.npy: label -1 of example 7"]);
}

#[test]
fn wrong_checkpoints() {
    let place = place("wrong-checkpoints");
    place.train("digits.toml", "run", &[]);
    let good = place.path("run/weights.safetensors");
    let bytes = fs::read(&good).unwrap();
    let checkpoint = load(&good).unwrap();
    let (name, tensor) = checkpoint.tensors.iter().next_back().unwrap();
    let with = |shape: &[usize], data: HostData| {
        let mut tensors = checkpoint.tensors.clone();
        tensors.insert(name.clone(), HostTensor::new(shape, data).unwrap());
        save(&place.path("bad"), &tensors, &checkpoint.metadata).unwrap();
        fs::read(place.path("bad")).unwrap()
    };
    let (shape, count) = (tensor.shape(), tensor.shape().iter().product());
    let mut odd = vec![0.5f32; count];
    odd[count / 2] = f32::NAN;
    let flipped: Vec<u8> =
        bytes[..bytes.len() - 1].iter().chain(&[bytes[bytes.len() - 1] ^ 1]).copied().collect();
    let quoted = format!("`{name}`");
    let table: Vec<(Vec<u8>, Vec<&str>)> = vec![
        (with(&[count, 1, 1], HostData::F32(vec![0.5; count])), vec![&quoted, "1 of another shape"]),
        (with(shape, HostData::I32(vec![1; count])), vec![&quoted, "1 of another shape"]),
        (with(shape, HostData::F32(odd)), vec![&quoted, "not finite"]),
        (bytes[..bytes.len() - 5].to_vec(), vec!["bad"]),
        (bytes[..6].to_vec(), vec!["truncated"]),
        ([&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat(), vec!["bad"]),
        ([&(1u64 << 40).to_le_bytes()[..], &bytes[8..]].concat(), vec!["bad"]),
        (flipped, vec!["checksum"]),
        (vec![], vec!["bad"]),
    ];
    for (bytes, parts) in table {
        place.write("bad", bytes);
        fails(&place, "digits.toml", &["train.weights=bad"], &parts);
    }
    let names = checkpoint.tensors.keys().cloned().collect::<Vec<_>>();
    let mut fewer = checkpoint.tensors.clone();
    fewer.remove(&names[0]);
    save(&place.path("bad"), &fewer, &checkpoint.metadata).unwrap();
    fails(&place, "digits.toml", &["train.weights=bad"], &["1 missing in the file", &names[0]]);
}

#[test]
fn run_directories_are_kept() {
    let place = place("kept");
    place.train("digits.toml", "run", &[]);
    let job = fs::read(place.path("run/job.toml")).unwrap();
    let run =
        |more: &[&str]| place.run(&[&["train", "digits.toml", "--out", "run", "--json"], more].concat());
    assert!(run(&[]).error().contains("run already holds a run; pass --resume"));
    for (set, part) in [
        ("train.seed=5", "train.seed = 0"),
        ("train.batch=4", "train.batch = 8"),
        ("model.width=8", "model = cnn"),
        ("optimizer.name=sgd", "optimizer = adamw"),
        ("data.examples=48", "data.examples = 40"),
    ] {
        let error = run(&["--resume", "--set", set]).error();
        assert!(error.contains(part) && error.contains("step-00000002.safetensors"), "{error}");
    }
    assert_eq!(fs::read(place.path("run/job.toml")).unwrap(), job, "a job that cannot go on changes nothing");
    fs::remove_file(place.path("run/job.toml")).unwrap();
    assert!(run(&[]).error().contains("already holds a run"), "checkpoints alone are a run too");

    let mut odd = load(&place.path("run/checkpoints/step-00000002.safetensors")).unwrap();
    let name = odd.tensors.keys().find(|name| name.contains("optimizer")).unwrap().clone();
    let shape = odd.tensors[&name].shape().to_vec();
    let infinite = HostData::F32(vec![f32::INFINITY; shape.iter().product()]);
    odd.tensors.insert(name.clone(), HostTensor::new(&shape, infinite).unwrap());
    save(&odd.path, &odd.tensors, &odd.metadata).unwrap();
    let error = run(&["--resume"]).error();
    assert!(error.contains(&format!("`{name}`")) && error.contains("not finite"), "{error}");
}

#[test]
fn long_inputs_make_short_messages() {
    let place = place("long");
    let long = "x".repeat(900_000);
    let space = "[space]\noptimizer.lr = [0.1, 0.2]\n";
    let sweep = |settings: &str| format!("[sweep]\njob = 'digits.toml'\n{settings}\n{space}");
    for (command, text) in [
        ("train", DIGITS.replace("cnn", &long)),
        ("train", DIGITS.replace("width", &long)),
        ("train", DIGITS.replace("train", &long)),
        ("train", DIGITS.replace("batch = 8", &format!("batch = '{long}'"))),
        ("train", DIGITS.replace("'digits'", &format!("'csv'\npath = '{long}'"))),
        ("train", DIGITS.replace("[data]", &long)),
        ("sweep", sweep(&format!("metric = '{long}'"))),
        ("sweep", sweep(&format!("set = ['{long}']"))),
        ("sweep", sweep("").replace("digits.toml", &long)),
        ("sweep", sweep("").replace("optimizer.lr", &format!("model.{long}"))),
    ] {
        place.write("long.toml", text);
        let finished = place.run(&[command, "long.toml", "--out", "out"]);
        let error = finished.error();
        assert!(error.len() < 1000, "{} bytes: {}", error.len(), error.get(..300).unwrap_or(&error));
    }
    // Devices are read as far as a job could be.
    let error = place.run(&["train", "/dev/zero", "--out", "out"]).error();
    assert_eq!(error, "/dev/zero: more than 1.0 MiB; is this a job or sweep file?");
}
