//! Several devices from the outside: the bits of one device with as many partials, within budgets of their
//! own, from checkpoint to checkpoint on other numbers of devices; and one error if a device fails.

use crate::process::{Place, fingerprint};

const JOB: &str = "[model]\nname = 'gpt'\nwidth = 32\nheads = 2\nlayers = 2\ndropout = 0.1\n\
    [data]\nkind = 'tokens'\ntokens = 30\nmin_length = 4\nlength = 24\nexamples = 60\n\
    [train]\nsteps = 12\nbatch = 8\neval_every = 5\ncheckpoint_every = 4\nclip_norm = 1.0\n\
    [optimizer]\nname = 'adamw'\nlr = 0.01\n";

#[test]
fn any_number_of_devices_gives_the_bits_of_as_many_partials() {
    let place = Place::new("devices");
    place.write("job.toml", JOB);
    for devices in ["2", "4"] {
        let partials = format!("train.partials={devices}");
        let alone = place.train("job.toml", &format!("alone{devices}"), &["--set", &partials]);
        let several = place.train("job.toml", &format!("several{devices}"), &["--devices", devices]);
        assert_eq!(fingerprint(&several), fingerprint(&alone), "{devices} devices");
        for same in ["loss", "metrics"] {
            assert_eq!(several[same], alone[same], "{devices} devices");
        }
        assert!(several["link_bytes"]["cpu-cpu"].as_u64().unwrap() > 0, "{several}");
        assert_eq!(several["alarms"], 0);

        // Each within a budget, and fewer bytes on each than on one for all.
        let peak = several["peak_bytes"]["cpu0"].as_u64().unwrap();
        assert!(peak < alone["peak_bytes"]["cpu0"].as_u64().unwrap());
        let budgets = format!("{devices}x{}", peak * 9 / 10);
        let limited = place.train("job.toml", &format!("limited{devices}"), &["--devices", &budgets]);
        assert_eq!(fingerprint(&limited), fingerprint(&alone), "{budgets}");
        assert!(limited["peak_bytes"]["cpu0"].as_u64().unwrap() <= peak * 9 / 10);
    }
}

#[test]
fn checkpoints_know_nothing_of_devices() {
    let place = Place::new("devices-resume");
    place.write("job.toml", JOB);
    let partials = ["--set", "train.partials=4"];
    let whole = place.train("job.toml", "whole", &partials);
    place.train("job.toml", "part", &["--devices", "4", "--steps", "4"]);
    let more = [&partials[..], &["--resume", "--steps", "8"]].concat();
    place.train("job.toml", "part", &more);
    let end = place.train("job.toml", "part", &["--devices", "4", "--resume", "--steps", "12"]);
    assert_eq!(fingerprint(&end), fingerprint(&whole));
}

#[test]
fn strategies_give_the_same_bits_and_checkpoints_go_from_one_to_the_next() {
    let place = Place::new("devices-strategies");
    place.write("job.toml", JOB);
    let partials = ["--set", "train.partials=4"];
    let whole = place.train("job.toml", "whole", &partials);
    let mut steps = 0;
    for (strategy, devices) in [("pipeline", "3"), ("harmony-pp", "2"), ("zero", "4"), ("auto", "2")] {
        let with = [&partials[..], &["--strategy", strategy, "--devices", devices]].concat();
        let all = place.train("job.toml", strategy, &with);
        assert_eq!(fingerprint(&all), fingerprint(&whole), "{strategy}");
        for same in ["loss", "metrics"] {
            assert_eq!(all[same], whole[same], "{strategy}");
        }
        assert_eq!(all["alarms"], 0, "{strategy}");
        steps += 3;
        let until = steps.to_string();
        let more = [&with[..], &["--resume", "--steps", &until]].concat();
        let part = place.train("job.toml", "part", &more);
        if steps == 12 {
            assert_eq!(fingerprint(&part), fingerprint(&whole), "from one strategy to the next");
        }
    }
    // Where sums are divided, nearly.
    let with = [&partials[..], &["--strategy", "cut", "--devices", "2"]].concat();
    let cut = place.train("job.toml", "cut", &with);
    let (found, expected) = (cut["loss"].as_f64().unwrap(), whole["loss"].as_f64().unwrap());
    assert!((found - expected).abs() <= 1e-5 * expected.abs(), "{found} {expected}");
}

/// Killed in the middle, a run goes on from its last checkpoint on other numbers of devices and by other strategies.
#[test]
fn a_run_that_is_killed_goes_on_on_fewer_and_more_devices() {
    let place = Place::new("devices-killed");
    place.write("job.toml", JOB);
    let partials = ["--set", "train.partials=8", "--set", "train.checkpoint_every=1"];
    let whole = place.train("job.toml", "whole", &partials);
    let resume = [&["train", "job.toml", "--out", "killed", "--json", "--resume"], &partials[..]].concat();
    for (strategy, devices) in
        [("zero", "4"), ("data", "2"), ("harmony-pp", "3"), ("zero", "8"), ("pipeline", "2")]
    {
        let with = [&resume[..], &["--strategy", strategy, "--devices", devices]].concat();
        let mut running = place.start(&with);
        assert!(running.wait_for("checkpoint", 2), "{strategy} on {devices} devices");
        running.kill();
        assert_ne!(running.finish().code(), Some(1), "{strategy}");
    }
    let end = place.train("job.toml", "killed", &[&partials[..], &["--resume"]].concat());
    assert_eq!(fingerprint(&end), fingerprint(&whole));
}

#[test]
fn plans_say_what_each_device_does_and_how_strategies_rank() {
    let place = Place::new("devices-plan");
    place.write("job.toml", JOB);
    let data =
        ["plan", "job.toml", "--devices", "2", "--strategy", "data", "--json", "--trace", "trace.json"];
    let planned = place.run(&data);
    assert_eq!(planned.code(), Some(0), "{}", planned.stderr);
    let planned: serde_json::Value = serde_json::from_str(&planned.stdout).unwrap();
    assert_eq!(planned["plans"].as_array().unwrap().len(), 2);
    let done = place.train("job.toml", "run", &["--devices", "2", "--trace", "measured.json"]);
    let (all, steps) = (planned["chosen"]["from_peers"].as_u64().unwrap(), 12);
    assert_eq!(done["link_bytes"]["cpu-cpu"].as_u64().unwrap(), steps * all);
    // What was simulated and what was measured are the same events at other times.
    let [simulated, measured] = ["trace.json", "measured.json"].map(|name| {
        let trace = std::fs::read_to_string(place.path(name)).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
        let what = |event: &serde_json::Value| format!("{} {} {}", event["pid"], event["tid"], event["name"]);
        let mut events: Vec<String> = trace["traceEvents"].as_array().unwrap().iter().map(what).collect();
        events.sort();
        events
    });
    assert!(simulated.len() > 20);
    assert_eq!(simulated, measured);

    let table = place.run(&["plan", "job.toml", "--devices", "2"]);
    assert_eq!(table.code(), Some(0), "{}", table.stderr);
    for part in ["strategy", "harmony-pp", "pipeline", "as on one device", "between devices", "device 1"] {
        assert!(table.stdout.contains(part), "{part}: {}", table.stdout);
    }
}

#[test]
fn what_cannot_be_shared_is_refused_in_one_line() {
    let place = Place::new("devices-errors");
    place.write("job.toml", JOB);
    for (arguments, expected) in [
        (&["--devices", "3"][..], "a batch of 8 cannot be shared evenly by 3 devices"),
        (&["--devices", "4", "--set", "train.partials=2"], "4 devices take as many partials each"),
        (
            &["--devices", "4", "--set", "train.partials=2", "--strategy", "zero"],
            "4 devices take as many partials each",
        ),
        (&["--devices", "2", "--strategy", "none"], "--strategy none: unknown value \"none\""),
        (&["--devices", "many"], "--devices many: must be a whole number from 1 to 64"),
        (&["--devices", "2x"], "--devices 2x: "),
        (&["--devices", "2x4KiB", "--host-memory", "0"], "no plan of this job needs less than "),
    ] {
        let finished = place.run(&[&["train", "job.toml", "--out", "none"], arguments].concat());
        assert_eq!(finished.code(), Some(1), "{arguments:?}");
        assert!(finished.error().contains(expected), "{arguments:?}: {}", finished.stderr);
    }
}
