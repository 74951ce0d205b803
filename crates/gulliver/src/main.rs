//! The `gulliver` command: parses arguments, runs one command, prints its error in one line.

use clap::{Parser, Subcommand};
use gulliver::command;
use gulliver::error::{Error, brief};
use std::process::ExitCode;

/// Trains giant neural networks on small machines.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Trains the model of a job file.
    Train(command::train::TrainArguments),
    /// Predicts classes or numbers of new files with a trained model.
    Predict(command::predict::PredictArguments),
    /// Evaluates a trained model on files whose answers are known.
    Evaluate(command::evaluate::EvaluateArguments),
    /// Continues a text with a trained language model.
    Generate(command::generate::GenerateArguments),
    /// Says how a job would run: memory, time and what moves, before anything runs.
    Plan(command::plan::PlanArguments),
    /// Measures how fast this machine is, for predictions.
    Profile(command::profile::ProfileArguments),
    /// Says how long a model would train on machines nobody here owns, by every strategy.
    Oracle(command::oracle::OracleArguments),
    /// Trains many variants of a job and finds the best.
    Sweep(command::sweep::SweepArguments),
    /// Lists models, or the parameters of one.
    Models(command::models::ModelsArguments),
    /// Lists operators.
    Ops(command::ops::OpsArguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Train(arguments) => command::train::run(&arguments),
        Command::Predict(arguments) => command::predict::run(&arguments),
        Command::Evaluate(arguments) => command::evaluate::run(&arguments),
        Command::Generate(arguments) => command::generate::run(&arguments),
        Command::Plan(arguments) => command::plan::run(&arguments),
        Command::Profile(arguments) => command::profile::run(&arguments),
        Command::Oracle(arguments) => command::oracle::run(&arguments),
        Command::Sweep(arguments) => command::sweep::run(&arguments),
        Command::Models(arguments) => command::models::run(&arguments),
        Command::Ops(arguments) => command::ops::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_stop() => {
            eprintln!("{error}");
            ExitCode::from(gulliver::interrupt::EXIT_CODE as u8)
        }
        // Nobody reads us any more: not worth a word.
        Err(Error::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // Names out of files may hold anything; an error is one line.
            eprintln!("error: {}", brief(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}
