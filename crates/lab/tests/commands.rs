//! `lab bench`, `check`, `accuracy` and `refine` from the outside.

use gulliver::history::{self, RunRecord};
use gulliver::machine;
use gulliver_graph::work::Load;
use gulliver_plan::document::links::Links;
use gulliver_plan::time::cost::{CurvePoint, Curves, MachineProfile, Rates, Scaling};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory of settings for one test.
struct Settings(PathBuf);

impl Settings {
    fn new(name: &str) -> Settings {
        let path = std::env::temp_dir().join(format!("gulliver-lab-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("gulliver")).unwrap();
        Settings(path)
    }

    fn runs(&self) -> PathBuf {
        self.0.join("gulliver/runs.jsonl")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.env("XDG_CONFIG_HOME", &self.0).current_dir(&self.0).args(arguments).output().unwrap()
    }

    /// What a command that succeeds prints.
    fn printed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one line of error of a command that fails.
    fn error(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{arguments:?}: {error}");
        error.trim_end().strip_prefix("error: ").unwrap().to_string()
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bench_measures_what_is_asked_for() {
    let settings = Settings::new("bench");
    for arguments in
        [&["bench", "mlp-tiny", "--fusion", "--batch", "3"][..], &["bench", "--scaling", "--no-probe"]]
    {
        assert_eq!(settings.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    for (arguments, expected) in [
        (&["bench", "mlp-tiny", "--length", "3"][..], "--length: mlp-tiny does not read tokens"),
        (&["bench", "mlp-tiny", "--members", "2", "--batch", "3"], "--members trains workloads as they are"),
    ] {
        assert!(settings.error(arguments).starts_with(expected), "{arguments:?}");
    }
    assert!(settings.error(&["bench", &"x".repeat(100_000)]).len() < 1000);
    // Each of several workloads is measured by a process of its own.
    let two = ["bench", "mlp-tiny", "mlp-tiny", "--json", "--seconds", "0", "--no-probe", "--batch", "3"];
    let events = settings.printed(&two);
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let batches: Vec<Value> =
        events.filter(|event| event["event"] == "workload").map(|event| event["batch"].clone()).collect();
    assert_eq!(batches, [3, 3]);
}

#[test]
fn profiles_that_cannot_be_read_are_named() {
    let settings = Settings::new("wrong");
    std::fs::create_dir(settings.0.join("dir")).unwrap();
    for command in ["check", "refine"] {
        assert!(settings.error(&[command, "--profile", "none.toml"]).starts_with("none.toml"));
        let error = settings.error(&[command, "--profile", "dir"]);
        assert_eq!(error, "dir: is a directory; a profile is a regular file");
    }
}

fn profile() -> MachineProfile {
    let load = Load { flops: 1.0, bytes: 1.0, extents: [1.0; 6] };
    let points = vec![CurvePoint { load, seconds: 0.5, spread: 0.0 }];
    let families = [("conv".to_string(), points)].into_iter().collect();
    let curves = vec![Curves::of([1, 1], Rates::default(), families)];
    let scaling = vec![Scaling { threads: 1, flops: 1e9, bytes: 1e9, spread: 0.0 }];
    MachineProfile { cores: 1, processor: "x".into(), links: Links::default(), scaling, curves }
}

fn add(runs: &Path, profile: &str) {
    let ran = RunRecord {
        when: 1e9,
        model: "gpt".into(),
        strategy: "alone".into(),
        devices: 1,
        threads: 1,
        batch: 8,
        steps: 20,
        profile: Some(profile.into()),
        seconds: [1.0, 0.5],
        peak: [7, 7],
        bytes: [0, 0],
    };
    history::add(runs, &ran).unwrap();
}

#[test]
fn runs_are_judged_and_refine_the_profile() {
    let settings = Settings::new("history");
    assert!(settings.printed(&["accuracy"]).contains("no runs are remembered"));
    let path = settings.0.join("slow.toml");
    machine::write(&path, &profile()).unwrap();
    let name = history::name_of(&machine::read(&path).unwrap());
    for _ in 0..2 {
        add(&settings.runs(), &name);
    }
    let refine = ["refine", "--profile", "slow.toml"];
    assert!(settings.printed(&refine).contains("nothing to correct"), "two runs are too few");
    add(&settings.runs(), &name);
    let standing: Value = serde_json::from_str(&settings.printed(&["accuracy", "--json"])).unwrap();
    assert_eq!((&standing[0]["runs"], &standing[0]["exact"]), (&3.into(), &3.into()), "{standing}");
    assert!(settings.printed(&["accuracy"]).contains("3 runs, mean accuracy 0.0 %"));

    let before = std::fs::read_to_string(&path).unwrap();
    let refined: Value =
        serde_json::from_str(&settings.printed(&[&refine[..], &["--json"]].concat())).unwrap();
    assert_eq!((&refined[0]["runs"], &refined[0]["times"]), (&3.into(), &0.5.into()), "{refined}");
    assert_ne!(before, std::fs::read_to_string(&path).unwrap());
    // What the old profile predicted says nothing about the new one.
    assert!(settings.printed(&refine).contains("nothing to correct"));
}
