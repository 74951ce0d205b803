//! The `gulliver` command: parses arguments, runs one command, prints its error in one line.

use clap::{Parser, Subcommand};
use gulliver::command;
use gulliver::error::{Error, brief};
use std::process::ExitCode;

/// Train neural networks that are too large for this machine.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train the model of a job file.
    Train(command::train::TrainArguments),
    /// Predict classes or numbers for new files with a trained model.
    Predict(command::predict::PredictArguments),
    /// Measure a trained model on files whose answers are known.
    Evaluate(command::evaluate::EvaluateArguments),
    /// Continue a text with a trained language model.
    Generate(command::generate::GenerateArguments),
    /// Show how a job would run: memory, time and transfers.
    Plan(command::plan::PlanArguments),
    /// Train many variants of a job and find the best.
    Sweep(command::sweep::SweepArguments),
    /// Predict training times on other machines.
    Oracle(command::oracle::OracleArguments),
    /// Measure the speed of this machine, for predictions.
    Profile(command::profile::ProfileArguments),
    /// List the models, or the settings of one.
    Models(command::models::ModelsArguments),
    /// List the operators.
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
