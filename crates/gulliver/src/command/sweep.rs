//! `gulliver sweep SWEEP`: trains many variants of a job and finds the best.

use crate::error::{Error, brief};
use crate::event::Event;
use crate::interrupt;
use crate::report::terminal::{OutputMode, TerminalReporter};
use crate::sweep::file::Sweep;
use crate::sweep::metric::check_metric;
use crate::sweep::store::StudyStore;
use crate::sweep::{SweepResult, plan, trials};
use clap::{Args, ValueEnum};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Train many variants of a job and find the best. The same command continues a sweep that was interrupted.
#[derive(Args)]
pub struct SweepArguments {
    /// The sweep file.
    sweep: PathBuf,
    /// Override a field of the base job, e.g. --set train.batch=32.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    sets: Vec<String>,
    /// Directory of the sweep: study, table, best checkpoint [default: sweeps/NAME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Show which trials would be trained together and how long the sweep would take; train nothing.
    #[arg(long)]
    plan: bool,
    /// Print the results of all trials so far; train nothing.
    #[arg(long, value_name = "FORMAT", conflicts_with = "plan")]
    export: Option<Format>,
    /// Print events as JSON lines.
    #[arg(long)]
    json: bool,
}

/// The format of trials.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A line for each trial.
    Csv,
    /// Everything, curves included.
    Json,
}

/// Runs the command.
pub fn run(arguments: &SweepArguments) -> Result<(), Error> {
    let sweep = Sweep::load(&arguments.sweep, &arguments.sets)?;
    let dir = arguments.out.clone().unwrap_or_else(|| Path::new("sweeps").join(&sweep.name));
    if arguments.plan {
        check_metric(&sweep)?;
        let plan = plan::plan(&sweep)?;
        let text = match arguments.json {
            true => serde_json::to_string(&plan).map_err(io::Error::from)? + "\n",
            false => plan::text(&sweep, &plan),
        };
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    if let Some(format) = arguments.export {
        let store = StudyStore::read(&dir, &sweep)?;
        let nothing = || Error::Invalid(format!("{}: no sweep has begun there", dir.display()));
        let store = store.ok_or_else(nothing)?;
        let text = match format {
            Format::Csv => trials::csv(&sweep, &store.records()?),
            Format::Json => trials::json(&sweep, &store)?.to_string() + "\n",
        };
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    train(&sweep, &dir, arguments.json)
}

fn train(sweep: &Sweep, dir: &Path, json: bool) -> Result<(), Error> {
    let stop = interrupt::install()?;
    let mut reporter = TerminalReporter::new(OutputMode::choose(json), Box::new(io::stdout()));
    let mut failure = None;
    let mut report = |event: Event| match reporter.report(&event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failure = failure.take().or(Some(error));
            ControlFlow::Break(())
        }
    };
    let result = crate::sweep::sweep(sweep, dir, &stop, &mut report);
    let result = match (failure, result) {
        (Some(error), _) => Err(error.into()),
        (None, Ok(SweepResult { interrupted: true, ended, trials, .. })) => {
            Err(Error::SweepInterrupted { ended, trials })
        }
        (None, result) => result.map(|_| ()),
    };
    if let Err(error) = &result {
        // An output that takes no more is no reason to say less on standard error.
        let _ = reporter.report(&Event::Error { message: brief(&error.to_string()) });
    }
    result
}
