//! Threads that are to have a core as soon as they wake up.

/// Nanoseconds for which such a thread wants a core at a time.
#[cfg(target_os = "linux")]
const SLICE: u64 = 100_000;

/// Asks the system to let this thread begin at once when it wakes up, though another is at work on its core: it will not
/// stay for long. Linux from 6.12 on lets whoever wants short slices go before who has longer ones; before that, and
/// elsewhere, nothing changes, and a meeting beside kernels may have to wait for the next tick of the system's clock.
pub fn prompt() {
    #[cfg(target_os = "linux")]
    {
        /// What `sched_setattr` takes, in its first version.
        #[repr(C)]
        struct Attributes {
            size: u32,
            policy: u32,
            flags: u64,
            nice: i32,
            priority: u32,
            runtime: u64,
            deadline: u64,
            period: u64,
        }
        // SAFETY: asks for a number of this thread, and changes nothing.
        let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let wanted = Attributes {
            size: size_of::<Attributes>() as u32,
            policy: libc::SCHED_OTHER as u32,
            flags: 0,
            nice,
            priority: 0,
            runtime: SLICE,
            deadline: 0,
            period: 0,
        };
        // SAFETY: the system reads `size` bytes, all of them ours, and writes none. If it refuses, all is as before.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &wanted, 0) };
    }
}
