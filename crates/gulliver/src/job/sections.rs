//! The sections of a job: their fields, defaults and limits. A field is read here and written in
//! `write.rs`, nowhere else.

use super::error::JobError;
use super::fields::{AT_LEAST_ONE, BELOW_ONE, Fields, INSIDE_ONE, MAX, NOT_NEGATIVE, POSITIVE};
use super::tree::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// `[model]`: a row of the model table and its parameters, which only the model can check.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The row.
    pub name: String,
    /// Every other key of the section.
    pub parameters: BTreeMap<String, Value>,
}

/// `[data]`: where examples come from. Which options a kind uses, and their defaults, is the
/// kind's business; paths are absolute.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the options are documented with the kinds of data that use them")]
pub struct Data {
    pub kind: String,
    pub path: Option<PathBuf>,
    pub labels: Option<PathBuf>,
    pub split: Option<String>,
    pub length: Option<u64>,
    pub stride: Option<u64>,
    pub mode: Option<String>,
    pub vocabulary: Option<String>,
    pub tokenizer: Option<PathBuf>,
    pub max_length: Option<u64>,
    pub size: Option<u64>,
    pub channels: Option<u64>,
    pub classes: Option<u64>,
    pub examples: Option<u64>,
    pub points: Option<u64>,
    /// The fraction of examples kept for evaluation.
    pub validation: Option<f64>,
    pub text_column: Option<String>,
    pub label_column: Option<String>,
    /// An array file, or the name of an array within `path`.
    pub x: Option<String>,
    pub y: Option<String>,
    pub normalise: Option<bool>,
    pub augment: Option<bool>,
    pub buckets: Option<bool>,
    pub shuffle: Option<bool>,
    pub shape: Option<Vec<u64>>,
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// This many optimizer steps.
    Steps(u64),
    /// This many times through the data.
    Epochs(u64),
}

/// What to do when the loss or a gradient is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNan {
    /// End the run with an error.
    Stop,
    /// Leave the step out and warn.
    Skip,
}

/// What batch statistics are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormGroup {
    /// The whole batch.
    Batch,
    /// Each of the partial batches.
    Partial,
}

/// `[train]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Train {
    /// `steps` or `epochs`.
    pub length: Length,
    /// Samples per step.
    pub batch: u64,
    /// The gradient is the sum of this many equal slices of the batch; divides `batch`.
    pub partials: u64,
    /// Source of all randomness.
    pub seed: u64,
    /// Steps between evaluations; 0: only at the end.
    pub eval_every: u64,
    /// Steps between checkpoints; 0: only at the end and when interrupted.
    pub checkpoint_every: u64,
    /// How many checkpoints stay on disk.
    pub keep_checkpoints: u64,
    /// Limit of the norm of the whole gradient.
    pub clip_norm: Option<f64>,
    /// Limit of every element of the gradient.
    pub clip_value: Option<f64>,
    /// What to do about a value that is not a number.
    pub on_nan: OnNan,
    /// What batch statistics are over.
    pub norm_group: NormGroup,
    /// Steps between progress reports.
    pub log_every: u64,
    /// Weights to start from instead of random ones.
    pub weights: Option<PathBuf>,
}

impl Default for Train {
    fn default() -> Train {
        Train {
            length: Length::Steps(1000),
            batch: 16,
            partials: 1,
            seed: 0,
            eval_every: 100,
            checkpoint_every: 0,
            keep_checkpoints: 2,
            clip_norm: None,
            clip_value: None,
            on_nan: OnNan::Stop,
            norm_group: NormGroup::Batch,
            log_every: 10,
            weights: None,
        }
    }
}

/// `[optimizer]`; what is absent has the optimizer's own default.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the options are the well-known hyper-parameters of these names")]
pub struct Optimizer {
    pub name: String,
    pub lr: f64,
    pub betas: Option<[f64; 2]>,
    pub eps: Option<f64>,
    pub momentum: Option<f64>,
    pub nesterov: Option<bool>,
    pub weight_decay: Option<f64>,
    pub rho: Option<f64>,
    pub alpha: Option<f64>,
    pub centered: Option<bool>,
}

/// `[schedule]` of the learning rate; what is absent has the schedule's own default.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the options are the well-known hyper-parameters of these names")]
pub struct Schedule {
    pub name: String,
    pub warmup: Option<u64>,
    pub step_size: Option<u64>,
    pub gamma: Option<f64>,
    pub milestones: Option<Vec<u64>>,
    pub min_lr: Option<f64>,
    pub max_lr: Option<f64>,
    pub patience: Option<u64>,
    pub factor: Option<f64>,
    pub div: Option<f64>,
    pub final_div: Option<f64>,
}

/// `[devices]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Devices {
    /// Threads of the device; 0: all cores.
    pub threads: u64,
    /// Hard budget of the device in bytes; absent: no limit but the machine's.
    pub memory: Option<u64>,
}

/// Optimizers: name, default learning rate, options.
pub const OPTIMIZERS: [(&str, f64, &[&str]); 7] = [
    ("sgd", 0.01, &["momentum", "nesterov", "weight_decay"]),
    ("adam", 1e-3, &["betas", "eps", "weight_decay"]),
    ("adamw", 1e-3, &["betas", "eps", "weight_decay"]),
    ("adadelta", 1.0, &["rho", "eps", "weight_decay"]),
    ("adagrad", 0.01, &["eps", "weight_decay"]),
    ("rmsprop", 0.01, &["alpha", "eps", "momentum", "centered", "weight_decay"]),
    ("lion", 1e-4, &["betas", "weight_decay"]),
];

/// Schedules: name, options.
pub const SCHEDULES: [(&str, &[&str]); 8] = [
    ("constant", &["warmup"]),
    ("step", &["step_size", "gamma", "warmup"]),
    ("multi-step", &["milestones", "gamma", "warmup"]),
    ("exponential", &["gamma", "warmup"]),
    ("cosine", &["warmup", "min_lr"]),
    ("linear-warmup", &["warmup", "min_lr"]),
    ("one-cycle", &["max_lr", "warmup", "div", "final_div"]),
    ("reduce-on-plateau", &["factor", "patience", "min_lr", "warmup"]),
];

pub fn model(mut fields: Fields<'_>) -> Result<Model, JobError> {
    let name = fields.text("name")?.ok_or_else(|| fields.missing("name", "name = \"mlp\""))?;
    let mut parameters = BTreeMap::new();
    for (key, item) in fields.rest() {
        if key.is_empty() || !key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)) {
            let problem = "parameter names are letters, digits, _ and -".to_string();
            return Err(fields.error(&key, item.origin, problem));
        }
        parameters.insert(key, item.value);
    }
    Ok(Model { name, parameters })
}

pub fn data(mut fields: Fields<'_>) -> Result<Data, JobError> {
    let kind = fields.text("kind")?.ok_or_else(|| fields.missing("kind", "kind = \"text\""))?;
    let data = Data {
        kind,
        path: fields.path("path")?,
        labels: fields.path("labels")?,
        split: fields.text("split")?,
        length: fields.whole("length", 1, MAX)?,
        stride: fields.whole("stride", 1, MAX)?,
        mode: fields.text("mode")?,
        vocabulary: fields.text("vocabulary")?,
        tokenizer: fields.path("tokenizer")?,
        max_length: fields.whole("max_length", 1, MAX)?,
        size: fields.whole("size", 1, MAX)?,
        channels: fields.whole("channels", 1, MAX)?,
        classes: fields.whole("classes", 1, MAX)?,
        examples: fields.whole("examples", 1, MAX)?,
        points: fields.whole("points", 1, MAX)?,
        validation: fields.real("validation", BELOW_ONE)?,
        text_column: fields.text("text_column")?,
        label_column: fields.text("label_column")?,
        x: fields.array("x")?,
        y: fields.array("y")?,
        normalise: fields.flag("normalise")?,
        augment: fields.flag("augment")?,
        buckets: fields.flag("buckets")?,
        shuffle: fields.flag("shuffle")?,
        shape: fields.wholes("shape", 1, MAX)?,
    };
    fields.finish()?;
    Ok(data)
}

pub fn train(mut fields: Fields<'_>) -> Result<Train, JobError> {
    let default = Train::default();
    let epochs_origin = fields.origin("epochs");
    let length = match (fields.whole("steps", 1, MAX)?, fields.whole("epochs", 1, MAX)?) {
        (Some(_), Some(_)) => {
            let problem = "steps and epochs both say how long to train; keep one".to_string();
            return Err(fields.error("epochs", epochs_origin, problem));
        }
        (Some(steps), None) => Length::Steps(steps),
        (None, Some(epochs)) => Length::Epochs(epochs),
        (None, None) => default.length,
    };
    let partials_origin = fields.origin("partials");
    let batch = fields.whole("batch", 1, 1 << 32)?.unwrap_or(default.batch);
    let partials = fields.whole("partials", 1, 1 << 32)?.unwrap_or(default.partials);
    if !batch.is_multiple_of(partials) {
        let problem = format!("a batch of {batch} cannot be cut into {partials} equal slices");
        return Err(fields.error("partials", partials_origin, problem));
    }
    let train = Train {
        length,
        batch,
        partials,
        seed: fields.whole("seed", 0, MAX)?.unwrap_or(default.seed),
        eval_every: fields.whole("eval_every", 0, MAX)?.unwrap_or(default.eval_every),
        checkpoint_every: fields.whole("checkpoint_every", 0, MAX)?.unwrap_or(default.checkpoint_every),
        keep_checkpoints: fields.whole("keep_checkpoints", 1, MAX)?.unwrap_or(default.keep_checkpoints),
        clip_norm: fields.real("clip_norm", POSITIVE)?,
        clip_value: fields.real("clip_value", POSITIVE)?,
        on_nan: match fields.choice("on_nan", &["stop", "skip"])? {
            Some("skip") => OnNan::Skip,
            _ => default.on_nan,
        },
        norm_group: match fields.choice("norm_group", &["batch", "partial"])? {
            Some("partial") => NormGroup::Partial,
            _ => default.norm_group,
        },
        log_every: fields.whole("log_every", 1, MAX)?.unwrap_or(default.log_every),
        weights: fields.path("weights")?,
    };
    fields.finish()?;
    Ok(train)
}

pub fn optimizer(mut fields: Fields<'_>) -> Result<Optimizer, JobError> {
    let name = fields.choice("name", &OPTIMIZERS.map(|row| row.0))?.unwrap_or("adamw");
    let (_, lr, options) = OPTIMIZERS.into_iter().find(|row| row.0 == name).expect("a choice is a row");
    fields.only(name, &[&["lr"], options].concat(), OPTIMIZERS.iter().flat_map(|row| row.2))?;
    let optimizer = Optimizer {
        name: name.to_string(),
        lr: fields.real("lr", POSITIVE)?.unwrap_or(lr),
        betas: fields.real_pair("betas", BELOW_ONE)?,
        eps: fields.real("eps", POSITIVE)?,
        momentum: fields.real("momentum", BELOW_ONE)?,
        nesterov: fields.flag("nesterov")?,
        weight_decay: fields.real("weight_decay", NOT_NEGATIVE)?,
        rho: fields.real("rho", BELOW_ONE)?,
        alpha: fields.real("alpha", BELOW_ONE)?,
        centered: fields.flag("centered")?,
    };
    fields.finish()?;
    Ok(optimizer)
}

pub fn schedule(mut fields: Fields<'_>) -> Result<Schedule, JobError> {
    let name = fields.choice("name", &SCHEDULES.map(|row| row.0))?.unwrap_or("constant");
    let (_, options) = SCHEDULES.into_iter().find(|row| row.0 == name).expect("a choice is a row");
    fields.only(name, options, SCHEDULES.iter().flat_map(|row| row.1))?;
    let milestones_origin = fields.origin("milestones");
    let schedule = Schedule {
        name: name.to_string(),
        warmup: fields.whole("warmup", 0, MAX)?,
        step_size: fields.whole("step_size", 1, MAX)?,
        gamma: fields.real("gamma", POSITIVE)?,
        milestones: fields.wholes("milestones", 1, MAX)?,
        min_lr: fields.real("min_lr", NOT_NEGATIVE)?,
        max_lr: fields.real("max_lr", POSITIVE)?,
        patience: fields.whole("patience", 0, MAX)?,
        factor: fields.real("factor", INSIDE_ONE)?,
        div: fields.real("div", AT_LEAST_ONE)?,
        final_div: fields.real("final_div", AT_LEAST_ONE)?,
    };
    if schedule.milestones.as_ref().is_some_and(|steps| !steps.is_sorted_by(|a, b| a < b)) {
        return Err(fields.error("milestones", milestones_origin, "the steps must increase".to_string()));
    }
    fields.finish()?;
    Ok(schedule)
}

pub fn devices(mut fields: Fields<'_>) -> Result<Devices, JobError> {
    let devices =
        Devices { threads: fields.whole("threads", 0, 1024)?.unwrap_or(0), memory: fields.bytes("memory")? };
    fields.finish()?;
    Ok(devices)
}
