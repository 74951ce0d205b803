//! Plans as `gulliver plan` prints them, on record: models × budgets × strategies, at prices that no machine decides.
//! `UPDATE_EXPECT=1 cargo test -p gulliver --test golden_plans` renews them; a commit that does so says why.

#[path = "fingerprints/jobs.rs"]
mod jobs;

use gulliver::machine;
use gulliver_plan::document::links::Links;
use gulliver_plan::time::cost::{Curves, MachineProfile, Rates, Scaling};
use jobs::{JOBS, Place, TRAIN};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

/// Those of the jobs whose plans are on record.
const NAMES: [&str; 6] = ["cnn", "vgg", "pointnet", "lstm", "gpt", "bert"];

/// Shares of what a job needs without a budget; 100 is none.
const BUDGETS: [u64; 3] = [100, 70, 45];

/// One device, then several.
const STRATEGIES: [&str; 4] = ["alone", "data", "harmony-pp", "cut"];

/// A machine that is nowhere.
fn profile() -> MachineProfile {
    let curves = |devices| Curves {
        threads: 1,
        devices,
        between: 1e-6,
        collective: None,
        uneven: 0.0,
        fades: 0.5,
        resumes: 0.0,
        around: [0.0, 0.0],
        rates: Rates::default(),
        families: BTreeMap::new(),
        alone: None,
        rooflines: BTreeMap::new(),
    };
    MachineProfile {
        cores: 2,
        processor: "none".into(),
        links: Links::default(),
        scaling: vec![Scaling { threads: 1, flops: 1e10, bytes: 1e10, spread: 0.0 }],
        curves: vec![curves(1), curves(2)],
    }
}

/// The plans of one job, each below what it is for.
fn plans_of(name: &str) -> String {
    let (_, model, data) = JOBS.iter().find(|job| job.0 == name).unwrap();
    let place = Place::new(&format!("plans-{name}"));
    fs::write(place.0.join("job.toml"), format!("[model]\n{model}\n[data]\n{data}\n{TRAIN}")).unwrap();
    machine::write(&place.0.join("profile.toml"), &profile()).unwrap();
    let mut text = String::new();
    for strategy in STRATEGIES {
        let mut base = vec!["job.toml", "--profile", "profile.toml", "--set", "train.partials=4"];
        if strategy != "alone" {
            base.extend(["--devices", "2", "--strategy", strategy]);
        }
        let peak = place.train("job.toml", &base[1..]).1;
        for share in BUDGETS {
            let budget = format!("devices.memory={}", peak * share / 100);
            let mut arguments = [&["plan"], &base[..]].concat();
            if share < 100 {
                arguments.extend(["--set", &budget]);
            }
            // Slow machines say that they are still planning.
            let error =
                |said: String| said.split_inclusive('\n').filter(|l| l.starts_with("error")).collect();
            let plan = place.run(&arguments).unwrap_or_else(error);
            text += &format!("== {name}, {strategy}, {share} % of {peak} bytes\n{plan}\n");
        }
    }
    text
}

#[test]
fn plans_are_as_recorded() {
    if jobs::cores() < 2 {
        println!("skipped: the plans on record are of a machine with two cores");
        return;
    }
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let found: Vec<(&str, String)> = thread::scope(|scope| {
        let all = NAMES.map(|name| (name, scope.spawn(move || plans_of(name))));
        all.into_iter().map(|(name, plans)| (name, plans.join().unwrap())).collect()
    });
    for (name, found) in found {
        let path = dir.join(format!("{name}.txt"));
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::create_dir_all(&dir).unwrap();
            fs::write(&path, found).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&path).unwrap();
        let mut heading = "";
        for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
            heading = if found.starts_with("== ") { found } else { heading };
            assert_eq!(found, expected, "tests/plans/{name}.txt:{}: {heading}", number + 1);
        }
        assert_eq!(found.lines().count(), expected.lines().count(), "tests/plans/{name}.txt");
    }
}
