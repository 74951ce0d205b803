//! Planning as events: the planner runs on a thread of its own, and its progress is reported on the calling thread, which
//! may stop it.

use crate::event::Event;
use gulliver_plan::devices::options::PlanWatch;
use gulliver_plan::step::progress::{Activity, Progress};
use gulliver_run::team::start_scoped;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The shortest time between two events.
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs `plan` on another thread with a watch that it hands to planners. Progress becomes [`Event::Planning`]; planning
/// ends when `stop` is set. Where no thread can be started, planning runs here without events.
pub fn watched<T: Send>(
    budget: Option<u64>,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(Event),
    plan: impl FnOnce(Arc<dyn PlanWatch>) -> T + Send,
) -> T {
    let (sender, receiver) = channel();
    let began = Instant::now();
    let watch = Arc::new(Watch {
        stop: Arc::clone(stop),
        rounds: AtomicU64::new(0),
        told: Mutex::new(began),
        sender: sender.clone(),
    });
    let (task, shared) = (Mutex::new(Some(plan)), Arc::clone(&watch));
    let take = || task.lock().unwrap_or_else(PoisonError::into_inner).take().expect("taken once");
    let joined = thread::scope(|scope| {
        let work = start_scoped(scope, "plan", move || {
            let planned = take()(shared);
            // Planners may keep the watch, and its sender with it: the end is said aloud.
            let _ = sender.send(None);
            planned
        });
        let work = work.ok()?;
        while let Ok(Some((progress, rounds))) = receiver.recv() {
            let seconds = began.elapsed().as_secs_f64();
            tell(Event::Planning { activity: activity(progress), rounds, seconds, budget });
        }
        Some(work.join())
    });
    match joined {
        Some(Ok(planned)) => planned,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => take()(watch),
    }
}

#[derive(Debug)]
struct Watch {
    stop: Arc<AtomicBool>,
    rounds: AtomicU64,
    /// When progress was last sent.
    told: Mutex<Instant>,
    sender: Sender<Option<(Progress, u64)>>,
}

impl PlanWatch for Watch {
    fn see(&self, progress: Progress) -> ControlFlow<()> {
        if self.stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        let rounds = self.rounds.fetch_add(1, Ordering::Relaxed);
        if rounds.is_multiple_of(64) {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.elapsed() >= INTERVAL {
                *told = Instant::now();
                // Without a receiver planning is over.
                let _ = self.sender.send(Some((progress, rounds)));
            }
        }
        ControlFlow::Continue(())
    }
}

fn activity(progress: Progress) -> &'static str {
    match progress.activity {
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
    fn progress_is_reported_here_and_a_stop_ends_planning() {
        let here = thread::current().id();
        let stop = Arc::new(AtomicBool::new(false));
        let mut told = 0;
        let mut tell = |event: Event| {
            assert!(matches!(event, Event::Planning { budget: Some(7), .. }));
            assert_eq!(thread::current().id(), here);
            told += 1;
            if told == 2 {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let round = Progress { activity: Activity::Choose, done: 0, of: 1 };
        let kept = watched(Some(7), &stop, &mut tell, |watch| {
            while watch.see(round).is_continue() {}
            watch
        });
        assert!(kept.see(round).is_break());
        assert_eq!(told, 2);
    }
}
