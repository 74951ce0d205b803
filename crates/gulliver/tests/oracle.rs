//! `gulliver oracle`, end to end: rankings, pages, what-if questions and nonsense.

use std::path::PathBuf;
use std::process::Command;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("gulliver-oracle-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether it went well, what it printed, and its error.
fn oracle(arguments: &[&str]) -> (bool, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_gulliver")).arg("oracle").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let (well, out, error) = oracle(&[arguments, &["--json"]].concat());
    assert!(well, "{error}");
    serde_json::from_str(&out).unwrap()
}

fn seconds_of_best(answer: &serde_json::Value) -> f64 {
    answer["scales"][0]["strategies"][0]["estimate"]["seconds"].as_f64().unwrap()
}

#[test]
fn rankings_pages_and_what_if() {
    let dir = Dir::new("page");
    let page = dir.0.join("page.html");
    let asked = ["gpt3-1.3b", "--cluster", "dgx-a100", "--batch", "64", "--devices"];
    let (well, out, error) = oracle(&[&asked[..], &["1..16", "--html", page.to_str().unwrap()]].concat());
    assert!(well, "{error}");
    for expected in [
        "16 devices",
        "80 % of steps",
        "held up by",
        "most devices that each way has a use for: data 64, tensor 16, pipeline 26",
    ] {
        assert!(out.contains(expected), "no `{expected}` in\n{out}");
    }
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.matches("<svg").count() == 2 && html.contains("polyline") && html.contains("<rect"));
    assert!(!html.contains("http") && !html.contains("<script"), "the page stands alone");
    let now = json(&[&asked[..], &["16"]].concat());
    let faster = json(&[&asked[..], &["16", "--what-if", "link=4x"]].concat());
    assert!(seconds_of_best(&faster) <= seconds_of_best(&now));
    let first = &now["scales"][0]["strategies"][0];
    let phases = first["estimate"]["phases"].as_object().unwrap();
    let sum: f64 = phases.values().map(|v| v.as_f64().unwrap()).sum();
    assert!((sum / seconds_of_best(&now) - 1.0).abs() < 1e-9, "phases add up");
    assert!(first["estimate"]["memory"]["weights"].as_f64().unwrap() > 0.0);
}

#[test]
fn models_of_the_tables_jobs_and_clusters_from_files() {
    let dir = Dir::new("files");
    let cluster = dir.write(
        "box.toml",
        "accelerator = \"rtx-3090\"\ndevices = 4\nwithin = \"pcie4\"\nprice = 0.4\nenergy_price = 0.3\n",
    );
    let job = dir
        .write("job.toml", "[model]\nname = \"mlp-tiny\"\n[data]\nkind = \"digits\"\n[train]\nbatch = 32\n");
    let (well, out, error) = oracle(&[&job, "--cluster", &cluster, "--devices", "1,4"]);
    assert!(well, "{error}");
    assert!(out.contains("batch 32") && out.contains("kWh") && out.contains("money"), "{out}");
    for model in ["resnet18", "lstm", "cosmoflow"] {
        let length: &[&str] = if model == "lstm" { &["--length", "32"] } else { &[] };
        let answer = json(&[&[model, "--cluster", &cluster, "--devices", "4"], length].concat());
        assert!(seconds_of_best(&answer) > 0.0, "{model}");
    }
}

#[test]
fn nonsense_gets_one_line() {
    let asked = ["gpt2", "--cluster", "dgx-a100", "--devices", "8"];
    for (arguments, expected) in [
        (vec!["gpt9", "--cluster", "dgx-a100"], "there is no model or job file `gpt9`"),
        (vec!["gpt2", "--cluster", "moon"], "unknown cluster `moon`; there are abci"),
        (vec!["gpt2", "--cluster", "dgx-a100", "--devices", "0"], "0 devices asked for; give 1 to 4480"),
        (vec!["gpt2", "--cluster", "dgx-a100", "--devices", "9999"], "9999 devices asked for"),
        (vec!["gpt2", "--cluster", "dgx-a100", "--devices", "x"], "--devices x: give 8, 1..4480 or 1,2,4"),
        ([&asked[..], &["--batch", "0"]].concat(), "1 at least"),
        ([&asked[..], &["--what-if", "link=0x"]].concat(), "factor of `link` is 0; give a number above zero"),
        ([&asked[..], &["--what-if", "wire=2x"]].concat(), "unknown what-if `wire`"),
        ([&asked[..], &["--precision", "f7"]].concat(), "unknown precision `f7`"),
        (
            vec!["vgg16", "--cluster", "abci", "--devices", "4096", "--batch", "1", "--split-samples"],
            "smaller than its 4096 replicas",
        ),
        (
            [&asked[..], &["--batch", "4"]].concat(),
            "batch 4 is smaller than 8 devices; give a batch of 8 or more, at most 4 devices, or --split-samples",
        ),
        (
            vec!["gpt2", "--cluster", "dgx-a100", "--devices", "1..8", "--batch", "1"],
            "batch 1 is smaller than 8 devices; give a batch of 8 or more, at most 1 device,",
        ),
        ([&asked[..], &["--jobs", "0"]].concat(), "0 jobs asked for; give 1 to 1000000"),
        ([&asked[..], &["--set", "nonsense"]].concat(), "--set nonsense: must have the form setting=value"),
        ([&asked[..], &["--set", "layer=2"]].concat(), "no setting `layer`; did you mean `layers`?"),
        ([&asked[..], &["--set", "layers=0"]].concat(), "`layers` must be from 1 to 1048576, got 0"),
        ([&asked[..], &["--set", "heads=7"]].concat(), "7 heads do not divide width 768"),
        ([&asked[..], &["--set", "train.batch=2"]].concat(), "other fields need a job file"),
        (vec!["resnet50", "--set", "nonsense"], "must have the form setting=value; resnet50 has blocks"),
        (vec!["resnet50", "--set", "blocs=[1]"], "no setting `blocs`; did you mean `blocks`?"),
        (vec!["resnet50", "--set", "classes=many"], "model.classes: must be a whole number, not"),
        (
            [&asked[..], &["--length", "2000"]].concat(),
            "--length 2000 is beyond the context of gpt2, which is 1024",
        ),
        (vec!["gpt-nano", "--length", "65"], "--length 65 is beyond the context of gpt-nano, which is 64"),
        ([&asked[..], &["--length", "0"]].concat(), "--length 0"),
        (vec!["resnet50", "--length", "8"], "resnet50 does not read tokens"),
        (vec!["resnet50", "--tokens", "1e9"], "this model does not read tokens; give --samples"),
        ([&asked[..], &["--tokens", "0"]].concat(), "--tokens 0: give a number above 0"),
        ([&asked[..], &["--html", "/nowhere/at/all/page.html"]].concat(), "/nowhere/at/all/page.html: "),
        ([&asked[..], &["--html", "/tmp"]].concat(), "/tmp: "),
        // Found before anything else is.
        (vec!["gpt9", "--html", "/nowhere/at/all/page.html"], "/nowhere/at/all/page.html: "),
        (vec!["resnet50", "--cluster", "/dev/zero"], "/dev/zero: is a device or pipe"),
        (vec!["resnet50", "--cluster", "/tmp"], "/tmp: is a directory"),
    ] {
        let (well, _, error) = oracle(&arguments);
        assert!(!well && error.contains(expected), "{arguments:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
}

/// A long name or value is shortened: no message is longer than a few lines of a terminal.
#[test]
fn long_inputs_make_short_messages() {
    let long = "x".repeat(100_000);
    let set = format!("layers={long}");
    let key = format!("{long}=3");
    for arguments in [
        vec![long.as_str()],
        vec!["resnet50", "--cluster", &long],
        vec!["gpt2", "--set", &set],
        vec!["gpt2", "--set", &key],
        vec!["gpt2", "--set", &long],
        vec!["resnet50", "--set", &key],
    ] {
        let (well, _, error) = oracle(&arguments);
        assert!(!well && error.len() < 1500, "{} bytes: {}", error.len(), error.get(..200).unwrap_or(&error));
    }
}

/// Flags that would have no effect.
#[test]
fn flags_without_an_effect_are_refused() {
    for arguments in [
        vec!["lstm", "--jobs", "3", "--tokens", "1e9"],
        vec!["lstm", "--jobs", "3", "--epoch", "1e9"],
        vec!["lstm", "--tokens", "1e9", "--samples", "3"],
    ] {
        let (well, _, error) = oracle(&arguments);
        assert!(!well && error.contains("cannot be used with"), "{arguments:?}: {error}");
    }
}

#[test]
fn settings_change_the_model() {
    for (model, set, less) in [
        ("gpt2", "layers=6", true),
        ("gpt2", "model.width=1536", false),
        ("gpt2", "vocab=100", true),
        ("gpt2", "context=64", true),
        ("resnet50", "blocks=[1,1,1,1]", true),
        ("bert", "layers=4", false),
    ] {
        let asked = [model, "--cluster", "dgx-a100", "--devices", "1"];
        let weights = |more: &[&str]| json(&[&asked[..], more].concat())["weights"].as_f64().unwrap();
        let (before, after) = (weights(&[]), weights(&["--set", set]));
        assert!(before != after && (after < before) == less, "{model} {set}: {before} {after}");
    }
    // A shorter sample is less work for the same weights.
    let asked = ["gpt2", "--cluster", "dgx-a100", "--devices", "1", "--batch", "8"];
    let (whole, half) = (json(&asked), json(&[&asked[..], &["--length", "512"]].concat()));
    assert_eq!(whole["weights"], half["weights"]);
    assert!(seconds_of_best(&half) < seconds_of_best(&whole));
    assert_eq!(
        (whole["tokens_per_sample"].as_f64(), half["tokens_per_sample"].as_f64()),
        (Some(1024.0), Some(512.0))
    );
}

#[test]
fn days_and_tokens_are_told() {
    let asked = ["gpt3-175b", "--cluster", "dgx-a100", "--devices", "1024", "--batch", "1536"];
    let (well, out, error) = oracle(&asked);
    assert!(well, "{error}");
    assert!(out.contains("tokens/s") && out.contains("300B tokens") && out.contains(" days "), "{out}");
    let answer = json(&[&asked[..], &["--tokens", "600e9"]].concat());
    let best = &answer["scales"][0]["strategies"][0];
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let samples = 600e9 / 2048.0;
    assert_eq!(number(&best["training"]["samples"]), samples);
    let seconds = number(&best["estimate"]["seconds"]) * (samples / 1536.0f64).ceil();
    assert!((number(&best["training"]["seconds"]) / seconds - 1.0).abs() < 1e-12);
    assert!((number(&best["training"]["days"]) * 86400.0 / seconds - 1.0).abs() < 1e-12);
    let rate = number(&best["estimate"]["throughput"]) * 2048.0;
    assert!((number(&best["tokens_per_second"]) / rate - 1.0).abs() < 1e-12);
    let (well, out, _) = oracle(&["resnet50", "--cluster", "abci", "--devices", "4", "--samples", "5e6"]);
    assert!(well && out.contains("5M samples") && !out.contains("tokens/s"), "{out}");
}

#[test]
fn what_does_not_fit_is_last_and_short_and_short_names_have_a_legend() {
    let asked = ["gpt-10b", "--cluster", "box-1080ti", "--devices", "2,4", "--batch", "32"];
    let (well, out, error) = oracle(&asked);
    assert!(well, "{error}");
    let blocks: Vec<&str> = out.split("\n\n").collect();
    let of_devices = |block: &&&str| block.lines().next().is_some_and(|line| line.ends_with(" devices"));
    for block in blocks.iter().filter(of_devices) {
        let lines: Vec<&str> = block.lines().collect();
        let first = lines.iter().position(|line| line.starts_with("does not fit: ")).unwrap();
        assert!(lines[first..].iter().all(|line| line.starts_with("does not fit: ")), "{block}");
        // One line for devices, one for the host.
        assert!(lines.len() - first <= 2, "{block}");
        assert!(block.contains("\nbest: "), "{block}");
    }
    // Everything in a name is in the legend.
    let legend = blocks.iter().find(|block| block.starts_with("what short names mean")).unwrap();
    let explained = |word: &str| {
        let plain = |word: &str| word.trim_end_matches(char::is_numeric).to_string();
        legend.lines().any(|line| line.split("  ").next().is_some_and(|name| plain(name) == plain(word)))
    };
    for line in out.lines().filter(|line| line.ends_with("  compute")) {
        let name = line.split("  ").next().unwrap();
        for word in name.split(' ') {
            assert!(word.split('+').all(explained), "{word} of {name} is not in\n{legend}");
        }
    }
}

#[test]
fn devices_share_samples_if_that_is_asked_for() {
    let asked = ["gpt2", "--cluster", "dgx-a100", "--devices", "8", "--batch", "4", "--split-samples"];
    let answer = json(&asked);
    let shared = answer["scales"][0]["strategies"].as_array().unwrap();
    assert!(
        !shared.is_empty() && shared.iter().all(|one| one["estimate"]["strategy"]["data"] != 8),
        "{answer}"
    );
}

#[test]
fn every_way_beyond_the_classic_ones_is_shown() {
    let dir = Dir::new("ways");
    let page = dir.0.join("page.html");
    let page_of = page.to_str().unwrap();
    for (asked, families, words) in [
        // Beyond all devices: packs from host memory, and what virtual memory would do.
        (
            vec!["gpt-10b", "--cluster", "box-1080ti", "--devices", "4", "--batch", "32"],
            vec!["harmony-dp", "harmony-pp"],
            "packs",
        ),
        // Not all of it has to be computed again.
        (
            vec!["gpt3-6.7b", "--cluster", "dgx1-32", "--devices", "8", "--batch", "64"],
            vec!["data"],
            "planned",
        ),
        (
            vec!["vgg16", "--cluster", "box-1080ti", "--devices", "4", "--batch", "128"],
            vec!["cut"],
            " by batch, ",
        ),
    ] {
        let (well, out, error) = oracle(&[&asked[..], &["--html", page_of]].concat());
        assert!(well, "{error}");
        let html = std::fs::read_to_string(&page).unwrap();
        let answer = json(&[&asked[..], &["--top", "99"]].concat());
        let shown = answer["scales"][0]["strategies"].as_array().unwrap();
        for family in families {
            assert!(out.contains(family) && html.contains(family), "no {family} in\n{out}");
            let found = shown.iter().find(|one| one["family"] == family && one["fits"] == true);
            assert!(found.is_some(), "no {family} in {answer}");
        }
        assert!(out.contains(words) && html.contains(words), "no `{words}` in\n{out}");
    }
}

#[test]
fn many_small_jobs() {
    let dir = Dir::new("jobs");
    let page = dir.0.join("page.html");
    let asked = ["pointnet", "--cluster", "dgx-a100", "--batch", "32", "--jobs", "32", "--devices", "1,4"];
    let (well, out, error) = oracle(&[&asked[..], &["--html", page.to_str().unwrap()]].concat());
    assert!(well, "{error}");
    for expected in
        ["32 jobs of batch 32 each", "array", "processes", "serial", "gain by width", "widest that fits"]
    {
        assert!(out.contains(expected), "no `{expected}` in\n{out}");
    }
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.matches("<svg").count() == 2 && html.contains("polyline") && !html.contains("http"));
    let answer = json(&asked);
    let best = |scale: usize| &answer["scales"][scale]["sharings"][0];
    assert_eq!(best(0)["sharing"], "array");
    assert!(best(0)["gain"].as_f64().unwrap() > 2.0, "{}", best(0));
    assert!(best(1)["seconds"].as_f64() < best(0)["seconds"].as_f64(), "four devices are faster");
}
