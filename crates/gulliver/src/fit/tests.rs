//! Every make of model with every kind of data: it trains, or the message names the field to change.

use super::weights::balanced;
use super::*;
use crate::local::LocalDevice;
use crate::setup::{open_data, prepare};
use crate::test_dir::TestDir;
use gulliver_plan::devices::strategy::JobGraphs;
use gulliver_run::data::Sampler;
use gulliver_run::train::{self, Done, Resumed, TrainOptions};
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const MODELS_TRIED: &[&str] = &[
    "name = 'mlp-tiny'",
    "name = 'cnn'\nwidth = 2",
    "name = 'resnet18'\nwidth = 2\nblocks = [1, 1]",
    "name = 'vgg11'\nwidth = 2\nhidden = 8\npool = 1",
    "name = 'mobilenet_v2'\nwidth = 0.1",
    "name = 'dcgan'\nlatent = 4\ngenerator = 2\ndiscriminator = 2",
    "name = 'pointnet'\nwidth = 2",
    "name = 'cosmoflow'\nwidth = 2\nlayers = 2\nhidden = 8",
    "name = 'lstm'\nwidth = 8\nlayers = 1",
    "name = 'gpt'\nwidth = 8\nheads = 2\nlayers = 1",
    "name = 'bert'\nwidth = 8\nheads = 2\nlayers = 1\nhidden = 8",
];

const IMAGE_MODELS: &[&str] = &["cnn", "resnet18", "vgg11", "mobilenet_v2", "mlp-tiny"];

/// Data, and the models that can be trained on it.
const DATA_TRIED: &[(&str, &[&str])] = &[
    ("kind = 'blobs'\nexamples = 40", &["mlp-tiny"]),
    ("kind = 'csv'\npath = 'classes.csv'\nlabel_column = 'y'", &["mlp-tiny"]),
    ("kind = 'csv'\npath = 'numbers.csv'\nlabel_column = 'y'\nregression = true", &["mlp-tiny"]),
    ("kind = 'npy'\npath = 'x.npy'\nlabels = 'y.npy'", &["mlp-tiny"]),
    ("kind = 'npy'\npath = 'images.npy'\nlabels = 'y.npy'", IMAGE_MODELS),
    ("kind = 'npy'\npath = 'cubes.npy'\nlabels = 'y.npy'", &["mlp-tiny", "cosmoflow"]),
    ("kind = 'npy'\npath = 'x.npy'\nlabels = 'column.npy'", &["mlp-tiny"]),
    ("kind = 'npy'\npath = 'whole.npy'\nlabels = 'column.npy'\nnormalise = true", &["mlp-tiny"]),
    ("kind = 'digits'\nexamples = 40\nsize = 32", IMAGE_MODELS),
    ("kind = 'noise'\nexamples = 40\nshape = [3, 32, 40]\nclasses = 3", IMAGE_MODELS),
    (
        "kind = 'noise'\nexamples = 40\nshape = [3, 64, 64]\nclasses = 3",
        &["cnn", "resnet18", "vgg11", "mobilenet_v2", "mlp-tiny", "dcgan"],
    ),
    ("kind = 'noise'\nexamples = 40\nshape = [2, 8, 8, 8]\nclasses = 3", &["mlp-tiny"]),
    ("kind = 'points'\nexamples = 40\nlength = 20", &["mlp-tiny", "pointnet"]),
    ("kind = 'tokens'\nexamples = 40\nlength = 9\ntokens = 20\nclasses = 3", &["lstm", "gpt", "bert"]),
    (
        "kind = 'tokens'\nexamples = 40\nlength = 9\nmin_length = 2\ntokens = 20\nclasses = 3",
        &["lstm", "gpt", "bert"],
    ),
    (
        "kind = 'csv-text'\npath = 'texts.csv'\ntext_column = 't'\nlabel_column = 'y'",
        &["lstm", "gpt", "bert"],
    ),
    ("kind = 'tokens'\nexamples = 40\nlength = 9\ntokens = 20", &["lstm", "gpt"]),
    ("kind = 'sequences'\nexamples = 40\nlength = 9\nmasked = 0.2", &["lstm", "gpt", "bert"]),
];

/// An array of version 1.0 in NumPy's format.
fn npy(shape: &str, data: &[f32]) -> Vec<u8> {
    let data: Vec<[u8; 4]> = data.iter().map(|x| x.to_le_bytes()).collect();
    array("<f4", shape, &data)
}

fn array(descr: &str, shape: &str, data: &[[u8; 4]]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    data.iter().for_each(|x| bytes.extend(x));
    bytes
}

fn files(dir: &Path) {
    let rows = |label: &dyn Fn(usize) -> String| -> String {
        let row = |i: usize| format!("{},{},{}\n", i % 7, (i * i) % 5, label(i));
        format!("a,b,y\n{}", (0..40).map(row).collect::<String>())
    };
    fs::write(dir.join("classes.csv"), rows(&|i| ["cat", "dog"][i % 7 / 4].into())).unwrap();
    fs::write(dir.join("numbers.csv"), rows(&|i| format!("{}.5", 3 * (i % 7) + 1000))).unwrap();
    let text = |i: usize| format!("{},{}\n", ["good", "bad, bad", "x"][i % 3].replace(',', ""), i % 3);
    fs::write(dir.join("texts.csv"), format!("t,y\n{}", (0..40).map(text).collect::<String>())).unwrap();
    let numbers = |n: usize| (0..n).map(|i| ((i * 37) % 11) as f32 / 5.0 - 1.0).collect::<Vec<_>>();
    fs::write(dir.join("x.npy"), npy("(40, 5)", &numbers(200))).unwrap();
    fs::write(dir.join("y.npy"), npy("(40,)", &numbers(40))).unwrap();
    fs::write(dir.join("images.npy"), npy("(40, 1, 32, 33)", &numbers(40 * 32 * 33))).unwrap();
    let wholes = |n: usize| (0..n).map(|i| (i as i32 % 3).to_le_bytes()).collect::<Vec<_>>();
    fs::write(dir.join("whole.npy"), array("<i4", "(40, 5)", &wholes(200))).unwrap();
    fs::write(dir.join("whole_images.npy"), array("<i4", "(40, 1, 8, 8)", &wholes(40 * 64))).unwrap();
    fs::write(dir.join("column.npy"), array("<i4", "(40, 1)", &wholes(40))).unwrap();
    fs::write(dir.join("cubes.npy"), npy("(40, 2, 8, 8, 8)", &numbers(40 * 1024))).unwrap();
}

fn job(dir: &Path, model: &str, data: &str, train: &str) -> Job {
    let text = format!("[model]\n{model}\n[data]\n{data}\n[train]\nbatch = 8\n{train}\n");
    let path = dir.join("job.toml");
    fs::write(&path, text).unwrap();
    Job::load(&path).unwrap_or_else(|e| panic!("{e}"))
}

/// Trains on one thread; what the run came to, and what was fitted.
fn trained(job: &Job) -> Result<(Done, Vec<(String, ParamValue)>), Error> {
    let mut prepared = prepare(job, open_data(job)?, None)?;
    let (train, evaluation) = (prepared.graphs.train, prepared.graphs.evaluation);
    let partials = job.train.partials as u32;
    let options = LocalDevice { threads: 1, partials, ..LocalDevice::default() };
    let mut session = crate::local::session(train, Some(evaluation), &options, job.train.seed)?;
    let (schedule, stop) = (&mut prepared.schedule, AtomicBool::new(false));
    let done = train::train(
        &mut session,
        schedule,
        &prepared.sources,
        &prepared.options,
        &Resumed::default(),
        &stop,
        &mut |_| (),
    )?;
    Ok((done, prepared.fitted))
}

fn said(result: Result<(Done, Vec<(String, ParamValue)>), Error>) -> String {
    result.map(|(done, _)| done.metrics).unwrap_err().to_string()
}

#[test]
fn every_model_trains_on_every_data_or_says_which_field_to_change() {
    let dir = TestDir::new("fit-all");
    files(&dir);
    for (data, trains) in DATA_TRIED {
        for model in MODELS_TRIED {
            let job = job(&dir, model, data, "steps = 1");
            let label = format!("{} on {data}", job.model.name);
            let result = trained(&job);
            if trains.contains(&job.model.name.as_str()) {
                let (done, _) = result.unwrap_or_else(|e| panic!("{label}: {e}"));
                assert!(done.loss.is_finite() && !done.metrics.is_empty(), "{label}: {done:?}");
                continue;
            }
            let said = said(result);
            let field = [": model.name: `", ": data.masked: `"].iter().any(|field| said.contains(field));
            assert!(field && said.contains("; ") && !said.contains('\n'), "{label}: {said}");
            for word in ["dtype", "i64", "f32", "shape ["] {
                assert!(!said.contains(word), "{label}: {said}");
            }
        }
    }
}

#[test]
fn what_was_given_against_the_data_is_named() {
    let dir = TestDir::new("fit-given");
    files(&dir);
    let texts = "kind = 'csv-text'\npath = 'texts.csv'\ntext_column = 't'\nlabel_column = 'y'";
    let numbers = "kind = 'csv'\npath = 'numbers.csv'\nlabel_column = 'y'\nregression = true";
    for (model, data, train, expected) in [
        (
            "name = 'bert'\nhead = 'mlm'",
            texts,
            "",
            "model.head: \"mlm\" predicts hidden tokens, but data.kind = \"csv-text\" has a class for each text; \
             set model.head = \"classify\", or leave it out",
        ),
        (
            "name = 'gpt'\nhead = 'regress'",
            "kind = 'sequences'\nexamples = 40",
            "",
            "model.head: \"regress\" predicts numbers, but data.kind = \"sequences\" has a token to predict at \
             every place of a text; set model.head = \"lm\", or leave it out",
        ),
        (
            "name = 'mlp'\nhead = 'classify'",
            numbers,
            "",
            "model.head: \"classify\" predicts a class, but data.kind = \"csv\" has numbers to predict for each \
             example; set model.head = \"regress\", or leave it out",
        ),
        (
            "name = 'mlp'\nhead = 'guess'",
            numbers,
            "",
            "model: model `mlp`: parameter `head` must be `classify` or `regress`, got `guess`",
        ),
        (
            "name = 'cnn'",
            numbers,
            "",
            "model.name: `cnn` takes images, but data.kind = \"csv\" has rows of 2 numbers; use \"mlp\"",
        ),
        (
            "name = 'bert'",
            "kind = 'sequences'\nexamples = 40",
            "",
            "data.masked: `bert` predicts hidden tokens, and none are hidden; set data.masked = 0.15, or use \
             \"gpt\" or \"lstm\" to predict the next token",
        ),
        (
            "name = 'mlp'",
            "kind = 'npy'\npath = 'whole.npy'\nlabels = 'y.npy'",
            "",
            "model.name: `mlp` takes numbers, but data.kind = \"npy\" has text (whole numbers are read as tokens); \
             use \"gpt\", \"lstm\" or \"bert\", or set data.normalise = true to have whole numbers read as numbers",
        ),
        (
            "name = 'cnn'",
            "kind = 'npy'\npath = 'whole_images.npy'\nlabels = 'y.npy'",
            "",
            "data.normalise: x has whole numbers, and `cnn` takes images; set data.normalise = true to have them \
             read as numbers",
        ),
        (
            "name = 'mlp'",
            "kind = 'npy'\npath = 'x.npy'\nlabels = 'whole.npy'",
            "",
            "data.path: y has 5 whole numbers for each example; store floats to have them predicted",
        ),
        (
            "name = 'dcgan'",
            "kind = 'digits'\nexamples = 40",
            "",
            "model.name: `dcgan` takes images of 64x64 pixels, but those of data.kind = \"digits\" have 28x28; \
             set data.size = 64 where the kind has it, or use images of that size",
        ),
        (
            "name = 'mlp'\nsizes = [2, 3]",
            numbers,
            "",
            "model.sizes: 3 is too many: the data has 1 numbers to",
        ),
        (
            "name = 'mlp'\nsizes = [5, 1]",
            numbers,
            "",
            "model.sizes: starts with 5, but the data has rows of 2 numbers; start with 2, or leave it out",
        ),
        (
            "name = 'cnn'\nsize = [28, 20]",
            "kind = 'digits'\nexamples = 40",
            "",
            "model.size: is [28, 20], but the data has images of 28x28 pixels with 1 channels; leave it out to \
             have it fitted",
        ),
        (
            "name = 'cnn'\nchannels = 3",
            "kind = 'digits'\nexamples = 40",
            "",
            "model.channels: is 3, but the data has images of 28x28 pixels with 1 channels; leave it out",
        ),
        (
            "name = 'gpt'",
            "kind = 'sequences'\nexamples = 40",
            "class_weights = [1, 2]",
            "train.class_weights: `gpt` on data.kind = \"sequences\" predicts no classes; leave it out",
        ),
        (
            "name = 'mlp'",
            "kind = 'blobs'\nexamples = 40\nclasses = 3",
            "class_weights = [1, 2]",
            "train.class_weights: has 2 weights, but the data has 3 classes",
        ),
    ] {
        let said = said(trained(&job(&dir, model, data, &format!("steps = 1\n{train}"))));
        let found = said.split_once("job.toml").map_or(said.as_str(), |(_, rest)| rest);
        let found = found.split_once(": ").map_or(found, |(_, rest)| rest);
        assert!(found.starts_with(expected), "{said}\n  instead of\n{expected}");
    }
}

fn setting(fitted: &[(String, ParamValue)], name: &str) -> String {
    fitted.iter().find(|(n, _)| n == name).map_or("-".into(), |(_, value)| value.to_string())
}

#[test]
fn the_data_answers_what_the_job_leaves_open() {
    let dir = TestDir::new("fit-answers");
    files(&dir);
    for (model, data, expected) in [
        ("name = 'mlp-tiny'", DATA_TRIED[2].0, &[("head", "regress"), ("sizes", "[2, 32, 1]")][..]),
        ("name = 'mlp-tiny'", DATA_TRIED[1].0, &[("head", "-"), ("sizes", "[2, 32, 2]")]),
        ("name = 'cnn'", DATA_TRIED[9].0, &[("size", "[32, 40]"), ("channels", "3"), ("classes", "3")]),
        ("name = 'cnn'", DATA_TRIED[8].0, &[("size", "32"), ("channels", "-"), ("head", "-")]),
        ("name = 'cnn'", DATA_TRIED[4].0, &[("size", "[32, 33]"), ("head", "regress"), ("classes", "1")]),
        ("name = 'gpt'", DATA_TRIED[14].0, &[("head", "classify"), ("vocab", "20"), ("classes", "3")]),
        ("name = 'gpt'", DATA_TRIED[16].0, &[("head", "-"), ("classes", "-")]),
        ("name = 'cosmoflow'", DATA_TRIED[5].0, &[("outputs", "1"), ("size", "8"), ("channels", "2")]),
    ] {
        let job = job(&dir, model, data, "steps = 1");
        let prepared = prepare(&job, open_data(&job).unwrap(), None).unwrap();
        for (name, value) in expected {
            assert_eq!(setting(&prepared.fitted, name), *value, "{} {name} on {data}", job.model.name);
        }
    }
}

#[test]
fn a_regression_of_a_table_learns_and_says_how_well() {
    let dir = TestDir::new("fit-regression");
    files(&dir);
    // The numbers to predict are near 1000: only a model that learns their mean has a small error.
    let train = "steps = 400\n[optimizer]\nname = 'adam'\nlr = 0.1";
    let (done, _) = trained(&job(&dir, "name = 'mlp'\nsizes = [2, 32, 1]", DATA_TRIED[2].0, train)).unwrap();
    let names: Vec<&str> = done.metrics.keys().map(String::as_str).collect();
    assert_eq!(names, ["loss", "mae", "r2", "rmse"]);
    assert_eq!(done.confusion, None);
    let (loss, rmse) = (done.metrics["loss"], done.metrics["rmse"]);
    assert!((rmse * rmse - loss).abs() <= 1e-5 * loss.max(1e-3), "{:?}", done.metrics);
    assert!(done.metrics["mae"] <= rmse && done.metrics["mae"] < 100.0, "{:?}", done.metrics);
}

#[test]
fn classes_are_counted_by_class_in_any_slices() {
    let dir = TestDir::new("fit-confusion");
    files(&dir);
    let data = "kind = 'blobs'\nexamples = 80\nclasses = 3\nvalidation = 0.25";
    let job = job(&dir, "name = 'mlp-tiny'", data, "steps = 30");
    let (done, _) = trained(&job).unwrap();
    let (metrics, matrix) = (done.metrics, done.confusion.unwrap());
    let sum: u64 = matrix.iter().flatten().sum();
    let right: u64 = (0..3).map(|class| matrix[class][class]).sum();
    assert!(sum > 0 && (metrics["accuracy"] - right as f64 / sum as f64).abs() < 1e-12);
    assert!((0.0..=1.0).contains(&metrics["macro_f1"]));
    let prepared = prepare(&job, open_data(&job).unwrap(), None).unwrap();
    let (set, _) = prepared.sources.validation.unwrap();
    let options = LocalDevice { threads: 1, ..LocalDevice::default() };
    let JobGraphs { train, evaluation, .. } = prepared.graphs;
    let mut session = crate::local::session(train, Some(evaluation), &options, 0).unwrap();
    let scores = [set.len(), 7, 3, 1].map(|slice| {
        let sampler = Sampler::new(set.len(), slice, 0, false, false, None).unwrap();
        let (options, batches) = (TrainOptions::default(), sampler.steps_per_epoch());
        let scores = train::evaluate(&mut session, &set, &sampler, batches, &options, &mut |_, _| true);
        let scores = scores.unwrap().unwrap();
        (scores.confusion, scores.metrics["macro_f1"], scores.metrics["accuracy"])
    });
    assert_eq!(scores[0].0.iter().flatten().flatten().sum::<u64>(), set.len() as u64);
    let first = scores[0].clone();
    scores.iter().for_each(|score| assert_eq!(*score, first));
}

#[test]
fn weights_of_classes_count_alike_in_any_slices() {
    let dir = TestDir::new("fit-weights");
    let data = "kind = 'blobs'\nexamples = 64\nclasses = 3\nshuffle = false";
    let loss = |train: &str| {
        let (done, _) = trained(&job(&dir, "name = 'mlp-tiny'", data, train)).unwrap();
        (done.loss, done.metrics)
    };
    let (plain, _) = loss("steps = 1");
    let (alike, scored) = loss("steps = 1\nclass_weights = [2, 2, 2]");
    assert!((plain - alike).abs() < 1e-6 * plain, "{plain} {alike}");
    let weighted = loss("steps = 1\nclass_weights = [1, 5, 0.5]");
    assert!((weighted.0 - plain).abs() > 1e-3 * plain, "{plain} {}", weighted.0);
    assert!((weighted.1["loss"] - scored["loss"]).abs() > 1e-4, "{weighted:?}");
    for slices in [2, 4] {
        let cut = loss(&format!("steps = 1\nclass_weights = [1, 5, 0.5]\npartials = {slices}"));
        assert!((cut.0 - weighted.0).abs() < 1e-6 * plain, "{} {}", cut.0, weighted.0);
        assert!((cut.1["loss"] - weighted.1["loss"]).abs() < 1e-5, "{cut:?} {weighted:?}");
        assert!(!cut.1.contains_key("weight"));
    }
}

#[test]
fn balanced_weights_make_up_for_rare_classes() {
    assert_eq!(balanced(&[30, 10, 20]), [20.0 / 30.0, 2.0, 1.0]);
    assert_eq!(balanced(&[4, 0]), [0.5, 1.0]);
    let dir = TestDir::new("fit-balanced");
    let job = job(&dir, "name = 'mlp'", "kind = 'blobs'\nexamples = 40", "class_weights = 'balanced'");
    let (train, _) = open_data(&job).unwrap();
    let mut facts = DataFacts::of(train.as_ref(), None).unwrap();
    let classes = facts.info.classes.unwrap();
    facts.info.class_counts = vec![];
    let said = class_weights(&job, &[], &facts).unwrap_err().to_string();
    assert!(said.contains("train.class_weights: data.kind = \"blobs\" does not tell how many"), "{said}");
    facts.info.class_counts = vec![5; classes];
    assert_eq!(class_weights(&job, &[], &facts).unwrap().unwrap().as_ref(), vec![1.0; classes]);
}
