//! From a job to everything training needs: data opened, model built to fit it, optimizer and schedule, and then
//! its plans. Nothing is trained here.

mod advise;
mod open;

pub use open::{data_error, open_data};

use advise::advise;

use crate::error::{Error, one_line};
use crate::fit::{DataFacts, check_fit, class_weights, fit};
use crate::job::{ClassWeights, DeviceEntry, Job, Length, NormGroup, TrainSection};
use crate::local::{LocalDevice, device_set, planner, shared};
use crate::model::metadata;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_graph::graph::op::Op;
use gulliver_graph::lr::LrSchedule;
use gulliver_graph::model::model;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::weighted::Weighted;
use gulliver_graph::nearest::suggestion;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{Clip, evaluation_graph, training_graph};
use gulliver_plan::devices::options::PlanWatch;
use gulliver_plan::devices::planner::{Planner, evaluated_at_once};
use gulliver_plan::devices::strategy::{ALONE, AUTO, JobGraphs, fastest, largest as strategy_largest};
use gulliver_plan::document::links::Links;
use gulliver_plan::document::topology::Topology;
use gulliver_plan::time::cost::{MachineProfile, Rates};
use gulliver_run::data::open::Opened;
use gulliver_run::data::{Buckets, DataInfo, Dataset, Sampler, WeightedClasses};
use gulliver_run::peers::link::Throttle;
use gulliver_run::profile::roofline;
use gulliver_run::session::{SessionError, sizes_of};
use gulliver_run::team::{Team, cores};
use gulliver_run::train::{Sources, TrainOptions, metric_names};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Ready to be planned: data opened, and a model that fits it.
pub struct Prepared {
    /// Its graphs.
    pub graphs: JobGraphs,
    /// Learning rate over time.
    pub schedule: LrSchedule,
    /// Batches.
    pub sources: Sources,
    /// How long and how often.
    pub options: TrainOptions,
    /// Trained numbers.
    pub parameters: u64,
    /// Settings of the model that the data decided, for people to see.
    pub fitted: Vec<(String, ParamValue)>,
    /// Facts about the training data.
    pub info: DataInfo,
}

/// A prepared job, and the devices it runs on.
pub struct Placed {
    /// Its graphs, data and settings.
    pub prepared: Prepared,
    /// Its devices, whatever the strategy.
    pub devices: Vec<LocalDevice>,
}

/// Planned, and ready to be given memory.
pub struct Setup {
    /// Its graphs, data and settings.
    pub prepared: Prepared,
    /// Its devices, whatever the strategy.
    pub devices: Vec<LocalDevice>,
    /// How devices share the work; [`ALONE`] on one device.
    pub strategy: &'static str,
    /// The planners of all devices, by rank.
    pub planners: Vec<Planner>,
    /// The largest input of a device.
    pub largest: Bindings,
}

/// How fast the machine is thought to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Kernels, with all threads.
    pub rates: Rates,
    /// Links between tiers.
    pub links: Links,
}

impl Speeds {
    /// As far as a job's plans depend on them, measured; checkpoints go below `checkpoints`.
    pub fn for_job(job: &Job, checkpoints: Option<&Path>) -> Speeds {
        let devices = &job.devices;
        let limited = devices.memory.is_some();
        let rates = if limited { measured(threads(job)) } else { Rates::default() };
        let probed = (limited && devices.disk.is_some())
            .then(|| disk_dir(job, checkpoints).unwrap_or_else(std::env::temp_dir));
        Speeds { rates, links: measured_links(probed.as_deref()) }
    }

    /// As a profile says.
    fn known(job: &Job, machine: &MachineProfile) -> Speeds {
        let rates = machine.at(threads(job), job.devices.count as usize).map(|curves| curves.rates);
        Speeds { rates: rates.unwrap_or_default(), links: beside_kernels(machine.links) }
    }
}

/// How a job is planned.
#[derive(Clone, Debug, Default)]
pub struct PlanningOptions {
    /// Sees the progress, and may end it.
    pub watch: Option<Arc<dyn PlanWatch>>,
    /// Whether to search for a change that makes the job fit if it does not.
    pub thorough: bool,
}

/// Sets a job up on this machine, with its profile if there is one; checkpoints go below `checkpoints`.
pub fn setup(
    job: &Job,
    checkpoints: Option<&Path>,
    machine: Option<&MachineProfile>,
    planning: &PlanningOptions,
) -> Result<Setup, Error> {
    let Placed { prepared, devices } = place(job, checkpoints, machine, planning.watch.clone())?;
    let graphs = &prepared.graphs;
    let (strategy, planners) = match (job.devices.count, job.train.strategy) {
        (1, _) => (ALONE, vec![planned(graphs, &devices[0], planning.thorough)?]),
        (_, AUTO) => {
            let best = fastest(graphs, &device_set(&devices))?;
            (best.name, best.into_planners(graphs)?)
        }
        (_, name) => (name, shared(name, graphs, &devices)?.planners),
    };
    let largest = strategy_largest(&planners, graphs);
    Ok(Setup { prepared, devices, strategy, planners, largest })
}

/// Prepares a job, and the devices it runs on. Plans nothing.
pub fn place(
    job: &Job,
    checkpoints: Option<&Path>,
    machine: Option<&MachineProfile>,
    watch: Option<Arc<dyn PlanWatch>>,
) -> Result<Placed, Error> {
    let prepared = prepare(job, open_data(job)?, checkpoints)?;
    let speeds =
        machine.map_or_else(|| Speeds::for_job(job, checkpoints), |machine| Speeds::known(job, machine));
    let mut device = session_options(job, &prepared.graphs.largest, &speeds, checkpoints);
    let curves = machine.and_then(|machine| machine.at(threads(job), job.devices.count as usize));
    (device.curves, device.watch) = (curves.map(Arc::new), watch);
    let devices = device_options(&device, job, machine);
    Ok(Placed { prepared, devices })
}

/// Builds a job's graphs and all it needs beside them, for data that was opened. Plans nothing.
pub fn prepare(
    job: &Job,
    (train, validation): Opened,
    checkpoints: Option<&Path>,
) -> Result<Prepared, Error> {
    let info = train.info();

    let given = job.model.params();
    let facts = DataFacts::of(train.as_ref(), validation.as_deref())?;
    let longest = facts.longest;
    let fitted = fit(&job.model.name, &given, &facts);
    let settings: Vec<(String, ParamValue)> = given.iter().chain(&fitted).cloned().collect();
    check_fit(job, &given, &settings, &facts)?;
    let mut model = model(&job.model.name, &settings).map_err(|e| job.error("model", e.to_string()))?;
    let (mut train, mut validation) = (train, validation);
    if let Some(weights) = class_weights(job, &settings, &facts)? {
        model = Box::new(Weighted(model));
        train = Arc::new(WeightedClasses::for_training(train, weights.clone()));
        validation =
            validation.map(|set| Arc::new(WeightedClasses::for_evaluation(set, weights)) as Arc<dyn Dataset>);
    }
    let optimizer = optimizer(job)?;
    let clip = match (job.train.clip_norm, job.train.clip_value) {
        (Some(norm), _) => Some(Clip::Norm(norm as f32)),
        (None, Some(value)) => Some(Clip::Value(value as f32)),
        (None, None) => None,
    };
    let graph = training_graph(model.as_ref(), std::slice::from_ref(&optimizer), clip)?;
    let evaluation = evaluation_graph(model.as_ref())?;
    check_partials(job, &graph)?;
    let parameters = graph.parameters().bind(&Bindings::new()).unwrap_or(0) as u64;

    let params: Vec<(&str, f64)> = job.schedule.params.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    let schedule =
        LrSchedule::new(&job.schedule.name, &params, &job.schedule.milestones, job.schedule.warmup)
            .map_err(|e| job.error("schedule", e.to_string()))?;

    let batch = job.train.batch as usize;
    let buckets = if job.data.buckets { Buckets::of(train.as_ref()) } else { None };
    let sampler = Sampler::new(train.len(), batch, job.train.seed, job.data.shuffle, true, buckets)
        .map_err(|error| data_error(job, error))?;
    let steps = match job.train.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => epochs.saturating_mul(sampler.steps_per_epoch()),
    };
    let slice = evaluated_at_once(batch, job.train.partials as usize);
    let validation = match validation {
        Some(set) if !set.is_empty() => {
            let sampler = Sampler::new(set.len(), slice.min(set.len()), job.train.seed, false, false, None)?;
            Some((set, sampler))
        }
        _ => None,
    };
    check_best(job, &metric_names(&evaluation, facts.predicts_tokens()), validation.is_some())?;
    let sources = Sources::from_parts(train, sampler, validation);
    let largest = largest(&graph, &sources, longest)?;
    let options = TrainOptions {
        steps,
        seed: job.train.seed,
        eval_every: job.train.eval_every,
        eval_batches: job.train.eval_batches,
        best_by: job.train.best_by.clone(),
        best: None,
        early_stopping: job.train.early_stopping,
        checkpoint_every: job.train.checkpoint_every,
        checkpoint_time: minutes(job.train.checkpoint_minutes),
        keep_checkpoints: job.train.keep_checkpoints as usize,
        log_every: job.train.log_every,
        on_nan: job.train.on_nan,
        base_lr: job.optimizer.lr,
        hyper: BTreeMap::new(),
        perplexity: facts.predicts_tokens(),
        checkpoints: checkpoints.map(Path::to_path_buf),
        identity: identity(job, &settings, &info),
        about: metadata(&job.model.name, &settings, &job.data.options, &info),
        changed_data: false,
    };
    let graphs = JobGraphs { train: graph, evaluation, largest };
    Ok(Prepared { graphs, schedule, sources, options, parameters, fitted, info })
}

/// Checks that the job measures the metric that selects its best evaluation.
fn check_best(job: &Job, metrics: &[String], evaluated: bool) -> Result<(), Error> {
    let TrainSection { best_by, early_stopping, .. } = &job.train;
    let known = metrics.contains(best_by);
    if *early_stopping > 0 && !evaluated {
        let problem = "there is no validation data to tell improvement by; set data.validation, or 0 here";
        return Err(job.error("train.early_stopping", problem).into());
    }
    // A model without a metric of the default's name goes without.
    if !known && (*best_by != TrainSection::default().best_by || *early_stopping > 0) {
        let hint = suggestion(best_by, metrics.iter().map(String::as_str), "it measures");
        let problem = format!("`{}` is not measured by this job{hint}", one_line(best_by));
        return Err(job.error("train.best_by", problem).into());
    }
    Ok(())
}

/// A time between checkpoints; none for 0, or for longer than anything lasts.
fn minutes(minutes: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(60.0 * minutes).ok().filter(|time| !time.is_zero())
}

/// The device of a job that has the machine to itself.
pub fn session_options(
    job: &Job,
    largest: &Bindings,
    speeds: &Speeds,
    checkpoints: Option<&Path>,
) -> LocalDevice {
    let devices = &job.devices;
    LocalDevice {
        threads: threads(job),
        memory: devices.memory,
        host_memory: devices.host_memory,
        disk: devices.disk,
        disk_dir: disk_dir(job, checkpoints),
        links: speeds.links,
        largest: Some(largest.clone()),
        recompute: devices.recompute,
        rates: speeds.rates,
        partials: job.train.partials as u32,
        // Links that job files can say are always sound.
        throttle: devices_linked(job).map(|topology| Arc::new(Throttle::new(topology))),
        ..LocalDevice::default()
    }
}

/// The topology between the devices of a job, if its links limit the speed.
pub fn devices_linked(job: &Job) -> Option<Topology> {
    job.links.topology(&job.devices).ok().flatten()
}

/// The plans of a job, or what to do if it does not fit; `thorough` searches for a change that is known to help.
pub fn planned(graphs: &JobGraphs, device: &LocalDevice, thorough: bool) -> Result<Planner, Error> {
    match planner(graphs.train.clone(), Some(graphs.evaluation.clone()), device) {
        Ok(planner) => Ok(planner),
        Err(e) => Err(advise(graphs, device.clone(), e, thorough)),
    }
}

/// The devices of a job, which share its budgets of host memory and disk. Speeds are those of the profile, or else in
/// proportion to the threads of a device.
fn device_options(session: &LocalDevice, job: &Job, machine: Option<&MachineProfile>) -> Vec<LocalDevice> {
    let share = |bytes: Option<u64>| bytes.map(|bytes| bytes / job.devices.count);
    let (host_memory, disk) = (share(session.host_memory), share(session.disk));
    let device = |one: DeviceEntry| {
        let threads = if one.threads == 0 { session.threads } else { one.threads as usize };
        let curves = machine.and_then(|machine| machine.at(threads, job.devices.count as usize));
        let faster = threads as f64 / session.threads.max(1) as f64;
        let scaled = Rates { flops: session.rates.flops * faster, ..session.rates };
        let rates = curves.as_ref().map_or(scaled, |curves| curves.rates);
        let curves = curves.map(Arc::new);
        LocalDevice { threads, memory: one.memory, host_memory, disk, rates, curves, ..session.clone() }
    };
    job.devices.list().into_iter().map(device).collect()
}

/// Threads that each device of a job is to use.
pub fn threads(job: &Job) -> usize {
    match job.devices.threads {
        0 => (cores() / job.devices.count as usize).max(1),
        n => n as usize,
    }
}

fn disk_dir(job: &Job, checkpoints: Option<&Path>) -> Option<PathBuf> {
    job.devices.disk_dir.clone().or(checkpoints.and_then(Path::parent).map(Path::to_path_buf))
}

/// The sizes of the first batch, with the longest sequence there is.
fn largest(graph: &Graph, sources: &Sources, longest: usize) -> Result<Bindings, Error> {
    let batch = sources.batch_ahead(0)?;
    let mut sizes = sizes_of(graph, &batch).map_err(SessionError::from)?;
    if let Some(length) = sizes.get("length") {
        sizes.set("length", length.max(longest));
    }
    Ok(sizes)
}

/// Speeds of links: those of an ordinary machine, and of the disk as measured now. A disk that cannot be measured fails
/// when it is used.
pub fn measured_links(disk_dir: Option<&Path>) -> Links {
    const PROBED: usize = 32 << 20;
    let ordinary = Links::default();
    match disk_dir.map(|dir| roofline::disk(dir, PROBED)) {
        Some(Ok([disk_read, disk_write])) => beside_kernels(Links { disk_read, disk_write, ..ordinary }),
        _ => ordinary,
    }
}

/// Speeds of a disk while kernels run, from those of the disk alone.
fn beside_kernels(links: Links) -> Links {
    Links { disk_read: 0.7 * links.disk_read, disk_write: 0.7 * links.disk_write, ..links }
}

/// Rough speeds of this machine's kernels: the usual share of the measured peak.
pub fn measured(threads: usize) -> Rates {
    let team = Team::new(threads);
    let flops = 0.7 * roofline::multiply_adds(&team, 0.03);
    Rates { flops, bytes: 0.8 * roofline::copies(&team, 12 << 20, 0.05), ..Rates::default() }
}

/// The optimizer of a job.
pub fn optimizer(job: &Job) -> Result<Optimizer, Error> {
    let settings = job.optimizer.settings.iter().map(|(name, value)| (name.as_str(), *value as f32));
    let mut settings: Vec<(&str, f32)> = settings.collect();
    settings.push(("lr", job.optimizer.lr as f32));
    Optimizer::new(&job.optimizer.name, &settings).map_err(|e| job.error("optimizer", e.to_string()).into())
}

/// Statistics over a batch mean the whole batch, unless the job says that a partial is the group.
fn check_partials(job: &Job, graph: &Graph) -> Result<(), Error> {
    let batch_statistics = graph.nodes.iter().any(|n| matches!(n.op, Op::BatchNorm(_)));
    if job.train.partials > 1 && batch_statistics && job.train.norm_group == NormGroup::Batch {
        let problem = "this model normalises over the batch, and its statistics cannot yet be shared between partials; \
                       set train.norm_group = \"partial\" to normalise over each partial, or use partials = 1";
        return Err(job.error("train.partials", problem).into());
    }
    let objectives = graph.nodes.iter().map(|n| n.objective).max().unwrap_or(0) + 1;
    if job.train.partials > 1 && batch_statistics && objectives > 1 {
        let problem = "running statistics of a model with several objectives are not kept over partials; use partials = 1";
        return Err(job.error("train.partials", problem).into());
    }
    Ok(())
}

/// The settings that must be equal for a checkpoint to be continued.
fn identity(job: &Job, settings: &[(String, ParamValue)], info: &DataInfo) -> BTreeMap<String, String> {
    let settings: BTreeMap<&str, String> =
        settings.iter().map(|(n, v)| (n.as_str(), v.to_string())).collect();
    let settings: Vec<String> = settings.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let examples = match job.data.options.folds {
        Some(folds) => format!("{} without fold {} of {folds}", info.examples, job.data.options.fold),
        None => info.examples.to_string(),
    };
    let entries = [
        ("model", format!("{} {}", job.model.name, settings.join(" ")).trim().to_string()),
        ("optimizer", job.optimizer.name.clone()),
        ("data.kind", job.data.options.kind.clone()),
        ("data.examples", examples),
        ("train.batch", job.train.batch.to_string()),
        ("train.partials", job.train.partials.to_string()),
        ("train.seed", job.train.seed.to_string()),
    ];
    let weights = job.train.class_weights.iter().map(|weights| {
        let text = match weights {
            ClassWeights::Balanced => "balanced".to_string(),
            ClassWeights::Given(weights) => format!("{weights:?}"),
        };
        ("train.class_weights", text)
    });
    entries.into_iter().chain(weights).map(|(name, value)| (name.to_string(), value)).collect()
}
