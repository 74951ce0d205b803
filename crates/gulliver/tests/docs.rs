//! Documents made from the tables. A test fails if one differs from what the tables say;
//! `UPDATE_EXPECT=1 cargo test -p gulliver --test docs` writes them anew.

use gulliver::graph::dim::Bindings;
use gulliver::graph::graph::op::Op;
use gulliver::graph::lr::SCHEDULES;
use gulliver::graph::model::{MODELS, ModelInput, ModelRow, model};
use gulliver::graph::optim::OPTIMIZERS;
use gulliver::graph::spec::{Combine, ReduceKind, Spec};
use gulliver::graph::training::evaluation_graph;
use gulliver::run::data::KINDS;
use std::collections::BTreeMap;
use std::path::Path;

/// Ends the part of a document that is made from tables; what follows is written by hand.
const BY_HAND: &str = "\n<!-- written by hand from here on -->\n";

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    let (made, by_hand) = have.split_at(have.find(BY_HAND).unwrap_or(have.len()));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, format!("{text}{by_hand}")).unwrap();
        return;
    }
    assert!(made == text, "docs/{name} is out of date; UPDATE_EXPECT=1 cargo test -p gulliver --test docs");
}

/// The legal cuts of a spec: axis, halo, and how the parts are put together.
fn cuts(spec: &Spec) -> String {
    let one = |cut: &gulliver::graph::spec::AxisCut| {
        let combine = |c: &Combine| match c {
            Combine::Concat(_) => "side by side",
            Combine::Reduce(ReduceKind::Sum) => "sum",
            Combine::Reduce(ReduceKind::Max) => "max",
            Combine::Reduce(ReduceKind::Min) => "min",
        };
        let mut how: Vec<&str> = cut.outputs.iter().map(combine).collect();
        how.dedup();
        let halo = if cut.halo { ", halo" } else { "" };
        format!("{} ({}{halo})", spec.axes[cut.axis.0].name, how.join(" and "))
    };
    let all: Vec<String> = spec.cuts().iter().map(one).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

#[test]
fn operators() {
    let mut rows: BTreeMap<&str, (&str, Vec<Spec>, bool)> = BTreeMap::new();
    for sample in Op::samples() {
        let def = sample.op.def();
        let row = rows.entry(def.name()).or_insert((def.help(), Vec::new(), !def.in_place().is_empty()));
        let spec = def.spec(&sample.types()).unwrap();
        if !row.1.contains(&spec) {
            row.1.push(spec);
        }
    }
    let mut text = format!(
        "# Operators\n\nMade from the operator table: {} operators. The spec language is described in\n\
         [crates/graph/src/spec/mod.rs](../crates/graph/src/spec/mod.rs). A cut whose parts lie side by side gives\n\
         the same bits as the whole; a cut that leaves sums re-associates them.\n",
        rows.len()
    );
    for (name, (help, specs, in_place)) in rows {
        text += &format!(
            "\n## {name}\n\n{help}.{}\n\n",
            if in_place { " May be written over an operand." } else { "" }
        );
        for spec in specs.iter().take(3) {
            text += &format!("- `{spec}`: cuts {}\n", cuts(spec));
        }
    }
    check("operators.md", &text);
}

const MODELS_INTRODUCTION: &str = "\
# Models

Made from the model table. `gulliver models NAME` prints the same for one.

What the data answers may be left out and is printed when it is fitted: vocabulary, channels, image size,
classes, and `head`, which says what is predicted. `lm` is the next token and `mlm` the tokens that
`data.masked` hides; `classify` is one class and `regress` are numbers, for each example or text. Models of
text judge a whole text from its last real token (`lstm`, `gpt`) or from its first (`bert`).
Image sizes are one number, or `[height, width]`. A model of rows of numbers also takes images and point
clouds, as rows.
";

/// What a model reads and predicts, in words.
fn takes(row: &ModelRow) -> String {
    let input = match row.family.takes {
        ModelInput::Vectors => "rows of numbers".to_string(),
        ModelInput::Images => "images".into(),
        ModelInput::ImagesOf(size) => format!("images of {size}x{size}"),
        ModelInput::Volumes => "cubes of numbers".into(),
        ModelInput::Points => "point clouds".into(),
        ModelInput::Tokens => "text".into(),
    };
    let predicted = |head: &&str| match *head {
        "classify" => "classes",
        "regress" => "numbers",
        "lm" => "next tokens",
        "mlm" => "hidden tokens",
        other => panic!("what does {other} predict?"),
    };
    let heads: Vec<&str> = row.family.heads.iter().map(predicted).collect();
    if heads.is_empty() {
        format!("Takes {input}")
    } else {
        format!("Takes {input}, predicts {}", heads.join(", "))
    }
}

#[test]
fn models() {
    let mut text = MODELS_INTRODUCTION.to_string();
    for row in MODELS {
        let graph = evaluation_graph(model(row.name, &[]).unwrap().as_ref()).unwrap();
        let count = graph.parameters().bind(&Bindings::new()).unwrap();
        text += &format!(
            "\n## {}\n\n{}; {count} parameters. {}.\n\n| setting | default | what it is |\n|---|---|---|\n",
            row.name,
            row.help,
            takes(row)
        );
        for p in row.params() {
            text += &format!("| {} | {} | {} |\n", p.name, p.default, p.help);
        }
    }
    check("models.md", &text);
}

#[test]
fn training() {
    let mut text = String::from(
        "# Optimizers, schedules, losses and metrics\n\nOptimizers and schedules are made from their tables; the defaults are PyTorch's.\n\n## Optimizers\n\n\
         | name | what it is | settings | switches |\n|---|---|---|---|\n",
    );
    for row in OPTIMIZERS {
        let settings: Vec<String> = row.hypers.iter().map(|(n, v)| format!("{n} = {v}")).collect();
        text += &format!(
            "| {} | {} | {} | {} |\n",
            row.name,
            row.help,
            settings.join(", "),
            row.choices.join(", ")
        );
    }
    text += "\n## Schedules\n\nEvery schedule also takes `warmup`: steps of linear growth before it.\n\n\
             | name | what it is | settings |\n|---|---|---|\n";
    for row in SCHEDULES {
        let settings: Vec<String> = row.params.iter().map(|(n, v)| format!("{n} = {v}")).collect();
        text += &format!("| {} | {} | {} |\n", row.name, row.help, settings.join(", "));
    }
    check("training.md", &text);
}

#[test]
fn data() {
    let mut text = String::from(
        "# Data\n\nMade from the table of kinds. Every kind also takes `validation` (share held out), `folds` and\n\
         `fold` (equal parts, one of which is held out), `shuffle` and `buckets` (batches of like length).\n\n| kind | what it is | options |\n|---|---|---|\n",
    );
    for (name, help, options) in KINDS {
        text += &format!("| {name} | {help} | {} |\n", options.join(", "));
    }
    check("data.md", &text);
}
