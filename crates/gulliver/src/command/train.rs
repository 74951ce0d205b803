//! `gulliver train JOB`: trains the model of a job file in a run directory of its own.

mod remember;

use super::{CommandError, JobArguments, write_file};
use crate::history;
use crate::interrupt;
use crate::job::Job;
use crate::report::events::{Event, PlanSummary, PlanUse, SizeSummary};
use crate::report::metrics::MetricFiles;
use crate::report::progress::{Mode, Reporter};
use crate::report::units;
use crate::setup::{How, Setup, setup};
use clap::Args;
use gulliver_plan::plan::{Act, Choice, Plan};
use gulliver_run::atomic::remove_unfinished;
use gulliver_run::checkpoint::{self, Stored};
use gulliver_run::collector::{Amounts, Record, total};
use gulliver_run::data::prefetch;
use gulliver_run::planner::Planner;
use gulliver_run::probe;
use gulliver_run::session::{Reuse, Session, SessionError, Which};
use gulliver_run::train::{self, Done, Notice, OnNan};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Trains the model of a job file.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    job: JobArguments,
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
    /// Does not remember what was predicted and measured of this run.
    #[arg(long)]
    no_history: bool,
    /// What to do when a loss is not finite.
    #[arg(long, value_name = "stop|skip")]
    on_nan: Option<String>,
    /// Writes when each part of the last step was done, on every device, as a trace for Chrome or Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
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
    let machine = arguments.job.machine()?.profile;
    let Setup { planner, others, mut schedule, sources, options, parameters, fitted, strategy, .. } =
        setup(&job, Some(&checkpoints), machine.as_ref(), &How::watched(&job, &stop, arguments.json))?;
    if job.devices.disk.is_some() && job.devices.disk_dir.is_none() {
        fs::create_dir_all(&dir).map_err(|source| CommandError::File { path: dir.clone(), source })?;
    }
    let planners: Vec<Planner> = std::iter::once(planner).chain(others).collect();
    // As they are before they learn from the run.
    let before = (!arguments.no_history).then(|| planners.clone());
    let mut session = Session::together(planners, job.train.seed)?;
    if arguments.trace.is_some() {
        session.record();
    }
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
        (Some((_, mut stored)), _) => {
            train::restore(&mut session, &mut schedule, &mut stored, &options.identity)?
        }
        (None, Some(weights)) => {
            train::load_weights(&mut session, &mut Stored::open(weights)?)?;
            0
        }
        (None, None) => 0,
    };

    // Only a job that can run takes the directory, and only one that can go on touches what is there.
    let (mut peak_bytes, mut description) = (BTreeMap::new(), String::new());
    if options.steps > start {
        let batch =
            prefetch::make(sources.train.as_ref(), &sources.sampler, start).map_err(CommandError::Data)?;
        let sizes = session.share(session.sizes(Which::Train, &batch)?)?;
        let plan = session.plan(Which::Train, &sizes)?;
        peak_bytes = peaks(plan.spaces.iter().map(|space| space.live));
        description = describe(&plan);
        take(&dir)?;
        let json = |file: &mut dyn Write| serde_json::to_writer(file, &plan).map_err(io::Error::from);
        write_file(&dir.join("plan.json"), json)?;
    } else {
        take(&dir)?;
    }
    write_file(&dir.join("job.toml"), |file| file.write_all(job.to_toml().as_bytes()))?;
    for name in session.slow_operators() {
        reporter.report(&Event::Warning { message: format!("operator {name} has no fast kernel yet") })?;
    }
    let devices = &job.devices;
    let budgets = [("cpu0", devices.memory), ("host", devices.host_memory), ("disk", devices.disk)];
    let budget_bytes = budgets.into_iter().filter_map(|(name, b)| Some((name.to_string(), b?))).collect();
    let plan = PlanSummary { description, peak_bytes, budget_bytes };
    let name = arguments.job.job.display().to_string();
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
    if let (Some(path), Some(trace)) = (&arguments.trace, session.trace()) {
        write_file(path, |file| file.write_all(trace.as_bytes()))?;
    }
    if done.interrupted {
        return Err(CommandError::Interrupted { step: done.steps, steps });
    }
    let weights = dir.join("weights.safetensors");
    let mut model_only = session.layout();
    model_only.retain(|(name, ..)| !is_optimizer_state(name));
    if session.first_not_finite(0, &model_only).map_err(SessionError::from)?.is_none() {
        let format = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        checkpoint::save_from(&weights, &model_only, &mut session.reader(0, &model_only), &format)?;
    }
    if devices.memory.is_some() {
        let memory = session.memory();
        reporter.report(&compared(&done, memory))?;
    }
    if let Some((planners, path)) = before.zip(history::default_path()) {
        let ran = remember::ran(&job, strategy, machine.as_ref(), planners, &done);
        // A run is good whether or not it is remembered.
        let told = ran.map_or(Ok(()), |ran| history::add(&path, &ran));
        if let Err(e) = told {
            let message = format!("not remembered in {}: {e}", path.display());
            reporter.report(&Event::Warning { message })?;
        }
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
    let steps = arguments.steps.map(|steps| format!("train.steps={steps}"));
    let mut job = arguments.job.load(steps)?;
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
    let stem = arguments.job.job.file_stem().map_or("job".into(), |s| s.to_string_lossy().into_owned());
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

/// Bytes by name of the tier, of those that are used.
fn peaks(bytes: impl IntoIterator<Item = u64>) -> BTreeMap<String, u64> {
    let named = ["cpu0", "host", "disk"].into_iter().zip(bytes);
    named.filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| (name.to_string(), bytes)).collect()
}

fn describe(plan: &Plan) -> String {
    let count = |choice: Choice| plan.decisions.iter().filter(|d| d.choice == choice).count();
    let moves = plan.steps.iter().filter(|step| matches!(step.act, Act::Move { .. })).count();
    match (count(Choice::Recompute), moves) {
        (0, 0) => "everything resident".into(),
        (again, 0) => format!("{again} values recomputed"),
        (0, moves) => format!("{moves} moves"),
        (again, moves) => format!("{again} values recomputed, {moves} moves"),
    }
}

/// Peaks, bytes and time as planned and as measured.
fn compared(done: &Done, memory: u64) -> Event {
    let (_, planned, measured) = total(&done.sizes);
    let (runs, thought, took) = total(done.sizes.iter().filter(|record| record.which == Which::Train));
    let pairs = planned.bytes().into_iter().zip(measured.bytes());
    let used = pairs.filter(|((_, planned), (_, measured))| planned + measured > 0);
    let row = |((what, planned), (_, measured)): ((&str, u64), (&str, u64))| {
        (what.to_string(), planned.to_string(), measured.to_string())
    };
    let mut rows: Vec<(String, String, String)> = used.map(row).collect();
    let per_step = |seconds: f64| units::duration(Duration::from_secs_f64(seconds / runs.max(1) as f64));
    rows.push(("step time".into(), per_step(thought.seconds), per_step(took.seconds)));
    if let Some(resident) = probe::peak_resident() {
        let most = format!("<= {}", memory + probe::BESIDE_TIERS);
        rows.push(("memory of the process".into(), most, resident.to_string()));
    }
    Event::Compared { rows, sizes: done.sizes.iter().map(summary).collect() }
}

fn summary(record: &Record) -> SizeSummary {
    let bytes = |amounts: &Amounts| -> BTreeMap<String, u64> {
        let used = amounts.bytes().into_iter().filter(|(_, bytes)| *bytes > 0);
        used.map(|(what, bytes)| (what.to_string(), bytes)).collect()
    };
    let each = |seconds: f64| seconds / record.runs.max(1) as f64;
    SizeSummary {
        phase: match record.which {
            Which::Train => "train",
            Which::Evaluate => "eval",
        },
        sizes: record.sizes.iter().map(|(symbol, size)| (symbol.to_string(), size)).collect(),
        runs: record.runs,
        planned_seconds: each(record.planned.seconds),
        measured_seconds: each(record.measured.seconds),
        planned_bytes: bytes(&record.planned),
        measured_bytes: bytes(&record.measured),
    }
}

fn finished(done: Done) -> Event {
    let Reuse { hits, misses, dropped, seconds } = done.plans;
    Event::Done {
        steps: done.steps,
        loss: done.loss,
        metrics: done.metrics,
        samples_per_second: done.samples_per_second,
        peak_bytes: peaks(done.peaks),
        link_bytes: BTreeMap::from([
            ("host-cpu0".to_string(), done.ledger.to_device),
            ("cpu0-host".to_string(), done.ledger.to_host),
            ("disk-cpu0".to_string(), done.ledger.disk_read),
            ("cpu0-disk".to_string(), done.ledger.disk_written),
            ("cpu-cpu".to_string(), done.ledger.from_peers),
        ]),
        plans: PlanUse { hits, misses, dropped, seconds },
        alarms: done.alarms,
        resident_bytes: probe::peak_resident(),
        fingerprint: done.fingerprint,
    }
}
