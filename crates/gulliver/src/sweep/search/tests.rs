//! The algorithms on functions instead of trainings: what they ask for, and how well they find.

use super::hyperband::brackets;
use super::*;
use crate::test_dir::TestDir;

/// A sweep with these lines of `[sweep]` and `[space]`.
pub fn sweep(name: &str, settings: &str, space: &str) -> Sweep {
    let dir = TestDir::new(&format!("sweep-{name}"));
    std::fs::write(dir.join("job.toml"), "[model]\nname = 'mlp'\n[data]\nkind = 'digits'\n").unwrap();
    let text = format!("[sweep]\njob = 'job.toml'\n{settings}\n[space]\n{space}\n");
    let file = dir.join("sweep.toml").display().to_string();
    Sweep::parse(&text, &file, &[]).unwrap_or_else(|e| panic!("{e}"))
}

const LINE: &str = "optimizer.lr = { uniform = [0.001, 1] }";

/// Runs a sweep on a function of point and length; nothing is a failure.
fn simulate(sweep: &Sweep, f: &dyn Fn(&TrialPoint, u64) -> Option<f64>) -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    loop {
        let asks = next(sweep, &trials);
        assert_eq!(asks, next(sweep, &trials));
        if asks.is_empty() {
            return trials;
        }
        for Ask { trial, point, level } in asks {
            let n = trial as usize;
            if n == trials.len() {
                trials.push(Trial { point: point.clone(), scores: BTreeMap::new(), failed: false });
            }
            assert!(trials[n].point == point && !trials[n].failed);
            assert!(trials[n].scores.keys().all(|&before| before < level), "trial {trial} asked for twice");
            match f(&point, level) {
                Some(score) => drop(trials[n].scores.insert(level, score)),
                None => trials[n].failed = true,
            }
        }
    }
}

fn reached(trials: &[Trial], level: u64) -> u64 {
    trials.iter().filter(|t| t.scores.contains_key(&level)).count() as u64
}

#[test]
fn brackets_of_the_paper() {
    let rounds: Vec<Vec<(u64, u64)>> = brackets(5, 3, 10).into_iter().map(|b| b.rounds).collect();
    assert_eq!(
        rounds,
        [
            vec![(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
            vec![(34, 3), (11, 9), (3, 27), (1, 81)],
            vec![(15, 9), (5, 27), (1, 81)],
            vec![(8, 27), (2, 81)],
            vec![(5, 81)],
        ]
    );
    assert_eq!(brackets(1, 3, 10)[0].rounds, [(1, 1)]);
    assert_eq!(brackets(5, 3, 1)[..], brackets(5, 3, 10)[..1]);
}

#[test]
fn hyperband_trains_what_its_brackets_say() {
    for (rungs, eta) in [(5, 3), (3, 2), (1, 4), (4, 4)] {
        let sweep = sweep(
            &format!("hb{rungs}{eta}"),
            &format!("algorithm = 'hyperband'\nrungs = {rungs}\neta = {eta}"),
            LINE,
        );
        let trials = simulate(&sweep, &|point, level| Some(point["optimizer.lr"] / level as f64));
        assert_eq!(trials.len() as u64, sweep.trials);
        let mut first = 0;
        for bracket in brackets(rungs, eta, 10) {
            let members = &trials[first..][..bracket.rounds[0].0 as usize];
            for &(count, level) in &bracket.rounds {
                assert_eq!(reached(members, level), count, "{rungs} {eta} {level}");
            }
            first += members.len();
        }
        let spent: u64 = trials.iter().map(|t| t.scores.keys().max().unwrap()).sum();
        assert_eq!(work(&sweep) * sweep.top() as f64, spent as f64);
    }
}

#[test]
fn the_best_go_on() {
    for algorithm in ["hyperband", "asha"] {
        let sweep =
            sweep(&format!("best-{algorithm}"), &format!("algorithm = '{algorithm}'\nrungs = 3"), LINE);
        let trials = simulate(&sweep, &|point, _| Some(point["optimizer.lr"]));
        let longest = trials.iter().filter(|t| t.scores.contains_key(&sweep.top()));
        let lowest = |all: &mut dyn Iterator<Item = &Trial>| {
            all.map(|t| t.point["optimizer.lr"]).fold(f64::INFINITY, f64::min)
        };
        let best = lowest(&mut trials.iter());
        assert_eq!(lowest(&mut longest.into_iter()), best, "{algorithm}");
    }
}

#[test]
fn asha_promotes_no_more_than_it_may() {
    for (trials, width, eta) in [(27, 4, 3), (27, 1, 3), (64, 64, 2), (5, 3, 4)] {
        let settings =
            format!("algorithm = 'asha'\ntrials = {trials}\nwidth = {width}\neta = {eta}\nrungs = 4");
        let sweep = sweep(&format!("asha-{trials}-{width}-{eta}"), &settings, LINE);
        let done = simulate(&sweep, &|point, level| Some(point["optimizer.lr"] / level as f64));
        assert_eq!(done.len(), trials);
        for pair in asha::levels(&sweep).windows(2) {
            // Early promotions are made on what is known, so a few more than a share may have gone on.
            let (here, above) = (reached(&done, pair[0]), reached(&done, pair[1]));
            if here == 0 {
                continue;
            }
            assert!(above >= here / eta, "{here} {above}");
            assert!(above <= here / eta + here.ilog2() as u64 * eta, "{here} {above}");
        }
    }
}

#[test]
fn failures_end_a_trial_and_nothing_else() {
    for algorithm in ["grid", "random", "hyperband", "asha", "tpe"] {
        let space = "optimizer.lr = { uniform = [0.001, 1], points = 9 }";
        let sweep = sweep(&format!("fail-{algorithm}"), &format!("algorithm = '{algorithm}'"), space);
        let some = simulate(&sweep, &|point, _| Some(point["optimizer.lr"]).filter(|x| *x > 0.4));
        assert!(some.iter().any(|t| t.failed) && some.iter().any(|t| !t.failed), "{algorithm}");
        assert_eq!(some.len() as u64, sweep.trials, "{algorithm}");
        assert!(some.iter().all(|t| t.failed || !t.scores.is_empty()), "{algorithm}");
        let all = simulate(&sweep, &|_, _| None);
        assert_eq!(all.len() as u64, sweep.trials, "{algorithm}");
    }
}

#[test]
fn seeds_change_what_is_asked() {
    for algorithm in ["random", "hyperband", "asha", "tpe"] {
        let first = |seed: u64| {
            let settings = format!("algorithm = '{algorithm}'\nseed = {seed}");
            next(&sweep(&format!("seed-{algorithm}-{seed}"), &settings, LINE), &[])
        };
        assert_ne!(first(1)[0].point, first(2)[0].point, "{algorithm}");
    }
}

const PLANE: &str = "optimizer.lr = { log-uniform = [1e-5, 1] }\ndata.validation = { uniform = [0.01, 0.9] }\n\
    train.batch = { integer = [1, 64], log = true }\noptimizer.name = ['sgd', 'adamw', 'lion']\n\
    optimizer.momentum = { uniform = [0, 0.99], when = { optimizer.name = 'sgd' } }";

/// A valley around one rate; one optimizer is much better, and its own parameter matters.
fn valley(point: &TrialPoint) -> f64 {
    let rate = (point["optimizer.lr"].log10() + 2.5).powi(2);
    let width = (point["train.batch"].log2() - 4.0).powi(2) / 4.0;
    let momentum = point.get("optimizer.momentum").map_or(2.0, |m| 4.0 * (m - 0.9).powi(2));
    rate + width + momentum + point["data.validation"].powi(2)
}

/// Many small hollows in one large bowl.
fn hollows(point: &TrialPoint) -> f64 {
    let x = point["optimizer.lr"].log10() + 2.0;
    let y = 4.0 * (point["data.validation"] - 0.3);
    let one = |x: f64| x * x + 0.3 * (1.0 - (6.0 * x).cos());
    one(x) + one(y) + point["optimizer.name"]
}

/// A narrow bent canyon.
fn canyon(point: &TrialPoint) -> f64 {
    let x = point["optimizer.lr"].log10() / 2.0 + 1.0;
    let y = 2.0 * point["data.validation"];
    (1.0 - x).powi(2) + 5.0 * (y - x * x).powi(2)
}

#[test]
fn tpe_finds_more_than_chance() {
    type Function = fn(&TrialPoint) -> f64;
    let functions: [(&str, Function, f64); 3] =
        [("valley", valley, 0.6), ("hollows", hollows, 0.6), ("canyon", canyon, 0.8)];
    for (name, f, share) in functions {
        let found = |algorithm: &str| {
            let best = |seed: u64| {
                let settings = format!("algorithm = '{algorithm}'\ntrials = 80\nseed = {seed}");
                let sweep = sweep(&format!("{name}-{algorithm}-{seed}"), &settings, PLANE);
                let trials = simulate(&sweep, &|point, _| Some(f(point)));
                trials.iter().map(|t| f(&t.point)).fold(f64::INFINITY, f64::min)
            };
            (0..16).map(best).sum::<f64>() / 16.0
        };
        let (tpe, random) = (found("tpe"), found("random"));
        assert!(tpe < share * random, "{name}: {tpe} against {random}");
    }
}
