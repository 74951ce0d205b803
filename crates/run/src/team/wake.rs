//! Scheduling of threads that must run as soon as they wake up.

/// Time slice such a thread asks for, in nanoseconds.
#[cfg(all(target_os = "linux", not(miri)))]
const SLICE: u64 = 100_000;

/// Asks the system to run this thread as soon as it wakes up, even if another thread has its core. Linux 6.12 and
/// later schedule threads with short slices first. Elsewhere this has no effect, and a collective beside kernels may
/// wait for the next scheduler tick.
pub fn wake_promptly() {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        /// `struct sched_attr` of the kernel, first version.
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
        // SAFETY: reads a number of this thread.
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
        // SAFETY: the system reads `size` bytes of `wanted` and writes nothing. A refusal changes nothing.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &wanted, 0) };
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_slice_of_a_thread_changes() {
        // SAFETY: reads numbers of this thread; `sched_getattr` writes at most the 48 bytes given.
        let of_this_thread = || unsafe {
            let mut attributes = [0u64; 6];
            let asked = libc::syscall(libc::SYS_sched_getattr, 0, &mut attributes, 48, 0);
            assert_eq!(asked, 0);
            let (policy, nice) = (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0));
            (policy, nice, attributes[3])
        };
        std::thread::spawn(move || {
            let (policy, nice, slice) = of_this_thread();
            wake_promptly();
            let after = of_this_thread();
            assert_eq!((after.0, after.1), (policy, nice));
            // Kernels without slices report none, before and after.
            assert!(after.2 == SLICE || after.2 == slice, "{slice} and {after:?}");
        })
        .join()
        .unwrap();
    }
}
