//! Times of the last progress notice and the last checkpoint of a run.

use super::Notice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Times of the last report of progress and of the last checkpoint.
pub(super) struct Clock {
    told: Instant,
    saved: Instant,
    /// Time that writing it took.
    saving: Duration,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { told: Instant::now(), saved: Instant::now(), saving: Duration::ZERO }
    }
}

impl Clock {
    /// Time between notices of progress.
    const TELLING: Duration = Duration::from_millis(100);
    /// Timed checkpoints take at most `1 / SHARE` of the time.
    const SHARE: u32 = 20;

    /// Reports progress, unless it was just reported.
    pub fn tell(&mut self, step: u64, evaluated: Option<(u64, u64)>, notify: &mut dyn FnMut(Notice)) {
        if self.told.elapsed() >= Self::TELLING {
            notify(Notice::Progress { step, evaluated });
            self.told = Instant::now();
        }
    }

    /// Reports progress of an evaluation; returns whether it may continue.
    pub fn watch(
        &mut self,
        step: u64,
        evaluated: (u64, u64),
        stop: &AtomicBool,
        notify: &mut dyn FnMut(Notice),
    ) -> bool {
        self.tell(step, Some(evaluated), notify);
        !stop.load(Ordering::Relaxed)
    }

    /// Time since the last checkpoint, reduced in proportion to the time that writing it took.
    pub fn since_saved(&self) -> Duration {
        self.saved.elapsed().saturating_sub(Self::SHARE * self.saving)
    }

    /// Records a checkpoint and the time that writing it took.
    pub fn saved(&mut self, saving: Duration) {
        (self.saved, self.saving) = (Instant::now(), saving);
    }
}
