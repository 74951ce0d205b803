//! Wrong jobs and their exact messages, round trips, and jobs damaged at random.

use super::*;
use crate::test_dir::TestDir;
use gulliver_graph::hyper::range;
use gulliver_graph::model::MODELS;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::OPTIMIZERS;
use gulliver_graph::schedule::SCHEDULES;
use gulliver_run::data::{DataOptions, KINDS};
use gulliver_run::train::OnNan;
use proptest::prelude::*;

const SMALLEST: &str = "[model]\nname = \"gpt\"\n[data]\nkind = \"text\"\n";

const FULL: &str = r#"
# Everything at once.
[model]
name = "bert"
layers = 4
dropout = 0.1
head = "classify"
[data]
kind = "npy"
path = "x.npy"
labels = "/abs/labels"
x_key = "x.0"
validation = 0.2
classes = 7
mean = [0.1, -1e-7]
std = 2
buckets = true
shuffle = false
[train]
epochs = 3
batch = 12
partials = 4
seed = 7
clip_norm = 1
on_nan = "skip"
norm_group = "partial"
weights = "../w.safetensors"
[optimizer]
name = "lion"
lr = 1e-30
betas = [0.9, 0.95]
[schedule]
name = "multi-step"
milestones = [10, 20]
gamma = 0.5
[devices]
threads = 2
memory = "256MiB"
"#;

fn parse(text: &str, sets: &[&str]) -> Result<Job, JobError> {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    Job::parse(text, "jobs/job.toml", &sets)
}

fn map(entries: &[(&str, f64)]) -> BTreeMap<String, f64> {
    entries.iter().map(|(name, x)| (name.to_string(), *x)).collect()
}

#[test]
fn defaults_fill_the_smallest_job() {
    let job = parse(SMALLEST, &[]).unwrap();
    assert_eq!((job.model.name.as_str(), job.model.params().len()), ("gpt", 0));
    let options = DataOptions { kind: "text".into(), ..DataOptions::default() };
    assert_eq!(job.data, Data { options, buckets: false, shuffle: true });
    assert_eq!((&job.train, &job.devices), (&Train::default(), &Devices::default()));
    let settings =
        map(&[("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8), ("weight_decay", 0.01), ("amsgrad", 0.0)]);
    assert_eq!(job.optimizer, Optimizer { name: "adamw".into(), lr: 1e-3, settings });
    let constant = Schedule { name: "constant".into(), warmup: 0, params: map(&[]), milestones: vec![] };
    assert_eq!(job.schedule, constant);
}

#[test]
fn every_field_is_read() {
    let job = parse(FULL, &[]).unwrap();
    let jobs = std::env::current_dir().unwrap().join("jobs");
    let params = [
        ("dropout".to_string(), ParamValue::Float(0.1)),
        ("head".to_string(), ParamValue::Text("classify".into())),
        ("layers".to_string(), ParamValue::Int(4)),
    ];
    assert_eq!(job.model.params(), params);
    let options = DataOptions {
        kind: "npy".into(),
        path: Some(jobs.join("x.npy")),
        labels: Some("/abs/labels".into()),
        x_key: "x.0".into(),
        validation: 0.2,
        seed: 7,
        classes: Some(7),
        mean: Some(vec![0.1, -1e-7]),
        std: Some(vec![2.0]),
        ..DataOptions::default()
    };
    assert_eq!(job.data, Data { options, buckets: true, shuffle: false });
    assert_eq!((job.train.length, job.train.clip_norm), (Length::Epochs(3), Some(1.0)));
    assert_eq!((job.train.on_nan, job.train.norm_group), (OnNan::Skip, NormGroup::Partial));
    assert_eq!(job.train.weights, Some(jobs.join("../w.safetensors")));
    let settings = map(&[("beta1", 0.9), ("beta2", 0.95), ("weight_decay", 0.0)]);
    assert_eq!(job.optimizer, Optimizer { name: "lion".into(), lr: 1e-30, settings });
    assert_eq!((&job.schedule.params, &job.schedule.milestones), (&map(&[("gamma", 0.5)]), &vec![10, 20]));
    assert_eq!(job.devices, Devices { threads: 2, memory: Some(256 << 20) });
}

/// Sets the fields, and checks that this changes the job and survives writing.
fn check_set(base: &[String], field: &str, value: &str) {
    let without = Job::parse(SMALLEST, "j.toml", base).unwrap();
    let sets = [base, &[format!("{field}={value}")]].concat();
    let job = Job::parse(SMALLEST, "j.toml", &sets).unwrap_or_else(|error| panic!("{error}"));
    assert_ne!(job, without, "{sets:?} changes nothing");
    // From another directory: a run directory keeps the job of a file that lies elsewhere.
    let written = job.to_toml();
    assert_eq!(Job::parse(&written, "/elsewhere/job.toml", &[]).unwrap(), job, "{sets:?}\n{written}");
}

#[test]
fn written_jobs_read_back_equal() {
    let odd = "[model]\nname = 'bert'\nhead = \"a\\nb\\\"'\"\n[data]\nkind = 'text'\n\
               characters = \"\"\"\u{1f980}\\u0001'\n\"\"\"\n";
    for text in [SMALLEST, FULL, odd] {
        let job = parse(text, &[]).unwrap();
        let written = job.to_toml();
        assert_eq!(Job::parse(&written, "/elsewhere/job.toml", &[]).unwrap(), job, "{written}");
    }
}

/// What the tables have can be set and survives writing, model by model and kind by kind.
#[test]
fn every_row_of_every_table_is_read_and_written() {
    for row in OPTIMIZERS {
        let base = [format!("optimizer.name={}", row.name), "optimizer.lr=0.25".into()];
        for (hyper, _) in row.hypers {
            check_set(&base, &format!("optimizer.{hyper}"), "0.125");
        }
        for choice in row.choices {
            let base = match *choice {
                "nesterov" => [&base[..], &["optimizer.momentum=0.5".to_string()]].concat(),
                _ => base.to_vec(),
            };
            check_set(&base, &format!("optimizer.{choice}"), "true");
        }
        let lr = Job::parse(SMALLEST, "j.toml", &base[..1]).unwrap().optimizer.lr;
        assert_eq!(lr as f32, row.hypers[0].1, "{}", row.name);
        assert!(lr.to_string().len() < 8, "{lr} is not the number that was written");
    }
    for row in SCHEDULES {
        let name = format!("schedule.name={}", row.name);
        let base = match row.name {
            "multi-step" => vec![name, "schedule.milestones=[1,2]".into()],
            "linear-warmup" => vec![name, "schedule.warmup=9".into()],
            _ => vec![name],
        };
        check_set(&base, "schedule.warmup", "3");
        for (param, _) in row.params {
            let value = match *param {
                "min_lr" => "0.0005",
                _ if range(param).contains(0.5) => "0.5",
                _ => "3",
            };
            check_set(&base, &format!("schedule.{param}"), value);
        }
    }
    for (kind, _, options) in KINDS {
        for option in [options, &["validation", "buckets", "shuffle"][..]].concat() {
            let value = match option {
                "validation" => "0.25",
                "mean" | "std" => "[0.1, 3]",
                "shape" => "[3, 4]",
                "regression" | "normalise" | "augment" | "buckets" => "true",
                "flip" | "shuffle" => "false",
                _ => "5",
            };
            check_set(&[format!("data.kind={kind}")], &format!("data.{option}"), value);
        }
    }
    for row in MODELS {
        for param in row.params() {
            let value = match &param.default {
                ParamValue::Bool(_) => "true",
                ParamValue::Int(_) => "77",
                ParamValue::Float(_) => "1",
                ParamValue::Text(_) => "true",
                ParamValue::Ints(_) => "[7, 8]",
            };
            check_set(&[format!("model.name={}", row.name)], &format!("model.{}", param.name), value);
        }
    }
}

#[test]
fn the_jobs_that_come_with_gulliver_are_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../jobs");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        Job::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        names.push(path.file_name().unwrap().to_string_lossy().into_owned());
    }
    assert!(names.contains(&"quickstart.toml".to_string()), "{names:?}");
}

#[test]
fn flags_override_the_file() {
    let sets = [
        "train.batch=32",
        "optimizer.lr = 1e-4",
        "devices.memory=1GiB",
        "model.name=\"bert-base\"",
        "data.path=here.npy",
    ];
    let job = parse(FULL, &sets).unwrap();
    assert_eq!((job.train.batch, job.optimizer.lr, job.devices.memory), (32, 1e-4, Some(1 << 30)));
    assert_eq!(job.model.name, "bert-base");
    assert_eq!(job.data.options.path, Some(std::env::current_dir().unwrap().join("here.npy")));
    assert_eq!(parse(FULL, &["train.batch=4", "train.batch=8"]).unwrap().train.batch, 8);
    // Text needs no quotes on the command line, whatever it looks like.
    for text in ["chars", "2024", "true", "1979-05-27", "a=b", "[x", "with space"] {
        let job = parse(SMALLEST, &[&format!("data.characters={text}")]).unwrap();
        assert_eq!(job.data.options.characters.as_deref(), Some(text));
    }
}

#[test]
fn wrong_jobs_are_explained() {
    for (lines, expected) in [
        ("[train]\nbach = 3", "job.toml:6: train.bach: unknown field; did you mean `batch`?"),
        ("[devices]\nzzz = 3", "job.toml:6: devices.zzz: unknown field; [devices] has threads, memory"),
        ("[trian]\nbatch = 3", "job.toml:5: trian: unknown section; did you mean `train`?"),
        (
            "[zzz]",
            "job.toml:5: zzz: unknown section; sections are model, data, train, optimizer, schedule, devices",
        ),
        ("[train]\nbatch = 0", "job.toml:6: train.batch: must be a whole number from 1 to 4294967296, not 0"),
        ("[train]\nsteps = -1", "job.toml:6: train.steps: must be a whole number of at least 1, not -1"),
        ("[train]\nsteps = 1.5", "job.toml:6: train.steps: must be a whole number of at least 1, not 1.5"),
        (
            "[train]\n\nsteps = \"ten\"",
            "job.toml:7: train.steps: must be a whole number of at least 1, not \"ten\"",
        ),
        (
            "[train]\nsteps = 9\nepochs = 9",
            "job.toml:7: train.epochs: steps and epochs both say how long to train; keep one",
        ),
        (
            "[train]\nbatch = 16\npartials = 3",
            "job.toml:7: train.partials: a batch of 16 cannot be cut into 3 equal slices",
        ),
        (
            "[train]\nseed = 99999999999999999999",
            "job.toml:6: train.seed: 99999999999999999999 is too large a number",
        ),
        ("[train]\nclip_norm = nan", "job.toml:6: train.clip_norm: must be a finite number, not nan"),
        ("[train]\nclip_norm = 1e999", "job.toml:6: train.clip_norm: must be a finite number, not 1e999"),
        (
            "[train]\non_nan = \"stp\"",
            "job.toml:6: train.on_nan: unknown value \"stp\"; did you mean `stop`?",
        ),
        (
            "[train]\non_nan = \"explode\"",
            "job.toml:6: train.on_nan: unknown value \"explode\"; choose one of stop, skip",
        ),
        ("[train]\nweights = \"\"", "job.toml:6: train.weights: must be a path in quotes, not \"\""),
        (
            "[train]\nweights = 1979-05-27",
            "job.toml:6: train.weights: no field takes a date; write \"1979-05-27\" for text",
        ),
        ("[optimizer]\nlr = -0.1", "job.toml:6: optimizer.lr: must be a number above 0, not -0.1"),
        ("[optimizer]\nlr = true", "job.toml:6: optimizer.lr: must be a number above 0, not true"),
        (
            "[optimizer]\nname = \"adm\"",
            "job.toml:6: optimizer.name: unknown value \"adm\"; did you mean `adam`?",
        ),
        (
            "[train]\nclip_norm = 1\nclip_value = 1",
            "job.toml:7: train.clip_value: clip_norm and clip_value both limit the gradient; keep one",
        ),
        (
            "[optimizer]\nname = \"sgd\"\nbetas = [0.9, 0.99]",
            "job.toml:7: optimizer.betas: sgd has no such option; it has lr, momentum, dampening, weight_decay, nesterov",
        ),
        ("[optimizer]\nbeta = 0.9", "job.toml:6: optimizer.beta: unknown field; did you mean `beta1`?"),
        ("[optimizer]\nbetass = 0.9", "job.toml:6: optimizer.betass: unknown field; did you mean `betas`?"),
        (
            "[optimizer]\nzzz = 0.9",
            "job.toml:6: optimizer.zzz: unknown field; adamw has lr, beta1, beta2, eps, weight_decay, amsgrad, betas",
        ),
        (
            "[optimizer]\nbeta2 = 0.9\nbetas = [0.9, 0.99]",
            "job.toml:7: optimizer.betas: betas already says beta1 and beta2; keep one form",
        ),
        (
            "[optimizer]\nbeta1 = 0.99999999999",
            "job.toml:6: optimizer.beta1: must be a number from 0 to below 1, not 0.99999999999",
        ),
        ("[optimizer]\namsgrad = 1", "job.toml:6: optimizer.amsgrad: must be true or false, not 1"),
        (
            "[optimizer]\nname = \"sgd\"\nnesterov = true",
            "job.toml:5: optimizer: nesterov needs a momentum other than zero",
        ),
        (
            "[optimizer]\nbetas = [0.9, 1.0]",
            "job.toml:6: optimizer.betas: must be two numbers such as [0.9, 0.99], each a number from 0 to below 1, not [0.9, 1.0]",
        ),
        (
            "[schedule]\nname = \"cosine\"\ngamma = 0.5",
            "job.toml:7: schedule.gamma: cosine has no such option; it has min_lr, warmup",
        ),
        (
            "[schedule]\nname = \"multi-step\"\nmilestones = [20, 10]",
            "job.toml:7: schedule.milestones: the milestones of schedule multi-step must increase",
        ),
        (
            "[schedule]\nname = \"multi-step\"",
            "job.toml:5: schedule.milestones: milestones belong to the schedule multi-step, which needs at least one",
        ),
        (
            "[schedule]\nname = \"linear-warmup\"\nwarmup = 0",
            "job.toml:7: schedule.warmup: schedule linear-warmup needs a warmup of at least 1 step",
        ),
        (
            "[schedule]\nname = \"one_cycle\"",
            "job.toml:6: schedule.name: unknown value \"one_cycle\"; did you mean `one-cycle`?",
        ),
        (
            "[schedule]\nname = \"step\"\nevery = 1.5",
            "job.toml:7: schedule.every: must be a whole number of at least 1, not 1.5",
        ),
        (
            "[schedule]\nname = \"cosine\"\nmin_lr = 0.1",
            "job.toml:7: schedule.min_lr: 0.1 is above the learning rate 0.001 of the optimizer",
        ),
        (
            "[devices]\nmemory = \"lots\"",
            "job.toml:6: devices.memory: must be a size such as \"512MiB\" or \"2 GB\" (units B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), above 0, not \"lots\"",
        ),
        (
            "[devices.cpu]\nthreads = 1",
            "job.toml:5: devices.cpu: must be a single value or a list, not a table",
        ),
        ("[train]\nbatch = = 3", "job.toml:6: not valid TOML: extra `=` in `batch = = 3`"),
        ("[train]\nbatch = 3\nbatch = 4", "job.toml:7: not valid TOML: duplicate key in `batch = 4`"),
    ] {
        let error = Job::parse(&format!("{SMALLEST}{lines}\n"), "job.toml", &[]).unwrap_err().to_string();
        assert_eq!(error, expected, "for {lines:?}");
    }
    for (text, expected) in [
        ("batch = 3", "job.toml:1: batch: outside every section; put it below a line such as [train]"),
        ("", "job.toml: model.name: missing; add a line such as name = \"mlp\""),
        (
            "\n[model]\nnaem = 'x'",
            "job.toml:2: model.name: missing; add a line such as name = \"mlp\" (is `naem` meant?)",
        ),
        ("[model]\nname = 'gpt'", "job.toml: data.kind: missing; add a line such as kind = \"text\""),
        (
            "[model]\nname = 'resnet5'",
            "job.toml:2: model.name: unknown value \"resnet5\"; did you mean `resnet50`?",
        ),
        (
            "[model]\nname = 'gpt'\nhead = 1",
            "job.toml:3: model.head: gpt has no such parameter; did you mean `heads`?",
        ),
        (
            "[model]\nname = 'gpt'\n'a b' = 1",
            "job.toml:3: model.a b: gpt has no such parameter; it has vocab, width, heads, layers, context, dropout",
        ),
        ("[model]\nname = 'gpt'\nlayers = 1.5", "job.toml:3: model.layers: must be a whole number, not 1.5"),
        (
            "[model]\nname = 'mlp'\nsizes = [1, 'x']",
            "job.toml:3: model.sizes: must be a list of whole numbers, not [1, \"x\"]",
        ),
        ("[model]\nname = 'bert'\nhead = 3", "job.toml:3: model.head: must be a word, not 3"),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'csv_text'",
            "job.toml:4: data.kind: unknown value \"csv_text\"; did you mean `csv-text`?",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\npath = 'x'",
            "job.toml:5: data.path: blobs has no such option; it has examples, classes, validation, buckets, shuffle",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nclases = 3",
            "job.toml:5: data.clases: unknown field; did you mean `classes`?",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nseed = 3",
            "job.toml:5: data.seed: unknown field; blobs has examples, classes, validation, buckets, shuffle",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nvalidation = 1",
            "job.toml:5: data.validation: must be a number from 0 to below 1, not 1",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'idx'\nmean = [0.5, 'x']",
            "job.toml:5: data.mean: must be a list, each a finite number, not [0.5, \"x\"]",
        ),
        ("[[model]]\nname = 'x'", "job.toml:1: model: must be one section, in single brackets"),
    ] {
        assert_eq!(Job::parse(text, "job.toml", &[]).unwrap_err().to_string(), expected, "for {text:?}");
    }
}

#[test]
fn wrong_flags_are_named() {
    for (set, expected) in [
        ("train.batch", "--set train.batch: must have the form section.field=value, such as train.batch=32"),
        ("batch=3", "--set batch=3: must have the form section.field=value, such as train.batch=32"),
        ("a.b.c=3", "--set a.b.c=3: must have the form section.field=value, such as train.batch=32"),
        ("train.bach=3", "--set train.bach=3: train.bach: unknown field; did you mean `batch`?"),
        ("trian.batch=3", "--set trian.batch=3: trian: unknown section; did you mean `train`?"),
        (
            "train.batch=many",
            "--set train.batch=many: train.batch: must be a whole number from 1 to 4294967296, not \"many\"",
        ),
        ("model.x={a=1}", "--set model.x={a=1}: model.x: must be a single value or a list, not a table"),
    ] {
        assert_eq!(parse(SMALLEST, &[set]).unwrap_err().to_string(), expected);
    }
}

#[test]
fn later_errors_find_their_line() {
    let job = parse(FULL, &["model.dropout=2"]).unwrap();
    for (field, expected) in [
        ("model.layers", "jobs/job.toml:5: model.layers: too many"),
        ("model.dropout", "--set model.dropout=2: model.dropout: too many"),
        ("model.heads", "jobs/job.toml: model.heads: too many"),
        ("model", "jobs/job.toml:3: model: too many"),
    ] {
        assert_eq!(job.error(field, "too many").to_string(), expected);
    }
}

#[test]
fn files_are_loaded_or_explained() {
    let dir = TestDir::new("job-load");
    let path = dir.join("job.toml");
    std::fs::write(&path, FULL).unwrap();
    assert_eq!(Job::load(&path, &[]).unwrap().data.options.path, Some(dir.join("x.npy")));
    for (content, expected) in [
        (&b"[model]\n\xff"[..], ":2: not text in UTF-8"),
        (&vec![b'#'; MAX_FILE_BYTES as usize + 1], ": more than 1048576 bytes; is this a job file?"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = Job::load(&path, &[]).unwrap_err().to_string();
        assert_eq!(error, format!("{}{expected}", path.display()));
    }
    assert!(
        Job::load(&dir.join("none.toml"), &[]).unwrap_err().to_string().contains("cannot read the job file")
    );
    assert!(Job::load(&dir, &[]).is_err());
}

/// A damaged job is read or refused in one line; what is read survives writing.
fn check(text: &str) {
    match Job::parse(text, "job.toml", &[]) {
        Ok(job) => assert_eq!(Job::parse(&job.to_toml(), "job.toml", &[]).as_ref(), Ok(&job), "{text}"),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

#[test]
fn damaged_jobs_never_panic() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let tokens: Vec<&str> = FULL.split_inclusive(|c: char| !c.is_alphanumeric()).collect();
    let odd =
        ["[", "]", "=", "\"", "'''", "\n", "-1", "nan", "1e400", "{}", "[[a]]", "\u{0}", "é", "0x", "."];
    for _ in 0..3000 {
        let mut bytes = FULL.as_bytes().to_vec();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random(128) as u8),
            }
        }
        check(&String::from_utf8_lossy(&bytes));

        let mut words = tokens.clone();
        let (a, b) = (random(words.len()), random(words.len()));
        match random(3) {
            0 => words[a] = odd[random(odd.len())],
            1 => words.swap(a, b),
            _ => words.insert(a, tokens[b]),
        }
        check(&words.concat());
    }
    for end in (0..FULL.len()).filter(|&end| FULL.is_char_boundary(end)) {
        check(&FULL[..end]);
    }
    check(&format!("[model]\nname = {}", "[".repeat(100_000)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text_and_flag_is_read_or_refused(text in "\\PC{0,80}", section in "[a-z]{0,9}", value in "\\PC{0,20}") {
        check(&text);
        let sets = [format!("{section}.{text}={value}"), format!("data.characters={value}"), value.clone()];
        for set in &sets {
            match Job::parse(SMALLEST, "job.toml", std::slice::from_ref(set)) {
                Ok(job) => prop_assert_eq!(Job::parse(&job.to_toml(), "job.toml", &[]).unwrap(), job),
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
            }
        }
    }
}
