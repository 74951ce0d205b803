//! Writes a job as the text of a job file, with every default filled in, for the run directory.

use super::sections::{ClassWeights, Length, NormGroup};
use super::tree::JobValue;
use super::{Job, data};
use crate::units;
use gulliver_graph::hyper::range;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::optim::OPTIMIZERS;
use gulliver_run::train::OnNan;
use std::collections::BTreeMap;
use std::path::Path;

/// Every field of the complete job by its dotted name; those of a device listed by itself carry its number.
pub fn fields(job: &Job) -> BTreeMap<String, String> {
    let (mut fields, mut section, mut listed) = (BTreeMap::new(), String::new(), 0);
    for line in to_toml(job).lines() {
        match (line.strip_prefix('['), line.split_once(" = ")) {
            (Some(name), _) => {
                section = name.trim_matches(['[', ']']).to_string();
                if line.starts_with("[[") {
                    section += &format!("[{listed}]");
                    listed += 1;
                }
            }
            (None, Some((key, value))) => {
                fields.insert(format!("{section}.{key}"), value.to_string());
            }
            (None, None) => {}
        }
    }
    fields
}

/// The complete job; reading the text gives the same job again.
pub fn to_toml(job: &Job) -> String {
    let mut out = Writer { text: String::new() };

    out.section("model");
    out.text("name", &job.model.name);
    for (key, value) in &job.model.parameters {
        out.value(key, parameter(value));
    }

    out.section("data");
    for (key, value) in data::write(&job.data) {
        out.value(key, value);
    }

    let train = &job.train;
    out.section("train");
    match train.length {
        Length::Steps(n) => out.whole("steps", n),
        Length::Epochs(n) => out.whole("epochs", n),
    }
    for (key, n) in [
        ("batch", train.batch),
        ("partials", train.partials),
        ("seed", train.seed),
        ("eval_every", train.eval_every),
        ("eval_batches", train.eval_batches),
        ("early_stopping", train.early_stopping),
        ("checkpoint_every", train.checkpoint_every),
        ("keep_checkpoints", train.keep_checkpoints),
        ("log_every", train.log_every),
    ] {
        out.whole(key, n);
    }
    out.real("checkpoint_minutes", Some(train.checkpoint_minutes));
    out.text("best_by", &train.best_by);
    out.real("clip_norm", train.clip_norm);
    out.real("clip_value", train.clip_value);
    out.text("on_nan", if train.on_nan == OnNan::Stop { "stop" } else { "skip" });
    out.text("strategy", train.strategy);
    out.text("norm_group", if train.norm_group == NormGroup::Batch { "batch" } else { "partial" });
    out.path("weights", train.weights.as_deref());
    out.value("weights_strict", JobValue::Bool(train.weights_strict));
    match &train.class_weights {
        None => {}
        Some(ClassWeights::Balanced) => out.text("class_weights", "balanced"),
        Some(ClassWeights::Given(weights)) => {
            let weights = weights.iter().map(|&weight| JobValue::Float(weight));
            out.value("class_weights", JobValue::List(weights.collect()));
        }
    }

    let optimizer = &job.optimizer;
    let choices = OPTIMIZERS.iter().find(|row| row.name == optimizer.name).map_or(&[][..], |row| row.choices);
    out.section("optimizer");
    out.text("name", &optimizer.name);
    out.real("lr", Some(optimizer.lr));
    for (key, &x) in &optimizer.settings {
        let flag = choices.contains(&key.as_str());
        out.value(key, if flag { JobValue::Bool(x != 0.0) } else { JobValue::Float(x) });
    }

    let schedule = &job.schedule;
    out.section("schedule");
    out.text("name", &schedule.name);
    out.whole("warmup", schedule.warmup);
    for (key, &x) in &schedule.params {
        out.value(key, if range(key).whole { JobValue::Int(x as i64) } else { JobValue::Float(x) });
    }
    if !schedule.milestones.is_empty() {
        let steps = schedule.milestones.iter().map(|&step| JobValue::Int(step as i64));
        out.value("milestones", JobValue::List(steps.collect()));
    }

    let devices = &job.devices;
    out.section(if devices.each.is_empty() { "devices" } else { "[devices]" });
    if devices.each.is_empty() {
        out.whole("count", devices.count);
    }
    let list = devices.list();
    for (i, device) in list.iter().take(devices.each.len().max(1)).enumerate() {
        if i > 0 {
            out.section("[devices]");
        }
        out.whole("threads", device.threads);
        out.bytes("memory", device.memory);
        if !devices.each.is_empty() {
            out.whole("socket", device.socket);
        }
        if i == 0 {
            out.bytes("host_memory", devices.host_memory);
            out.bytes("disk", devices.disk);
            out.path("disk_dir", devices.disk_dir.as_deref());
            out.value("recompute", JobValue::Bool(devices.recompute));
        }
    }

    let links = &job.links;
    out.section("links");
    for (key, rate) in [("host", links.host), ("peer", links.peer), ("sockets", links.sockets)] {
        if let Some(rate) = rate {
            out.text(key, &format!("{}/s", units::exact_bytes(rate)));
        }
    }
    out.value("shared", JobValue::Bool(links.shared));
    out.text("latency", &format!("{}s", links.latency.as_secs_f64()));
    out.text
}

fn parameter(value: &ParamValue) -> JobValue {
    match value {
        ParamValue::Bool(b) => JobValue::Bool(*b),
        ParamValue::Int(n) => JobValue::Int(*n),
        ParamValue::Float(x) => JobValue::Float(*x),
        ParamValue::Text(text) => JobValue::Text(text.to_string()),
        ParamValue::Ints(list) => JobValue::List(list.iter().map(|n| JobValue::Int(*n)).collect()),
    }
}

struct Writer {
    text: String,
}

impl Writer {
    fn section(&mut self, name: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text += &format!("{gap}[{name}]\n");
    }

    fn value(&mut self, key: &str, value: JobValue) {
        self.text += &format!("{key} = {value}\n");
    }

    fn text(&mut self, key: &str, text: &str) {
        self.value(key, JobValue::Text(text.to_string()));
    }

    fn path(&mut self, key: &str, path: Option<&Path>) {
        // Paths of a job came from text, so nothing is lost.
        path.iter().for_each(|path| self.text(key, &path.to_string_lossy()));
    }

    fn bytes(&mut self, key: &str, bytes: Option<u64>) {
        bytes.iter().for_each(|bytes| self.text(key, &units::exact_bytes(*bytes)));
    }

    fn whole(&mut self, key: &str, n: u64) {
        self.value(key, JobValue::Int(n as i64));
    }

    fn real(&mut self, key: &str, x: Option<f64>) {
        x.iter().for_each(|x| self.value(key, JobValue::Float(*x)));
    }
}
