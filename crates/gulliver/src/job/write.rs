//! A job as the text of a job file, with every default filled in: what a run directory keeps.

use super::sections::{Length, NormGroup, OnNan};
use super::{Job, Value};
use crate::report::units;
use std::path::Path;

/// The complete job; reading the text gives the same job again.
pub fn to_toml(job: &Job) -> String {
    let mut out = Writer { text: String::new() };

    out.section("model");
    out.text("name", &job.model.name);
    for (key, value) in &job.model.parameters {
        out.value(key, value.clone());
    }

    let data = &job.data;
    out.section("data");
    out.text("kind", &data.kind);
    for (key, path) in [("path", &data.path), ("labels", &data.labels), ("tokenizer", &data.tokenizer)] {
        out.path(key, path.as_deref());
    }
    for (key, text) in [
        ("split", &data.split),
        ("mode", &data.mode),
        ("vocabulary", &data.vocabulary),
        ("text_column", &data.text_column),
        ("label_column", &data.label_column),
        ("x", &data.x),
        ("y", &data.y),
    ] {
        text.iter().for_each(|text| out.text(key, text));
    }
    for (key, n) in [
        ("length", data.length),
        ("stride", data.stride),
        ("max_length", data.max_length),
        ("size", data.size),
        ("channels", data.channels),
        ("classes", data.classes),
        ("examples", data.examples),
        ("points", data.points),
    ] {
        out.whole(key, n);
    }
    out.real("validation", data.validation);
    for (key, flag) in [
        ("normalise", data.normalise),
        ("augment", data.augment),
        ("buckets", data.buckets),
        ("shuffle", data.shuffle),
    ] {
        out.flag(key, flag);
    }
    out.wholes("shape", data.shape.as_deref());

    let train = &job.train;
    out.section("train");
    match train.length {
        Length::Steps(n) => out.whole("steps", Some(n)),
        Length::Epochs(n) => out.whole("epochs", Some(n)),
    }
    for (key, n) in [
        ("batch", train.batch),
        ("partials", train.partials),
        ("seed", train.seed),
        ("eval_every", train.eval_every),
        ("checkpoint_every", train.checkpoint_every),
        ("keep_checkpoints", train.keep_checkpoints),
        ("log_every", train.log_every),
    ] {
        out.whole(key, Some(n));
    }
    out.real("clip_norm", train.clip_norm);
    out.real("clip_value", train.clip_value);
    out.text("on_nan", if train.on_nan == OnNan::Stop { "stop" } else { "skip" });
    out.text("norm_group", if train.norm_group == NormGroup::Batch { "batch" } else { "partial" });
    out.path("weights", train.weights.as_deref());

    let optimizer = &job.optimizer;
    out.section("optimizer");
    out.text("name", &optimizer.name);
    out.real("lr", Some(optimizer.lr));
    if let Some(betas) = optimizer.betas {
        out.value("betas", Value::List(betas.map(Value::Float).to_vec()));
    }
    for (key, x) in [
        ("eps", optimizer.eps),
        ("momentum", optimizer.momentum),
        ("weight_decay", optimizer.weight_decay),
        ("rho", optimizer.rho),
        ("alpha", optimizer.alpha),
    ] {
        out.real(key, x);
    }
    out.flag("nesterov", optimizer.nesterov);
    out.flag("centered", optimizer.centered);

    let schedule = &job.schedule;
    out.section("schedule");
    out.text("name", &schedule.name);
    for (key, n) in
        [("warmup", schedule.warmup), ("step_size", schedule.step_size), ("patience", schedule.patience)]
    {
        out.whole(key, n);
    }
    out.wholes("milestones", schedule.milestones.as_deref());
    for (key, x) in [
        ("gamma", schedule.gamma),
        ("min_lr", schedule.min_lr),
        ("max_lr", schedule.max_lr),
        ("factor", schedule.factor),
        ("div", schedule.div),
        ("final_div", schedule.final_div),
    ] {
        out.real(key, x);
    }

    out.section("devices");
    out.whole("threads", Some(job.devices.threads));
    if let Some(memory) = job.devices.memory {
        out.text("memory", &units::exact_bytes(memory));
    }
    out.text
}

struct Writer {
    text: String,
}

impl Writer {
    fn section(&mut self, name: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text += &format!("{gap}[{name}]\n");
    }

    fn value(&mut self, key: &str, value: Value) {
        self.text += &format!("{key} = {value}\n");
    }

    fn text(&mut self, key: &str, text: &str) {
        self.value(key, Value::Text(text.to_string()));
    }

    fn path(&mut self, key: &str, path: Option<&Path>) {
        // Paths of a job came from text, so nothing is lost.
        path.iter().for_each(|path| self.text(key, &path.to_string_lossy()));
    }

    fn whole(&mut self, key: &str, n: Option<u64>) {
        n.iter().for_each(|n| self.value(key, Value::Int(*n as i64)));
    }

    fn wholes(&mut self, key: &str, list: Option<&[u64]>) {
        list.iter().for_each(|list| {
            self.value(key, Value::List(list.iter().map(|&n| Value::Int(n as i64)).collect()));
        });
    }

    fn real(&mut self, key: &str, x: Option<f64>) {
        x.iter().for_each(|x| self.value(key, Value::Float(*x)));
    }

    fn flag(&mut self, key: &str, flag: Option<bool>) {
        flag.iter().for_each(|flag| self.value(key, Value::Bool(*flag)));
    }
}
