//! What goes wrong in the middle of a run costs no more than the step it happened in, and no file that is not the
//! run's own.

use crate::files::bmp;
use crate::process::{Place, fingerprint};
use crate::resume::{POINTS, checkpoints};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::process::Command;

/// What a shell makes of a line, in the place's directory: exit code, standard output, standard error.
fn shell(place: &Place, line: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(place.path("")).env("XDG_CONFIG_HOME", place.path("settings"));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The command that a message says goes on with a run.
fn command_in(message: &str) -> &str {
    message.trim_end().rsplit_once(" go on: ").unwrap_or_else(|| panic!("no command: {message}")).1
}

#[test]
fn a_trace_that_cannot_be_written_costs_neither_run_nor_device() {
    let place = Place::new("trace-full");
    place.write("job.toml", POINTS);
    let base = ["train", "job.toml", "--json", "--steps", "6", "--out"];
    for (out, trace) in [("full", "/dev/full"), ("linked", "link")] {
        std::os::unix::fs::symlink("/dev/full", place.path("link")).ok();
        let finished = place.run(&[&base[..], &[out, "--trace", trace]].concat());
        assert_eq!(finished.code(), Some(1));
        assert!(finished.stderr.contains(trace), "{}", finished.stderr);
        assert!(fs::metadata("/dev/full").unwrap().file_type().is_char_device());
        assert_eq!(finished.events_called("done").len(), 1, "the summary comes first");
        assert!(place.path(out).join("weights.safetensors").exists());
    }
    // A path that cannot work is found before anything is done.
    for trace in ["no/such/dir/t.json", "."] {
        let finished = place.run(&[&base[..], &["early", "--trace", trace]].concat());
        assert_eq!(finished.code(), Some(1));
        assert!(finished.events_called("start").is_empty(), "{}", finished.stdout);
        assert!(!place.path("early").exists());
    }
    // A pipe gets all of it.
    let line = format!(
        "mkfifo pipe && (cat pipe > read.json &) && {} train job.toml --steps 6 --out piped --trace pipe",
        env!("CARGO_BIN_EXE_gulliver")
    );
    let (code, _, stderr) = shell(&place, &line);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(fs::metadata(place.path("pipe")).unwrap().file_type().is_fifo());
}

/// Eight images of two classes, read in order.
const IMAGES: &str = "[model]\nname = 'cnn'\n[data]\nkind = 'images'\npath = 'pictures'\nsize = 8\nshuffle = false\nvalidation = 0\n\
    [train]\nsteps = 8\nbatch = 2\nlog_every = 1\ncheckpoint_minutes = 0\n";

fn pictures(place: &Place) {
    for i in 0..8usize {
        let class = ["cat", "dog"][i / 4];
        place.write(
            &format!("pictures/{class}/{i}.bmp"),
            bmp(9, 8, |x, y| [(31 * i + x) as u8, y as u8, 200]),
        );
    }
}

#[test]
fn a_damaged_image_in_the_middle_leaves_a_checkpoint_and_the_way_on() {
    let place = Place::new("damaged-image");
    place.write("job.toml", IMAGES);
    pictures(&place);
    let whole = place.train("job.toml", "whole", &[]);
    fs::write(place.path("pictures/dog/6.bmp"), "no image").unwrap();
    let finished = place.run(&["train", "job.toml", "--json", "--out", "cut"]);
    let message = finished.error();
    assert!(message.contains("6.bmp") && message.contains("stopped after step 3 of 8"), "{message}");
    assert!(checkpoints(&place.path("cut"))[0].ends_with("step-00000003.safetensors"));
    pictures(&place);
    let (code, stdout, stderr) = shell(&place, command_in(&message));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(&fingerprint(&whole)), "{stdout}");
}

#[test]
fn an_output_nobody_reads_leaves_a_checkpoint() {
    let place = Place::new("closed-pipe");
    place.write("job.toml", POINTS);
    let line = format!(
        "{} train job.toml --out cut --json --steps 1000000 2> errors | head -n 30 > lines",
        env!("CARGO_BIN_EXE_gulliver")
    );
    shell(&place, &line);
    let message = fs::read_to_string(place.path("errors")).unwrap();
    assert!(message.contains("cannot write output") && message.contains("stopped after step"), "{message}");
    assert!(!checkpoints(&place.path("cut")).is_empty());
    command_in(&message);
}

#[test]
fn what_was_printed_goes_on_with_the_same_bits() {
    let place = Place::new("pasted");
    place.write("my job.toml", POINTS);
    let sets = "--set train.checkpoint_every=0 --steps 300";
    let exe = env!("CARGO_BIN_EXE_gulliver");
    let (code, whole, stderr) = shell(&place, &format!("{exe} train 'my job.toml' {sets} --out whole"));
    assert_eq!(code, Some(0), "{stderr}");
    let arguments: Vec<&str> =
        ["train", "my job.toml", "--json"].into_iter().chain(sets.split(' ')).collect();
    // On a machine that stands still, a signal may come when all is done; not again and again.
    let interrupted = (0..20).map(|_| {
        let _ = fs::remove_dir_all(place.path("runs"));
        let mut running = place.start(&arguments);
        assert!(running.wait_for("step", 4));
        running.signal("INT");
        running.finish()
    });
    let finished = { interrupted }.find(|finished| finished.code() != Some(0)).expect("an interrupted run");
    assert_eq!(finished.code(), Some(130), "{}", finished.stderr);
    let (code, rest, stderr) = shell(&place, command_in(&finished.stderr));
    assert_eq!(code, Some(0), "{stderr}");
    let last = |text: &str| {
        text.lines().last().unwrap().rsplit(['"', ' ']).find(|w| w.len() == 64).unwrap().to_string()
    };
    assert_eq!(last(&rest), last(&whole));

    // Without --out it is the newest run of that very file that goes on.
    place.write("other/my job.toml", POINTS);
    let done = place.run(&["train", "my job.toml", "--resume", "--json", "--steps", "300"]);
    assert_eq!(fingerprint(done.events().last().unwrap()), last(&whole));
    let other = place.run(&["train", "other/my job.toml", "--resume", "--json", "--steps", "2"]);
    assert_eq!(other.events_called("start")[0]["from_step"], 0, "another file's run is not this one's");
    assert!(place.path("runs/my job-2/job.toml").exists());
}

#[test]
fn checkpoints_come_by_time() {
    let place = Place::new("by-time");
    place.write("job.toml", POINTS);
    let often = ["--json", "--steps", "400", "--set", "train.checkpoint_every=0", "--set"];
    for (minutes, several) in [("1e-9", true), ("0", false), ("600", false)] {
        let set = format!("train.checkpoint_minutes={minutes}");
        let run = place.run(&[&["train", "job.toml", "--out", minutes], &often[..], &[&set]].concat());
        assert_eq!(run.code(), Some(0), "{}", run.stderr);
        assert_eq!(run.events_called("checkpoint").len() > 1, several, "{minutes}");
    }
}

/// Nothing is learned, so that no evaluation is better than the first.
const STALE: &str = "[model]\nname = 'mlp-tiny'\n[data]\nkind = 'blobs'\nexamples = 40\n\
    [train]\nsteps = 100\nbatch = 8\neval_every = 2\nearly_stopping = 3\n[optimizer]\nname = 'sgd'\nlr = 1e-38\n";

#[test]
fn the_best_is_kept_and_training_ends_early() {
    let place = Place::new("early");
    place.write("job.toml", STALE);
    let done = place.train("job.toml", "whole", &[]);
    assert_eq!((&done["steps"], &done["stopped_early"]), (&8.into(), &true.into()));
    assert_eq!((&done["best"]["step"], &done["best"]["metric"]), (&2.into(), &"loss".into()));
    assert!(place.path("whole/best.safetensors").exists());
    let again = place.train("job.toml", "whole", &["--resume"]);
    assert_eq!((fingerprint(&again), &again["steps"]), (fingerprint(&done), &8.into()));
    // What is remembered of evaluations survives an end between them: there were some after steps 2, 4 and 5.
    place.train("job.toml", "halves", &["--steps", "5"]);
    let done = place.train("job.toml", "halves", &["--resume"]);
    assert_eq!((&done["steps"], &done["best"]["step"]), (&6.into(), &2.into()));
    // The best of a run that learns is its own file, beside the last.
    let learning =
        ["--set", "optimizer.lr=0.5", "--set", "train.early_stopping=0", "--set", "train.best_by=accuracy"];
    let done = place.train("job.toml", "learns", &learning);
    assert_eq!(done["best"]["metric"], "accuracy");
    let unknown = place.run(&["train", "job.toml", "--out", "unknown", "--set", "train.best_by=acuracy"]);
    let message = unknown.error();
    assert!(message.contains("train.best_by") && message.contains("accuracy"), "{message}");
}

#[test]
fn a_run_is_not_trained_twice_at_once() {
    let place = Place::new("locked");
    place.write("job.toml", POINTS);
    let arguments = ["train", "job.toml", "--json", "--out", "run", "--steps", "1000000"];
    let mut running = place.start(&arguments);
    assert!(running.wait_for("step", 1));
    let second = place.run(&[&arguments[..], &["--resume"]].concat());
    assert!(second.stderr.contains("in use by process"), "{}", second.stderr);
    running.kill();
    running.finish();
    let third = place.run(&["train", "job.toml", "--json", "--out", "run", "--resume", "--steps", "2"]);
    assert_eq!(third.code(), Some(0), "a killed process holds no lock: {}", third.stderr);
}

#[test]
fn damaged_checkpoints_are_never_started_over() {
    let place = Place::new("all-damaged");
    place.write("job.toml", POINTS);
    place.train("job.toml", "run", &["--steps", "10"]);
    for path in checkpoints(&place.path("run")) {
        fs::write(path, "torn").unwrap();
    }
    let before = fs::read(place.path("run/metrics.csv")).unwrap();
    let message = place.run(&["train", "job.toml", "--out", "run", "--resume"]).error();
    assert!(message.contains("none of the 2 checkpoints") && message.contains("--out"), "{message}");
    assert_eq!(fs::read(place.path("run/metrics.csv")).unwrap(), before);
    assert!(checkpoints(&place.path("run")).iter().all(|path| fs::read(path).unwrap() == b"torn"));
}

#[test]
fn files_of_the_user_are_not_replaced() {
    let place = Place::new("own-files");
    place.write("job.toml", POINTS);
    for more in [&[][..], &["--resume"]] {
        let message = place.run(&[&["train", "job.toml", "--out", "."], more].concat()).error();
        assert!(message.contains("job.toml was not written by a run"), "{message}");
    }
    assert_eq!(fs::read_to_string(place.path("job.toml")).unwrap(), POINTS);
    place.write("mine/weights.safetensors", "somebody's");
    let message = place.run(&["train", "job.toml", "--out", "mine"]).error();
    assert!(message.contains("weights.safetensors was not written by a run"), "{message}");
    assert_eq!(fs::read_to_string(place.path("mine/weights.safetensors")).unwrap(), "somebody's");
    assert_eq!(fs::read_dir(place.path("mine")).unwrap().count(), 1);
}

#[test]
fn what_is_set_on_resume_is_taken_recorded_and_said() {
    let place = Place::new("set-on-resume");
    place.write("job.toml", POINTS);
    let short = ["--set", "train.checkpoint_every=5", "--set", "schedule.name=constant"];
    place.train("job.toml", "run", &[&short[..], &["--steps", "10"]].concat());
    let sets = ["--set", "schedule.name=cosine", "--set", "optimizer.lr=0.01"];
    let arguments =
        [&["train", "job.toml", "--out", "run", "--json", "--resume", "--steps", "20"], &sets[..]];
    let finished = place.run(&arguments.concat());
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let rates: Vec<f64> =
        finished.events_called("step").iter().map(|step| step["lr"].as_f64().unwrap()).collect();
    assert_eq!(rates.len(), 10);
    assert!(rates.is_sorted_by(|a, b| a > b) && rates[0] <= 0.005 && rates[9] < 1e-3, "{rates:?}");
    let said: Vec<String> = finished
        .events_called("warning")
        .iter()
        .map(|w| w["message"].as_str().unwrap().to_string())
        .collect();
    for part in
        ["schedule is another one from step 11", "optimizer.lr: 0.05, now 0.01", "train.steps: 10, now 20"]
    {
        assert!(said.iter().any(|message| message.contains(part)), "{part}: {said:?}");
    }
    let recorded = fs::read_to_string(place.path("run/job.toml")).unwrap();
    assert!(recorded.contains("name = \"cosine\"") && recorded.contains("lr = 0.01"), "{recorded}");
}

#[test]
fn steps_on_the_command_line_win_over_epochs() {
    let place = Place::new("steps-win");
    place.write("job.toml", STALE.replace("steps = 100", "epochs = 3"));
    assert_eq!(place.train("job.toml", "a", &["--steps", "3"])["steps"], 3);
    assert_eq!(place.train("job.toml", "b", &["--set", "train.steps=4"])["steps"], 4);
    place.write("job.toml", STALE);
    assert_eq!(place.train("job.toml", "c", &["--set", "train.epochs=1"])["steps"], 5);
}

#[test]
fn a_request_to_stop_is_heard_while_evaluating() {
    let place = Place::new("stop-evaluating");
    // An evaluation of more examples than anybody has patience for.
    let job = "[model]\nname = 'cnn'\n[data]\nkind = 'digits'\nexamples = 2000000\nvalidation = 0.9\n\
        [train]\nsteps = 4\nbatch = 8\neval_every = 2\nlog_every = 1\n";
    place.write("job.toml", job);
    let mut running = place.start(&["train", "job.toml", "--out", "run", "--json"]);
    assert!(running.wait_for("step", 2));
    running.signal("TERM");
    let finished = running.finish();
    assert_eq!(finished.code(), Some(130), "{}", finished.stderr);
    assert!(finished.events_called("eval").is_empty());
    assert!(checkpoints(&place.path("run"))[0].ends_with("step-00000002.safetensors"));
    // A limit makes it short, and the evaluation that was due is made first.
    let rest = place.run(&[
        "train",
        "job.toml",
        "--out",
        "run",
        "--json",
        "--resume",
        "--set",
        "train.eval_batches=3",
    ]);
    assert_eq!(rest.code(), Some(0), "{}", rest.stderr);
    let steps: Vec<u64> =
        rest.events_called("eval").iter().map(|eval| eval["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [2, 4]);
}

#[test]
fn the_start_says_what_the_data_is() {
    let place = Place::new("data-line");
    place.write("job.toml", IMAGES);
    pictures(&place);
    let finished = place.run(&["train", "job.toml", "--out", "run", "--steps", "1"]);
    let first = finished.stdout.lines().next().unwrap();
    assert_eq!(first, "data: 8 training and 0 validation examples, 2 classes: cat, dog");
}

#[test]
fn the_newest_run_is_the_one_written_last() {
    let place = Place::new("newest");
    place.write("job.toml", STALE);
    for _ in 0..2 {
        assert_eq!(place.run(&["train", "job.toml", "--steps", "3"]).code(), Some(0));
    }
    assert!(place.path("runs/job-2/weights.safetensors").exists());
    // A name that is free again belongs to no run.
    fs::remove_dir_all(place.path("runs/job")).unwrap();
    let resumed = place.run(&["train", "job.toml", "--resume", "--json", "--steps", "4"]);
    assert_eq!(resumed.events_called("start")[0]["from_step"], 3, "{}", resumed.stdout);
    assert!(!place.path("runs/job").exists());
    // The third run takes that name, and is the newest from then on.
    assert_eq!(place.run(&["train", "job.toml", "--steps", "2"]).code(), Some(0));
    let resumed = place.run(&["train", "job.toml", "--resume", "--json", "--steps", "4"]);
    assert_eq!(resumed.events_called("start")[0]["from_step"], 2, "{}", resumed.stdout);
}
