//! Budgets from the outside: the same bits in less memory, plans that say what happens, kills in the middle
//! of moves, and what a job that does not fit is told.

use crate::process::{Place, Random, fingerprint};
use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// Sequences of all lengths, partial gradients, states of an optimizer.
const LENGTHS: &str = "[model]\nname = 'gpt'\nwidth = 32\nheads = 2\nlayers = 3\ndropout = 0.1\n\
    [data]\nkind = 'tokens'\ntokens = 30\nmin_length = 4\nlength = 24\nexamples = 60\nbuckets = true\n\
    [train]\nsteps = 24\nbatch = 8\npartials = 2\neval_every = 5\ncheckpoint_every = 4\nlog_every = 1\nclip_norm = 1.0\n\
    [optimizer]\nname = 'adamw'\nlr = 0.01\n";

/// Planned in no time, as advice takes many plans; 127 KiB of the device are the least without other tiers.
const SMALL: &str = "[model]\nname = 'gpt'\nwidth = 16\nheads = 2\nlayers = 1\n\
    [data]\nkind = 'tokens'\ntokens = 20\nmin_length = 4\nlength = 12\nexamples = 40\n\
    [train]\nsteps = 4\nbatch = 4\n[optimizer]\nname = 'adamw'\nlr = 0.01\n[devices]\nthreads = 2\n";

#[test]
fn budgets_change_no_bit_and_are_kept_to_the_byte() {
    let place = Place::new("budgets");
    place.write("job.toml", LENGTHS);
    let whole = place.train("job.toml", "whole", &[]);
    let peak = whole["peak_bytes"]["cpu0"].as_u64().unwrap();
    let limits: [(u64, &[&str]); 5] = [
        (80, &["--host-memory", "0"]),
        (70, &[]),
        (45, &[]),
        (45, &["--host-memory", "100kB", "--disk", "100MB"]),
        (60, &["--host-memory", "0", "--disk", "100MB"]),
    ];
    for (i, (percent, more)) in limits.iter().enumerate() {
        let memory = (peak * percent / 100).to_string();
        let out = format!("limited{i}");
        let arguments =
            [&["train", "job.toml", "--out", &out, "--json", "--memory", &memory], *more].concat();
        let finished = place.run(&arguments);
        assert_eq!(finished.code(), Some(0), "{percent} {more:?}: {}", finished.stderr);
        let done = finished.events().pop().unwrap();
        assert_eq!(fingerprint(&done), fingerprint(&whole), "{percent} {more:?}");
        assert!(done["peak_bytes"]["cpu0"].as_u64().unwrap() <= peak * percent / 100);
        let compared = finished.events_called("compared").pop().unwrap();
        let rows = compared["rows"].as_array().unwrap();
        let whole_run = ["step time", "memory of the process"];
        let bytes: Vec<_> = rows.iter().filter(|row| whole_run.iter().all(|what| row[0] != *what)).collect();
        assert!(!bytes.is_empty() && bytes.iter().all(|row| row[1] == row[2]), "{compared}");
        assert!(more.is_empty() == rows.iter().any(|row| row[0] == "host to device") || i == 3, "{compared}");

        // The same size by size, and every step had its plan.
        let sizes = compared["sizes"].as_array().unwrap();
        let sum = |phase: &str, field: &str| -> f64 {
            let of = sizes.iter().filter(|size| size["phase"] == phase);
            of.map(|size| size[field].as_f64().unwrap()).sum()
        };
        assert!(sizes.len() > 4 && sum("train", "runs") == 24.0, "{compared}");
        for size in sizes {
            assert_eq!(size["planned_bytes"], size["measured_bytes"], "{size}");
            for seconds in ["planned_seconds", "measured_seconds"] {
                assert!(size[seconds].as_f64().unwrap() > 0.0, "{size}");
            }
        }
        let runs = sum("train", "runs") + sum("eval", "runs");
        let plans = &done["plans"];
        let found = ["hits", "misses"].map(|field| plans[field].as_u64().unwrap());
        // One was made before the first step, to be shown.
        assert_eq!(found[0] + found[1], runs as u64 + 1, "{plans}");
        assert!(found[1] >= sizes.len() as u64 && done["alarms"] == 0, "{done}");
    }
}

#[test]
fn killed_between_tiers_nothing_is_lost_and_nothing_is_left() {
    let place = Place::new("budgets-killed");
    place.write("job.toml", LENGTHS);
    let whole = place.train("job.toml", "whole", &[]);
    let memory = (whole["peak_bytes"]["cpu0"].as_u64().unwrap() * 6 / 10).to_string();
    let resume = [
        &["train", "job.toml", "--out", "killed", "--json", "--resume"][..],
        &["--memory", &memory, "--host-memory", "0", "--disk", "100MB"],
    ]
    .concat();
    let mut random = Random(3);
    for kill in 0..5 {
        let mut running = place.start(&resume);
        match kill % 2 {
            0 => drop(running.wait_for("step", 1 + random.below(9))),
            _ => sleep(Duration::from_micros(random.below(90_000) as u64)),
        }
        running.kill();
        running.finish();
    }
    let finished = place.run(&resume);
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    assert_eq!(fingerprint(&finished.events().pop().unwrap()), fingerprint(&whole));
    let files: Vec<String> = fs::read_dir(place.path("killed"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    let known = |name: &String| {
        let kept = ["job.toml", "plan.json", "metrics.csv", "checkpoints", "weights.safetensors"];
        let more = ["run.json", "run.lock", "best.safetensors"];
        kept.iter().chain(&more).any(|known| known == name) || name.starts_with("events.out.")
    };
    assert!(files.iter().all(known), "{files:?}");
}

#[test]
fn what_does_not_fit_is_told_what_would() {
    let place = Place::new("budgets-short");
    place.write("job.toml", SMALL);
    let named = |text: &str| {
        text.split(" bytes)").next().and_then(|text| text.rsplit('(').next()).unwrap().to_string()
    };
    // A budget that no plan can keep within is refused with the least that one could, and what to try.
    let refused =
        place.run(&["train", "job.toml", "--memory", "90kB", "--host-memory", "0", "--out", "none"]);
    assert_eq!(refused.code(), Some(1));
    for part in
        ["does not fit", "no plan of this job needs less than", "largest at the peak", "--memory", "--set "]
    {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    let bound: u64 = named(&refused.stderr).parse().unwrap();
    assert!(bound > 90_000, "{}", refused.stderr);
    assert!(!place.path("none").exists());

    // At the bound a search says what would do.
    let memory = bound.to_string();
    let short = place.run(&["train", "job.toml", "--memory", &memory, "--host-memory", "0", "--out", "none"]);
    assert_eq!(short.code(), Some(1));
    for part in ["does not fit", "smallest that would do is", "largest at the peak", "--set "] {
        assert!(short.stderr.contains(part), "{part}: {}", short.stderr);
    }
    assert!(!place.path("none").exists());

    // The smallest it names does.
    let least = named(&short.stderr);
    let fits = place.run(&["plan", "job.toml", "--memory", &least, "--host-memory", "0"]);
    assert_eq!(fits.code(), Some(0), "{}", fits.stderr);

    // And so does the job it proposes.
    let proposed = place.run(&["plan", "job.toml", "--memory", "90kB", "--host-memory", "0", "--fit"]);
    assert_eq!(proposed.code(), Some(0), "{}", proposed.stderr);
    place.write("proposed.toml", &proposed.stdout);
    let done = place.train("proposed.toml", "proposed", &["--steps", "3"]);
    assert!(done["peak_bytes"]["cpu0"].as_u64().unwrap() <= 90_000);
}

#[test]
fn a_budget_beyond_the_machine_costs_nothing() {
    let place = Place::new("budgets-huge");
    place.write("job.toml", LENGTHS);
    let whole = place.train("job.toml", "whole", &[]);
    let finished = place.run(&["train", "job.toml", "--out", "huge", "--json", "--memory", "100TiB"]);
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let done = finished.events().pop().unwrap();
    assert_eq!(fingerprint(&done), fingerprint(&whole));
    assert_eq!(done["peak_bytes"], whole["peak_bytes"], "planned as without a budget");
    let misses = |done: &serde_json::Value| done["plans"]["misses"].as_u64().unwrap();
    assert!(misses(&done) <= misses(&whole), "memory does not grow plan by plan");
    let compared = finished.events_called("compared").pop().unwrap();
    for row in compared["rows"].as_array().unwrap() {
        let text = |column: usize| row[column].as_str().unwrap();
        match text(0) {
            "step time" => {}
            "memory of the process" => {
                let most: u64 = text(1).strip_prefix("<= ").unwrap().parse().unwrap();
                let resident: u64 = text(2).parse().unwrap();
                assert!(resident <= most && most < 128 << 20, "{row}");
            }
            _ => assert_eq!(row[1], row[2], "{row}"),
        }
    }
}

#[test]
fn plans_are_tables_and_documents() {
    let place = Place::new("budgets-plan");
    place.write("job.toml", LENGTHS);
    let table = place.run(&["plan", "job.toml", "--memory", "400kB"]);
    assert_eq!(table.code(), Some(0), "{}", table.stderr);
    for part in [
        "after",
        "graph",
        "layout",
        "peak",
        "a step moves",
        "gaps between buffers",
        "which computes",
        "busy in a step",
    ] {
        assert!(table.stdout.contains(part), "{part}: {}", table.stdout);
    }
    let json = place.run(&["plan", "job.toml", "--memory", "400kB", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(document["summary"]["spaces"]["device"][0].as_u64().unwrap() <= 400_000);
    let plan: gulliver_plan::document::plan::Plan = serde_json::from_value(document["plan"].clone()).unwrap();
    assert!(!plan.decisions.is_empty() && plan.steps.iter().any(|step| !step.after.is_empty()));

    let why = place.run(&["plan", "job.toml", "--memory", "400kB", "--explain", "mlp"]);
    assert!(why.stdout.contains("a step (") && why.stdout.contains("h.0–2.mlp"), "{}", why.stdout);
    let mut lines: Vec<&str> = why.stdout.lines().collect();
    let all = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), all, "no line is said twice: {}", why.stdout);
    let nothing = place.run(&["plan", "job.toml", "--explain", "no such value"]);
    assert!(nothing.code() == Some(1) && nothing.stderr.contains("no value has that in its name"));

    let curve = place.run(&["plan", "job.toml", "--budget-curve", "--json"]);
    assert_eq!(curve.code(), Some(0), "{}", curve.stderr);
    let points: Vec<serde_json::Value> = serde_json::from_str(&curve.stdout).unwrap();
    let seconds: Vec<f64> = points.iter().map(|p| p["timing"]["seconds"].as_f64().unwrap()).collect();
    assert!(points.len() == 9 && seconds[0] >= seconds[8], "{seconds:?}");
}
