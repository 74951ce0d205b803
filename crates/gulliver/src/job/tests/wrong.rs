//! Wrong jobs, flags and files, and exactly what is said about them.

use super::{FULL, SMALLEST, parse};
use crate::job::{Job, MAX_FILE_BYTES};
use crate::test_dir::TestDir;

#[test]
fn wrong_jobs_are_explained() {
    for (lines, expected) in [
        ("[train]\nbach = 3", "job.toml:6: train.bach: unknown field; did you mean `batch`?"),
        (
            "[devices]\nzzz = 3",
            "job.toml:6: devices.zzz: unknown field; [devices] has count, threads, memory, host_memory, disk, disk_dir, recompute",
        ),
        ("[trian]\nbatch = 3", "job.toml:5: trian: unknown section; did you mean `train`?"),
        (
            "[zzz]",
            "job.toml:5: zzz: unknown section; sections are model, data, train, optimizer, schedule, devices, links",
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
            "[train]\nclass_weights = [1, -2]",
            "job.toml:6: train.class_weights: must be \"balanced\" or a list, each a number of at least 0, not [1, -2]",
        ),
        (
            "[train]\nclass_weights = \"equal\"",
            "job.toml:6: train.class_weights: must be \"balanced\" or a list, each a number of at least 0, not \"equal\"",
        ),
        (
            "[train]\nclass_weights = [0, 0.0]",
            "job.toml:6: train.class_weights: at least one class must count: write a weight above 0",
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
            "[[devices]]\nthreads = 1\n[[devices]]\nthread = 2",
            "job.toml:8: devices.thread: unknown field; did you mean `threads`?",
        ),
        (
            "[[devices]]\nmemory = '1GB'\n[[devices]]\ndisk = '1GB'",
            "job.toml:8: devices.disk: is of all devices together; write it below the first [[devices]]",
        ),
        (
            "[[devices]]\ncount = 2",
            "job.toml:6: devices.count: the devices are listed one by one; leave count away",
        ),
        (
            "[links]\nhost = '12 GB'",
            "job.toml:6: links.host: must be a rate such as \"12 GB/s\" or \"500MiB/s\", above 0, not \"12 GB\"",
        ),
        (
            "[links]\npeer = 0",
            "job.toml:6: links.peer: must be a rate such as \"12 GB/s\" or \"500MiB/s\", above 0, not 0",
        ),
        (
            "[links]\nlatency = 3",
            "job.toml:6: links.latency: must be a duration such as \"90s\", \"10m\" or \"1.5h\" (units us, ms, s, m, h), not 3",
        ),
        ("[devices]\ncount = 0", "job.toml:6: devices.count: must be a whole number from 1 to 64, not 0"),
        (
            "[devices]\ncount = 3\n[train]\npartials = 2",
            "job.toml:6: devices.count: 3 devices take as many partials each, and train.partials is 2; make it a multiple of 3, leave it away, or choose another train.strategy",
        ),
        (
            "[devices]\ncount = 3",
            "job.toml:6: devices.count: a batch of 16 cannot be shared evenly by 3 devices",
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
            "[model]\nname = 'gpt'\nheadz = 1",
            "job.toml:3: model.headz: gpt has no such parameter; did you mean `heads`?",
        ),
        (
            "[model]\nname = 'gpt'\n'a b' = 1",
            "job.toml:3: model.a b: gpt has no such parameter; it has vocab, width, heads, layers, context, head, classes, dropout",
        ),
        ("[model]\nname = 'gpt'\nlayers = 1.5", "job.toml:3: model.layers: must be a whole number, not 1.5"),
        (
            "[model]\nname = 'mlp'\nsizes = [1, 'x']",
            "job.toml:3: model.sizes: must be a list of whole numbers, not [1, \"x\"]",
        ),
        (
            "[model]\nname = 'cnn'\nsize = [1, 2, 3]",
            "job.toml:3: model.size: must be a whole number or [height, width], not [1, 2, 3]",
        ),
        (
            "[model]\nname = 'dcgan'\nchannels = [1, 2]",
            "job.toml:3: model.channels: must be a whole number, not [1, 2]",
        ),
        ("[model]\nname = 'bert'\nhead = 3", "job.toml:3: model.head: must be a word, not 3"),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'csv_text'",
            "job.toml:4: data.kind: unknown value \"csv_text\"; did you mean `csv-text`?",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\npath = 'x'",
            "job.toml:5: data.path: blobs has no such option; it has examples, classes, validation, folds, fold, buckets, shuffle",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nclases = 3",
            "job.toml:5: data.clases: unknown field; did you mean `classes`?",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nseed = 3",
            "job.toml:5: data.seed: unknown field; blobs has examples, classes, validation, folds, fold, buckets, shuffle",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nvalidation = 1",
            "job.toml:5: data.validation: must be a number from 0 to below 1, not 1",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nfolds = 1",
            "job.toml:5: data.folds: must be a whole number of at least 2, not 1",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nfold = 1",
            "job.toml:5: data.fold: says which of data.folds is for validation, and data.folds is not there",
        ),
        (
            "[model]\nname = 'gpt'\n[data]\nkind = 'blobs'\nfold = 3\nfolds = 3",
            "job.toml:5: data.fold: must be below data.folds = 3, as folds are counted from 0; it is 3",
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
    assert_eq!(Job::load(&path).unwrap().data.options.path, Some(dir.join("x.npy")));
    for (content, expected) in [
        (&b"[model]\n\xff"[..], ":2: not text in UTF-8"),
        (&vec![b'#'; MAX_FILE_BYTES as usize + 1], ": more than 1.0 MiB; is this a job or sweep file?"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = Job::load(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}{expected}", path.display()));
    }
    assert!(Job::load(dir.join("none.toml")).unwrap_err().to_string().contains("cannot read the job file"));
    assert!(Job::load(&*dir).is_err());
}
