//! The sections of a job except `[data]`: their fields, defaults and limits. A field is read here and written in
//! `write.rs`; models, optimizers and schedules come from their tables.

use super::fields::{self, Fields, MAX};
use super::tree::{Item, JobValue};
use crate::error::{FieldOrigin, JobError, one_line};
use gulliver_graph::hyper::{BELOW_ONE, NOT_NEGATIVE, POSITIVE, range};
use gulliver_graph::lr::{self, MULTI_STEP, SCHEDULES};
use gulliver_graph::model::MODELS;
use gulliver_graph::model::param::{Param, ParamValue};
use gulliver_graph::nearest::suggestion;
use gulliver_graph::optim::{self, OPTIMIZERS};
use gulliver_plan::devices::strategy;
use gulliver_plan::document::topology::{self, BoxWiring, Topology, TopologyError};
use gulliver_run::train::OnNan;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// `[model]`: a row of [`MODELS`] and the parameters that are not left to the row or the data.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSection {
    /// The row.
    pub name: String,
    /// Known to the model and of the right kind; whether they go together only the model can say.
    pub parameters: BTreeMap<String, ParamValue>,
}

impl ModelSection {
    /// The parameters as [`gulliver_graph::model::model`] wants them.
    pub fn params(&self) -> Vec<(String, ParamValue)> {
        self.parameters.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// This many optimizer steps.
    Steps(u64),
    /// This many times through the data.
    Epochs(u64),
}

/// The samples that batch statistics are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormGroup {
    /// The whole batch.
    Batch,
    /// Each of the partial batches.
    Partial,
}

/// The weight of each class in the loss.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassWeights {
    /// All classes the same, however many examples they have.
    Balanced,
    /// In the order of the classes.
    Given(Vec<f64>),
}

/// `[train]`.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSection {
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
    /// Batches of validation examples that each evaluation goes through; 0: all of them.
    pub eval_batches: u64,
    /// The metric that says which evaluation is the best; its weights are kept as `best.safetensors`.
    pub best_by: String,
    /// Evaluations without a new best after which training ends; 0: never.
    pub early_stopping: u64,
    /// Steps between checkpoints; 0: none for a number of steps.
    pub checkpoint_every: u64,
    /// Minutes between checkpoints; 0: none for the time. There is one at the end and when interrupted in any case.
    pub checkpoint_minutes: f64,
    /// How many checkpoints stay on disk.
    pub keep_checkpoints: u64,
    /// Limit of the norm of the whole gradient.
    pub clip_norm: Option<f64>,
    /// Limit of every element of the gradient.
    pub clip_value: Option<f64>,
    /// Reaction to a loss that is not finite.
    pub on_nan: OnNan,
    /// The samples that batch statistics are over.
    pub norm_group: NormGroup,
    /// How several devices share the work.
    pub strategy: &'static str,
    /// Steps between progress reports.
    pub log_every: u64,
    /// Weights to start from instead of random ones: a safetensors file or the directory of a run.
    pub weights: Option<PathBuf>,
    /// Whether all weights of that file must fit the model; `false` loads those that fit and lists the others.
    pub weights_strict: bool,
    /// The weight of each class in the loss: a list in the order of the classes, or `"balanced"` to give all classes the same total weight, however many examples they have ([training.md](training.md)).
    pub class_weights: Option<ClassWeights>,
}

impl Default for TrainSection {
    fn default() -> TrainSection {
        TrainSection {
            length: Length::Steps(1000),
            batch: 16,
            partials: 1,
            seed: 0,
            eval_every: 100,
            eval_batches: 0,
            best_by: "loss".into(),
            early_stopping: 0,
            checkpoint_every: 0,
            checkpoint_minutes: 5.0,
            keep_checkpoints: 2,
            clip_norm: None,
            clip_value: None,
            on_nan: OnNan::Stop,
            norm_group: NormGroup::Batch,
            strategy: "data",
            log_every: 10,
            weights: None,
            weights_strict: true,
            class_weights: None,
        }
    }
}

/// `[optimizer]`: a row of [`OPTIMIZERS`] with all its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerSection {
    /// The row.
    pub name: String,
    /// The learning rate before the schedule.
    pub lr: f64,
    /// Every other setting of the row; what can be switched on is 1 or 0.
    pub settings: BTreeMap<String, f64>,
}

/// `[schedule]` of the learning rate: a row of [`SCHEDULES`] with all its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleSection {
    /// The row.
    pub name: String,
    /// Steps of linear growth before it.
    pub warmup: u64,
    /// Every parameter of the row.
    pub params: BTreeMap<String, f64>,
    /// Steps at which the rate drops, if the row takes them.
    pub milestones: Vec<u64>,
}

/// `[devices]`.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicesSection {
    /// How many there are, all alike; each takes a share of every batch.
    pub count: u64,
    /// Threads of each device; 0: all cores, shared evenly.
    pub threads: u64,
    /// Hard budget of each device in bytes; absent: no limit but the machine's.
    pub memory: Option<u64>,
    /// Hard budget of host memory for what does not fit on the devices; 0: nothing goes there; absent: no limit but the machine's.
    pub host_memory: Option<u64>,
    /// Hard budget of files for what fits neither on the devices nor in host memory; absent: no file.
    pub disk: Option<u64>,
    /// Where that file is; absent: the directory of the run.
    pub disk_dir: Option<PathBuf>,
    /// Whether values may be recomputed to save memory.
    pub recompute: bool,
    /// Devices that are not all alike, one by one; empty if they are.
    pub each: Vec<DeviceEntry>,
}

/// One of the `[[devices]]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Its threads; 0: all cores, shared evenly.
    pub threads: u64,
    /// Hard budget of its memory in bytes; absent: no limit but the machine's.
    pub memory: Option<u64>,
    /// The socket of the host it is attached to, counted from 0.
    pub socket: u64,
}

impl DevicesSection {
    /// The devices one by one.
    pub fn list(&self) -> Vec<DeviceEntry> {
        let alike = DeviceEntry { threads: self.threads, memory: self.memory, socket: 0 };
        if self.each.is_empty() { vec![alike; self.count as usize] } else { self.each.clone() }
    }
}

/// `[links]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinksSection {
    /// Bytes a second between host and devices, each way; absent: as fast as can be.
    pub host: Option<u64>,
    /// Whether the devices of a socket share that, or each has as much of its own.
    pub shared: bool,
    /// Bytes a second into and out of each device from and to the others; absent: they go by way of the host.
    pub peer: Option<u64>,
    /// Bytes a second from one socket to the others; absent: as fast as can be.
    pub sockets: Option<u64>,
    /// Time before the first byte of a transfer is across a link.
    pub latency: Duration,
}

impl Default for LinksSection {
    fn default() -> LinksSection {
        LinksSection { host: None, shared: true, peer: None, sockets: None, latency: Duration::ZERO }
    }
}

impl LinksSection {
    /// The topology of these devices, if a link has a stated speed.
    pub fn topology(&self, devices: &DevicesSection) -> Result<Option<Topology>, TopologyError> {
        if [self.host, self.peer, self.sockets].iter().all(Option::is_none) {
            return Ok(None);
        }
        let device = |one: DeviceEntry| topology::DeviceSpec { socket: one.socket as u32 };
        let rate = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let wiring = BoxWiring {
            host: rate(self.host),
            shared: self.shared,
            peer: rate(self.peer),
            sockets: rate(self.sockets),
            latency: self.latency.as_secs_f64(),
            ..BoxWiring::default()
        };
        Topology::wired(devices.list().into_iter().map(device).collect(), &wiring).map(Some)
    }
}

impl Default for DevicesSection {
    /// One with all cores, no limits.
    fn default() -> DevicesSection {
        DevicesSection {
            count: 1,
            threads: 0,
            memory: None,
            host_memory: None,
            disk: None,
            disk_dir: None,
            recompute: true,
            each: Vec::new(),
        }
    }
}

pub fn model(mut fields: Fields<'_>) -> Result<ModelSection, JobError> {
    let names: Vec<&str> = MODELS.iter().map(|row| row.name).collect();
    let name = fields.choice("name", &names)?.ok_or_else(|| fields.missing("name", "name = \"mlp\""))?;
    let row = MODELS.iter().find(|row| row.name == name);
    let known = row.map(|row| row.params()).unwrap_or_default();
    let mut parameters = BTreeMap::new();
    for (key, item) in fields.rest() {
        let Some(param) = known.iter().find(|param| param.name == key) else {
            let hint = suggestion(&key, known.iter().map(|param| param.name), "it has");
            return Err(fields.error(&key, item.origin, format!("{name} has no such parameter{hint}")));
        };
        let Some(value) = parameter(&item, param) else {
            let given = one_line(&item.value.to_string());
            let problem = format!("must be {}, not {given}", param.kind());
            return Err(fields.error(&key, item.origin, problem));
        };
        parameters.insert(key, value);
    }
    Ok(ModelSection { name: name.to_string(), parameters })
}

/// The value of a model's parameter, if it is of the right kind.
fn parameter(item: &Item, param: &Param) -> Option<ParamValue> {
    let value = match &item.value {
        _ if matches!(param.default, ParamValue::Text(_)) => ParamValue::Text(fields::text(item)?.into()),
        JobValue::Bool(b) => ParamValue::Bool(*b),
        JobValue::Int(n) => ParamValue::Int(*n),
        JobValue::Float(x) => ParamValue::Float(*x),
        JobValue::List(items) => {
            let whole = |value: &JobValue| if let JobValue::Int(n) = value { Some(*n) } else { None };
            ParamValue::Ints(items.iter().map(whole).collect::<Option<Vec<i64>>>()?.into())
        }
        JobValue::Text(_) => return None,
    };
    param.accepts(&value)
}

pub fn train(mut fields: Fields<'_>) -> Result<TrainSection, JobError> {
    let default = TrainSection::default();
    let (steps_origin, epochs_origin) = (fields.origin("steps"), fields.origin("epochs"));
    let flagged = |origin: &FieldOrigin| !matches!(origin, FieldOrigin::File { .. });
    let length = match (fields.whole("steps", 1, MAX)?, fields.whole("epochs", 1, MAX)?) {
        // The command line wins over the file, in either unit.
        (Some(steps), Some(_)) if flagged(&steps_origin) && !flagged(&epochs_origin) => Length::Steps(steps),
        (Some(_), Some(epochs)) if flagged(&epochs_origin) && !flagged(&steps_origin) => {
            Length::Epochs(epochs)
        }
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
    let clip_origin = fields.origin("clip_value");
    let clip_norm = fields.real("clip_norm", POSITIVE)?;
    let clip_value = fields.real("clip_value", POSITIVE)?;
    if clip_norm.is_some() && clip_value.is_some() {
        let problem = "clip_norm and clip_value both limit the gradient; keep one".to_string();
        return Err(fields.error("clip_value", clip_origin, problem));
    }
    let train = TrainSection {
        length,
        batch,
        partials,
        seed: fields.whole("seed", 0, MAX)?.unwrap_or(default.seed),
        eval_every: fields.whole("eval_every", 0, MAX)?.unwrap_or(default.eval_every),
        eval_batches: fields.whole("eval_batches", 0, MAX)?.unwrap_or(default.eval_batches),
        best_by: fields.text("best_by")?.unwrap_or(default.best_by),
        early_stopping: fields.whole("early_stopping", 0, MAX)?.unwrap_or(default.early_stopping),
        checkpoint_every: fields.whole("checkpoint_every", 0, MAX)?.unwrap_or(default.checkpoint_every),
        checkpoint_minutes: fields
            .real("checkpoint_minutes", NOT_NEGATIVE)?
            .unwrap_or(default.checkpoint_minutes),
        keep_checkpoints: fields.whole("keep_checkpoints", 1, MAX)?.unwrap_or(default.keep_checkpoints),
        clip_norm,
        clip_value,
        on_nan: match fields.choice("on_nan", &["stop", "skip"])? {
            Some("skip") => OnNan::Skip,
            _ => default.on_nan,
        },
        norm_group: match fields.choice("norm_group", &["batch", "partial"])? {
            Some("partial") => NormGroup::Partial,
            _ => default.norm_group,
        },
        strategy: fields.choice("strategy", &strategy::names())?.unwrap_or(default.strategy),
        log_every: fields.whole("log_every", 1, MAX)?.unwrap_or(default.log_every),
        weights: fields.path("weights")?,
        weights_strict: fields.flag("weights_strict")?.unwrap_or(default.weights_strict),
        class_weights: class_weights(&mut fields)?,
    };
    fields.finish()?;
    Ok(train)
}

fn class_weights(fields: &mut Fields<'_>) -> Result<Option<ClassWeights>, JobError> {
    let origin = fields.origin("class_weights");
    let weights = match fields.word_or_reals("class_weights", "balanced", NOT_NEGATIVE)? {
        None => return Ok(None),
        Some(None) => return Ok(Some(ClassWeights::Balanced)),
        Some(Some(weights)) => weights,
    };
    if weights.iter().all(|&weight| weight == 0.0) {
        let problem = "at least one class must count: write a weight above 0".to_string();
        return Err(fields.error("class_weights", origin, problem));
    }
    Ok(Some(ClassWeights::Given(weights)))
}

pub fn optimizer(mut fields: Fields<'_>) -> Result<OptimizerSection, JobError> {
    let rows: Vec<&str> = OPTIMIZERS.iter().map(|row| row.name).collect();
    let name = fields.choice("name", &rows)?.unwrap_or("adamw");
    let row = OPTIMIZERS.iter().find(|row| row.name == name).expect("a choice is a row");
    let settings_of = |row: &'static optim::OptimizerRow| -> Vec<&'static str> {
        let mut names: Vec<&str> =
            row.hypers.iter().map(|h| h.0).chain(row.choices.iter().copied()).collect();
        if names.contains(&"beta1") {
            names.push("betas");
        }
        names
    };
    fields.only(name, &settings_of(row), OPTIMIZERS.iter().flat_map(settings_of))?;

    let betas_origin = fields.origin("betas");
    if fields.has("betas") && (fields.has("beta1") || fields.has("beta2")) {
        let problem = "betas already says beta1 and beta2; keep one form".to_string();
        return Err(fields.error("betas", betas_origin, problem));
    }
    let betas = fields.real_pair("betas", BELOW_ONE)?;
    let mut settings = BTreeMap::new();
    for &(hyper, default) in row.hypers {
        let value = match (fields.real(hyper, range(hyper))?, hyper, betas) {
            (Some(x), _, _) => x,
            (None, "beta1", Some([x, _])) | (None, "beta2", Some([_, x])) => x,
            _ => decimal(default),
        };
        settings.insert(hyper.to_string(), value);
    }
    for &choice in row.choices {
        let on = fields.flag(choice)?.unwrap_or(false);
        settings.insert(choice.to_string(), f64::from(u8::from(on)));
    }
    let singles: Vec<(&str, f32)> = settings.iter().map(|(name, x)| (name.as_str(), *x as f32)).collect();
    optim::Optimizer::new(name, &singles).map_err(|error| fields.whole_error(error.to_string()))?;
    fields.finish()?;
    let lr = settings.remove("lr").unwrap_or_default();
    Ok(OptimizerSection { name: name.to_string(), lr, settings })
}

/// The number that a default in single precision was written as.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

pub fn schedule(mut fields: Fields<'_>) -> Result<ScheduleSection, JobError> {
    let rows: Vec<&str> = SCHEDULES.iter().map(|row| row.name).collect();
    let name = fields.choice("name", &rows)?.unwrap_or("constant");
    let row = SCHEDULES.iter().find(|row| row.name == name).expect("a choice is a row");
    let options_of = |row: &'static lr::LrScheduleRow| -> Vec<&'static str> {
        let lists = if row.name == MULTI_STEP { &["milestones"][..] } else { &[] };
        row.params.iter().map(|p| p.0).chain(lists.iter().copied()).chain(["warmup"]).collect()
    };
    fields.only(name, &options_of(row), SCHEDULES.iter().flat_map(options_of))?;

    // With every number in its range, only these can still be wrong.
    let doubtful = if name == MULTI_STEP { "milestones" } else { "warmup" };
    let origin = fields.origin(doubtful);
    let warmup = fields.whole("warmup", 0, MAX)?.unwrap_or(0);
    let milestones = fields.wholes("milestones", 1, MAX)?.unwrap_or_default();
    let mut params = BTreeMap::new();
    for &(param, default) in row.params {
        params.insert(param.to_string(), fields.real(param, range(param))?.unwrap_or(default));
    }
    let given: Vec<(&str, f64)> = params.iter().map(|(name, x)| (name.as_str(), *x)).collect();
    lr::LrSchedule::new(name, &given, &milestones, warmup)
        .map_err(|error| fields.error(doubtful, origin, error.to_string()))?;
    fields.finish()?;
    Ok(ScheduleSection { name: name.to_string(), warmup, params, milestones })
}

pub fn devices(mut fields: Fields<'_>) -> Result<DevicesSection, JobError> {
    let devices = DevicesSection {
        count: fields.whole("count", 1, 64)?.unwrap_or(1),
        threads: fields.whole("threads", 0, 1024)?.unwrap_or(0),
        memory: fields.bytes("memory", 1)?,
        host_memory: fields.bytes("host_memory", 0)?,
        disk: fields.bytes("disk", 1)?,
        disk_dir: fields.path("disk_dir")?,
        recompute: fields.flag("recompute")?.unwrap_or(true),
        each: Vec::new(),
    };
    fields.finish()?;
    Ok(devices)
}

/// Devices listed one by one. Fields that hold for all devices stand with the first.
pub fn listed_devices(list: Vec<Fields<'_>>) -> Result<DevicesSection, JobError> {
    const TOGETHER: [&str; 4] = ["host_memory", "disk", "disk_dir", "recompute"];
    let mut devices = DevicesSection { count: list.len() as u64, ..DevicesSection::default() };
    for (i, mut fields) in list.into_iter().enumerate() {
        let of_all = || "is of all devices together; write it below the first [[devices]]".to_string();
        if let Some(key) = TOGETHER.into_iter().find(|key| i > 0 && fields.has(key)) {
            return Err(fields.error(key, fields.origin(key), of_all()));
        }
        if fields.has("count") {
            let problem = "the devices are listed one by one; leave count away".to_string();
            return Err(fields.error("count", fields.origin("count"), problem));
        }
        devices.each.push(DeviceEntry {
            threads: fields.whole("threads", 0, 1024)?.unwrap_or(0),
            memory: fields.bytes("memory", 1)?,
            socket: fields.whole("socket", 0, 63)?.unwrap_or(0),
        });
        if i == 0 {
            devices.host_memory = fields.bytes("host_memory", 0)?;
            devices.disk = fields.bytes("disk", 1)?;
            devices.disk_dir = fields.path("disk_dir")?;
            devices.recompute = fields.flag("recompute")?.unwrap_or(true);
        }
        fields.finish()?;
    }
    // Fields of all devices are those of the smallest.
    let memory: Option<Vec<u64>> = devices.each.iter().map(|device| device.memory).collect();
    devices.memory = memory.and_then(|memory| memory.into_iter().min());
    devices.threads = devices.each.iter().map(|device| device.threads).min().unwrap_or(0);
    Ok(devices)
}

pub fn links(mut fields: Fields<'_>) -> Result<LinksSection, JobError> {
    let links = LinksSection {
        host: fields.rate("host")?,
        shared: fields.flag("shared")?.unwrap_or(true),
        peer: fields.rate("peer")?,
        sockets: fields.rate("sockets")?,
        latency: fields.duration("latency")?.unwrap_or_default(),
    };
    fields.finish()?;
    Ok(links)
}
