//! Raw inputs of every kind give the batches of training, and mappings are compared.

use super::*;
use crate::data::{Batch, Dataset, open};
use crate::scratch::ScratchDir;
use std::path::{Path, PathBuf};

fn all(set: &dyn Dataset) -> Batch {
    set.batch(&(0..set.len()).collect::<Vec<_>>()).unwrap()
}

fn options(kind: &str, path: &Path) -> DataOptions {
    DataOptions { kind: kind.into(), path: Some(path.into()), validation: 0.0, ..DataOptions::default() }
}

/// Opens `options`, stores the mapping as text, and opens `inputs` with it: "x" must equal that of training, and so must
/// "y" if `labelled`.
fn check(options: &DataOptions, inputs: &[PathBuf], labelled: bool) -> Inputs {
    let train = open(options).unwrap().0;
    let mapping = Mapping::of(options, &train.info());
    let text = serde_json::to_string(&mapping).unwrap();
    let restored: Mapping = serde_json::from_str(&text).unwrap();
    assert_eq!(restored, mapping);
    let found = restored.open_inputs(inputs).unwrap_or_else(|error| panic!("{}: {error}", options.kind));
    assert_eq!(found.labelled, labelled, "{}", options.kind);
    let (expected, batch) = (all(&*train), all(&*found.set));
    for field in ["x", "mask", "length"] {
        assert_eq!(batch.get(field), expected.get(field), "{} {field}", options.kind);
    }
    assert_eq!(batch.get("y"), expected.get("y").filter(|_| labelled), "{}", options.kind);
    found
}

#[test]
fn tables_are_read_by_column_name() {
    let dir = ScratchDir::new();
    let table = dir.write("t.csv", b"a,name,b,y\n1,p,2,dog\n3,q,,cat\n,r,5,dog\n");
    let with = DataOptions {
        label_column: Some("y".into()),
        ignore_columns: vec!["name".into()],
        missing: crate::data::options::Missing::Mean,
        ..options("csv", &table)
    };
    check(&with, std::slice::from_ref(&table), true);
    let other = dir.write("o.csv", b"b;a;more\n2;1;x\nNA;3;x\n5;;x\n");
    let found = check(&with, std::slice::from_ref(&other), false);
    assert_eq!(found.name(2), "row 3");
    let empty_labels = dir.write("e.csv", b"b,a,y\n2,1,\n,3,\n5,,\n");
    check(&with, &[empty_labels], false);
    let first = dir.write("1.csv", b"b,a,y\n2,1,dog\n");
    let second = dir.write("2.csv", b"a,b,y\n3,,cat\n,5,dog\n");
    let found = check(&with, &[first, second.clone()], true);
    assert_eq!(found.name(2), format!("{} row 2", second.display()));
    let mapping = Mapping::of(&with, &open(&with).unwrap().0.info());
    for (content, part) in [
        ("a,c\n1,2\n", "has no column `b`; it has: a, c"),
        ("a,b,y\n1,2,bird\n", "line 2: label `bird` is none of the known classes: cat, dog"),
        ("a,b\n1,x\n", "line 2: column `b`: `x` is not a finite number"),
        ("a,b\n", "has no rows"),
    ] {
        let message =
            mapping.open_inputs(&[dir.write("n.csv", content.as_bytes())]).err().unwrap().to_string();
        assert!(message.contains(part), "{message}");
    }
    let numbers = dir.write("r.csv", b"a,y\n1,0.5\n2,1.5\n");
    let regression =
        DataOptions { label_column: Some("y".into()), regression: true, ..options("csv", &numbers) };
    check(&regression, &[numbers], true);
    let strict = Mapping { fill: vec![], ..mapping };
    let message = strict.open_inputs(&[other]).err().unwrap().to_string();
    assert!(message.contains("line 3: column `b`: `NA` is a missing value"), "{message}");
}

#[test]
fn texts_come_from_a_table_or_line_by_line() {
    let dir = ScratchDir::new();
    let table = dir.write("t.csv", "t,y\ngood é,1\nbad,0\n".as_bytes());
    let lines = dir.write("t.txt", "good é\n\nbad\n".as_bytes());
    for vocabulary in ["bytes", "chars"] {
        let with = DataOptions {
            text_column: Some("t".into()),
            label_column: Some("y".into()),
            vocabulary: vocabulary.into(),
            ..options("csv-text", &table)
        };
        check(&with, std::slice::from_ref(&table), true);
        let found = check(&with, std::slice::from_ref(&lines), false);
        assert_eq!((found.name(0), found.name(1)), ("line 1".into(), "line 3".into()));
        let numbers = DataOptions { regression: true, ..with };
        check(&numbers, std::slice::from_ref(&table), true);
        check(&numbers, &[dir.write("u.csv", "x;t\n1;good é\n2;bad\n".as_bytes())], false);
    }
    for kind in ["text", "lines", "sentences"] {
        let path = dir.write("long.txt", b"One. Two is here! Three\nand four.\n");
        let with = DataOptions { length: 5, vocabulary: "chars".into(), ..options(kind, &path) };
        check(&with, std::slice::from_ref(&path), true);
        let mapping = Mapping::of(&with, &open(&with).unwrap().0.info());
        assert_eq!(mapping.open_inputs(&[dir.write("s.txt", b"Two")]).unwrap().set.len(), 1, "{kind}");
        let unknown = mapping.open_inputs(&[dir.write("s.txt", b"xyz")]).err().unwrap().to_string();
        assert!(unknown.contains("'x' is not in the vocabulary"), "{unknown}");
        let hidden = DataOptions { masked: 0.3, ..with };
        check(&hidden, std::slice::from_ref(&path), true);
        let both = mapping.open_inputs(&[path.clone(), path]).err().unwrap().to_string();
        assert!(both.contains("one file at a time"), "{both}");
    }
}

fn png(side: u32, value: u8) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    image::GrayImage::from_fn(side, side, |x, y| image::Luma([value ^ (x * 7 + y) as u8]))
        .write_to(&mut out, image::ImageFormat::Png)
        .unwrap();
    out.into_inner()
}

#[test]
fn images_are_files_or_folders() {
    let dir = ScratchDir::new();
    let cat = dir.write("in/cat/1.png", &png(9, 3));
    let dog = dir.write("in/dog/2.png", &png(5, 200));
    let with = DataOptions { size: Some([4, 6]), ..options("images", &dir.join("in")) };
    check(&with, &[dir.join("in")], true);
    let found = check(&with, &[cat.clone(), dog], true);
    assert_eq!(found.name(0), cat.display().to_string());
    let flat = [dir.write("flat/a.png", &png(9, 3)), dir.write("flat/b.png", &png(5, 200))];
    check(&with, &flat, false);
    check(&with, &[dir.join("flat")], false);
}

#[test]
fn arrays_and_pixels_have_the_shape_of_training() {
    let dir = ScratchDir::new();
    let idx = |name: &str, shape: &[u32], data: &[u8]| {
        let mut out = vec![0, 0, 8, shape.len() as u8];
        shape.iter().for_each(|n| out.extend(n.to_be_bytes()));
        out.extend(data);
        dir.write(name, &out)
    };
    let x = idx("x", &[3, 2, 2], &[0, 51, 102, 153, 204, 255, 0, 51, 1, 2, 3, 4]);
    let with = DataOptions { labels: Some(idx("y", &[3], &[2, 0, 1])), ..options("idx", &x) };
    assert_eq!(check(&with, &[x], false).name(1), "image 2");
    let halves =
        [idx("a", &[1, 2, 2], &[0, 51, 102, 153]), idx("b", &[2, 2, 2], &[204, 255, 0, 51, 1, 2, 3, 4])];
    assert!(check(&with, &halves, false).name(2).ends_with("b image 2"));
    let mapping = Mapping::of(&with, &open(&with).unwrap().0.info());
    let message = mapping.open_inputs(&[idx("c", &[1, 1, 2], &[0, 51])]).err().unwrap().to_string();
    assert!(message.contains("trained on [1, 2, 2]"), "{message}");
    // A model of IDX images also reads ordinary image files.
    let image = mapping.open_inputs(&[dir.write("i.png", &png(8, 77))]).unwrap();
    assert_eq!(image.set.batch(&[0]).unwrap().get("x").unwrap().shape(), [1, 1, 2, 2]);

    let bin: Vec<u8> = (0..2 * 3073).map(|i| if i % 3073 == 0 { 7 } else { (i % 251) as u8 }).collect();
    let bin = dir.write("data_batch_1.bin", &bin);
    check(&options("cifar10", &bin), &[bin], true);

    let npy = |descr: &str, shape: &str, data: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        out.extend((header.len() as u16).to_le_bytes());
        out.extend(header.bytes());
        out.extend(data);
        out
    };
    let floats = |list: &[f32]| list.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let x_bytes = npy("<f4", "(3, 2)", &floats(&[1., 2., 3., 4., 5., 6.]));
    for (y, name) in
        [(npy("|u1", "(3,)", &[0, 2, 1]), "y"), (npy("<f4", "(3,)", &floats(&[0.5, 1., 2.])), "z")]
    {
        let (x, y_path) = (dir.write("x.npy", &x_bytes), dir.write(&format!("{name}.npy"), &y));
        let with = DataOptions { labels: Some(y_path), normalise: Some(true), ..options("npy", &x) };
        assert_eq!(check(&with, &[x], false).name(0), "example 1");
        let archive = crate::data::format::zip::tests::archive(&[("x.npy", &x_bytes), ("y.npy", &y)]);
        check(&with, &[dir.write("xy.npz", &archive)], true);
    }
    let wide = DataOptions { kind: "blobs".into(), examples: Some(4), ..options("", Path::new("")) };
    let mapping = Mapping::of(&wide, &open(&wide).unwrap().0.info());
    let found = mapping.open_inputs(&[dir.write("x.npy", &x_bytes)]).unwrap();
    assert_eq!(found.set.batch(&[1]).unwrap().get("x").unwrap().as_f32().unwrap(), [3., 4.]);
}

#[test]
fn differences_are_told_exactly_when_fingerprints_differ() {
    let list = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let base = Mapping {
        kind: "csv".into(),
        shape: vec![2],
        classes: Some(2),
        class_names: list(&["cat", "dog"]),
        columns: list(&["a", "b"]),
        mean: vec![1.0, 2.0],
        std: vec![1.0, 1.0],
        length: 64,
        ..Mapping::default()
    };
    for same in [
        Mapping { kind: "npy".into(), ..base.clone() },
        Mapping { length: 3, max_length: 9, label_column: Some("y".into()), ..base.clone() },
    ] {
        assert_eq!(base.differences(&same), Vec::<String>::new());
    }
    let text =
        Mapping { shape: vec![8], tokens: Some(4), vocabulary: Some("chars".into()), ..Mapping::default() };
    let text = Mapping { characters: Some("!abc".into()), ..text };
    let image = Mapping { shape: vec![3, 32, 32], ..Mapping::default() };
    for (before, now, words) in [
        (
            &base,
            Mapping { class_names: list(&["dog", "cat"]), ..base.clone() },
            "class names: in another order",
        ),
        (
            &base,
            Mapping { class_names: list(&["cat", "emu"]), ..base.clone() },
            "class names: `emu` is new, `dog` is gone",
        ),
        (&base, Mapping { classes: Some(3), ..base.clone() }, "number of classes: 3 instead of 2"),
        (&base, Mapping { columns: list(&["a", "c"]), ..base.clone() }, "columns: `c` is new, `b` is gone"),
        (&base, Mapping { mean: vec![1.0, 2.5], ..base.clone() }, "mean: 2.5 instead of 2 for `b`"),
        (
            &base,
            Mapping { std: vec![2.0, 2.5], ..base.clone() },
            "deviation: 2 instead of 1 for `a`, and 1 more",
        ),
        (&base, Mapping { fill: vec![0.0, 0.0], ..base.clone() }, "missing cells: 2 numbers instead of 0"),
        (&base, Mapping { targets: Some(1), ..base.clone() }, "numbers to predict: 1 instead of none"),
        (&base, Mapping { shape: vec![3], ..base.clone() }, "shape of an input: [3] instead of [2]"),
        (
            &text,
            Mapping { characters: Some("abcé".into()), ..text.clone() },
            "characters: 'é' is new, '!' is gone",
        ),
        (
            &text,
            Mapping { vocabulary: Some("bytes".into()), ..text.clone() },
            "vocabulary: bytes instead of chars",
        ),
        (&text, Mapping { tokens: Some(5), ..text.clone() }, "number of tokens: 5 instead of 4"),
        (&text, Mapping { tokenizer: Some("{}".into()), ..text.clone() }, "tokenizer: another one"),
        (&image, Mapping { shape: vec![1, 32, 32], ..image.clone() }, "channels: 1 instead of 3"),
        (
            &image,
            Mapping { shape: vec![3, 24, 32], ..image.clone() },
            "image size: 24 x 32 instead of 32 x 32",
        ),
    ] {
        let said = before.differences(&now).join("; ");
        assert!(said.contains(words), "{said}");
    }
    let same = Mapping { shape: vec![16], ..text.clone() };
    assert_eq!(text.differences(&same), Vec::<String>::new());
}
