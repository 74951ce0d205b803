//! Trains a job in a run directory: plans, starts or resumes, trains, and writes plan, metrics, checkpoints and weights.
//! Everything that happens is an [`Event`]; nothing is printed here.

mod begin;
mod record;
mod summary;

use crate::error::Error;
use crate::event::{Event, EventHandler, PlanSummary};
use crate::files::{check_file, write_file};
use crate::history;
use crate::job::Job;
use crate::local::together;
use crate::machine;
use crate::report::metrics::MetricFiles;
use crate::run_dir::{ABOUT, About, BEST, JOB, PLAN, RunDir, WEIGHTS};
use crate::setup::{PlanningOptions, Prepared, Setup, setup};
use crate::watch::watched;
use begin::begin;
use gulliver_plan::document::job::Purpose;
use gulliver_run::session::Session;
use gulliver_run::train::{self, Best, Done, MAPPING, MODEL, Notice, TrainError, TrainOptions};
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use summary::{compared, describe, finished, peaks, tier_names};

/// Where and how a job is trained, beyond what the job itself says.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The directory of the run; if not given, a new one below `runs/` or, with `resume`, the newest run of the job.
    pub dir: Option<PathBuf>,
    /// Continue from the newest checkpoint in the directory, or start if there is none.
    pub resume: bool,
    /// Continue although classes, characters or normalisation of the data have changed since the checkpoint.
    pub changed_data: bool,
    /// Add the run to the user's history of predicted and measured times.
    pub history: bool,
    /// A file for a trace of the last step, for Chrome or Perfetto.
    pub trace: Option<PathBuf>,
    /// The profile of the machine; its usual file if not given.
    pub profile: Option<PathBuf>,
    /// Stops the run at the next safe point, after a checkpoint, once it is true.
    pub stop: Arc<AtomicBool>,
}

/// A run that ended, or was stopped after a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainResult {
    /// The directory of the run; [`Model::load`](crate::model::Model::load) takes it.
    pub dir: PathBuf,
    /// Steps that were done before this call.
    pub from_step: u64,
    /// Steps done in all.
    pub steps: u64,
    /// Steps of the whole job.
    pub all_steps: u64,
    /// The last training loss.
    pub loss: f64,
    /// The last evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// The best evaluation.
    pub best: Option<Best>,
    /// Over the whole call.
    pub samples_per_second: f64,
    /// Fingerprint of the weights.
    pub fingerprint: String,
    /// Whether the run was stopped before its end; [`resume`] continues it.
    pub interrupted: bool,
}

/// Trains a job in a new directory below `runs/`.
pub fn train(job: &Job, on_event: &mut EventHandler<'_>) -> Result<TrainResult, Error> {
    train_with(job, &RunOptions::default(), on_event)
}

/// Continues the run in a directory, with the job that it keeps.
pub fn resume(dir: impl AsRef<Path>, on_event: &mut EventHandler<'_>) -> Result<TrainResult, Error> {
    let dir = dir.as_ref();
    let mut job = Job::load(dir.join(JOB))?;
    if let Some(about) = About::read(dir) {
        job.name_file(&about.job_file);
    }
    let options = RunOptions { dir: Some(dir.to_path_buf()), resume: true, ..RunOptions::default() };
    train_with(&job, &options, on_event)
}

/// Trains a job. `on_event` hears of everything in order, on the calling thread. A `Break` before the first step ends the
/// call with [`Error::Cancelled`] and leaves no traces; later it stops the run after a checkpoint.
pub fn train_with(
    job: &Job,
    options: &RunOptions,
    on_event: &mut EventHandler<'_>,
) -> Result<TrainResult, Error> {
    if let Some(path) = &options.trace {
        check_file(path)?;
    }
    let stop = &options.stop;
    let broke = Cell::new(false);
    let mut tell = |event: Event| {
        if on_event(event).is_break() {
            broke.set(true);
            stop.store(true, Ordering::Relaxed);
        }
    };
    let mut dir = RunDir::take(Path::new(job.file()), options.dir.as_deref(), options.resume)?;
    let checkpoints = dir.checkpoints();
    let machine = machine::known(options.profile.as_deref())?.profile;
    let Setup { prepared, devices, strategy, planners, .. } =
        watched(job.devices.memory, stop, &mut tell, |watch| {
            let planning = PlanningOptions { watch: Some(watch), thorough: false };
            setup(job, Some(&checkpoints), machine.as_ref(), &planning)
        })?;
    let Prepared { mut schedule, sources, options: mut settings, parameters, fitted, info, .. } = prepared;
    settings.best = Some(dir.join(BEST));
    settings.changed_data = options.changed_data;
    // As they are before they learn from the run.
    let before = options.history.then(|| planners.clone());
    let mut session = together(strategy, planners, &devices, job.train.seed)?;
    if options.trace.is_some() {
        session.record();
    }
    tell(Event::Data {
        training: info.examples as u64,
        validation: sources.validation.as_ref().map_or(0, |(set, _)| set.len() as u64),
        classes: info.classes.map(|classes| classes as u64),
        class_names: info.class_names,
        notes: info.notes,
    });
    for (name, value) in fitted {
        tell(Event::Warning { message: format!("model.{name} = {value}, to fit the data") });
    }
    let (begun, warnings) = begin(options.resume, job, &dir, &mut session, &mut schedule, &settings)?;
    warnings.into_iter().for_each(|message| tell(Event::Warning { message }));

    // Only a job that can run takes the directory, and only one that can go on touches what is there.
    let mut plan = PlanSummary::default();
    let mut first_plan = None;
    if settings.steps > begun.steps {
        let batch = sources.batch_ahead(begun.steps)?;
        let sizes = session.share(session.sizes(Purpose::Train, &batch)?)?;
        let made = session.plan(Purpose::Train, &sizes)?;
        plan.peak_bytes = peaks(session.device_name(), made.spaces.iter().map(|space| space.live));
        plan.description = describe(&made);
        first_plan = Some(made);
    }
    if broke.get() {
        return Err(Error::Cancelled);
    }
    dir.keep()?;
    if let Some(plan) = first_plan {
        let json = |file: &mut dyn Write| serde_json::to_writer(file, &*plan).map_err(io::Error::from);
        write_file(&dir.join(PLAN), json)?;
    }
    write_file(&dir.join(JOB), |file| file.write_all(job.to_toml().as_bytes()))?;
    write_about(job, &dir, &settings)?;
    for name in session.slow_operators() {
        tell(Event::Warning { message: format!("operator {name} has no fast kernel yet") });
    }
    let devices = &job.devices;
    let budgets = [devices.memory, devices.host_memory, devices.disk];
    let named = tier_names(session.device_name()).into_iter().zip(budgets);
    plan.budget_bytes = named.filter_map(|(name, budget)| Some((name, budget?))).collect();
    let (steps, batch) = (settings.steps, job.train.batch);
    let mut metrics = MetricFiles::open(dir.path(), options.resume.then_some(begun.steps), now())
        .map_err(|source| Error::File { path: dir.path().to_path_buf(), source })?;
    let name = job.file().to_string();
    tell(Event::Start { job: name, parameters, plan, from_step: begun.steps, steps, batch });

    let mut failure: Option<io::Error> = None;
    let mut reached = begun.steps;
    let mut notify = |notice: Notice| {
        if let Notice::Checkpoint { step, .. } = &notice {
            reached = *step;
        }
        let event = Event::from(notice);
        if let (Err(e), None) = (metrics.record(&event, now()), &failure) {
            failure = Some(e);
            stop.store(true, Ordering::Relaxed);
        }
        tell(event);
    };
    let trained = train::train(&mut session, &mut schedule, &sources, &settings, &begun, stop, &mut notify);
    let stopped = |source: Error, step: u64| match step > begun.steps {
        true => {
            let (source, dir) = (Box::new(source), dir.path().to_path_buf());
            let command = format!("resume the run in {}", dir.display());
            Error::Stopped { source, step, steps, dir, command }
        }
        false => source,
    };
    let done = trained.map_err(|error| match error {
        error @ TrainError::Data(_) => stopped(error.into(), reached),
        error => error.into(),
    })?;
    if !done.interrupted {
        train::save_weights(&mut session, &dir.join(WEIGHTS), &settings.about)?;
    }
    if let Some(e) = failure {
        return Err(stopped(e.into(), done.steps));
    }
    let result = result(&done, dir.path(), begun.steps, steps);
    if done.interrupted {
        if let Err(error) = write_trace(options, &session) {
            tell(Event::Warning { message: error.to_string() });
        }
        return Ok(result);
    }
    if devices.memory.is_some() {
        tell(compared(&done, session.memory()));
    }
    if let Some((planners, path)) = before.zip(history::default_path()) {
        let ran = record::record(job, strategy, machine.as_ref(), planners, &done);
        // A failure of the history is no failure of the run.
        if let Err(e) = ran.map_or(Ok(()), |ran| history::add(&path, &ran)) {
            tell(Event::Warning { message: format!("not remembered in {}: {e}", path.display()) });
        }
    }
    tell(finished(done, session.device_name(), sources.train.info().class_names));
    write_trace(options, &session)?;
    Ok(result)
}

fn result(done: &Done, dir: &Path, from_step: u64, all_steps: u64) -> TrainResult {
    TrainResult {
        dir: dir.to_path_buf(),
        from_step,
        steps: done.steps,
        all_steps,
        loss: done.loss,
        metrics: done.metrics.clone(),
        best: done.best.clone(),
        samples_per_second: done.samples_per_second,
        fingerprint: done.fingerprint.clone(),
        interrupted: done.interrupted,
    }
}

/// Writes what is needed to use the model of the run.
fn write_about(job: &Job, dir: &RunDir, options: &TrainOptions) -> Result<(), Error> {
    let json = |key: &str| {
        options.about.get(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    };
    let about = About {
        gulliver: env!("CARGO_PKG_VERSION").to_string(),
        job_file: std::path::absolute(job.file())?,
        model: json(MODEL),
        mapping: json(MAPPING),
    };
    write_file(&dir.join(ABOUT), |file| {
        serde_json::to_writer_pretty(&mut *file, &about).map_err(io::Error::from)?;
        file.write_all(b"\n")
    })
}

/// Writes the trace of the last step, if one was asked for and there was a step.
fn write_trace(options: &RunOptions, session: &Session) -> Result<(), Error> {
    match (&options.trace, session.trace()) {
        (Some(path), Some(trace)) => write_file(path, |file| file.write_all(trace.as_bytes())),
        _ => Ok(()),
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
