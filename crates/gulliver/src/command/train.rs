//! `gulliver train JOB`: trains the model of a job file in a run directory of its own.

mod remember;

use super::JobArguments;
use crate::error::{Error, brief};
use crate::event::{Event, PlanSummary, PlanUse, SizeSummary};
use crate::files::{check_file, write_file};
use crate::history;
use crate::interrupt;
use crate::job::Job;
use crate::local::together;
use crate::model::weights_file;
use crate::report::metrics::MetricFiles;
use crate::report::terminal::{OutputMode, TerminalReporter};
use crate::run_dir::{ABOUT, About, BEST, JOB, PLAN, RunDir, WEIGHTS};
use crate::setup::{How, Setup, setup};
use crate::units;
use clap::Args;
use gulliver_graph::lr::LrSchedule;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::plan::{Act, Choice, Plan};
use gulliver_run::checkpoint::{self, Newest, Stored};
use gulliver_run::collector::{Amounts, Record, total};
use gulliver_run::data::prefetch;
use gulliver_run::host::resident;
use gulliver_run::session::{Reuse, Session};
use gulliver_run::train::{self, Done, MAPPING, MODEL, Notice, Resumed, TrainError, TrainOptions};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Train the model of a job file.
#[derive(Args)]
pub struct TrainArguments {
    #[command(flatten)]
    job: JobArguments,
    /// Steps to train for, in all.
    #[arg(long)]
    steps: Option<u64>,
    /// Directory of the run: job, plan, metrics, checkpoints, weights [default: runs/JOB].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue from the newest checkpoint in the directory of the run (without --out: of the newest run of this job),
    /// or start if there is none.
    #[arg(long)]
    resume: bool,
    /// Continue although classes, characters or normalisation of the data have changed since the checkpoint.
    #[arg(long, requires = "resume")]
    changed_data: bool,
    /// Print events as JSON lines.
    #[arg(long)]
    json: bool,
    /// Do not add this run to the history of predicted and measured times.
    #[arg(long)]
    no_history: bool,
    /// What to do when a loss is not finite.
    #[arg(long, value_name = "stop|skip")]
    on_nan: Option<String>,
    /// Write a trace of the last step, for Chrome or Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &TrainArguments) -> Result<(), Error> {
    let mut reporter = TerminalReporter::new(OutputMode::choose(arguments.json), Box::new(io::stdout()));
    let result = run_with(arguments, &mut reporter);
    if let Err(error) = &result {
        // An output that takes no more is no reason to say less on standard error.
        let _ = reporter.report(&Event::Error { message: brief(&error.to_string()) });
    }
    result
}

fn run_with(arguments: &TrainArguments, reporter: &mut TerminalReporter) -> Result<(), Error> {
    let stop = interrupt::install()?;
    let more = [
        arguments.steps.map(|steps| ("train.steps", "--steps", steps.to_string())),
        arguments.on_nan.clone().map(|what| ("train.on_nan", "--on-nan", what)),
    ];
    let job = arguments.job.load(more.into_iter().flatten())?;
    if let Some(path) = &arguments.trace {
        check_file(path)?;
    }
    let mut dir = RunDir::take(&arguments.job.job, arguments.out.as_deref(), arguments.resume)?;
    let checkpoints = dir.checkpoints();
    let machine = arguments.job.machine()?.profile;
    let Setup {
        planners,
        devices,
        mut schedule,
        sources,
        mut options,
        parameters,
        fitted,
        strategy,
        info,
        ..
    } = setup(&job, Some(&checkpoints), machine.as_ref(), &How::watched(&job, &stop, arguments.json))?;
    options.best = Some(dir.join(BEST));
    options.changed_data = arguments.changed_data;
    // As they are before they learn from the run.
    let before = (!arguments.no_history).then(|| planners.clone());
    let mut session = together(strategy, planners, &devices, job.train.seed)?;
    if arguments.trace.is_some() {
        session.record();
    }
    reporter.report(&Event::Data {
        training: info.examples as u64,
        validation: sources.validation.as_ref().map_or(0, |(set, _)| set.len() as u64),
        classes: info.classes.map(|classes| classes as u64),
        class_names: info.class_names,
        notes: info.notes,
    })?;
    for (name, value) in fitted {
        let message = format!("model.{name} = {value}, to fit the data");
        reporter.report(&Event::Warning { message })?;
    }
    let begun = begin(arguments, &job, &dir, &mut session, &mut schedule, &options, reporter)?;

    // Only a job that can run takes the directory, and only one that can go on touches what is there.
    let (mut peak_bytes, mut description) = (BTreeMap::new(), String::new());
    let mut plan_json = None;
    if options.steps > begun.steps {
        let batch =
            prefetch::make(sources.train.as_ref(), &sources.sampler, begun.steps).map_err(Error::Data)?;
        let sizes = session.share(session.sizes(Purpose::Train, &batch)?)?;
        let plan = session.plan(Purpose::Train, &sizes)?;
        peak_bytes = peaks(plan.spaces.iter().map(|space| space.live));
        description = describe(&plan);
        plan_json = Some(plan);
    }
    dir.keep()?;
    if let Some(plan) = plan_json {
        let json = |file: &mut dyn Write| serde_json::to_writer(file, &*plan).map_err(io::Error::from);
        write_file(&dir.join(PLAN), json)?;
    }
    write_file(&dir.join(JOB), |file| file.write_all(job.to_toml().as_bytes()))?;
    write_about(arguments, &dir, &options)?;
    for name in session.slow_operators() {
        reporter.report(&Event::Warning { message: format!("operator {name} has no fast kernel yet") })?;
    }
    let devices = &job.devices;
    let budgets = [("cpu0", devices.memory), ("host", devices.host_memory), ("disk", devices.disk)];
    let budget_bytes = budgets.into_iter().filter_map(|(name, b)| Some((name.to_string(), b?))).collect();
    let plan = PlanSummary { description, peak_bytes, budget_bytes };
    let name = arguments.job.job.display().to_string();
    let (steps, batch) = (options.steps, job.train.batch);
    let mut metrics = MetricFiles::open(dir.path(), arguments.resume.then_some(begun.steps), now())
        .map_err(|source| Error::File { path: dir.path().to_path_buf(), source })?;
    reporter.report(&Event::Start { job: name, parameters, plan, from_step: begun.steps, steps, batch })?;

    let mut failure: Option<io::Error> = None;
    let mut reached = begun.steps;
    let mut notify = |notice: Notice| {
        if let Notice::Checkpoint { step, .. } = &notice {
            reached = *step;
        }
        let event = Event::from(notice);
        let told = reporter.report(&event).and_then(|()| metrics.record(&event, now()));
        if let (Err(e), None) = (told, &failure) {
            failure = Some(e);
            stop.store(true, Ordering::Relaxed);
        }
    };
    let trained = train::train(&mut session, &mut schedule, &sources, &options, &begun, &stop, &mut notify);
    let command = || resume_command(std::env::args(), dir.path());
    let stopped = |source: Error, step: u64| match step > begun.steps {
        true => Error::Stopped { source: Box::new(source), step, steps, command: command() },
        false => source,
    };
    let done = trained.map_err(|error| match error {
        error @ TrainError::Data(_) => stopped(error.into(), reached),
        error => error.into(),
    })?;
    if !done.interrupted {
        train::save_weights(&mut session, &dir.join(WEIGHTS), &options.about)?;
    }
    if let Some(e) = failure {
        return Err(stopped(e.into(), done.steps));
    }
    if done.interrupted {
        if let Err(error) = write_trace(arguments, &session) {
            reporter.report(&Event::Warning { message: error.to_string() })?;
        }
        return Err(Error::Interrupted { step: done.steps, steps, command: command() });
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
    let event = finished(done, sources.train.info().class_names);
    metrics.record(&event, now())?;
    reporter.report(&event)?;
    write_trace(arguments, &session)
}

/// Brings the session to where the run starts: a checkpoint, weights of another run, or first values.
fn begin(
    arguments: &TrainArguments,
    job: &Job,
    dir: &RunDir,
    session: &mut Session,
    schedule: &mut LrSchedule,
    options: &TrainOptions,
    reporter: &mut TerminalReporter,
) -> Result<Resumed, Error> {
    let mut warn = |message: String| reporter.report(&Event::Warning { message });
    let mut newest = None;
    if arguments.resume {
        let Newest { found, mut skipped } = checkpoint::latest(&dir.checkpoints())?;
        if found.is_none() && !skipped.is_empty() {
            let (count, dir) = (skipped.len(), dir.checkpoints());
            return Err(Error::DamagedCheckpoints { dir, count, first: Box::new(skipped.swap_remove(0)) });
        }
        for skipped in skipped {
            warn(format!("skipped: {skipped}"))?;
        }
        newest = found;
    }
    match (newest, &job.train.weights) {
        (Some((_, mut stored)), _) => {
            let resumed = train::restore(session, schedule, &mut stored, options)?;
            if resumed.schedule_changed {
                let step = resumed.steps;
                warn(format!(
                    "the schedule is another one from step {} on: {}",
                    step + 1,
                    job.schedule.name
                ))?;
            }
            for change in changes(&dir.join(JOB), job) {
                warn(format!("changed since the run began: {change}"))?;
            }
            for change in &resumed.mapping_changed {
                warn(format!("changed data: {change}"))?;
            }
            Ok(resumed)
        }
        (None, Some(path)) => {
            let strict = job.train.weights_strict;
            let mut stored = Stored::open(&weights_file(path))?;
            let fit = train::load_weights(session, &mut stored, options, strict)?;
            for problem in fit.problems().into_iter().chain(fit.mapping) {
                warn(format!("{}: {problem}", stored.path.display()))?;
            }
            Ok(Resumed::default())
        }
        (None, None) => Ok(Resumed::default()),
    }
}

/// The fields of a job that are not as they were when it was last written.
fn changes(written: &Path, job: &Job) -> Vec<String> {
    let before = Job::load(written);
    before.map_or_else(|_| Vec::new(), |before| before.changes(job))
}

/// Says in the run's directory what is needed to use its model.
fn write_about(arguments: &TrainArguments, dir: &RunDir, options: &TrainOptions) -> Result<(), Error> {
    let json = |key: &str| {
        options.about.get(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    };
    let about = About {
        gulliver: env!("CARGO_PKG_VERSION").to_string(),
        job_file: std::path::absolute(&arguments.job.job)?,
        model: json(MODEL),
        mapping: json(MAPPING),
    };
    write_file(&dir.join(ABOUT), |file| {
        serde_json::to_writer_pretty(&mut *file, &about).map_err(io::Error::from)?;
        file.write_all(b"\n")
    })
}

/// The trace of the last step, where one was asked for and there was a step.
fn write_trace(arguments: &TrainArguments, session: &Session) -> Result<(), Error> {
    match (&arguments.trace, session.trace()) {
        (Some(path), Some(trace)) => write_file(path, |file| file.write_all(trace.as_bytes())),
        _ => Ok(()),
    }
}

/// What to type to go on with a run: what was typed, with its directory, and asking to go on.
fn resume_command(typed: impl IntoIterator<Item = String>, dir: &Path) -> String {
    let mut words: Vec<String> = typed.into_iter().filter(|word| word != "--resume").collect();
    if !words.iter().any(|word| word == "--out" || word.starts_with("--out=")) {
        words.extend(["--out".to_string(), dir.display().to_string()]);
    }
    words.push("--resume".into());
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
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
    let (runs, thought, took) = total(done.sizes.iter().filter(|record| record.purpose == Purpose::Train));
    let pairs = planned.bytes().into_iter().zip(measured.bytes());
    let used = pairs.filter(|((_, planned), (_, measured))| planned + measured > 0);
    let row = |((what, planned), (_, measured)): ((&str, u64), (&str, u64))| {
        (what.to_string(), planned.to_string(), measured.to_string())
    };
    let mut rows: Vec<(String, String, String)> = used.map(row).collect();
    let per_step = |seconds: f64| units::duration(Duration::from_secs_f64(seconds / runs.max(1) as f64));
    rows.push(("step time".into(), per_step(thought.seconds), per_step(took.seconds)));
    if let Some(resident) = resident::peak() {
        let most = format!("<= {}", memory + resident::BESIDE_TIERS);
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
        phase: match record.purpose {
            Purpose::Train => "train",
            Purpose::Evaluate => "eval",
        },
        sizes: record.sizes.iter().map(|(symbol, size)| (symbol.to_string(), size)).collect(),
        runs: record.runs,
        planned_seconds: each(record.planned.seconds),
        measured_seconds: each(record.measured.seconds),
        planned_bytes: bytes(&record.planned),
        measured_bytes: bytes(&record.measured),
    }
}

fn finished(done: Done, classes: Vec<String>) -> Event {
    let Reuse { hits, misses, dropped, seconds } = done.plans;
    Event::Done {
        steps: done.steps,
        loss: done.loss,
        metrics: done.metrics,
        best: done.best,
        stopped_early: done.early,
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
        resident_bytes: resident::peak(),
        fingerprint: done.fingerprint,
        classes,
        confusion: done.confusion,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_go_on_is_what_was_typed() {
        for (typed, expected) in [
            ("gulliver train a.toml", "gulliver train a.toml --out 'my runs/a' --resume"),
            ("gulliver train a.toml --out=x --resume", "gulliver train a.toml --out=x --resume"),
            (
                "./gulliver train --out x a.toml --steps 9",
                "./gulliver train --out x a.toml --steps 9 --resume",
            ),
        ] {
            let words = typed.split(' ').map(String::from);
            assert_eq!(resume_command(words, Path::new("my runs/a")), expected);
        }
        let words = ["g", "", "it's", "--set", "data.path=a b"].map(String::from);
        let expected = "g '' 'it'\\''s' --set 'data.path=a b' --out r --resume";
        assert_eq!(resume_command(words, Path::new("r")), expected);
    }
}
