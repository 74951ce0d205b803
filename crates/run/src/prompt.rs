//! Threads that are to have a core as soon as they wake up.

/// Nanoseconds for which such a thread wants a core at a time.
#[cfg(all(target_os = "linux", not(miri)))]
const SLICE: u64 = 100_000;

/// Asks the system to let this thread begin at once when it wakes up, though another is at work on its core: it will not
/// stay for long. Linux from 6.12 on lets whoever wants short slices go before who has longer ones; before that, and
/// elsewhere, nothing changes, and a collective beside kernels may have to wait for the next tick of the system's clock.
pub fn prompt() {
    #[cfg(all(target_os = "linux", not(miri)))]
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

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_slice_of_a_thread_changes() {
        // SAFETY: numbers of this thread are asked for; `sched_getattr` writes into 48 bytes of ours at most.
        let of_this_thread = || unsafe {
            let mut attributes = [0u64; 6];
            let asked = libc::syscall(libc::SYS_sched_getattr, 0, &mut attributes, 48, 0);
            assert_eq!(asked, 0);
            let (policy, nice) = (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0));
            (policy, nice, attributes[3])
        };
        std::thread::spawn(move || {
            let (policy, nice, slice) = of_this_thread();
            prompt();
            let after = of_this_thread();
            assert_eq!((after.0, after.1), (policy, nice));
            // Systems that know of no slices have none, before and after.
            assert!(after.2 == SLICE || after.2 == slice, "{slice} and {after:?}");
        })
        .join()
        .unwrap();
    }
}
