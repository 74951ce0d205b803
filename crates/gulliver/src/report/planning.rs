//! Planning that takes long, shown on standard error.

use super::terminal::OutputMode;
use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};

/// Planning that takes fewer seconds is not shown.
const PATIENCE: f64 = 2.0;

/// The line of a planner at work; it is removed from the screen when this is dropped.
pub struct PlanningView {
    bar: ProgressBar,
    what: String,
}

impl PlanningView {
    /// Shows planning within a budget, if it has taken long enough and people are to see it.
    pub fn new(mode: OutputMode, budget: Option<u64>, seconds: f64) -> Option<PlanningView> {
        if mode == OutputMode::Json || seconds < PATIENCE {
            return None;
        }
        let within = budget.map_or(String::new(), |bytes| format!(" within {}", units::bytes(bytes)));
        let what = format!("planning{within}…");
        let bar = match io::stderr().is_terminal() {
            true => spinner(),
            false => {
                eprintln!("{what}");
                ProgressBar::hidden()
            }
        };
        Some(PlanningView { bar, what })
    }

    /// Shows how far it is.
    pub fn show(&self, activity: &str, rounds: u64, seconds: f64) {
        let (what, seconds) = (&self.what, seconds as u64);
        self.bar.tick();
        self.bar.set_message(format!(
            "{what} {seconds} s, {activity} ({} rounds); Ctrl-C stops",
            units::count(rounds)
        ));
    }
}

impl Drop for PlanningView {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("a valid template"));
    bar
}
