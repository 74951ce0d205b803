//! Profiles of machines from the outside: made, found where they are looked for, used by plans, and refused in one
//! line where they are wrong.

use crate::process::{Place, fingerprint};
use gulliver::{history, machine};
use serde_json::Value;

const JOB: &str = "[model]\nname = 'gpt'\nwidth = 32\nheads = 2\nlayers = 1\n\
    [data]\nkind = 'tokens'\ntokens = 30\nmin_length = 4\nlength = 24\nexamples = 60\n\
    [train]\nsteps = 4\nbatch = 8\n[optimizer]\nname = 'adamw'\n";

/// Seconds of a step by the plan, and where they come from.
fn planned(place: &Place, more: &[&str]) -> (f64, String) {
    let finished = place.run(&[&["plan", "job.toml", "--json", "--set", "devices.threads=1"], more].concat());
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let plan: Value = serde_json::from_str(&finished.stdout).unwrap();
    let seconds = plan["summary"]["timing"]["seconds"].as_f64().unwrap();
    (seconds, plan["machine"].as_str().unwrap().to_string())
}

#[test]
fn a_profile_is_made_and_used() {
    let place = Place::new("profile");
    place.write("job.toml", JOB);
    let (_, about) = planned(&place, &[]);
    assert!(about.contains("no profile; `gulliver profile` makes one"), "{about}");

    let made = place.run(&["profile", "--threads", "1", "--seconds", "0", "--out", "box.toml"]);
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    for operator in ["contract", "conv", "attention_grad", "batch_norm", "elementwise", "lstm", "update_adam"]
    {
        assert!(made.stdout.lines().any(|line| line.starts_with(operator)), "{operator}: {}", made.stdout);
    }
    assert!(made.stderr.contains("written to box.toml"), "{}", made.stderr);
    let (seconds, about) = planned(&place, &["--profile", "box.toml"]);
    assert!(about.contains("times by box.toml") && seconds > 0.0, "{about}: {seconds}");

    // A machine whose kernels are ten times slower takes that much longer, wherever the profile is found.
    let text = std::fs::read_to_string(place.path("box.toml")).unwrap();
    let slower = slowed(&text);
    std::fs::create_dir_all(place.path("settings/gulliver")).unwrap();
    place.write("settings/gulliver/profile.toml", &slower);
    place.write("slow.toml", &slower);
    let (slow, _) = planned(&place, &["--profile", "slow.toml"]);
    assert!(slow > 5.0 * seconds && slow < 11.0 * seconds, "{slow} {seconds}");
    // The default place is of a machine with one core; this one may have more.
    let (_, about) = planned(&place, &[]);
    assert!(about.contains("profile.toml"), "{about}");

    // Speeds change plans, never numbers.
    let plain = place.train("job.toml", "plain", &["--memory", "1MiB"]);
    let other = place.train("job.toml", "other", &["--memory", "1MiB", "--profile", "slow.toml"]);
    assert_eq!(fingerprint(&plain), fingerprint(&other));
}

/// The profile with ten times the seconds of every point.
fn slowed(text: &str) -> String {
    let line = |line: &str| -> String {
        let Some(point) = line.strip_prefix("  [").and_then(|rest| rest.strip_suffix("],")) else {
            return line.to_string();
        };
        let mut numbers: Vec<f64> = point.split(", ").map(|number| number.parse().unwrap()).collect();
        numbers[8] *= 10.0;
        format!("  {numbers:?},")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn wrong_profiles_are_one_line() {
    let place = Place::new("profile-wrong");
    place.write("job.toml", JOB);
    place.write("text.toml", "fast = true\n");
    place.write("half.toml", "cores = 2\nprocessor = 'x'\n[links]\nto_device = 1.0\n");
    for (arguments, said) in [
        (&["plan", "job.toml", "--profile", "none.toml"][..], "none.toml"),
        (&["plan", "job.toml", "--profile", "text.toml"], "missing field"),
        (&["train", "job.toml", "--out", "run", "--profile", "half.toml"], "missing field"),
    ] {
        let error = place.run(arguments).error();
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    // One that nobody named is only said to be wrong.
    std::fs::create_dir_all(place.path("settings/gulliver")).unwrap();
    place.write("settings/gulliver/profile.toml", "fast = true\n");
    let (_, about) = planned(&place, &[]);
    assert!(about.starts_with("times are rough") && about.contains("missing field"), "{about}");
}

/// Nothing of these is read, so that nobody waits for them and no memory is filled.
#[test]
fn profiles_that_are_no_regular_files_are_refused_at_once() {
    let place = Place::new("profile-devices");
    place.write("job.toml", JOB);
    std::fs::create_dir(place.path("dir")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    // Takes no room on disk.
    std::fs::File::create(place.path("large")).unwrap().set_len(10 << 30).unwrap();
    for (profile, said) in [
        ("/dev/zero", "/dev/zero: is a device or pipe; a profile is a regular file"),
        ("pipe", "pipe: is a device or pipe; a profile is a regular file"),
        ("dir", "dir: is a directory; a profile is a regular file"),
        ("large", "large: has 10.0 GiB; a profile has at most 64.0 MiB"),
    ] {
        for arguments in [
            &["plan", "job.toml", "--profile", profile][..],
            &["train", "job.toml", "--out", "run", "--profile", profile],
        ] {
            assert_eq!(place.run(arguments).error(), said, "{arguments:?}");
        }
    }
}

/// Where nothing can be measured either, what is said of the output shows what is looked at first.
#[test]
fn a_profile_that_cannot_be_written_is_not_measured() {
    let place = Place::new("profile-out");
    std::fs::create_dir(place.path("dir")).unwrap();
    place.write("file", "");
    for out in ["dir", "file/profile.toml"] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gulliver"));
        command.current_dir(place.path("")).env("TMPDIR", place.path("nowhere"));
        let said =
            command.args(["profile", "--threads", "1", "--seconds", "0", "--out", out]).output().unwrap();
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.starts_with(&format!("error: {out}: ")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn flags_without_an_effect_are_refused() {
    let place = Place::new("profile-flags");
    for arguments in [&["models", "gpt", "--set", "layers=3"][..], &["ops", "add"]] {
        let finished = place.run(arguments);
        assert_eq!(finished.code(), Some(2), "{arguments:?}: {}{}", finished.stdout, finished.stderr);
    }
}

/// What runs say of predictions; `lab accuracy` and `lab refine` read it.
#[test]
fn runs_are_remembered_with_what_was_predicted() {
    let place = Place::new("history");
    place.write("job.toml", JOB);
    let made = place.run(&["profile", "--threads", "1", "--seconds", "0", "--out", "box.toml"]);
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    let set = ["devices.threads=1", "train.steps=30", "data.min_length=24"];
    let more = ["--profile", "box.toml", "--set", set[0], "--set", set[1], "--set", set[2]];
    let first = place.train("job.toml", "a", &more);
    let forgotten = place.train("job.toml", "b", &[&more[..], &["--no-history"]].concat());
    assert_eq!(fingerprint(&first), fingerprint(&forgotten));
    place.train("job.toml", "c", &more);
    let path = place.path("settings/gulliver/runs.jsonl");
    let runs = history::read(&path).unwrap();
    assert_eq!(runs.len(), 2, "{runs:?}");
    let profile = history::name_of(&machine::read(&place.path("box.toml")).unwrap());
    for ran in &runs {
        assert_eq!((ran.model.as_str(), ran.strategy.as_str(), ran.devices), ("gpt", "alone", 1));
        assert_eq!(ran.profile.as_ref(), Some(&profile));
        assert!(ran.steps > 1 && ran.seconds.iter().all(|seconds| *seconds > 0.0), "{ran:?}");
        assert_eq!((ran.peak[0], ran.bytes[0]), (ran.peak[1], ran.bytes[1]), "as planned");
    }

    // A history that cannot be written stops nobody.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir_all(&path).unwrap();
    let unwritten = place.train("job.toml", "d", &more);
    assert_eq!(fingerprint(&first), fingerprint(&unwritten));
}
