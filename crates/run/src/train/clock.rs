//! When a run last told how far it is, and when it last saved what it has.

use super::Notice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// When the world was last told, and when a checkpoint was last written.
pub(super) struct Clock {
    told: Instant,
    saved: Instant,
    /// How long that took.
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
    /// Checkpoints for the time take at most one part in `SHARE` of it.
    const SHARE: u32 = 20;

    /// Tells how far training is, unless that was just told.
    pub fn tell(&mut self, step: u64, evaluated: Option<(u64, u64)>, notify: &mut dyn FnMut(Notice)) {
        if self.told.elapsed() >= Self::TELLING {
            notify(Notice::Progress { step, evaluated });
            self.told = Instant::now();
        }
    }

    /// Looks on while an evaluation goes through its batches: tells about it, and says whether it may go on.
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

    /// How long the run could lose, less where writing takes long.
    pub fn since_saved(&self) -> Duration {
        self.saved.elapsed().saturating_sub(Self::SHARE * self.saving)
    }

    /// Takes note of a checkpoint, and of how long it took.
    pub fn saved(&mut self, saving: Duration) {
        (self.saved, self.saving) = (Instant::now(), saving);
    }
}
