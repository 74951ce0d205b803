//! `gulliver train JOB`: trains the model of a job file in a run directory of its own.

use super::CommandError;
use crate::interrupt;
use crate::job::Job;
use crate::report::events::{Event, PlanSummary};
use crate::report::metrics::MetricFiles;
use crate::report::progress::{Mode, Reporter};
use crate::setup::{Setup, setup};
use clap::Args;
use gulliver_run::atomic::{remove_unfinished, write_atomic};
use gulliver_run::checkpoint;
use gulliver_run::data::prefetch;
use gulliver_run::session::{SessionError, Which};
use gulliver_run::train::{self, Done, Notice, OnNan};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Trains the model of a job file.
#[derive(Args)]
pub struct Arguments {
    /// The job file.
    job: PathBuf,
    /// Overrides a field of the job, e.g. --set train.batch=32.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    sets: Vec<String>,
    /// Trains for this many steps in all.
    #[arg(long)]
    steps: Option<u64>,
    /// The run's directory: job, plan, metrics, checkpoints.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Goes on from the newest checkpoint in the run's directory, or starts if there is none.
    #[arg(long, requires = "out")]
    resume: bool,
    /// Events as JSON lines on standard output.
    #[arg(long)]
    json: bool,
    /// What to do when a loss is not finite.
    #[arg(long, value_name = "stop|skip")]
    on_nan: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let mut reporter = Reporter::new(Mode::choose(arguments.json), Box::new(io::stdout()));
    let result = run_with(arguments, &mut reporter);
    if let Err(error) = &result {
        reporter.report(&Event::Error { message: error.to_string() })?;
    }
    result
}

fn run_with(arguments: &Arguments, reporter: &mut Reporter) -> Result<(), CommandError> {
    let stop = interrupt::install()?;
    let job = load_job(arguments)?;
    let dir = run_directory(arguments)?;
    let checkpoints = dir.join("checkpoints");
    let Setup { mut session, mut schedule, sources, options, parameters, fitted } =
        setup(&job, Some(&checkpoints))?;
    for (name, value) in fitted {
        let message = format!("model.{name} = {value}, to fit the data");
        reporter.report(&Event::Warning { message })?;
    }
    let mut newest = None;
    if arguments.resume {
        let latest = checkpoint::latest(&checkpoints)?;
        for skipped in latest.skipped {
            reporter.report(&Event::Warning { message: format!("skipped: {skipped}") })?;
        }
        newest = latest.found;
    }
    let start = match (newest, &job.train.weights) {
        (Some((_, checkpoint)), _) => {
            train::restore(&mut session, &mut schedule, &checkpoint, &options.identity)?
        }
        (None, Some(weights)) => {
            train::load_weights(&mut session, &checkpoint::load(weights)?)?;
            0
        }
        (None, None) => 0,
    };

    // Only a job that can run takes the directory, and only one that can go on touches what is there.
    let mut peak_bytes = BTreeMap::new();
    if options.steps > start {
        let batch =
            prefetch::make(sources.train.as_ref(), &sources.sampler, start).map_err(CommandError::Data)?;
        let sizes = session.sizes(Which::Train, &batch)?;
        let plan = session.plan(Which::Train, &sizes)?;
        peak_bytes.insert("cpu0".to_string(), plan.live_peaks()[0]);
        let json = serde_json::to_vec(plan).map_err(io::Error::from)?;
        take(&dir)?;
        write_file(&dir.join("plan.json"), &json)?;
    } else {
        take(&dir)?;
    }
    write_file(&dir.join("job.toml"), job.to_toml().as_bytes())?;
    for name in session.slow_operators() {
        reporter.report(&Event::Warning { message: format!("operator {name} has no fast kernel yet") })?;
    }
    let budget_bytes = job.devices.memory.map(|m| ("cpu0".to_string(), m)).into_iter().collect();
    let plan = PlanSummary { description: "everything resident".into(), peak_bytes, budget_bytes };
    let name = arguments.job.display().to_string();
    let (steps, batch) = (options.steps, job.train.batch);
    let mut metrics = MetricFiles::open(&dir, arguments.resume.then_some(start), now())
        .map_err(|source| CommandError::File { path: dir.clone(), source })?;
    reporter.report(&Event::Start { job: name, parameters, plan, from_step: start, steps, batch })?;

    let mut failure: Option<io::Error> = None;
    let mut notify = |notice: Notice| {
        let event = event(notice);
        let told = reporter.report(&event).and_then(|()| metrics.record(&event, now()));
        if let (Err(e), None) = (told, &failure) {
            failure = Some(e);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let done = train::train(&mut session, &mut schedule, &sources, &options, start, &stop, &mut notify)?;
    if let Some(e) = failure {
        return Err(e.into());
    }
    if done.interrupted {
        return Err(CommandError::Interrupted { step: done.steps, steps });
    }
    let weights = dir.join("weights.safetensors");
    let mut model_only = session.layout();
    model_only.retain(|(name, ..)| !is_optimizer_state(name));
    if session.first_not_finite(&model_only).map_err(SessionError::from)?.is_none() {
        let format = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        let mut read = |i: usize| session.tensor(&model_only[i]).map(Cow::Owned);
        checkpoint::save_from(&weights, &model_only, &mut read, &format)?;
    }
    let event = finished(done);
    metrics.record(&event, now())?;
    reporter.report(&event)?;
    Ok(())
}

fn is_optimizer_state(name: &str) -> bool {
    name.split('.').any(|part| part == "optimizer")
}

fn load_job(arguments: &Arguments) -> Result<Job, CommandError> {
    let mut sets = arguments.sets.clone();
    if let Some(steps) = arguments.steps {
        sets.push(format!("train.steps={steps}"));
    }
    let mut job = Job::load(&arguments.job, &sets)?;
    match arguments.on_nan.as_deref() {
        None => {}
        Some("stop") => job.train.on_nan = OnNan::Stop,
        Some("skip") => job.train.on_nan = OnNan::Skip,
        Some(other) => {
            return Err(CommandError::Unknown(format!("--on-nan {other}: expected stop or skip")));
        }
    }
    Ok(job)
}

/// The directory asked for, or a new one below `runs/` named after the job file.
fn run_directory(arguments: &Arguments) -> Result<PathBuf, CommandError> {
    if let Some(dir) = &arguments.out {
        let taken = dir.join("job.toml").exists() || !checkpoint::list(&dir.join("checkpoints"))?.is_empty();
        if taken && !arguments.resume {
            return Err(CommandError::DirectoryTaken(dir.clone()));
        }
        return Ok(dir.clone());
    }
    let stem = arguments.job.file_stem().map_or("job".into(), |s| s.to_string_lossy().into_owned());
    let name = |n: u32| Path::new("runs").join(if n == 1 { stem.clone() } else { format!("{stem}-{n}") });
    Ok((1..).map(name).find(|dir| !dir.exists()).unwrap_or_else(|| name(1)))
}

/// Makes the run directory, without what a killed process may have left unfinished in it.
fn take(dir: &Path) -> Result<(), CommandError> {
    for dir in [dir, &dir.join("checkpoints")] {
        fs::create_dir_all(dir)
            .and_then(|()| remove_unfinished(dir))
            .map_err(|source| CommandError::File { path: dir.to_path_buf(), source })?;
    }
    Ok(())
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CommandError> {
    write_atomic(path, |file| file.write_all(bytes))
        .map_err(|source| CommandError::File { path: path.to_path_buf(), source })
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

fn event(notice: Notice) -> Event {
    match notice {
        Notice::Step { step, loss, lr, samples_per_second, metrics } => {
            Event::Step { step, loss, lr, samples_per_second, metrics }
        }
        Notice::Evaluation { step, metrics } => Event::Eval { step, metrics },
        Notice::Checkpoint { step, path } => Event::Checkpoint { step, path },
        Notice::Warning(message) => Event::Warning { message },
    }
}

fn finished(done: Done) -> Event {
    Event::Done {
        steps: done.steps,
        loss: done.loss,
        metrics: done.metrics,
        samples_per_second: done.samples_per_second,
        peak_bytes: BTreeMap::from([("cpu0".to_string(), done.peak)]),
        link_bytes: BTreeMap::from([
            ("host-cpu0".to_string(), done.ledger.to_device),
            ("cpu0-host".to_string(), done.ledger.to_host),
        ]),
        fingerprint: done.fingerprint,
    }
}
