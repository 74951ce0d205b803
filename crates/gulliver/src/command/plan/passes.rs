//! The passes of a plan as a table: the device's peak and the step's time after each, and what it changed.

use super::{links, time};
use crate::units;
use gulliver_plan::document::pass::{PassChange, PlanPass};
use std::fmt::Write as _;

/// One row for each pass.
pub fn passes(passes: &[PlanPass]) -> String {
    let mut text = format!("{:<10} {:>11} {:>11}   changed\n", "after", "peak", "step time");
    let mut before = Before::default();
    for PlanPass { change, peak, seconds } in passes {
        let (name, peak_text) = (change.name(), units::bytes(*peak));
        let words = words(change, *seconds, &before);
        let _ = writeln!(text, "{name:<10} {peak_text:>11} {:>11}   {words}", time(*seconds));
        before.live = *peak;
        if !matches!(change, PassChange::Swap { .. } | PassChange::Overlap { .. }) {
            before.unmoved = *seconds;
        }
    }
    text
}

/// The state before a pass.
#[derive(Default)]
struct Before {
    /// Bytes in use at once.
    live: u64,
    /// Seconds of the step before anything moved.
    unmoved: f64,
}

/// The changes of a pass, in words.
fn words(change: &PassChange, seconds: f64, before: &Before) -> String {
    let waits = || format!("the step waits {} for it", time(seconds - before.unmoved));
    match change {
        PassChange::Graph { operators } => {
            format!("{operators} operators in the graph's order, everything stays on the device")
        }
        PassChange::Order { rule } => rule.clone(),
        PassChange::Recompute { values, seconds } => {
            let values = counted(*values, "value is recomputed", "values are recomputed");
            format!("{values}, which takes {}", time(*seconds))
        }
        PassChange::Swap { moved, .. } => format!("{}; {}", links(moved), waits()),
        PassChange::Overlap { fetches, stores, collectives } => {
            let all = [
                (*fetches, "fetch starts earlier", "fetches start earlier"),
                (*stores, "store ends later", "stores end later"),
                (*collectives, "exchange runs beside kernels", "exchanges run beside kernels"),
            ];
            let some = all.into_iter().filter(|(count, ..)| *count > 0);
            let some: Vec<String> = some.map(|(count, one, many)| counted(count, one, many)).collect();
            format!("{}; {}", some.join(", "), waits())
        }
        PassChange::Layout { gaps } => {
            let share = 100.0 * *gaps as f64 / before.live.max(1) as f64;
            format!("{} of gaps between buffers ({share:.1} %)", units::bytes(*gaps))
        }
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
