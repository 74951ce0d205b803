//! `docs/job-file.md`: meanings from the doc comments of the fields, defaults from a job that says nothing.
//! Fails if the document differs; `UPDATE_EXPECT=1 cargo test -p gulliver --test job_file_doc` writes it anew.

use gulliver::graph::lr::SCHEDULES;
use gulliver::graph::model::MODELS;
use gulliver::graph::optim::OPTIMIZERS;
use gulliver::job::Job;
use gulliver::plan::devices::strategy;
use gulliver::run::data::KINDS;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const INTRODUCTION: &str = "\
# Job files

A job file is one TOML file that says everything about a run. Only `model.name` and `data.kind` are needed;
every other field has a default. `--set section.field=value` on the command line wins over the file. Relative
paths start in the file's directory, those of `--set` in the current one. Mistakes are answered with file,
line, field and what was probably meant. A run directory keeps the complete job, every default filled in.

```toml
[model]
name = \"cnn\"

[data]
kind = \"digits\"

[train]
epochs = 3
```

This page is made from the sources.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The fields of a struct with their doc comments, in order.
fn fields(file: &str, name: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let start = text.find(&format!("pub struct {name} {{")).unwrap_or_else(|| panic!("{file}: no {name}"));
    let (mut fields, mut doc) = (Vec::new(), Vec::new());
    for line in text[start..].lines().skip(1).map(str::trim).take_while(|line| *line != "}") {
        if let Some(words) = line.strip_prefix("///") {
            doc.push(words.trim());
        } else if let Some((field, _)) = line.strip_prefix("pub ").and_then(|line| line.split_once(':')) {
            fields.push((field.to_string(), std::mem::take(&mut doc).join(" ")));
        }
    }
    assert!(!fields.is_empty(), "{file}: {name} has no fields");
    fields
}

/// Every field of a section that a job with this `[data]` and nothing else has, as it would be written.
fn defaults(section: &str, data: &str) -> BTreeMap<String, String> {
    let text = format!("[model]\nname = \"mlp\"\n[data]\n{data}\n");
    let job = Job::parse(&text, "job.toml", &[]).unwrap_or_else(|e| panic!("{e}"));
    let text = job.to_toml();
    let start = text.find(&format!("[{section}]\n")).unwrap();
    let lines = text[start..].lines().skip(1).take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_once(" = ")).map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

fn table(rows: &[(String, String, String)]) -> String {
    let mut text = String::from("\n| field | default | what it is |\n|---|---|---|\n");
    for (field, default, help) in rows {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        text += &format!("| `{field}` | {default} | {help} |\n");
    }
    text
}

/// A table of documented fields with their defaults.
fn documented(fields: Vec<(String, String)>, defaults: &BTreeMap<String, String>) -> String {
    let default = |field: &str| defaults.get(field).cloned().unwrap_or_default();
    let rows = fields.into_iter().map(|(field, doc)| {
        let default = default(&field);
        (field, default, doc)
    });
    table(&rows.collect::<Vec<_>>())
}

fn listed(names: impl IntoIterator<Item = &'static str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn data_section() -> String {
    let mut all = BTreeMap::new();
    for (kind, ..) in KINDS {
        all.extend(defaults("data", &format!("kind = \"{kind}\"")));
    }
    all.remove("kind");
    let source = fields("crates/run/src/data/options.rs", "DataOptions");
    // The seed is that of `[train]`.
    let mut rows: Vec<_> = source.into_iter().filter(|(name, _)| name != "seed" && name != "kind").collect();
    let own = fields("crates/gulliver/src/job/data.rs", "DataSection");
    rows.extend(own.into_iter().filter(|(name, _)| name != "options"));
    let mut text = format!(
        "\n## `[data]`\n\n`kind` is needed: {}. Purpose options a kind has is in [data.md](data.md).\n",
        listed(KINDS.iter().map(|row| row.0))
    );
    text += &documented(rows, &all);
    text
}

fn train_section() -> String {
    let defaults = defaults("train", "kind = \"digits\"");
    let mut rows = fields("crates/gulliver/src/job/sections.rs", "TrainSection");
    let length = rows.iter().position(|(name, _)| name == "length").expect("how long to train");
    rows.splice(
        length..=length,
        [
            ("steps".to_string(), "Optimizer steps to train for.".to_string()),
            ("epochs".to_string(), "Times through the data, instead of `steps`.".to_string()),
        ],
    );
    let strategies = format!("{} ([devices.md](devices.md))", listed(strategy::names()));
    for (name, choices) in [
        ("on_nan", "`stop` or `skip` the step"),
        ("norm_group", "`batch` or `partial`"),
        ("strategy", &strategies),
    ] {
        let row = rows.iter_mut().find(|(field, _)| field == name).expect("a field of [train]");
        row.1 = format!("{}: {choices}.", row.1.trim_end_matches('.'));
    }
    format!("\n## `[train]`\n{}", documented(rows, &defaults))
}

fn document() -> String {
    let mut text = INTRODUCTION.to_string();
    text += &format!(
        "\n## `[model]`\n\n`name` is needed: {}. The other fields are the settings of that model, listed in\n\
         [models.md](models.md); what the data answers (image size, classes, vocabulary) may be left out.\n",
        listed(MODELS.iter().map(|row| row.name))
    );
    text += &data_section();
    text += &train_section();
    let digits = "kind = \"digits\"";
    text += &format!(
        "\n## `[optimizer]`\n\n`name` is one of {}; {} by default. The other fields are its settings, listed in\n\
         [training.md](training.md); `betas = [beta1, beta2]` is short for both.\n",
        listed(OPTIMIZERS.iter().map(|row| row.name)),
        defaults("optimizer", digits)["name"].replace('"', "`"),
    );
    text += &format!(
        "\n## `[schedule]`\n\n`name` is one of {}; {} by default. `warmup` is a number of steps of linear growth\n\
         before any of them; `milestones` is the list of steps at which `multi-step` drops. The other fields are\n\
         listed in [training.md](training.md).\n",
        listed(SCHEDULES.iter().map(|row| row.name)),
        defaults("schedule", digits)["name"].replace('"', "`"),
    );
    let of = |name: &str| fields("crates/gulliver/src/job/sections.rs", name);
    let alike = of("DevicesSection").into_iter().filter(|(name, _)| name != "each").collect();
    text += &format!("\n## `[devices]`\n{}", documented(alike, &defaults("devices", digits)));
    text += "\nDevices that are not alike are listed one by one, as `[[devices]]` in double brackets instead, each with\n\
             these fields; `host_memory`, `disk`, `disk_dir` and `recompute` are then written below the first.\n";
    text += &documented(of("DeviceEntry"), &BTreeMap::new());
    text += "\n## `[links]`\n\nReal copies that take as long as they would over links of these speeds, to study a box that is not at\n\
             hand. Rates are written like `\"12 GB/s\"`, times like `\"10us\"`.\n";
    text += &documented(of("LinksSection"), &defaults("links", digits));
    text += "\nBytes are written as a whole number or with a unit: `\"256MiB\"`, `\"1.5GB\"`.\n";
    text
}

#[test]
fn job_file() {
    let (path, text) = (root().join("docs/job-file.md"), document());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let have = fs::read_to_string(&path).unwrap_or_default();
    let update = "UPDATE_EXPECT=1 cargo test -p gulliver --test job_file_doc";
    assert!(have == text, "docs/job-file.md is out of date; run {update}");
}

#[test]
fn every_field_is_explained() {
    for row in document().lines().filter(|line| line.starts_with("| `")) {
        assert!(!row.ends_with("|  |"), "{row}");
    }
}
