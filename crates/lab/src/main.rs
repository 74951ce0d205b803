//! The `lab` command: parses arguments, runs one measurement, prints its error in one line.

use clap::{Parser, Subcommand};
use gulliver::command::bench;
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
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(arguments) => bench::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
