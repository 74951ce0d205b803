//! A fork-join team of threads owned by one device: fixed assignment of parts to threads, no work stealing, no allocation
//! per run. The number of threads never affects results.

pub mod isa;
pub(crate) mod wake;

use isa::Isa;
use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Scope, ScopedJoinHandle, Thread};
use std::time::{Duration, Instant};

/// Number of cores that this process may use; 1 if the system does not report it.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

/// Polls before a thread of a team sleeps: tens of microseconds, the time of waking it up, within which the next kernel
/// usually comes.
const TEAM_SPINS: u32 = 6000;
/// Polls before any other thread sleeps: a few microseconds, because longer polling would take a core from the team.
const SPINS: u32 = 400;

/// Locks a mutex, even if a thread panicked while it held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The content of a mutex, even if a thread panicked while it held it.
pub(crate) fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The system refused to start a thread.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot start a thread: {why}; check the limit of processes (`ulimit -u`) or use fewer devices.threads"
)]
pub struct NoThread {
    /// The error of the system.
    pub why: String,
}

/// Starts a thread.
pub(crate) fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, NoThread> {
    #[cfg(test)]
    refused::check()?;
    thread::Builder::new().name(name.into()).spawn(work).map_err(|e| NoThread { why: e.to_string() })
}

/// Starts a thread that ends within a scope.
pub fn start_scoped<'s, 'e, T: Send + 's>(
    scope: &'s Scope<'s, 'e>,
    name: &str,
    work: impl FnOnce() -> T + Send + 's,
) -> Result<ScopedJoinHandle<'s, T>, NoThread> {
    #[cfg(test)]
    refused::check()?;
    let started = thread::Builder::new().name(name.into()).spawn_scoped(scope, work);
    started.map_err(|e| NoThread { why: e.to_string() })
}

/// Calls `f` with every number below `count`, each on its own thread, or on this one if none can be started.
pub fn side_by_side(count: usize, f: &(dyn Fn(usize) + Sync)) {
    thread::scope(|scope| {
        let all: Vec<_> = (0..count).map(|i| (i, start_scoped(scope, "planner", move || f(i)))).collect();
        for (i, thread) in all {
            match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => f(i),
            }
        }
    });
}

/// Lets tests refuse threads.
#[cfg(test)]
pub(crate) mod refused {
    use super::NoThread;
    use std::cell::Cell;

    thread_local! {
        static ALLOWED: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    pub(super) fn check() -> Result<(), NoThread> {
        match ALLOWED.get() {
            usize::MAX => Ok(()),
            0 => Err(NoThread { why: "refused".into() }),
            n => {
                ALLOWED.set(n - 1);
                Ok(())
            }
        }
    }

    /// Calls `f`; meanwhile this thread can start at most `threads` others.
    pub(crate) fn after<T>(threads: usize, f: impl FnOnce() -> T) -> T {
        ALLOWED.set(threads);
        let result = f();
        ALLOWED.set(usize::MAX);
        result
    }
}

type Part<'a> = dyn Fn(usize) + Sync + 'a;

/// The work of one run; valid from the start of an epoch until `pending` is zero.
struct Job {
    work: *const Part<'static>,
    parts: usize,
    caller: Thread,
}

struct Shared {
    /// Written only before the first run.
    threads: AtomicUsize,
    /// Incremented to start a run; `STOP` ends the workers.
    epoch: AtomicU64,
    /// Workers that have not finished the current run.
    pending: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only by the caller holding `busy` while no worker runs, and read by workers
// only between the release store of `epoch` and their decrement of `pending`. The pointer in it leads
// to a `Sync` closure that outlives that interval, because `run` waits for `pending` to reach zero.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it is tied to the creating thread.
unsafe impl Send for Shared {}

const STOP: u64 = u64::MAX;

/// A team of threads; the thread that calls [`Team::run`] works as its thread 0.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
    isa: Isa,
}

impl Team {
    /// A team of `threads` (at least one) threads with the best instruction set of this machine. If the system starts
    /// fewer threads, the team has fewer.
    pub fn new(threads: usize) -> Team {
        Team::with_isa(threads, Isa::detect())
    }

    /// A team with this instruction set, which does not affect the bits of results.
    pub fn with_isa(threads: usize, isa: Isa) -> Team {
        Team::begun(threads, isa).0
    }

    /// A team of exactly `threads` threads.
    pub fn started(threads: usize) -> Result<Team, NoThread> {
        let (team, failed) = Team::begun(threads, Isa::detect());
        failed.map_or(Ok(team), Err)
    }

    /// A team with as many threads as could be started, and the error if there are fewer than asked for.
    fn begun(threads: usize, isa: Isa) -> (Team, Option<NoThread>) {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            threads: AtomicUsize::new(threads),
            epoch: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let (mut workers, mut failed) = (Vec::with_capacity(threads - 1), None);
        for t in 1..threads {
            let of_worker = Arc::clone(&shared);
            match start("team", move || work(&of_worker, t)) {
                Ok(worker) => workers.push(worker),
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        // Workers read it after the start of their first run.
        shared.threads.store(1 + workers.len(), Ordering::Relaxed);
        (Team { shared, workers, busy: AtomicBool::new(false), isa }, failed)
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        1 + self.workers.len()
    }

    /// The instruction set of kernels that run on this team.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Calls `f(part)` once for every part in `0..parts` and returns when all are done. Thread `t` takes parts `t`,
    /// `t + threads`, … If a part panics, the remaining parts of that thread are dropped, and the panic continues in the
    /// caller when every thread has finished. A call from inside a part, or while another thread runs the team, is
    /// executed by the calling thread alone.
    pub fn run(&self, parts: usize, f: &(dyn Fn(usize) + Sync)) {
        let alone = self.threads() == 1 || parts <= 1;
        if alone || self.busy.swap(true, Ordering::Acquire) {
            return (0..parts).for_each(f);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is changed; every worker is done with it before this call returns.
        let work = unsafe { std::mem::transmute::<*const Part<'_>, *const Part<'static>>(f) };
        // SAFETY: `busy` excludes other callers, and the workers are between runs.
        unsafe { *shared.job.get() = Some(Job { work, parts, caller: thread::current() }) };
        shared.pending.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::Release);
        self.workers.iter().for_each(|w| w.thread().unpark());

        let own = catch_unwind(AssertUnwindSafe(|| (0..parts).step_by(self.threads()).for_each(f)));
        wait(TEAM_SPINS, || shared.pending.load(Ordering::Acquire) == 0);
        let theirs = lock(&shared.panic).take();
        self.busy.store(false, Ordering::Release);
        match (own, theirs) {
            (Err(payload), _) | (Ok(()), Some(payload)) => resume_unwind(payload),
            (Ok(()), None) => {}
        }
    }

    /// The results of `f(part)` for every part in `0..parts`, in order. Runs as [`Team::run`] does.
    pub(crate) fn map<T: Send>(&self, parts: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let results: Vec<Mutex<Option<T>>> = (0..parts).map(|_| Mutex::new(None)).collect();
        self.run(parts, &|part| *lock(&results[part]) = Some(f(part)));
        results.into_iter().map(|result| into_inner(result).expect("every part ran")).collect()
    }

    /// Divides `0..len` into at most [`Team::threads`] non-empty contiguous ranges whose starts are
    /// multiples of `align`, and calls `f` once for each.
    pub fn split(&self, len: usize, align: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        let parts = self.threads().min(len.div_ceil(align.max(1)));
        self.run(parts, &|part| {
            let range = share(len, align, parts, part);
            if !range.is_empty() {
                f(range);
            }
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.epoch.store(STOP, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker cannot panic: parts run inside `catch_unwind`.
            let _ = worker.join();
        }
    }
}

/// Range number `part` of `0..len` cut into `parts` contiguous ranges with starts at multiples of
/// `align`, as even as that allows; late ranges may be empty.
pub fn share(len: usize, align: usize, parts: usize, part: usize) -> Range<usize> {
    let align = align.max(1);
    let units = len.div_ceil(align);
    let cut = |p: usize| (units * p / parts.max(1) * align).min(len);
    cut(part)..cut(part + 1)
}

fn work(shared: &Shared, t: usize) {
    let mut seen = 0;
    loop {
        wait(TEAM_SPINS, || shared.epoch.load(Ordering::Acquire) != seen);
        seen = shared.epoch.load(Ordering::Acquire);
        if seen == STOP {
            return;
        }
        // SAFETY: the epoch changed, so the job is set and stays until this thread decrements `pending`.
        let Some(job) = (unsafe { &*shared.job.get() }) else { continue };
        // SAFETY: `run` keeps the closure alive until `pending` is zero.
        let f = unsafe { &*job.work };
        let parts = (t..job.parts).step_by(shared.threads.load(Ordering::Relaxed));
        let result = catch_unwind(AssertUnwindSafe(|| parts.for_each(f)));
        if let Err(payload) = result {
            lock(&shared.panic).get_or_insert(payload);
        }
        let caller = job.caller.clone();
        if shared.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            caller.unpark();
        }
    }
}

/// How long an idle thread with a core of its own polls before it sleeps. Waking up takes a tenth of a millisecond, and a
/// core that was asleep is slower for a while.
pub(crate) const AWAKE: Duration = Duration::from_millis(5);

/// Polls `so` for [`AWAKE`], yielding the core to other threads; returns its last value.
pub(crate) fn polled(so: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < AWAKE {
        if so() {
            return true;
        }
        thread::yield_now();
    }
    so()
}

/// Spins briefly, then sleeps until `ready`. The thread that makes `ready` true must unpark this one.
pub(crate) fn wait_until(ready: impl Fn() -> bool) {
    wait(SPINS, ready);
}

fn wait(spins: u32, ready: impl Fn() -> bool) {
    for _ in 0..spins {
        if ready() {
            return;
        }
        std::hint::spin_loop();
    }
    while !ready() {
        thread::park();
    }
}

/// A mutable slice shared by threads that access disjoint ranges of it.
pub struct SharedMut<'a, T> {
    ptr: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` split by hand; `slice` puts disjointness on its callers.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Borrows the slice.
    pub fn new(slice: &'a mut [T]) -> SharedMut<'a, T> {
        SharedMut { ptr: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element; access through it has the contract of `slice`.
    pub fn as_ptr(&self) -> *mut T {
        self.ptr
    }

    /// The elements of `range`; panics if it is out of bounds.
    ///
    /// # Safety
    /// No element of `range` is reachable through another slice while this one lives.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "range out of bounds");
        // SAFETY: in bounds by the check above; unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once() {
        for threads in 1..=4 {
            let team = Team::new(threads);
            for parts in [0, 1, 2, 3, 7, 100] {
                let mut hits = vec![0u32; parts];
                let shared = SharedMut::new(&mut hits);
                for _ in 0..200 {
                    // SAFETY: each part touches its own element.
                    team.run(parts, &|p| unsafe { shared.slice(p..p + 1)[0] += 1 });
                }
                assert!(hits.iter().all(|&h| h == 200), "{threads} threads, {parts} parts");
            }
        }
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_an_error_or_one_thread_less() {
        for allowed in 0..3 {
            let error = refused::after(allowed, || Team::started(4)).err().unwrap();
            assert!(
                error.to_string().starts_with("cannot start a thread: refused; check the limit"),
                "{error}"
            );
            let team = refused::after(allowed, || Team::new(4));
            assert_eq!(team.threads(), 1 + allowed);
            let count = AtomicUsize::new(0);
            team.run(100, &|part| _ = count.fetch_add(part, Ordering::Relaxed));
            assert_eq!(count.into_inner(), 4950);
        }
        assert_eq!(refused::after(3, || Team::started(4)).map(|team| team.threads()), Ok(4));
    }

    #[test]
    fn split_covers_and_aligns() {
        for threads in 1..=5 {
            let team = Team::new(threads);
            for (len, align) in [(0, 4), (1, 4), (17, 4), (64, 16), (65, 16), (10, 1), (9, 0)] {
                let seen = Mutex::new(Vec::new());
                team.split(len, align, &|r| seen.lock().unwrap().push(r));
                let mut seen = seen.into_inner().unwrap();
                seen.sort_by_key(|r| r.start);
                assert!(seen.len() <= threads);
                let mut at = 0;
                for r in seen {
                    assert_eq!((r.start, r.start % align.max(1)), (at, 0));
                    at = r.end;
                }
                assert_eq!(at, len);
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_survives() {
        let team = Team::new(3);
        for bad in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(3, &|p| assert!(p != bad, "part {bad} failed"));
            }));
            let message = *result.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("part {bad} failed"));
            let count = AtomicUsize::new(0);
            team.run(9, &|_| _ = count.fetch_add(1, Ordering::Relaxed));
            assert_eq!(count.into_inner(), 9);
        }
    }

    #[test]
    fn nested_and_concurrent_runs_complete() {
        let team = Team::new(2);
        let count = AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..50 {
                        team.run(4, &|_| team.run(3, &|_| _ = count.fetch_add(1, Ordering::Relaxed)));
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 2 * 50 * 12);
    }
}
