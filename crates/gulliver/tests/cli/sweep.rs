//! Sweeps end to end: killed, interrupted, started twice, with trials that cannot be, and what they leave.

use crate::process::{Finished, Place, Random};
use std::fs;
use std::thread::sleep;
use std::time::Duration;

const JOB: &str = "[model]\nname = 'pointnet'\nwidth = 4\ndropout = 0.3\n\
    [data]\nkind = 'points'\nlength = 16\nexamples = 48\n\
    [train]\nsteps = 18\nbatch = 8\neval_every = 5\ncheckpoint_every = 4\n\
    [optimizer]\nname = 'sgd'\nlr = 0.05\n[schedule]\nname = 'one-cycle'\n[devices]\nthreads = 1\n";

const SPACE: &str = "[space]\noptimizer.lr = { log-uniform = [1e-3, 1] }\nmodel.width = [4, 6, 0]\n\
    optimizer.momentum = { uniform = [0.1, 0.9] }\n";

fn place(name: &str, settings: &str) -> Place {
    let place = Place::new(&format!("sweep-{name}"));
    place.write("job.toml", JOB);
    place.write("sweep.toml", format!("[sweep]\njob = 'job.toml'\n{settings}\n{SPACE}"));
    place
}

const SWEEP: [&str; 3] = ["sweep", "sweep.toml", "--json"];

fn sweep(place: &Place, out: &str, more: &[&str]) -> Finished {
    let finished = place.run(&[&SWEEP[..], &["--out", out], more].concat());
    assert_eq!(finished.code(), Some(0), "{out}: {}", finished.stderr);
    assert_eq!(finished.events().pop().unwrap()["event"], "done");
    finished
}

/// What a sweep leaves, but for times.
fn left(place: &Place, out: &str) -> Vec<Vec<u8>> {
    let files = ["trials.csv", "curves.csv", "best.safetensors", "best.toml"];
    files.iter().map(|file| fs::read(place.path(out).join(file)).unwrap()).collect()
}

#[test]
fn killed_at_any_moment_a_sweep_ends_with_the_same_table() {
    for (algorithm, more) in [
        ("asha", "trials = 7\nwidth = 3\nrungs = 3"),
        ("tpe", "trials = 13\nwidth = 2"),
        ("hyperband", "rungs = 2"),
        ("random", "trials = 4\nfolds = 3"),
    ] {
        let place = place(&format!("killed-{algorithm}"), &format!("algorithm = '{algorithm}'\n{more}"));
        sweep(&place, "whole", &[]);
        let mut random = Random(11);
        let mut rungs = 0;
        for kill in 0..8 {
            let mut running = place.start(&[&SWEEP[..], &["--out", "killed"]].concat());
            match kill % 4 {
                0 => drop(running.wait_for("rung", 1 + random.below(3))),
                1 => drop(running.wait_for("eval", 1 + random.below(4))),
                2 => drop(running.wait_for("start", 1)),
                _ => {}
            }
            sleep(Duration::from_micros(random.below(40_000) as u64));
            running.kill();
            rungs += running.finish().stdout.matches("\"event\":\"rung\"").count();
        }
        let last = sweep(&place, "killed", &[]);
        assert!(left(&place, "killed") == left(&place, "whole"), "{algorithm}");
        // What was told as ended is never trained again; what was not told may have been.
        rungs += last.events_called("rung").len();
        let table = fs::read_to_string(place.path("whole/curves.csv")).unwrap();
        assert!(rungs > 0 && !table.is_empty());
        let again = sweep(&place, "killed", &[]);
        assert!(again.events_called("rung").is_empty());
        assert!(left(&place, "killed") == left(&place, "whole"), "{algorithm}");
    }
}

#[test]
fn interrupted_a_sweep_saves_and_goes_on() {
    let place = place("interrupted", "trials = 4\nset = ['train.steps=150']");
    sweep(&place, "whole", &[]);
    let mut running = place.start(&[&SWEEP[..], &["--out", "cut"]].concat());
    assert!(running.wait_for("eval", 2));
    running.signal("INT");
    let finished = running.finish();
    assert_eq!(finished.code(), Some(130), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("of 4 trials; run the same command again to go on"),
        "{}",
        finished.stderr
    );
    sweep(&place, "cut", &[]);
    assert!(left(&place, "cut") == left(&place, "whole"));
}

#[test]
fn two_sweeps_at_once() {
    let place = place("twice", "trials = 3\nset = ['train.steps=400']");
    for killed in [true, true, false] {
        let mut first = place.start(&[&SWEEP[..], &["--out", "out"]].concat());
        assert!(first.wait_for("eval", 1));
        // It is not to end before the second one looks.
        first.signal("STOP");
        let second = place.run(&["sweep", "sweep.toml", "--out", "out"]).error();
        first.signal("CONT");
        let told = second.starts_with("out: process ") && second.contains("is working on this sweep");
        assert!(told, "{second}");
        let export = place.run(&["sweep", "sweep.toml", "--out", "out", "--export", "json"]);
        assert_eq!(export.code(), Some(0), "{}", export.stderr);
        let json: serde_json::Value = serde_json::from_str(&export.stdout).unwrap();
        assert_eq!(json["trials"].as_array().unwrap().len(), 3);
        if killed {
            // Whoever had it is gone and does not block.
            first.kill();
        }
        let ended = first.finish().code();
        assert!(killed || ended == Some(0), "{ended:?}");
    }
    sweep(&place, "alone", &[]);
    assert!(left(&place, "out") == left(&place, "alone"));
}

#[test]
fn impossible_trials_fail_and_the_others_go_on() {
    let place = place("impossible", "trials = 10\nset = ['train.eval_every=0']");
    let finished = sweep(&place, "out", &[]);
    let done = finished.events().pop().unwrap();
    let (complete, failed) = (done["complete"].as_u64().unwrap(), done["failed"].as_u64().unwrap());
    assert!(complete > 0 && failed > 0 && complete + failed == 10, "{done}");
    let table = fs::read_to_string(place.path("out/trials.csv")).unwrap();
    for row in table.lines().skip(1) {
        let failed = row.contains(",failed,");
        assert_eq!(failed, row.contains("width"), "{row}");
    }
    let text = place.run(&["sweep", "sweep.toml", "--out", "out", "--export", "csv"]).stdout;
    assert_eq!(text, table);
    let json = place.run(&["sweep", "sweep.toml", "--out", "out", "--export", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["trials"].as_array().unwrap().len(), 10);
    assert_eq!(json["best"], done["best"]["trial"]);
}

#[test]
fn the_best_is_an_ordinary_checkpoint_of_an_ordinary_job() {
    let place = place("best", "algorithm = 'asha'\ntrials = 6\nrungs = 2\nmetric = 'accuracy'");
    sweep(&place, "out", &[]);
    place.train("out/best.toml", "alone", &[]);
    let best = fs::read(place.path("out/best.safetensors")).unwrap();
    assert!(best == fs::read(place.path("alone/checkpoints/step-00000018.safetensors")).unwrap());
    let runs: Vec<_> = fs::read_dir(place.path("out/trials")).unwrap().map(|e| e.unwrap().path()).collect();
    let [run] = &runs[..] else { panic!("{runs:?}") };
    let run = run.to_str().unwrap();
    place.train("out/best.toml", run, &["--resume", "--steps", "24"]);
}

#[test]
fn folds_are_trained_as_jobs_of_their_own() {
    let place = Place::new("sweep-folds");
    // Folds of 16, 17 and 17 leave epochs of two steps, and of one.
    let job = [("steps = 18", "epochs = 4"), ("examples = 48", "examples = 50"), ("batch = 8", "batch = 17")];
    place.write("job.toml", job.iter().fold(JOB.to_string(), |text, (from, to)| text.replace(from, to)));
    let settings = "[sweep]\njob = 'job.toml'\nalgorithm = 'grid'\nfolds = 3\n";
    place.write("sweep.toml", format!("{settings}[space]\noptimizer.lr = [0.01, 0.1]\n"));
    sweep(&place, "out", &[]);
    let json = place.run(&["sweep", "sweep.toml", "--out", "out", "--export", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let best = fs::read(place.path("out/best.safetensors")).unwrap();
    let mut found = false;
    for (trial, lr) in [(0, "0.01"), (1, "0.1")] {
        let trial = &json["trials"][trial];
        let mut losses = Vec::new();
        for (fold, steps) in [(0, 8), (1, 4), (2, 4)] {
            let sets = [format!("optimizer.lr={lr}"), "data.folds=3".into(), format!("data.fold={fold}")];
            let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
            let out = format!("{lr}-{fold}");
            let done = place.train("job.toml", &out, &sets);
            assert_eq!(done["steps"], steps);
            assert_eq!(done["metrics"]["loss"], trial["repeats"][fold], "{lr}, fold {fold}");
            losses.push(done["metrics"]["loss"].as_f64().unwrap());
            let checkpoint = format!("{out}/checkpoints/step-{steps:08}.safetensors");
            found |= fs::read(place.path(&checkpoint)).unwrap() == best;
        }
        assert_eq!(trial["value"].as_f64().unwrap(), losses.iter().sum::<f64>() / 3.0);
    }
    assert!(found, "the best is none of the folds");
}

#[test]
fn a_plan_shows_arrays_before_anything_runs() {
    let place = place("plan", "trials = 12\nrepeats = 2");
    let finished = place.run(&["sweep", "sweep.toml", "--plan"]);
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    assert!(
        finished.stdout.contains("may differ in optimizer.lr, optimizer.momentum\n"),
        "{}",
        finished.stdout
    );
    assert!(finished.stdout.contains("kept apart by model.width\n"), "{}", finished.stdout);
    assert!(finished.stdout.contains("  chosen\n"), "{}", finished.stdout);
    let plan = place.run(&["sweep", "sweep.toml", "--plan", "--json"]).stdout;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let arrays = plan["arrays"].as_array().unwrap();
    let members: usize = arrays.iter().map(|a| a["members"].as_array().unwrap().len()).sum();
    assert_eq!(members, 24);
    assert_eq!(arrays.iter().filter(|a| a["problem"].is_null()).count(), 2, "{plan}");
    let two = ["--plan", "--json", "--set", "devices.threads=2"];
    let two = place.run(&[&["sweep", "sweep.toml"], &two[..]].concat()).stdout;
    let two: serde_json::Value = serde_json::from_str(&two).unwrap();
    for array in two["arrays"].as_array().unwrap().iter().filter(|a| a["problem"].is_null()) {
        let (members, width) = (array["members"].as_array().unwrap().len(), &array["width"]);
        let way = &width["ways"][0];
        assert_eq!((&width["chosen"], &way["lanes"]), (&0.into(), &2.min(members).into()), "{array}");
        assert_eq!(way["outcome"]["resident"], members, "{array}");
        // Lanes are at work side by side.
        let number = |name: &str| way["outcome"][name].as_f64().unwrap();
        let steps = array["steps"].as_f64().unwrap() * members as f64 / way["lanes"].as_f64().unwrap();
        assert!((number("seconds") / (number("step_seconds") * steps) - 1.0).abs() < 1e-9, "{array}");
    }
    assert!(!place.path("sweeps").exists());
    // The whole takes at least as long as what was looked at of it.
    let sum: f64 = arrays.iter().filter_map(|a| a["seconds"].as_f64()).sum();
    assert!(plan["rehearsed"].as_u64().unwrap() > 0 && sum > 0.0, "{plan}");
    assert!(plan["seconds"].as_f64().unwrap() >= 0.999 * sum, "{plan}");
}

#[test]
fn trials_start_from_the_weights_of_a_run() {
    let place = Place::new("sweep-weights");
    place.write("job.toml", "[model]\nname = 'mlp-tiny'\n[data]\nkind = 'blobs'\n[train]\nsteps = 2\n");
    place.train("job.toml", "first", &[]);
    let sweep = "[sweep]\njob = 'job.toml'\nset = ['train.weights=first']\nmetric = 'loss'\n[space]\noptimizer.lr = [0.1, 0.2]\n";
    place.write("sweep.toml", sweep);
    let run = place.run(&["sweep", "sweep.toml", "--out", "sweep"]);
    assert_eq!(run.code(), Some(0), "{} {}", run.stdout, run.stderr);
    assert!(run.stdout.contains("0 failed"), "{}", run.stdout);
}

#[test]
fn trials_do_not_end_by_themselves() {
    let place = Place::new("sweep-early");
    place.write(
        "job.toml",
        "[model]\nname = 'mlp-tiny'\n[data]\nkind = 'blobs'\n[train]\nsteps = 4\nearly_stopping = 2\n",
    );
    place.write(
        "sweep.toml",
        "[sweep]\njob = 'job.toml'\nmetric = 'loss'\n[space]\noptimizer.lr = [0.1, 0.2]\n",
    );
    let message = place.run(&["sweep", "sweep.toml"]).error();
    assert!(message.contains("job.toml:7: train.early_stopping: ") && message.contains("0"), "{message}");
}

#[test]
fn an_unknown_metric_is_an_error_before_anything_is_trained() {
    let place = place("metric", "trials = 2\nmetric = 'acuracy'");
    for more in [&["--plan"][..], &[]] {
        let error = place.run(&[&["sweep", "sweep.toml", "--out", "out"], more].concat()).error();
        assert_eq!(
            error,
            "sweep.toml:4: sweep.metric: the job reports no `acuracy`, only accuracy, loss, macro_f1; did you mean `accuracy`?"
        );
        assert!(!place.path("out").exists());
    }
    place.write("sweep.toml", format!("[sweep]\njob = 'job.toml'\nset = ['data.validation=0']\n{SPACE}"));
    let error = place.run(&["sweep", "sweep.toml", "--out", "out"]).error();
    assert!(error.starts_with("sweep.toml:1: sweep.metric: the job has no validation data"), "{error}");
    assert!(!place.path("out").exists());
}

#[test]
fn a_sweep_of_which_nothing_could_be_trained_has_failed() {
    let place = place("failed", "trials = 3");
    let space = "[space]\nmodel.width = [4, 6]\noptimizer.lr = { uniform = [1e30, 1e31] }\n";
    place.write("sweep.toml", format!("[sweep]\njob = 'job.toml'\ntrials = 3\n{space}"));
    // Once when it ends, and again when there is nothing left to train.
    for _ in 0..2 {
        let finished = place.run(&["sweep", "sweep.toml", "--out", "out"]);
        assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
        let last = finished.stderr.lines().last().unwrap();
        assert!(last.starts_with("error: all 3 trials failed; "), "{last}");
        assert!(last.contains("of them because step") && last.contains("is not finite"), "{last}");
        assert!(finished.stdout.contains("3 failed"), "{}", finished.stdout);
    }
    let json = place.run(&["sweep", "sweep.toml", "--out", "out", "--json"]);
    assert_eq!(json.code(), Some(1));
    assert_eq!(json.events().pop().unwrap()["event"], "error");
}

/// What Rust prints of its own values, and nobody else does.
const RUST: [&str; 9] = ["Some(", "None", "Ok(", "Err(", "Text(", "Float(", "\\\"", "{ low", "Hyperband"];

#[test]
fn nothing_that_is_printed_is_rust() {
    let place = place("words", "algorithm = 'hyperband'\nrungs = 2");
    let run = |arguments: &[&str]| {
        let finished = place.run(&[&["sweep", "sweep.toml", "--out", "out"], arguments].concat());
        let text = finished.stdout.clone() + &finished.stderr;
        for word in RUST {
            assert!(!text.contains(word), "`{word}` in {text}");
        }
        text
    };
    for arguments in [&["--plan"][..], &[], &["--export", "csv"]] {
        run(arguments);
    }
    // Everything that makes it another sweep, one by one.
    let space = SPACE.to_string();
    for (settings, space) in [
        ("algorithm = 'asha'\nrungs = 2", space.clone()),
        ("algorithm = 'hyperband'\nrungs = 2\ngoal = 'maximize'", space.clone()),
        ("algorithm = 'hyperband'\nrungs = 2", space.replace("[1e-3, 1]", "[1e-3, 2]")),
        ("algorithm = 'hyperband'\nrungs = 2", space.replace("[4, 6, 0]", "{ integer = [4, 8], step = 2 }")),
        (
            "algorithm = 'hyperband'\nrungs = 2",
            space.replace("[0.1, 0.9]", "[0.1, 0.9], points = 5, when = { model.width = [4, 6] }"),
        ),
    ] {
        place.write("sweep.toml", format!("[sweep]\njob = 'job.toml'\n{settings}\n{space}"));
        let text = run(&[]);
        assert!(text.contains("was made by a sweep with"), "{text}");
    }
}

#[test]
fn errors_are_one_line() {
    let place = place("errors", "trials = 2");
    sweep(&place, "out", &[]);
    place.write("sweep.toml", format!("[sweep]\njob = 'job.toml'\ntrials = 3\n{SPACE}"));
    let error = place.run(&["sweep", "sweep.toml", "--out", "out"]).error();
    assert!(error.contains("was made by a sweep with trials = 2, this one has trials = 3"), "{error}");
    let error = place.run(&["sweep", "sweep.toml", "--out", "new", "--export", "csv"]).error();
    assert_eq!(error, "new: no sweep has begun there");
    place.write("sweep.toml", "[sweep]\njob = 'job.toml'\n[space]\nmodel.widht = [1, 2]\n");
    let error = place.run(&["sweep", "sweep.toml"]).error();
    assert!(error.starts_with("sweep.toml:4: space.model.widht: pointnet has no such parameter"), "{error}");
}
