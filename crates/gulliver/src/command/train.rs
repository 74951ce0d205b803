//! `gulliver train JOB`: trains the model of a job file in a run directory of its own.

use super::JobArguments;
use crate::error::{Error, brief};
use crate::event::Event;
use crate::interrupt;
use crate::report::terminal::{OutputMode, TerminalReporter};
use crate::train::{RunOptions, TrainResult, train_with};
use clap::Args;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

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
    /// Reaction to a loss that is not finite.
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
    let options = RunOptions {
        dir: arguments.out.clone(),
        resume: arguments.resume,
        changed_data: arguments.changed_data,
        history: !arguments.no_history,
        trace: arguments.trace.clone(),
        profile: arguments.job.profile.clone(),
        stop,
    };
    let mut failure: Option<io::Error> = None;
    let mut report = |event: Event| match reporter.report(&event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failure = failure.take().or(Some(error));
            ControlFlow::Break(())
        }
    };
    let trained = train_with(&job, &options, &mut report);
    match (trained, failure) {
        (Ok(TrainResult { dir, from_step, steps, all_steps, .. }), Some(error)) if steps > from_step => {
            let (source, command) = (Box::new(error.into()), resume_command(std::env::args(), &dir));
            Err(Error::Stopped { source, step: steps, steps: all_steps, dir, command })
        }
        (Ok(_) | Err(Error::Cancelled), Some(error)) => Err(error.into()),
        (Ok(TrainResult { interrupted: true, dir, steps, all_steps, .. }), None) => {
            let command = resume_command(std::env::args(), &dir);
            Err(Error::Interrupted { step: steps, steps: all_steps, command })
        }
        (Err(Error::Stopped { source, step, steps, dir, .. }), _) => {
            let command = resume_command(std::env::args(), &dir);
            Err(Error::Stopped { source, step, steps, dir, command })
        }
        (result, _) => result.map(|_| ()),
    }
}

/// The command that resumes a run: the one that was typed, with `--out` and `--resume`.
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
