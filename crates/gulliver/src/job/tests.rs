//! Jobs read and written: defaults, every field, every row of every table, and jobs damaged at random.

mod wrong;

use super::*;
use gulliver_graph::hyper::range;
use gulliver_graph::lr::SCHEDULES;
use gulliver_graph::model::MODELS;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::OPTIMIZERS;
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
folds = 5
fold = 2
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
    assert_eq!(job.data, DataSection { options, buckets: false, shuffle: true });
    assert_eq!((&job.train, &job.devices), (&TrainSection::default(), &DevicesSection::default()));
    let settings =
        map(&[("beta1", 0.9), ("beta2", 0.999), ("eps", 1e-8), ("weight_decay", 0.01), ("amsgrad", 0.0)]);
    assert_eq!(job.optimizer, OptimizerSection { name: "adamw".into(), lr: 1e-3, settings });
    let constant =
        ScheduleSection { name: "constant".into(), warmup: 0, params: map(&[]), milestones: vec![] };
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
        folds: Some(5),
        fold: 2,
        seed: 7,
        classes: Some(7),
        mean: Some(vec![0.1, -1e-7]),
        std: Some(vec![2.0]),
        ..DataOptions::default()
    };
    assert_eq!(job.data, DataSection { options, buckets: true, shuffle: false });
    assert_eq!((job.train.length, job.train.clip_norm), (Length::Epochs(3), Some(1.0)));
    assert_eq!((job.train.on_nan, job.train.norm_group), (OnNan::Skip, NormGroup::Partial));
    assert_eq!(job.train.weights, Some(jobs.join("../w.safetensors")));
    let settings = map(&[("beta1", 0.9), ("beta2", 0.95), ("weight_decay", 0.0)]);
    assert_eq!(job.optimizer, OptimizerSection { name: "lion".into(), lr: 1e-30, settings });
    assert_eq!((&job.schedule.params, &job.schedule.milestones), (&map(&[("gamma", 0.5)]), &vec![10, 20]));
    assert_eq!(
        job.devices,
        DevicesSection { threads: 2, memory: Some(256 << 20), ..DevicesSection::default() }
    );
}

#[test]
fn devices_may_differ_and_links_have_speeds() {
    let listed = "[[devices]]\nthreads = 2\nmemory = '3GB'\nhost_memory = '8GB'\n\
                  [[devices]]\nmemory = '1GB'\nsocket = 1\n\
                  [links]\nhost = '12 GB/s'\npeer = '500 MB/s'\nlatency = '10us'\n[train]\nbatch = 8\n";
    let job = parse(&format!("{SMALLEST}{listed}"), &[]).unwrap();
    let [first, second] = [
        DeviceEntry { threads: 2, memory: Some(3_000_000_000), socket: 0 },
        DeviceEntry { threads: 0, memory: Some(1_000_000_000), socket: 1 },
    ];
    assert_eq!((job.devices.count, job.devices.list()), (2, vec![first, second]));
    assert_eq!((job.devices.memory, job.devices.host_memory), (second.memory, Some(8_000_000_000)));
    assert_eq!(job.train.partials, 2);
    let again = Job::parse(&job.to_toml(), "jobs/job.toml", &[]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again, job);
    let topology = job.links.topology(&job.devices).unwrap().unwrap();
    let names: Vec<&str> = topology.links().iter().map(|link| link.name.as_str()).collect();
    assert!(names.contains(&"host to devices of socket 1") && names.contains(&"others to device 0"));
    assert!(topology.links().iter().all(|link| link.latency == 1e-5));
    let alike = parse(SMALLEST, &["devices.count=2", "devices.memory=1MB", "links.host=1GB/s"]).unwrap();
    assert_eq!(alike.devices.list(), [DeviceEntry { memory: Some(1_000_000), ..DeviceEntry::default() }; 2]);
    assert_eq!(parse(SMALLEST, &[]).unwrap().links.topology(&DevicesSection::default()), Ok(None));
}

#[test]
fn fields_are_set_as_if_they_had_been_written() {
    let mut job = Job::from_toml(SMALLEST).unwrap();
    job.set("devices.count", 2).unwrap();
    job.set("train.batch", 6).unwrap();
    // The number of partials follows that of devices unless it is given.
    assert_eq!((job.train.partials, job.train.batch), (2, 6));
    job.set("devices.memory", "64MiB").unwrap();
    job.set("optimizer.lr", 0.5).unwrap();
    job.set("devices.recompute", false).unwrap();
    assert_eq!((job.devices.memory, job.optimizer.lr), (Some(64 << 20), 0.5));
    let before = job.clone();
    let error = job.set("train.bach", 6).unwrap_err().to_string();
    assert!(error.starts_with("--set train.bach=6: train.bach: ") && error.contains("`batch`"), "{error}");
    assert_eq!(job, before);
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
        for option in [options, &["validation", "folds", "buckets", "shuffle"][..]].concat() {
            let value = match option {
                "validation" | "masked" => "0.25",
                "mean" | "std" => "[0.1, 3]",
                "shape" => "[3, 4]",
                "regression" | "normalise" | "augment" | "buckets" => "true",
                "flip" | "shuffle" => "false",
                _ => "5",
            };
            check_set(&[format!("data.kind={kind}")], &format!("data.{option}"), value);
        }
        check_set(&[format!("data.kind={kind}"), "data.folds=3".into()], "data.fold", "2");
    }
    for weights in ["balanced", "[1, 2.6, 0]"] {
        check_set(&[], "train.class_weights", weights);
    }
    check_set(&["model.name=cnn".into()], "model.size", "[32, 48]");
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
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let read = match name.starts_with("sweep-") {
            true => crate::sweep::file::Sweep::load(&path, &[]).err(),
            false => Job::load(&path).err(),
        };
        assert!(read.is_none(), "{}", read.unwrap());
        names.push(name);
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
