//! What programs and people are told.

use crate::process::{Place, fingerprint};

const JOB: &str = "[model]\nname = 'cnn'\nwidth = 8\n[data]\nkind = 'digits'\nsize = 12\nexamples = 40\n\
    [train]\nsteps = 6\nbatch = 8\neval_every = 2\ncheckpoint_every = 3\nlog_every = 2\n";

#[test]
fn events_say_what_was_planned_and_what_happened() {
    let place = Place::new("events");
    place.write("job.toml", JOB);
    let finished = place.run(&["train", "job.toml", "--out", "run", "--json"]);
    assert_eq!((finished.code(), finished.stderr.as_str()), (Some(0), ""));
    let events = finished.events();
    let names: Vec<&str> =
        events.iter().map(|e| e["event"].as_str().unwrap()).filter(|&n| n != "warning").collect();
    let expected =
        ["data", "start", "step", "eval", "checkpoint", "step", "eval", "step", "eval", "checkpoint", "done"];
    assert_eq!(names, expected);

    let start = &finished.events_called("start")[0];
    assert_eq!((&start["steps"], &start["batch"], &start["from_step"]), (&6.into(), &8.into(), &0.into()));
    let done = events.last().unwrap();
    assert_eq!(done["steps"], 6);
    assert_eq!(done["peak_bytes"], start["plan"]["peak_bytes"]);
    assert!(done["peak_bytes"]["cpu0"].as_u64().unwrap() > 0);
    assert!(done["samples_per_second"].as_f64().unwrap() > 0.0);
    for link in ["host-cpu0", "cpu0-host"] {
        assert!(done["link_bytes"][link].as_u64().unwrap() > 0, "{done}");
    }
    let [step, eval] = ["step", "eval"].map(|name| finished.events_called(name).pop().unwrap());
    assert_eq!((&done["loss"], &done["metrics"]), (&step["loss"], &eval["metrics"]));
    for value in [&done["loss"], &eval["metrics"]["loss"], &eval["metrics"]["accuracy"], &step["lr"]] {
        assert!(value.as_f64().unwrap().is_finite(), "{done}");
    }

    for file in ["job.toml", "plan.json", "metrics.csv", "weights.safetensors"] {
        assert!(place.path("run").join(file).is_file(), "{file}");
    }
    // The job of the run directory is the job.
    assert_eq!(fingerprint(&place.train("run/job.toml", "again", &[])), fingerprint(done));
}

#[test]
fn people_read_the_same_fingerprint() {
    let place = Place::new("lines");
    place.write("job.toml", JOB);
    let fingerprint = fingerprint(&place.train("job.toml", "json", &[]));
    let finished = place.run(&["train", "job.toml", "--out", "lines"]);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(*lines.last().unwrap(), format!("fingerprint {fingerprint}"));
    let done = lines.iter().find(|line| line.starts_with("done")).unwrap();
    assert!(done.starts_with("done after 6 steps  train loss "), "{done}");
    assert!(done.contains("  validation accuracy ") && done.contains("  macro_f1 "), "{done}");
    assert!(lines.iter().any(|line| line.starts_with("class \\ taken for  0  1  2 ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("step 2/6  loss ")), "{lines:?}");
}

#[test]
fn a_reader_that_leaves_ends_the_run_without_a_fuss() {
    let place = Place::new("pipe");
    place.write("job.toml", JOB);
    let program = env!("CARGO_BIN_EXE_gulliver");
    let command = format!("cd {} && {program} train job.toml --out run | head -1", place.path("").display());
    let out = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    // Nothing is lost: it has not begun, or says how to go on.
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(errors.is_empty() || errors.contains("; stopped after step "), "{errors}");
    assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), 1);
}
