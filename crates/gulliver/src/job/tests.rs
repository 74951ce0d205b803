//! Wrong jobs and their exact messages, round trips, and jobs damaged at random.

use super::*;
use crate::test_dir::TestDir;
use proptest::prelude::*;

const SMALLEST: &str = "[model]\nname = \"gpt\"\n[data]\nkind = \"text\"\n";

const FULL: &str = r#"
# Everything at once.
[model]
name = "gpt"
layers = 4
dropout = 0.1
sizes = [1, [2.5, "three"], true]
[data]
kind = "text"
path = "corpus.txt"
labels = "/abs/labels"
x = "x.npy"
y = "targets"
validation = 0.1
shape = [3, 32, 32]
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
lr = 1e-300
betas = [0.9, 0.99]
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

#[test]
fn defaults_fill_the_smallest_job() {
    let job = parse(SMALLEST, &[]).unwrap();
    assert_eq!((job.model.name.as_str(), job.data.kind.as_str()), ("gpt", "text"));
    assert_eq!((&job.train, &job.devices), (&Train::default(), &Devices::default()));
    assert_eq!((job.optimizer.name.as_str(), job.optimizer.lr), ("adamw", 1e-3));
    assert_eq!(job.schedule.name, "constant");
    for (name, lr, _) in OPTIMIZERS {
        assert_eq!(parse(SMALLEST, &[&format!("optimizer.name={name}")]).unwrap().optimizer.lr, lr);
    }
}

#[test]
fn every_field_is_read() {
    let job = parse(FULL, &[]).unwrap();
    let jobs = std::env::current_dir().unwrap().join("jobs");
    assert_eq!(job.model.parameters["layers"], Value::Int(4));
    assert_eq!(job.model.parameters["sizes"].to_string(), "[1, [2.5, \"three\"], true]");
    assert_eq!(job.data.path, Some(jobs.join("corpus.txt")));
    assert_eq!(job.data.labels, Some("/abs/labels".into()));
    assert_eq!(job.data.x.as_deref(), jobs.join("x.npy").to_str());
    assert_eq!(job.data.y.as_deref(), Some("targets"));
    assert_eq!(job.data.shape, Some(vec![3, 32, 32]));
    assert_eq!(job.train.length, Length::Epochs(3));
    assert_eq!((job.train.on_nan, job.train.norm_group), (OnNan::Skip, NormGroup::Partial));
    assert_eq!(job.train.weights, Some(jobs.join("../w.safetensors")));
    assert_eq!(job.optimizer.betas, Some([0.9, 0.99]));
    assert_eq!(job.devices, Devices { threads: 2, memory: Some(256 << 20) });
}

#[test]
fn written_jobs_read_back_equal() {
    let odd = "[model]\nname = \"a\\nb\\\"'\"\ntext = '''x\n\"\"\"'''\n[data]\nkind = \"\u{1f980}\\u0001\"\n";
    for text in [SMALLEST, FULL, odd] {
        let job = parse(text, &[]).unwrap();
        let written = job.to_toml();
        // From another directory: a run directory keeps the job of a file that lies elsewhere.
        assert_eq!(Job::parse(&written, "/elsewhere/job.toml", &[]).unwrap(), job, "{written}");
    }
    let mut sets: Vec<String> = Vec::new();
    for (name, _, options) in OPTIMIZERS {
        for option in options {
            let value = match *option {
                "betas" => "[0.5,0.25]",
                "nesterov" | "centered" => "true",
                _ => "0.125",
            };
            sets = vec![format!("optimizer.name={name}"), format!("optimizer.{option}={value}")];
            let job = Job::parse(SMALLEST, "j.toml", &sets).unwrap();
            assert_eq!(Job::parse(&job.to_toml(), "j.toml", &[]).unwrap(), job, "{sets:?}");
            assert!(job.to_toml().contains(&format!("\n{option} = ")), "{option} is not written");
        }
    }
    for (name, options) in SCHEDULES {
        for option in options {
            let value = match *option {
                "milestones" => "[1,2]",
                "min_lr" => "0.0005",
                "gamma" | "factor" | "max_lr" => "0.5",
                _ => "3",
            };
            sets = vec![format!("schedule.name={name}"), format!("schedule.{option}={value}")];
            let job = Job::parse(SMALLEST, "j.toml", &sets).unwrap();
            assert_eq!(Job::parse(&job.to_toml(), "j.toml", &[]).unwrap(), job, "{sets:?}");
            assert!(job.to_toml().contains(&format!("\n{option} = ")), "{option} is not written");
        }
    }
    assert!(!sets.is_empty());
}

/// Every data option survives writing: a field forgotten in `write.rs` fails here.
#[test]
fn every_data_option_is_written() {
    for set in [
        "path=p",
        "labels=l",
        "split=s",
        "length=1",
        "stride=1",
        "mode=m",
        "vocabulary=v",
        "tokenizer=t",
        "max_length=1",
        "size=1",
        "channels=1",
        "classes=1",
        "examples=1",
        "points=1",
        "validation=0.5",
        "text_column=a",
        "label_column=b",
        "x=x",
        "y=y",
        "normalise=true",
        "augment=true",
        "buckets=true",
        "shuffle=true",
        "shape=3",
    ] {
        let job = parse(SMALLEST, &[&format!("data.{set}")]).unwrap();
        assert_ne!(job, parse(SMALLEST, &[]).unwrap(), "{set}");
        assert_eq!(parse(&job.to_toml(), &[]).unwrap(), job, "{set}");
    }
}

#[test]
fn flags_override_the_file() {
    let sets = [
        "train.batch=32",
        "optimizer.lr = 1e-4",
        "devices.memory=1GiB",
        "model.name=\"mlp\"",
        "model.wide=true",
    ];
    let job = parse(FULL, &sets).unwrap();
    assert_eq!((job.train.batch, job.optimizer.lr, job.devices.memory), (32, 1e-4, Some(1 << 30)));
    assert_eq!((job.model.name.as_str(), &job.model.parameters["wide"]), ("mlp", &Value::Bool(true)));
    assert_eq!(parse(FULL, &["train.batch=4", "train.batch=8"]).unwrap().train.batch, 8);
    // Text needs no quotes on the command line, whatever it looks like.
    for text in ["chars", "2024", "true", "1979-05-27", "a=b", "[x", "with space"] {
        let job = parse(SMALLEST, &[&format!("data.mode={text}")]).unwrap();
        assert_eq!(job.data.mode.as_deref(), Some(text));
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
            "[optimizer]\nname = \"sgd\"\nbetas = [0.9, 0.99]",
            "job.toml:7: optimizer.betas: sgd has no such option; it has lr, momentum, nesterov, weight_decay",
        ),
        (
            "[optimizer]\nbetas = [0.9, 1.0]",
            "job.toml:6: optimizer.betas: must be two numbers such as [0.9, 0.99], each a number from 0 to below 1, not [0.9, 1.0]",
        ),
        (
            "[schedule]\nname = \"cosine\"\ngamma = 0.5",
            "job.toml:7: schedule.gamma: cosine has no such option; it has warmup, min_lr",
        ),
        (
            "[schedule]\nname = \"multi-step\"\nmilestones = [20, 10]",
            "job.toml:7: schedule.milestones: the steps must increase",
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
        ("[model]\nname = 'x'", "job.toml: data.kind: missing; add a line such as kind = \"text\""),
        (
            "[model]\nname = 'x'\n'a b' = 1",
            "job.toml:3: model.a b: parameter names are letters, digits, _ and -",
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
    ] {
        assert_eq!(job.error(field, "too many").to_string(), expected);
    }
}

#[test]
fn files_are_loaded_or_explained() {
    let dir = TestDir::new("job-load");
    let path = dir.join("job.toml");
    std::fs::write(&path, FULL).unwrap();
    assert_eq!(Job::load(&path, &[]).unwrap().data.path, Some(dir.join("corpus.txt")));
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
        let sets = [format!("{section}.{text}={value}"), format!("data.mode={value}"), value.clone()];
        for set in &sets {
            match Job::parse(SMALLEST, "job.toml", std::slice::from_ref(set)) {
                Ok(job) => prop_assert_eq!(Job::parse(&job.to_toml(), "job.toml", &[]).unwrap(), job),
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
            }
        }
    }
}
