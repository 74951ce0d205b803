//! Asked to stop, a run saves what it has and leaves; resumed, it ends with the bits of one that was not
//! asked.

use crate::process::{Place, fingerprint};
use crate::resume::{POINTS, checkpoints};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

#[test]
fn signals_end_a_run_after_a_checkpoint() {
    let place = Place::new("signals");
    place.write("job.toml", POINTS);
    let sets = &["--set", "train.steps=400", "--set", "train.checkpoint_every=0"];
    let whole = place.train("job.toml", "whole", sets);
    for signal in ["INT", "TERM", "HUP"] {
        let arguments = [&["train", "job.toml", "--out", signal, "--json"], &sets[..]].concat();
        let mut running = place.start(&arguments);
        assert!(running.wait_for("step", 5));
        running.signal(signal);
        let finished = running.finish();
        assert_eq!(finished.code(), Some(130), "{}", finished.stderr);
        let events = finished.events();
        let [.., saved, last] = &events[..] else { panic!("{events:?}") };
        assert_eq!((saved["event"].as_str(), last["event"].as_str()), (Some("checkpoint"), Some("error")));
        let step = saved["step"].as_u64().unwrap();
        assert!((5..400).contains(&step), "{saved}");
        let message = last["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("interrupted after step {step} of 400; to go on: ")),
            "{message}"
        );
        assert!(message.ends_with("--set train.checkpoint_every=0 --resume"), "{message}");
        assert_eq!(finished.stderr.trim(), message);
        let path = saved["path"].as_str().unwrap();
        assert!(checkpoints(&place.path(signal))[0].ends_with(path.rsplit('/').next().unwrap()));

        let done = place.train("job.toml", signal, &[&["--resume"], &sets[..]].concat());
        assert_eq!(fingerprint(&done), fingerprint(&whole), "{signal}");
    }
}

/// Planned for minutes: a dozen plans within tight budgets.
const SLOW: &str = "[model]\nname = 'gpt'\nwidth = 64\nheads = 4\nlayers = 10\n\
    [data]\nkind = 'sequences'\nlength = 64\nexamples = 40\n[train]\nsteps = 2\nbatch = 8\npartials = 4\n\
    [optimizer]\nname = 'adamw'\nlr = 0.001\n";

#[test]
fn a_signal_ends_planning() {
    let place = Place::new("signals-planning");
    place.write("job.toml", SLOW);
    let mut child = Command::new(env!("CARGO_BIN_EXE_gulliver"))
        .args(["plan", "job.toml", "--memory", "64MiB", "--budget-curve"])
        .current_dir(place.path(""))
        .env("XDG_CONFIG_HOME", place.path("settings"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says when planning takes long.
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "planning within 64.0 MiB…\n");
    let killed = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(killed.success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "interrupted while planning; nothing was started\n");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
