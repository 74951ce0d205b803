//! The output of `gulliver plan` for several devices: how strategies rank, what each device does when, its peak, and
//! the bytes over every link.

use crate::error::Error;
use crate::files::write_file;
use crate::planning::{from_peers, graphs_and_plans};
use crate::units;
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::devices::predict::PredictedStep;
use gulliver_plan::devices::strategy::Candidate;
use gulliver_plan::document::timeline::bars;
use std::fmt::Write as _;
use std::time::Duration;

/// Columns of the bars.
const WIDTH: usize = 72;

fn time(seconds: f64) -> String {
    units::duration(Duration::from_secs_f64(seconds.max(0.0)))
}

fn swapped(prediction: &PredictedStep) -> u64 {
    prediction.together.devices.iter().map(|d| d.moved.to_device + d.moved.to_host).sum()
}

/// How many devices are used, after `before`; nothing if all are.
fn left(candidate: &Candidate, before: &str) -> String {
    let used = candidate.planners.len();
    if used == candidate.of {
        return String::new();
    }
    format!("{before}on {used} of {} devices: more are less than 5 % faster", candidate.of)
}

/// How strategies rank, fastest first.
pub fn ranking_table(able: &[Candidate], unable: &[(&'static str, JobPlanError)]) -> String {
    let mut text = format!(
        "{:<12} {:>11} {:>13} {:>12} {:>15}   results\n",
        "strategy", "step time", "largest peak", "to/from host", "between devices"
    );
    for candidate in able {
        let peak = candidate.prediction.plans.iter().map(|plan| plan.spaces[0].live).max().unwrap_or(0);
        let _ = writeln!(
            text,
            "{:<12} {:>11} {:>13} {:>12} {:>15}   {}",
            candidate.name,
            time(candidate.prediction.together.seconds),
            units::bytes(peak),
            units::bytes(swapped(&candidate.prediction)),
            units::bytes(from_peers(candidate)),
            if candidate.same_numbers { "as on one device" } else { "rounded differently" }.to_string()
                + &left(candidate, "; "),
        );
    }
    for (name, why) in unable {
        let _ = writeln!(text, "{name:<12} cannot be used: {why}");
    }
    text += "fastest first, as predicted; bytes are of one step, over all devices; largest peak: most bytes in use at \
             once on any device;\nrounded differently: sums are split between devices, so results differ in the last digits\n";
    text
}

/// The timeline and peak of each device, and bytes over links.
pub fn devices_table(candidate: &Candidate) -> String {
    let together = &candidate.prediction.together;
    let mut text =
        format!("{}: {} a step{}\n", candidate.name, time(together.seconds), left(candidate, ", "));
    let _ = writeln!(
        text,
        "{:<8} {:>11} {:>10} {:>10} {:>12} {:>12}",
        "device", "peak", "computing", "transfers", "from host", "to host"
    );
    for (device, (plan, timing)) in candidate.prediction.plans.iter().zip(&together.devices).enumerate() {
        let beside: f64 = timing.busy[1..].iter().sum();
        let _ = writeln!(
            text,
            "{device:<8} {:>11} {:>10} {:>10} {:>12} {:>12}",
            units::bytes(plan.spaces[0].live),
            time(timing.busy[0]),
            time(beside),
            units::bytes(timing.moved.to_device),
            units::bytes(timing.moved.to_host),
        );
    }
    let _ = writeln!(text, "exchanged between devices {} a step", units::bytes(from_peers(candidate)));
    for link in &together.links {
        let _ = writeln!(
            text,
            "link {:<12} {:>11}, busy {}",
            link.name,
            units::bytes(link.bytes),
            time(link.busy)
        );
    }
    text.push_str(&bars(&graphs_and_plans(candidate), &together.spans, WIDTH));
    text.push_str("one step from left to right: f forward, b backward, u update, + sums and copies, = copies to and from ");
    text.push_str("host or disk, x exchanges between devices, · idle\n");
    text
}

/// Writes the trace of a simulated step for Chrome or Perfetto.
pub fn write_trace(path: &std::path::Path, candidate: &Candidate) -> Result<(), Error> {
    let text = gulliver_plan::document::timeline::trace(
        &graphs_and_plans(candidate),
        &candidate.prediction.together.spans,
    );
    write_file(path, |file| file.write_all(text.as_bytes()))
}
