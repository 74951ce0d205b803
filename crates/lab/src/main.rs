//! The `lab` command: parses arguments, runs one measurement, prints its error in one line.

use clap::{Parser, Subcommand};
use gulliver::error::brief;
use gulliver_lab::{accuracy, bench, check, refine, validate};
use std::process::ExitCode;

/// Measurements for those who maintain Gulliver.
#[derive(Parser)]
#[command(name = "lab", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures training speed and memory on the reference workloads.
    Bench(bench::BenchArguments),
    /// Trains jobs that no profile is made from, and compares their steps with predictions.
    Check(check::report::CheckArguments),
    /// Compares predictions of this machine's own runs with what was measured.
    Accuracy(accuracy::AccuracyArguments),
    /// Corrects this machine's profile by the runs that it predicted.
    Refine(refine::RefineArguments),
    /// Compares the oracle's predictions with published measurements.
    Validate(validate::ValidateArguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Check(arguments) => check::report::run(&arguments),
        Command::Accuracy(arguments) => accuracy::run(&arguments),
        Command::Refine(arguments) => refine::run(&arguments),
        Command::Validate(arguments) => validate::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Names out of files may hold anything; an error is one line.
            eprintln!("error: {}", brief(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}
