//! What the Rust peers share: arguments, the clock and the JSON lines `compare` reads. Each peer includes
//! this file as a module; the models and the step are its own. The lines are those of `torch_train.py`.

use std::io::Write;
use std::time::Instant;

/// What was asked on the command line.
pub struct Options {
    /// Name of the workload.
    pub workload: String,
    /// Threads the peer may use.
    pub threads: usize,
    /// Measured time.
    pub seconds: f64,
    /// Whether a loss that does not fall is a failure.
    pub check: bool,
    /// Which of the peer's backends; empty for its fastest.
    pub backend: String,
}

/// One workload, ready to be trained.
pub struct Training<'a> {
    /// Trained numbers.
    pub parameters: usize,
    /// Samples of a step.
    pub batch: usize,
    /// Trains one step on the fixed batch and returns the loss before it.
    pub step: Box<dyn FnMut() -> Result<f32, String> + 'a>,
}

/// Reads `WORKLOAD [--threads N] [--seconds S] [--check] [--backend B]`.
pub fn options() -> Result<Options, String> {
    let mut options =
        Options { workload: String::new(), threads: 1, seconds: 3.0, check: false, backend: String::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word}: a value is missing"));
        match word.as_str() {
            "--threads" => options.threads = number(&word, &value()?)?,
            "--seconds" => options.seconds = number(&word, &value()?)?,
            "--backend" => options.backend = value()?,
            "--check" => options.check = true,
            name if options.workload.is_empty() && !name.starts_with('-') => options.workload = word,
            _ => return Err(format!("{word}: no such argument")),
        }
    }
    if options.workload.is_empty() {
        return Err("expected WORKLOAD [--threads N] [--seconds S] [--check] [--backend B]".into());
    }
    if options.threads == 0 || options.seconds.is_nan() || options.seconds <= 0.0 {
        return Err("--threads and --seconds must be above zero".into());
    }
    Ok(options)
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag} {text}: expected a number"))
}

/// Trains two steps to warm up, then for the asked time, and prints the two lines of a workload.
/// `start` is when the process began, `version` the peer's.
pub fn measure(options: &Options, version: &str, start: Instant, training: Training) -> Result<(), String> {
    let Training { parameters, batch, mut step } = training;
    let name = &options.workload;
    let first_loss = step()?;
    let first = start.elapsed().as_secs_f64();
    say(&format!(r#"{{"event": "first_step", "workload": "{name}", "seconds": {first:.6}}}"#))?;
    let mut loss = step()?;
    let (mut times, mut before, begin) = (Vec::new(), 0.0, Instant::now());
    // A few steps may climb before the loss falls.
    let least = if options.check { 10 } else { 1 };
    while times.len() < least || before < options.seconds {
        loss = step()?;
        let now = begin.elapsed().as_secs_f64();
        times.push(now - before);
        before = now;
    }
    times.sort_by(f64::total_cmp);
    let quantile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let (steps, speed) = (times.len(), (times.len() * batch) as f64 / before);
    say(&format!(
        concat!(
            r#"{{"event": "workload", "workload": "{}", "version": "{}", "threads": {}, "parameters": {}, "#,
            r#""batch": {}, "steps": {}, "samples_per_second": {:.6}, "step_seconds": {:.9}, "#,
            r#""step_seconds_low": {:.9}, "step_seconds_high": {:.9}, "resident_bytes": {}, "#,
            r#""first_step_seconds": {:.6}, "first_loss": {}, "loss": {}}}"#
        ),
        name,
        version,
        options.threads,
        parameters,
        batch,
        steps,
        speed,
        quantile(0.5),
        quantile(0.1),
        quantile(0.9),
        peak_resident(),
        first,
        json(first_loss),
        json(loss)
    ))?;
    // A loss that is not a number does not fall either.
    let falls = loss < first_loss;
    if options.check && !falls {
        return Err(format!("{name}: the loss went from {first_loss} to {loss} in {} steps", steps + 2));
    }
    Ok(())
}

/// Integers below `bound`, always the same for a seed.
pub fn labels(count: usize, bound: u64, seed: u64) -> Vec<i64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) % bound) as i64
    };
    (0..count).map(|_| next()).collect()
}

fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| e.to_string())
}

/// JSON has no infinities and no NaN.
fn json(loss: f32) -> String {
    if loss.is_finite() {
        loss.to_string()
    } else {
        "null".into()
    }
}

/// Most bytes the process had in memory so far; zero where the system does not tell.
fn peak_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}
