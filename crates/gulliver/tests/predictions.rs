//! Predictions of stored models on raw inputs are PyTorch's on the same weights, normalisation and class names
//! included. `fixtures/predictions/make.py` says how the expected numbers were made.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn predict(model: &str, input: &str, more: &[&str]) -> String {
    let weights = repository().join("fixtures/predictions").join(format!("{model}.safetensors"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_gulliver"));
    command.arg("predict").arg(weights).arg(repository().join(input)).args(more);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{model}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const CASES: [(&str, &str, &str); 3] = [
    ("cnn", "examples/first-steps/new", "new/circle-0.png"),
    ("mlp", "examples/first-steps/new-flowers.csv", "row 1"),
    ("bert", "fixtures/predictions/new-reviews.txt", "line 1"),
];

#[test]
fn probabilities_and_names_are_those_of_pytorch() {
    let expected = std::fs::read(repository().join("fixtures/predictions/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for (model, input, first) in CASES {
        let (names, rows) =
            (&expected[model]["classes"], expected[model]["probabilities"].as_array().unwrap());
        // In batches of one and of all: what padding does must not matter.
        for batch in ["1", "64"] {
            let lines = predict(model, input, &["--format", "jsonl", "--batch", batch]);
            let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines.len(), rows.len(), "{model}");
            assert!(lines[0]["input"].as_str().unwrap().ends_with(first), "{}", lines[0]);
            for (line, row) in lines.iter().zip(rows) {
                let mut best = (0.0, &Value::Null);
                for (name, wanted) in names.as_array().unwrap().iter().zip(row.as_array().unwrap()) {
                    let found = line["probabilities"][name.as_str().unwrap()].as_f64().unwrap();
                    let wanted = wanted.as_f64().unwrap();
                    assert!((found - wanted).abs() < 1e-5, "{model} {name}: {found}, PyTorch has {wanted}");
                    best = if wanted > best.0 { (wanted, name) } else { best };
                }
                assert_eq!(&line["class"], best.1, "{model}");
            }
        }
    }
}

#[test]
fn formats_say_the_same() {
    let dir = std::env::temp_dir().join(format!("gulliver-formats-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for (model, input, _) in CASES {
        let table = predict(model, input, &["--probabilities"]);
        let numbers: Vec<f32> = table
            .lines()
            .skip(1)
            .flat_map(|line| line.split(',').skip(3).map(|cell| cell.parse().unwrap()).collect::<Vec<f32>>())
            .collect();
        let file = dir.join("p.npy");
        predict(model, input, &["--out", file.to_str().unwrap()]);
        let bytes = std::fs::read(&file).unwrap();
        let header = String::from_utf8_lossy(&bytes[10..128.min(bytes.len())]).into_owned();
        assert!(bytes.starts_with(b"\x93NUMPY\x01\x00") && header.contains("'<f4'"), "{header}");
        let data = &bytes[bytes.len() - 4 * numbers.len()..];
        let data: Vec<f32> =
            data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(data, numbers, "{model}");
        let start = bytes.len() - 4 * numbers.len();
        assert!(start.is_multiple_of(64) && bytes[start - 1] == b'\n', "{model}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn wrong_requests_are_one_line() {
    let weights = repository().join("fixtures/predictions/mlp.safetensors");
    let weights = weights.to_str().unwrap();
    let table = repository().join("examples/first-steps/new-flowers.csv");
    let table = table.to_str().unwrap();
    for (arguments, part) in [
        (vec!["predict", weights, "no-such.csv"], "no-such.csv"),
        (vec!["predict", "no-such-run", table], "no-such-run"),
        (vec!["predict", table, table], "safetensors"),
        (vec!["predict", "--best", weights, table], "--best needs the directory of a run"),
        (vec!["predict", weights, table, "--out", "/no/such/dir/x.csv"], "/no/such/dir"),
        (vec!["predict", weights, "Cargo.toml"], "Cargo.toml"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_gulliver")).args(&arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.lines().count() == 1 && error.contains(part), "{arguments:?}: {error}");
    }
}
