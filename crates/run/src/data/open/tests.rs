//! Data of every kind opened, split, cut off, and refused.

use super::*;
use crate::data::options::KINDS;
use crate::scratch::ScratchDir;

fn of(kind: &str) -> DataOptions {
    DataOptions { kind: kind.into(), ..DataOptions::default() }
}

#[test]
fn every_kind_is_known_and_says_what_it_needs() {
    for (kind, _, used) in KINDS {
        let result = open(&DataOptions { examples: Some(40), length: 8, ..of(kind) });
        match used.contains(&"path") {
            true => assert!(result.err().unwrap().to_string().contains("`path`"), "{kind}"),
            false => {
                let (train, validation) = result.unwrap();
                let validation = validation.unwrap();
                assert_eq!((train.len(), validation.len()), (40, 4), "{kind}");
                assert_ne!(train.batch(&[0]).unwrap(), validation.batch(&[0]).unwrap(), "{kind}");
                assert_eq!(train.info().shape, validation.info().shape);
                assert!(
                    open(&DataOptions { validation: 0.0, examples: Some(1), ..of(kind) })
                        .unwrap()
                        .1
                        .is_none()
                );
                assert!(open(&DataOptions { validation: 1.5, ..of(kind) }).is_err());
            }
        }
    }
    assert!(open(&of("digit")).err().unwrap().to_string().contains("did you mean `digits`"));
}

#[test]
fn folds_of_every_kind_are_parts_of_its_training_examples() {
    let dir = ScratchDir::new();
    let rows: String = (0..50).map(|i| format!("{i},{},word {i}\n", i % 3)).collect();
    let table = dir.write("t.csv", format!("a,y,t\n{rows}").as_bytes());
    let numbers: String = (0..50).map(|i| format!("{i},{}\n", i % 3)).collect();
    let numbers = dir.write("n.csv", format!("a,y\n{numbers}").as_bytes());
    let text = dir.write("t.txt", rows.as_bytes());
    let held = dir.write("held.txt", rows.as_bytes());
    let base = DataOptions { examples: Some(41), length: 8, folds: Some(3), ..of("") };
    let made = ["digits", "blobs", "spirals", "points", "noise", "tokens", "sequences"];
    let made = made.map(|kind| DataOptions { kind: kind.into(), ..base.clone() });
    let labelled = |kind: &str, path: &Path| DataOptions {
        kind: kind.into(),
        path: Some(path.into()),
        label_column: Some("y".into()),
        text_column: Some("t".into()),
        ..base.clone()
    };
    let read = ["text", "lines"].map(|kind| DataOptions {
        kind: kind.into(),
        path: Some(text.clone()),
        validation_path: Some(held.clone()),
        ..base.clone()
    });
    let one = |set: &dyn Dataset, i: usize| format!("{:?}", set.batch(&[i]).unwrap());
    for options in made.into_iter().chain(read).chain([labelled("csv-text", &table)]) {
        let kind = &options.kind;
        let whole =
            open(&DataOptions { folds: None, validation: 0.0, validation_path: None, ..options.clone() });
        let whole = whole.unwrap().0;
        let mut all: Vec<String> = (0..whole.len()).map(|i| one(&*whole, i)).collect();
        let mut held = Vec::new();
        for fold in 0..3 {
            let (train, validation) = open(&DataOptions { fold, ..options.clone() }).unwrap();
            let validation = validation.unwrap();
            assert_eq!(train.len() + validation.len(), whole.len(), "{kind}");
            assert!(validation.len().abs_diff(whole.len() / 3) <= 1, "{kind}");
            held.extend((0..validation.len()).map(|i| one(&*validation, i)));
        }
        all.sort();
        held.sort();
        assert_eq!(held, all, "{kind}");
    }
    // What is learned from a table is learned from what is left of it.
    let csv = labelled("csv", &numbers);
    let means = [0, 1].map(|fold| open(&DataOptions { fold, ..csv.clone() }).unwrap().0.info().mean);
    assert_ne!(means[0], means[1]);
    for (options, expected) in [
        (DataOptions { folds: Some(1), ..of("blobs") }, "`folds`: 1 is not enough"),
        (DataOptions { fold: 3, kind: "blobs".into(), ..base.clone() }, "no fold 3 of 3"),
        (DataOptions { folds: Some(42), kind: "blobs".into(), ..base.clone() }, "more than the 41 examples"),
        (DataOptions { stride: Some(4), kind: "sequences".into(), ..base }, "use a stride of at least 8"),
    ] {
        let error = open(&options).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn text_parts_do_not_overlap_and_share_characters() {
    let dir = ScratchDir::new();
    let content: String = ('a'..='z').chain('A'..='Z').collect();
    let path = dir.write("t.txt", content.as_bytes());
    let options = DataOptions {
        path: Some(path),
        length: 4,
        stride: Some(1),
        validation: 0.25,
        vocabulary: "chars".into(),
        ..of("text")
    };
    let (train, validation) = open(&options).unwrap();
    let validation = validation.unwrap();
    let ids = |set: &dyn Dataset| -> Vec<i64> {
        let all: Vec<usize> = (0..set.len()).collect();
        let b = set.batch(&all).unwrap();
        [b.get("x").unwrap().as_i64().unwrap(), b.get("y").unwrap().as_i64().unwrap()].concat()
    };
    let (a, b) = (ids(&*train), ids(&*validation));
    assert!(a.iter().all(|id| !b.contains(id)));
    assert_eq!(train.info().vocabulary, Some(52));
    let stored = DataOptions { characters: train.info().characters, ..options.clone() };
    assert_eq!(ids(&*open(&stored).unwrap().0), a);
    let separate = DataOptions { validation_path: Some(dir.write("v.txt", b"zzzzzzz")), ..options };
    assert_eq!(open(&separate).unwrap().1.unwrap().info().vocabulary, Some(52));
}

#[test]
fn tables_are_standardised_by_the_training_part() {
    let dir = ScratchDir::new();
    let rows: String = (0..100).map(|i| format!("{i},{}\n", i % 3)).collect();
    let path = dir.write("t.csv", format!("a,y\n{rows}").as_bytes());
    let options = DataOptions { path: Some(path), label_column: Some("y".into()), ..of("csv") };
    let (train, validation) = open(&options).unwrap();
    assert_eq!((train.len(), validation.unwrap().len()), (90, 10));
    let all: Vec<usize> = (0..90).collect();
    let b = train.batch(&all).unwrap();
    let sum: f32 = b.get("x").unwrap().as_f32().unwrap().iter().sum();
    assert!(sum.abs() < 1e-3, "{sum}");
    let given = DataOptions { mean: Some(vec![1.0]), std: Some(vec![2.0]), ..options.clone() };
    assert_eq!(open(&given).unwrap().0.info().mean, [1.0]);
    assert!(open(&DataOptions { mean: Some(vec![1.0]), std: None, ..options.clone() }).is_err());
    let text = DataOptions { text_column: Some("a".into()), ..options };
    let (texts, _) = open(&DataOptions { kind: "csv-text".into(), ..text }).unwrap();
    assert_eq!((texts.info().classes, texts.length(0).is_some()), (Some(3), true));
}

#[test]
fn augmentation_wraps_the_training_part() {
    let plain = DataOptions { examples: Some(20), ..of("digits") };
    let (train, validation) = open(&DataOptions { augment: true, ..plain }).unwrap();
    let validation = validation.unwrap();
    assert_ne!(train.batch_in_epoch(&[0, 1], 0).unwrap(), train.batch_in_epoch(&[0, 1], 1).unwrap());
    assert_eq!(validation.batch_in_epoch(&[0], 0).unwrap(), validation.batch(&[0]).unwrap());
    assert!(open(&DataOptions { augment: true, ..of("blobs") }).is_err());
}

/// Writes files of every kind. Returns the options that open them and the file that batches read.
fn on_disk(dir: &ScratchDir) -> Vec<(DataOptions, std::path::PathBuf)> {
    let with = |kind: &str, path: &Path| DataOptions {
        path: Some(path.into()),
        label_column: Some("y".into()),
        text_column: Some("t".into()),
        length: 8,
        validation: 0.25,
        ..of(kind)
    };
    let text = |name: &str| dir.write(name, "a small text, é, in lines.\n".repeat(100).as_bytes());
    let idx = |name: &str, shape: &[u32], data: &[u8]| {
        let extents: Vec<u8> = shape.iter().flat_map(|n| n.to_be_bytes()).collect();
        let shape = [&[0, 0, 8, shape.len() as u8][..], &extents].concat();
        dir.write(name, &[&shape, data].concat())
    };
    let npy = |name: &str, descr: &str, shape: &str, data: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let start =
            [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
        dir.write(name, &[&start, data].concat())
    };
    let png = |name: &str| {
        let mut file = std::io::Cursor::new(Vec::new());
        image::GrayImage::new(3, 5).write_to(&mut file, image::ImageFormat::Png).unwrap();
        dir.write(name, &file.into_inner())
    };
    let mut all = Vec::new();
    for vocabulary in ["bytes", "chars"] {
        for kind in ["text", "lines", "sentences"] {
            let path = text(&format!("{kind}.{vocabulary}"));
            all.push((DataOptions { vocabulary: vocabulary.into(), ..with(kind, &path) }, path));
        }
    }
    let (x, y) = (idx("x", &[40, 2, 2], &[7; 160]), idx("y", &[40], &[[0; 20], [1; 20]].concat()));
    all.push((DataOptions { labels: Some(y), ..with("idx", &x) }, x));
    for (kind, labels) in [("cifar10", 1), ("cifar100", 2)] {
        let path = dir.write(kind, &vec![3; 8 * (3072 + labels)]);
        all.push((with(kind, &path), path));
    }
    let (x, y) = (npy("x.npy", "|u1", "(40, 2)", &[7; 80]), npy("y.npy", "|u1", "(40,)", &[0; 40]));
    all.push((DataOptions { labels: Some(y), ..with("npy", &x) }, x));
    let z = npy("z.npy", "<f4", "(40, 3)", &[0; 480]);
    let x = npy("x2.npy", "|u1", "(40, 2)", &[7; 80]);
    all.push((DataOptions { labels: Some(z.clone()), ..with("npy", &x) }, z));
    let image = png("images/a/1.png");
    ["images/a/2.png", "images/b/3.png", "images/b/4.png"].into_iter().for_each(|name| drop(png(name)));
    let folder = dir.join("images");
    all.push((with("images", &folder), image));
    let table = dir.write("t.csv", format!("a,y\n{}", "1,p\n2,q\n".repeat(20)).as_bytes());
    all.push((with("csv", &table), table));
    let table = dir.write("tt.csv", format!("t,y\n{}", "long,p\nword,q\n".repeat(20)).as_bytes());
    all.push((with("csv-text", &table), table));
    all
}

#[test]
fn a_file_that_is_cut_off_during_the_run_is_an_error() {
    let dir = ScratchDir::new();
    let files = on_disk(&dir);
    for (kind, _, used) in KINDS.iter().filter(|(_, _, used)| used.contains(&"path")) {
        assert!(files.iter().any(|(options, _)| options.kind == *kind), "{kind} {used:?}");
    }
    for (options, file) in files {
        let kind = &options.kind;
        let (train, validation) = open(&options).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let batches = |set: &dyn Dataset| {
            let last: Vec<usize> = (0..set.len()).collect();
            set.batch(&last)
        };
        assert!(batches(&*train).is_ok(), "{kind}");
        let size = std::fs::metadata(&file).unwrap().len();
        std::fs::File::options().write(true).open(&file).unwrap().set_len(size / 8).unwrap();
        // Tables are read into memory at once; nothing can happen to them.
        if kind.starts_with("csv") {
            assert!(batches(&*train).is_ok(), "{kind}");
            continue;
        }
        let message = batches(&*train).and(batches(&*validation.unwrap())).unwrap_err().to_string();
        assert!(message.contains(&*file.to_string_lossy()), "{kind}: {message}");
        assert!(
            kind == "images" || message.contains("the file was changed during the run"),
            "{kind}: {message}"
        );
    }
}

#[test]
fn what_is_no_regular_file_is_refused_before_it_is_opened() {
    let dir = ScratchDir::new();
    let pipe = dir.join("pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (options, _) in on_disk(&dir) {
        let piped = match options.kind.as_str() {
            "images" => continue,
            _ => DataOptions { path: Some(pipe.clone()), ..options.clone() },
        };
        let message = open(&piped).err().unwrap().to_string();
        assert!(message.contains("not a regular file"), "{}: {message}", options.kind);
        if options.labels.is_some() {
            let message = open(&DataOptions { labels: Some(pipe.clone()), ..options.clone() }).err().unwrap();
            assert!(message.to_string().contains("not a regular file"), "{}: {message}", options.kind);
        }
        if ["text", "lines"].contains(&options.kind.as_str()) {
            let held = DataOptions { validation_path: Some(pipe.clone()), ..options.clone() };
            assert!(open(&held).err().unwrap().to_string().contains("not a regular file"));
            let tokens = DataOptions {
                vocabulary: "tokenizer".into(),
                tokenizer: Some(pipe.clone()),
                ..options.clone()
            };
            assert!(open(&tokens).err().unwrap().to_string().contains("not a regular file"));
        }
    }
    // Among images, a pipe is left out.
    let images = DataOptions { path: Some(dir.join("images")), validation: 0.0, ..of("images") };
    std::fs::rename(&pipe, dir.join("images/a/pipe.png")).unwrap();
    let train = open(&images).unwrap().0;
    assert_eq!((train.len(), train.info().notes.len()), (4, 1));
    std::fs::remove_file(dir.join("images/a/1.png")).unwrap();
    std::fs::rename(dir.join("images/a/pipe.png"), dir.join("images/a/1.png")).unwrap();
    let message = train.batch(&[0]).unwrap_err().to_string();
    assert!(message.contains("1.png: is not a regular file"), "{message}");
}

#[test]
fn info_tells_what_was_learned_of_the_part_at_hand() {
    let dir = ScratchDir::new();
    for (options, _) in on_disk(&dir) {
        let (train, validation) = open(&options).unwrap();
        let (info, held) = (train.info(), validation.unwrap().info());
        let kind = &options.kind;
        let whole = open(&DataOptions { validation: 0.0, ..options.clone() }).unwrap().0.info();
        if let Some(classes) = info.classes {
            assert_eq!((info.class_counts.len(), held.class_counts.len()), (classes, classes), "{kind}");
            assert_eq!(info.class_counts.iter().sum::<u64>(), info.examples as u64, "{kind}");
            let both: Vec<u64> =
                info.class_counts.iter().zip(&held.class_counts).map(|(a, b)| a + b).collect();
            assert_eq!(both, whole.class_counts, "{kind}");
        } else {
            assert!(info.class_counts.is_empty() && info.class_names.is_empty(), "{kind}");
        }
        assert_eq!(info.characters.is_some(), options.vocabulary == "chars", "{kind}");
        assert_eq!(info.columns.is_empty(), kind != "csv");
    }
    let (numbers, y) = on_disk(&dir)
        .into_iter()
        .find(|(options, file)| options.kind == "npy" && file.ends_with("z.npy"))
        .unwrap();
    assert!(y.exists());
    let train = open(&numbers).unwrap().0;
    assert_eq!((train.info().targets, train.info().classes), (Some(3), None));
    assert_eq!(train.batch(&[0, 1]).unwrap().get("y").unwrap().shape(), [2, 3]);
}

#[test]
fn a_thousand_million_examples_take_no_memory_or_are_refused() {
    let many = Some(1_000_000_000);
    for kind in ["digits", "blobs", "spirals", "points", "noise", "tokens"] {
        let options = DataOptions { examples: many, length: 4, ..of(kind) };
        let (train, validation) = open(&options).unwrap();
        assert_eq!((train.len(), validation.unwrap().len()), (1_000_000_000, 100_000_000), "{kind}");
        assert!(train.info().class_counts.is_empty());
        assert!(train.batch(&[999_999_999]).is_ok(), "{kind}");
        let folded = DataOptions { folds: Some(2), ..options };
        let message = open(&folded).err().unwrap().to_string();
        assert!(message.contains("`examples`: 1000000000 are too many to be cut into folds"), "{message}");
    }
    for options in [
        DataOptions { examples: many, ..of("sequences") },
        DataOptions { examples: many, min_length: Some(2), ..of("tokens") },
    ] {
        let message = open(&options).err().unwrap().to_string();
        assert!(message.contains("`examples`: 1000000000 "), "{message}");
    }
}
