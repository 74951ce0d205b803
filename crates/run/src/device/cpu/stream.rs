//! Streams beside the computation: a thread for each that has work, which does its moves or collectives in
//! order and waits, as the plan says, for what others have done. A collective that the computation would only wait
//! for is held by its own thread. Knows nothing of kernels.

use super::copy;
use super::disk::{Disk, DiskError};
use crate::device::StepTime;
use crate::lower::call::Slot;
use crate::lower::{ExchangeCall, KernelError};
use crate::peers::link::{Pace, Port};
use crate::peers::{ExchangeBuffer, HostBuffer};
use crate::team::wake::wake_promptly;
use crate::team::{NoThread, polled, start, wait_until};
use gulliver_graph::graph::Value;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{STREAMS, Stream, Tier};
use gulliver_plan::document::topology::Site;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

/// One end of a move.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Bytes in memory.
    Memory(Slot),
    /// As many on disk, from this offset on.
    Disk(u64),
}

/// A stream must have done its instruction before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The stream.
    pub stream: Stream,
    /// One more than the index of the instruction.
    pub until: u64,
}

/// What a stream does for one instruction.
pub(crate) enum Task {
    /// Copies bytes.
    Move {
        /// From here.
        from: End,
        /// To there.
        to: End,
        /// From which tier to which.
        tiers: (Tier, Tier),
    },
    /// Meets other devices.
    Exchange {
        /// What is done there.
        collective: ExchangeCall,
        /// What is brought, if anything.
        own: Option<Slot>,
        /// What is left with.
        result: Slot,
        /// The value that this is.
        value: Value,
    },
}

struct Entry {
    task: Task,
    /// Of the plan.
    step: u32,
    /// One more than the index of the instruction.
    until: u64,
    /// Range in `Queue::waits`.
    waits: Range<usize>,
    /// Whether the computation's own thread does it.
    here: bool,
}

#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    waits: Vec<Wait>,
}

/// What a program has streams do beside the computation, in order of the instructions.
#[derive(Default)]
pub struct Tasks {
    queues: [Queue; STREAMS.len()],
}

// SAFETY: slots point into arenas that outlive the use of the program; who runs it answers for that.
unsafe impl Send for Tasks {}
// SAFETY: as above; nothing in it is changed once it is shared.
unsafe impl Sync for Tasks {}

impl Tasks {
    /// Adds the next instruction of a stream, for a step of the plan.
    pub(crate) fn push(&mut self, stream: Stream, at: (usize, usize), task: Task, waits: &[Wait]) {
        self.add(stream, at, task, waits, false);
    }

    /// Adds the next instruction of a stream, which the computation's own thread [holds](Running::hold); its place
    /// among those of the stream.
    pub(crate) fn push_here(
        &mut self,
        stream: Stream,
        at: (usize, usize),
        task: Task,
        waits: &[Wait],
    ) -> usize {
        // What it needs of the computation is done when that comes to it.
        let waits: Vec<Wait> = waits.iter().copied().filter(|wait| wait.stream != Stream::Compute).collect();
        self.add(stream, at, task, &waits, true);
        self.queues[stream as usize].entries.len() - 1
    }

    fn add(&mut self, stream: Stream, (step, index): (usize, usize), task: Task, waits: &[Wait], here: bool) {
        let queue = &mut self.queues[stream as usize];
        let first = queue.waits.len();
        queue.waits.extend_from_slice(waits);
        // A stream's tasks are done in order, by whichever thread.
        if let Some(before) = queue.entries.last().filter(|before| before.here != here) {
            queue.waits.push(Wait { stream, until: before.until });
        }
        let waits = first..queue.waits.len();
        queue.entries.push(Entry { task, step: step as u32, until: index as u64 + 1, waits, here });
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.entries.is_empty())
    }

    /// The tasks of a stream among a range of instructions.
    fn among(&self, stream: Stream, instructions: &Range<usize>) -> Range<usize> {
        let entries = &self.queues[stream as usize].entries;
        let before = |index: usize| entries.partition_point(|e| e.until <= index as u64);
        before(instructions.start)..before(instructions.end)
    }

    /// Whether a thread of its own has something to do for a stream among a range of instructions.
    fn needs_thread(&self, stream: Stream, instructions: &Range<usize>) -> bool {
        let entries = &self.queues[stream as usize].entries;
        entries[self.among(stream, instructions)].iter().any(|entry| !entry.here)
    }
}

/// Tasks for one thread to do.
struct Job {
    tasks: Arc<Tasks>,
    which: Range<usize>,
    disk: Option<Arc<Disk>>,
    caller: Thread,
}

/// Why a stream could not do something.
#[derive(Debug)]
pub enum Fault {
    /// The disk failed.
    Disk(DiskError),
    /// A collective did.
    Exchange {
        /// The value it was to give.
        value: Value,
        /// Why.
        why: KernelError,
    },
}

enum Failure {
    Fault(Fault),
    Panic(Box<dyn Any + Send>),
}

#[derive(Default)]
struct Shared {
    /// Whether there are more threads than cores, so that who waits must sleep.
    crowded: bool,
    /// One more than the index of the last instruction done, by stream.
    done: [AtomicU64; STREAMS.len()],
    /// Nobody is to wait any longer or begin anything.
    stop: AtomicBool,
    /// Threads that have not finished their job.
    pending: AtomicUsize,
    failure: Mutex<Option<Failure>>,
    /// The threads that there are.
    threads: [OnceLock<Thread>; STREAMS.len()],
    /// What each stream waits for, as [`Shared::code`] has it; 0 for nothing.
    wanted: [AtomicU64; STREAMS.len()],
    /// Bytes moved: the fields of [`Ledger`], in order.
    moved: [AtomicU64; 4],
    /// Whether somebody wants to know when things happen, and what happened.
    recording: AtomicBool,
    seen: Mutex<Vec<StepTime>>,
}

impl Shared {
    fn wake(&self) {
        self.threads.iter().filter_map(OnceLock::get).for_each(Thread::unpark);
    }

    /// A stream, and up to where it must have come, as one number.
    fn code(stream: Stream, until: u64) -> u64 {
        (stream as u64 + 1) << 56 | until
    }

    /// Wakes those who wait for just this, and nobody else; says whether the computation does. With the order of
    /// everyone's stores and loads that [`Shared::wait`] has, either it is seen here what somebody wants, or there
    /// that it is done.
    fn done(&self, stream: Stream, until: u64) -> bool {
        self.done[stream as usize].store(until, Ordering::SeqCst);
        let reached = |wanted: &AtomicU64| {
            (Shared::code(stream, 0)..=Shared::code(stream, until)).contains(&wanted.load(Ordering::SeqCst))
        };
        for (wanted, thread) in self.wanted.iter().zip(&self.threads) {
            if let Some(thread) = thread.get().filter(|_| reached(wanted)) {
                thread.unpark();
            }
        }
        reached(&self.wanted[Stream::Compute as usize])
    }

    /// One stream waits for another; false if there is no use in waiting any longer.
    fn wait(&self, who: Stream, wait: Wait) -> bool {
        let reached = || self.done[wait.stream as usize].load(Ordering::SeqCst) >= wait.until;
        let stopped = || self.stop.load(Ordering::Acquire);
        if !reached() {
            let wanted = &self.wanted[who as usize];
            wanted.store(Shared::code(wait.stream, wait.until), Ordering::SeqCst);
            let over = || reached() || stopped();
            // The computation has nothing else to do, and a core that sleeps is slow to wake up.
            if self.crowded || who != Stream::Compute || !polled(over) {
                wait_until(over);
            }
            wanted.store(0, Ordering::Relaxed);
        }
        !stopped()
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Does something, and notes when, if somebody wants to know.
    fn noting<T>(&self, stream: Stream, step: u32, f: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let start = self.recording.load(Ordering::Relaxed).then(Instant::now);
        let done = f()?;
        if let Some(start) = start {
            let seen = StepTime { stream, step, start, end: Instant::now() };
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        }
        Ok(done)
    }

    fn fail(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.stop();
    }
}

struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

/// The threads of the streams, made when they are first needed.
pub struct Streams {
    shared: Arc<Shared>,
    workers: [Option<Worker>; STREAMS.len()],
    port: Option<Port>,
}

impl Streams {
    /// No threads yet. Moves take as long as they would over the links of a `port`, if there is one. The computation sleeps
    /// at once when it waits if there is a crowd: more threads than cores.
    pub fn new(port: Option<Port>, crowded: bool) -> Streams {
        let shared = Arc::new(Shared { crowded, ..Shared::default() });
        Streams { shared, workers: Default::default(), port }
    }

    /// Notes when streams are at work from now on, or no longer.
    pub fn record(&self, on: bool) {
        self.shared.recording.store(on, Ordering::Relaxed);
    }

    /// What was noted since this was last asked.
    pub fn take_seen(&self) -> Vec<StepTime> {
        std::mem::take(&mut self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes moved so far.
    pub fn moved(&self) -> Ledger {
        let [to_device, to_host, disk_read, disk_written] =
            std::array::from_fn(|link| self.shared.moved[link].load(Ordering::Relaxed));
        Ledger { to_device, to_host, disk_read, disk_written, from_peers: 0 }
    }

    /// Begins the tasks among a range of instructions; all that come before it count as done.
    ///
    /// # Safety
    /// Until the result is finished or dropped, the bytes of these tasks are valid memory that nothing else
    /// touches but what waits for the task, or is waited for by it.
    pub unsafe fn begin(
        &mut self,
        tasks: &Arc<Tasks>,
        instructions: &Range<usize>,
        disk: Option<&Arc<Disk>>,
    ) -> Result<Running<'_>, NoThread> {
        let shared = &*self.shared;
        let with_work = || STREAMS.into_iter().filter(|s| tasks.needs_thread(*s, instructions));
        // All threads are known before any begins, or one that sleeps might not be woken.
        for stream in with_work() {
            if self.workers[stream as usize].is_some() {
                continue;
            }
            let port = self.port.clone();
            let (jobs, received) = channel();
            let worker_shared = Arc::clone(&self.shared);
            let thread = start("stream", move || work(&worker_shared, stream, &received, port))?;
            let _ = shared.threads[stream as usize].set(thread.thread().clone());
            self.workers[stream as usize] = Some(Worker { jobs, thread });
        }
        shared.done.iter().for_each(|done| done.store(instructions.start as u64, Ordering::Relaxed));
        shared.stop.store(false, Ordering::Relaxed);
        shared.pending.store(with_work().count(), Ordering::Relaxed);
        for stream in with_work() {
            let which = tasks.among(stream, instructions);
            let job = Job { tasks: Arc::clone(tasks), which, disk: disk.cloned(), caller: thread::current() };
            let worker = self.workers[stream as usize].as_ref().expect("made above");
            worker.jobs.send(job).expect("workers live as long as we do");
        }
        Ok(Running { shared, tasks: Arc::clone(tasks) })
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for Worker { jobs, thread } in self.workers.iter_mut().filter_map(Option::take) {
            drop(jobs);
            // A worker cannot panic: tasks run inside `catch_unwind`.
            let _ = thread.join();
        }
    }
}

/// Tasks under way. Dropping it stops them after those that have begun.
pub struct Running<'a> {
    shared: &'a Shared,
    tasks: Arc<Tasks>,
}

impl Running<'_> {
    /// Waits for another stream; false if one has failed.
    pub fn wait(&self, wait: Wait) -> bool {
        self.shared.wait(Stream::Compute, wait)
    }

    /// Holds the collective of this place among those of its stream, on the computation's own thread; false if another
    /// stream has failed.
    pub fn hold(&self, place: usize) -> Result<bool, Fault> {
        let Queue { entries, waits } = &self.tasks.queues[Stream::Exchange as usize];
        let one = &entries[place];
        if !waits[one.waits.clone()].iter().all(|wait| self.wait(*wait)) {
            return Ok(false);
        }
        let Task::Exchange { collective, own, result, value } = &one.task else {
            unreachable!("only collectives are held by the computation");
        };
        self.shared.noting(Stream::Exchange, one.step, || meet(collective, (*own, *result), *value, true))?;
        self.shared.done(Stream::Exchange, one.until);
        Ok(true)
    }

    /// The computation has done all instructions before this one.
    pub fn computed(&self, until: u64) {
        self.shared.done(Stream::Compute, until);
    }

    /// Waits until all is done, or something has failed.
    pub fn finish(self) -> Result<(), Fault> {
        wait_until(|| self.shared.pending.load(Ordering::Acquire) == 0);
        match self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(()),
            Some(Failure::Fault(fault)) => Err(fault),
            Some(Failure::Panic(payload)) => resume_unwind(payload),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.shared.stop();
        wait_until(|| self.shared.pending.load(Ordering::Acquire) == 0);
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn work(shared: &Shared, stream: Stream, jobs: &Receiver<Job>, port: Option<Port>) {
    wake_promptly();
    let mut pace = port.map(|port| (Pace::new(&port.throttle), port.device));
    for job in jobs {
        let all = || -> Result<(), Fault> {
            let Queue { entries, waits } = &job.tasks.queues[stream as usize];
            for one in entries[job.which.clone()].iter().filter(|one| !one.here) {
                let ready = waits[one.waits.clone()].iter().all(|wait| shared.wait(stream, *wait));
                if !ready || shared.stop.load(Ordering::Acquire) {
                    break;
                }
                shared.noting(stream, one.step, || match &one.task {
                    Task::Move { from, to, tiers } => {
                        let began = pace.as_ref().map(|(pace, _)| pace.begin());
                        let moved = transfer((*from, *to), stream, job.disk.as_ref());
                        let (link, bytes) = moved.map_err(Fault::Disk)?;
                        if let (Some((pace, device)), Some(began)) = (&mut pace, began) {
                            let [from, to] = [tiers.0, tiers.1].map(|tier| site(tier, *device));
                            pace.end(began, (from, to), bytes as u64, false);
                        }
                        shared.moved[link].fetch_add(bytes as u64, Ordering::Relaxed);
                        Ok(())
                    }
                    Task::Exchange { collective, own, result, value } => {
                        meet(collective, (*own, *result), *value, false)
                    }
                })?;
                if shared.done(stream, one.until) {
                    job.caller.unpark();
                }
            }
            Ok(())
        };
        match catch_unwind(AssertUnwindSafe(all)) {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => shared.fail(Failure::Fault(fault)),
            Err(payload) => shared.fail(Failure::Panic(payload)),
        }
        shared.pending.fetch_sub(1, Ordering::AcqRel);
        job.caller.unpark();
    }
}

/// Meets other devices. `idle` says that there is nothing else for this thread's core to do meanwhile. Called only for
/// tasks that have begun.
fn meet(
    collective: &ExchangeCall,
    (own, result): (Option<Slot>, Slot),
    value: Value,
    idle: bool,
) -> Result<(), Fault> {
    // SAFETY: by the contract of `begin`; verified plans give the result bytes of its own.
    let (own, result) = unsafe { (own.map(|own| HostBuffer::new(own)), HostBuffer::new(result)) };
    collective
        .hold(own.as_ref().map(|own| own as &dyn ExchangeBuffer), &result, idle)
        .map_err(|why| Fault::Exchange { value, why })
}

fn site(tier: Tier, device: u32) -> Site {
    match tier {
        Tier::Device => Site::Device(device),
        Tier::Host => Site::Host,
        Tier::Disk => Site::Disk,
    }
}

/// # Safety
/// The slot is initialised memory that nothing writes during `'a`.
unsafe fn bytes<'a>(slot: Slot) -> &'a [u8] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(slot.start, slot.bytes) }
}

/// # Safety
/// The slot is initialised memory that nothing else touches during `'a`.
unsafe fn bytes_mut<'a>(slot: Slot) -> &'a mut [u8] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(slot.start, slot.bytes) }
}

/// Does a move; over which link of the ledger, and how many bytes.
fn transfer(ends: (End, End), stream: Stream, disk: Option<&Arc<Disk>>) -> Result<(usize, usize), DiskError> {
    let disk = || disk.expect("moves to and from disk have one");
    match ends {
        (End::Memory(from), End::Memory(to)) => {
            // SAFETY: by the contract of `begin`; the ends lie in different arenas and have the same size.
            unsafe { copy(from.start, to.start, from.bytes) };
            Ok((if stream == Stream::In { 0 } else { 1 }, from.bytes))
        }
        (End::Disk(from), End::Memory(to)) => {
            // SAFETY: by the contract of `begin`.
            disk().read(from, unsafe { bytes_mut(to) })?;
            Ok((2, to.bytes))
        }
        (End::Memory(from), End::Disk(to)) => {
            // SAFETY: by the contract of `begin`.
            disk().write(to, unsafe { bytes(from) })?;
            Ok((3, from.bytes))
        }
        (End::Disk(_), End::Disk(_)) => unreachable!("verified plans move from one space to another"),
    }
}

#[cfg(test)]
mod tests;
