//! Shows planning that takes long on standard error; the first Ctrl-C stops it.

use super::terminal::OutputMode;
use crate::units;
use gulliver_plan::devices::options::PlanWatch;
use gulliver_plan::step::progress::{Activity, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Planning that takes less is not shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Shows planning that takes long; its line is removed from the screen when this is dropped.
#[derive(Debug)]
pub struct Planning {
    stop: Arc<AtomicBool>,
    what: String,
    began: Instant,
    /// Rounds seen so far.
    rounds: AtomicU64,
    shown: Mutex<Option<ProgressBar>>,
    /// Where it is shown: on a terminal, in a line of a log, or not at all.
    place: OutputMode,
}

impl Planning {
    /// For a job with this budget; `stop` is set by signals. Programs that read JSON are not told.
    pub fn new(stop: Arc<AtomicBool>, budget: Option<u64>, json: bool) -> Planning {
        let within = budget.map_or(String::new(), |bytes| format!(" within {}", units::bytes(bytes)));
        Planning {
            stop,
            what: format!("planning{within}…"),
            began: Instant::now(),
            rounds: AtomicU64::new(0),
            shown: Mutex::new(None),
            place: match json {
                true => OutputMode::Json,
                false if io::stderr().is_terminal() => OutputMode::Bar,
                false => OutputMode::Lines,
            },
        }
    }

    fn show(&self, progress: Progress, rounds: u64) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = shown.get_or_insert_with(|| match self.place {
            OutputMode::Bar => spinner(),
            OutputMode::Json => ProgressBar::hidden(),
            OutputMode::Lines => {
                eprintln!("{}", self.what);
                ProgressBar::hidden()
            }
        });
        let seconds = self.began.elapsed().as_secs();
        bar.tick();
        bar.set_message(format!(
            "{} {seconds} s, {} ({} rounds); Ctrl-C stops",
            self.what,
            words(progress.activity),
            units::count(rounds)
        ));
    }
}

impl PlanWatch for Planning {
    fn see(&self, progress: Progress) -> ControlFlow<()> {
        if self.stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let rounds = self.rounds.fetch_add(1, Ordering::Relaxed);
        if rounds.is_multiple_of(64) && self.began.elapsed() >= PATIENCE {
            self.show(progress, rounds);
        }
        ControlFlow::Continue(())
    }
}

impl Drop for Planning {
    fn drop(&mut self) {
        if let Some(bar) = self.shown.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {msg}").expect("a valid template");
    bar.set_style(style);
    bar
}

fn words(activity: Activity) -> &'static str {
    match activity {
        Activity::Order => "ordering operators",
        Activity::Choose => "choosing what to recompute or move",
        Activity::Polish => "improving the choice",
        Activity::Layout => "placing buffers",
        Activity::Prepare => "preparing for smaller inputs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_stops_planning_at_the_next_round() {
        let stop = Arc::new(AtomicBool::new(false));
        let planning = Planning::new(Arc::clone(&stop), Some(16 << 20), false);
        let round = Progress { activity: Activity::Choose, done: 0, of: 1 };
        assert!((0..1000).all(|_| planning.see(round).is_continue()));
        stop.store(true, Ordering::Relaxed);
        assert!(planning.see(round).is_break());
        assert_eq!(planning.what, "planning within 16.0 MiB…");
    }
}
