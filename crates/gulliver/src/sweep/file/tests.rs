//! Sweep files read, and every mistake answered with its line and field.

use super::*;
use crate::test_dir::TestDir;

const JOB: &str = "[model]\nname = 'mlp'\n[data]\nkind = 'digits'\n[train]\nsteps = 90\n";

fn parse(dir: &Path, text: &str, sets: &[&str]) -> Result<Sweep, JobError> {
    std::fs::write(dir.join("job.toml"), JOB).unwrap();
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    Sweep::parse(text, &dir.join("s.toml").display().to_string(), &sets)
}

#[test]
fn defaults_and_every_form() {
    let dir = TestDir::new("sweep-forms");
    let text = "[sweep]\njob = 'job.toml'\nset = ['train.batch=8']\nmetric = 'accuracy'\n\
        [space]\n'optimizer.momentum' = { uniform = [0, 0.9], when = { 'optimizer.name' = 'sgd' } }\n\
        optimizer.name = ['sgd', 'adamw']\n'model.sizes' = { choice = [[784, 10], [784, 32, 10]] }\n\
        [space.train]\nbatch = { integer = [8, 64], log = true }\n\
        clip_norm = { log-uniform = [0.1, 10], points = 3, when.optimizer.name = ['sgd', 'adamw'] }\n";
    let error = parse(&dir, text, &[]).unwrap_err().to_string();
    assert!(error.ends_with("--set train.batch=8: train.batch is in the space; take it out there to set it"));
    let sweep = parse(&dir, &text.replace("train.batch=8", "train.partials=1"), &[]).unwrap();
    assert_eq!((sweep.algorithm, sweep.trials, sweep.goal), (SearchAlgorithm::Random, 32, Goal::Maximize));
    assert_eq!((sweep.seed, sweep.repeats, sweep.top(), &*sweep.name), (0, 1, 1, "s"));
    let fields: Vec<&str> = sweep.space.parameters.iter().map(|p| p.field.as_str()).collect();
    let expected = ["optimizer.name", "optimizer.momentum", "model.sizes", "train.batch", "train.clip_norm"];
    assert_eq!(fields, expected);
    assert_eq!(sweep.space.parameters[1].when[0].codes, [0.0]);

    let mut seen = [false; 2];
    for trial in 0..20 {
        let point = sweep.space.random(0, trial);
        let job = sweep.job(&point, 3).unwrap();
        seen[point["optimizer.name"] as usize] = true;
        assert_eq!((job.train.seed, job.data.options.seed), (3, 3));
        assert_eq!(job.train.batch as f64, point["train.batch"]);
        assert_eq!(job.optimizer.settings.get("momentum"), point.get("optimizer.momentum"));
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn every_seed_has_every_fold() {
    let dir = TestDir::new("sweep-folds");
    let text = "[sweep]\njob = 'job.toml'\nrepeats = 2\nfolds = 3\n[space]\noptimizer.lr = [1, 2]\n";
    let sweep = parse(&dir, text, &["train.seed=7"]).unwrap();
    let of = |run: u64| {
        let job = sweep.job(&sweep.space.random(0, 0), run).unwrap();
        let options = &job.data.options;
        assert_eq!((options.folds, options.seed), (Some(3), job.train.seed));
        (job.train.seed, options.fold)
    };
    let runs: Vec<(u64, usize)> = (0..sweep.runs()).map(of).collect();
    assert_eq!(runs, [(7, 0), (7, 1), (7, 2), (8, 0), (8, 1), (8, 2)]);
}

#[test]
fn what_decides_a_sweep_is_its_identity() {
    let dir = TestDir::new("sweep-identity");
    let text = "[sweep]\njob = 'job.toml'\n[space]\noptimizer.lr = { uniform = [0, 1] }\n";
    let identity = |text: &str, sets: &[&str]| parse(&dir, text, sets).unwrap().identity();
    let one = identity(text, &[]);
    assert_eq!(identity(&format!("# Words.\n{text}"), &[]), one);
    assert_ne!(identity(text, &["train.steps=7"]), one);
    assert_ne!(identity(&text.replace("[0, 1]", "[0, 2]"), &[]), one);
    for setting in ["seed = 1", "repeats = 2", "folds = 2"] {
        assert_ne!(identity(&text.replace("job =", &format!("{setting}\njob =")), &[]), one, "{setting}");
    }
}

#[test]
fn mistakes() {
    let dir = TestDir::new("sweep-mistakes");
    let space = "[space]\noptimizer.lr = { uniform = [0, 1] }\n";
    let with = |settings: &str| format!("[sweep]\njob = 'job.toml'\n{settings}\n{space}");
    let of = |space: &str| format!("[sweep]\njob = 'job.toml'\n[space]\n{space}\n");
    for (text, expected) in [
        ("[sweep".to_string(), "s.toml:1: not valid TOML"),
        ("[sweep]\njob = 'job.toml'".into(), "s.toml: has no section [space]"),
        (space.into(), "s.toml: has no section [sweep]"),
        (format!("[sweep]\n{space}"), "s.toml:1: sweep.job: missing; add a line such as job = \"job.toml\""),
        (format!("[sweep]\njob = 'no.toml'\n{space}"), "no.toml: cannot read the job file"),
        (with("[train]\nsteps = 5"), "s.toml:3: train: unknown section"),
        (
            with("algorithm = 'gird'"),
            "s.toml:3: sweep.algorithm: unknown value \"gird\"; did you mean `grid`?",
        ),
        (with("trails = 5"), "s.toml:3: sweep.trails: unknown field; did you mean `trials`?"),
        (with("algorithm = 'grid'"), "s.toml:5: space.optimizer.lr: has no end of values"),
        (with("algorithm = 'hyperband'\ntrials = 4"), "s.toml:4: sweep.trials: hyperband has no such option"),
        (with("algorithm = 'hyperband'\nrungs = 10\neta = 9"), "sweep.algorithm: more than 100000 trials"),
        (with("trials = 0"), "s.toml:3: sweep.trials: must be a whole number from 1 to 100000, not 0"),
        (with("folds = 1"), "s.toml:3: sweep.folds: must be a whole number from 2 to 1000, not 1"),
        (
            with("folds = 3\nset = ['data.folds=4']"),
            "--set data.folds=4: data.folds: the sweep cuts the data into folds, too; keep one",
        ),
        (
            "[sweep]\njob = 'job.toml'\nfolds = 3\n[space]\ndata.folds = [3, 4]\n".to_string(),
            "s.toml:5: space.data.folds: the sweep cuts the data into folds, too; keep one",
        ),
        (of("data.fold = [0, 1]"), "s.toml:4: space.data.fold: says which of data.folds is for validation"),
        (with("set = 'train.steps=5'"), "s.toml:3: sweep.set: must be a list such as"),
        (of("lr = [1]"), "s.toml:4: space.lr: must be a field of the job, such as optimizer.lr"),
        (of("optimizer.lr = 0.1"), "s.toml:4: space.optimizer.lr: must be a list of values, or a table"),
        (of("optimizer.lr = []"), "s.toml:4: space.optimizer.lr: has no values to choose from"),
        (of("optimizer.lr = [1, 2, 1]"), "s.toml:4: space.optimizer.lr: has 1 twice"),
        (of("optimizer.lr = {}"), "s.toml:4: space.optimizer.lr: must have one of choice, uniform"),
        (
            of("optimizer.lr = { uniform = [1, 0] }"),
            "space.optimizer.lr.uniform: must be two numbers, the smaller",
        ),
        (
            of("optimizer.lr = { log-uniform = [0, 1] }"),
            "space.optimizer.lr.log-uniform: must be two numbers",
        ),
        (
            of("optimizer.lr = { uniform = [0, 1], step = 2 }"),
            "space.optimizer.lr.step: uniform has no such option",
        ),
        (
            of("train.batch = { integer = [5, 2] }"),
            "space.train.batch.integer: must have the smaller number first",
        ),
        (of("train.batch = { integer = 5 }"), "space.train.batch.integer: must be two whole numbers"),
        (
            of(
                "optimizer.lr = { uniform = [0, 1], when = { optimizer.nam = 'sgd' } }\noptimizer.name = ['sgd']",
            ),
            "space.optimizer.lr.when: optimizer.nam is not in the space; did you mean `optimizer.name`?",
        ),
        (
            of(
                "optimizer.lr = { uniform = [0, 1], when = { optimizer.name = 'adam' } }\noptimizer.name = ['sgd']",
            ),
            "s.toml:4: space.optimizer.lr.when: optimizer.name is never \"adam\"",
        ),
        (
            of("optimizer.lr = { choice = [1], when = { train.batch = 1 } }\n\
                train.batch = { choice = [1], when = { optimizer.lr = 1 } }"),
            "optimizer.lr and train.batch wait for each other",
        ),
        (
            of("'optimizer.lr' = [1]\n[space.optimizer]\nlr = [2]"),
            "s.toml:6: space.optimizer.lr: is there twice",
        ),
        (of("optimizer.lrr = [1]"), "s.toml:4: space.optimizer.lrr: unknown field; did you mean `lr`?"),
        (of("modle.width = [1]"), "unknown section"),
        (of("train.batch = [0, -1]"), "s.toml:4: space.train.batch: must be a whole number"),
    ] {
        match parse(&dir, &text, &[]) {
            Ok(_) => panic!("accepted: {text}"),
            Err(error) => assert!(error.to_string().contains(expected), "{error}\nnot: {expected}\n{text}"),
        }
    }
}

#[test]
fn some_impossible_values_are_not_a_mistake_of_the_file() {
    let dir = TestDir::new("sweep-possible");
    let text = "[sweep]\njob = 'job.toml'\n[space]\ntrain.batch = [8, -1]\n";
    let sweep = parse(&dir, text, &[]).unwrap();
    assert!(sweep.job(&TrialPoint::from([("train.batch".into(), 0.0)]), 0).is_ok());
    assert!(sweep.job(&TrialPoint::from([("train.batch".into(), 1.0)]), 0).is_err());
}
