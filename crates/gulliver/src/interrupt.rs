//! Ctrl-C, termination requests and a closed terminal as a flag that the training loop looks at between steps.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The exit code of a run that was told to stop.
pub const EXIT_CODE: i32 = 130;

/// Returns a flag that becomes true at the first SIGINT, SIGTERM or SIGHUP, so that a run can save a
/// checkpoint and leave. A second signal ends the process at once with [`EXIT_CODE`].
pub fn install() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Actions run in the order of registration: the exit must look at the flag before it is set.
        flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::low_level::raise;
    use std::process::{Command, Stdio};
    use std::sync::atomic::Ordering;

    /// Runs in a process of its own, below: raises as many signals as the variable says.
    #[test]
    #[ignore = "helper of signals_in_a_child_process"]
    fn child() {
        let Ok(signals) = std::env::var("GULLIVER_TEST_SIGNALS") else { return };
        let stop = install().unwrap();
        assert!(!stop.load(Ordering::SeqCst));
        for signal in signals.split(' ') {
            let signals = [("int", SIGINT), ("term", SIGTERM), ("hup", SIGHUP)];
            let number = signals.iter().find(|(name, _)| *name == signal).unwrap().1;
            raise(number).unwrap();
            assert!(stop.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn signals_in_a_child_process() {
        for (signals, code) in
            [("int", 0), ("term", 0), ("hup", 0), ("int int", EXIT_CODE), ("int term", EXIT_CODE)]
        {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "interrupt::tests::child"])
                .env("GULLIVER_TEST_SIGNALS", signals)
                .stdout(Stdio::null())
                .status()
                .unwrap();
            assert_eq!(status.code(), Some(code), "{signals}");
        }
    }
}
