//! Streams beside the computation: each stream with work has a thread that runs its moves or collectives in order and
//! waits for other streams as the plan says. A collective for which the computation would only wait runs on the
//! computation's own thread. Knows nothing of kernels.

use super::copy;
use super::disk::{Disk, DiskError};
use crate::device::StepTime;
use crate::lower::call::MemorySlot;
use crate::lower::{ExchangeCall, KernelError};
use crate::peers::link::{Pace, Port};
use crate::peers::{ExchangeBuffer, HostBuffer};
use crate::team::wake::wake_promptly;
use crate::team::{NoThread, lock, polled, start, wait_until};
use gulliver_graph::graph::Value;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{PlanStream, STREAMS, Tier};
use gulliver_plan::document::topology::Site;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

/// One end of a move.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Bytes in memory.
    Memory(MemorySlot),
    /// Bytes on disk, from this offset on.
    Disk(u64),
}

/// A wait until a stream has completed an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The stream.
    pub stream: PlanStream,
    /// One more than the index of the instruction.
    pub until: u64,
}

/// The work of a stream for one instruction.
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
    /// A collective with other devices.
    Exchange {
        /// The collective.
        collective: ExchangeCall,
        /// The operand, if this device has one.
        own: Option<MemorySlot>,
        /// The result.
        result: MemorySlot,
        /// The value of the result.
        value: Value,
    },
}

struct Entry {
    task: Task,
    /// Step of the plan.
    step: u32,
    /// One more than the index of the instruction.
    until: u64,
    /// Range in `Queue::waits`.
    waits: Range<usize>,
    /// Whether the computation's own thread runs it.
    here: bool,
}

#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    waits: Vec<Wait>,
}

/// The tasks of a program's streams, in order of the instructions.
#[derive(Default)]
pub struct Tasks {
    queues: [Queue; STREAMS.len()],
}

// SAFETY: slots point into arenas that outlive the use of the program, by the contract of `Streams::begin`.
unsafe impl Send for Tasks {}
// SAFETY: as above; it is not changed once it is shared.
unsafe impl Sync for Tasks {}

impl Tasks {
    /// Adds the next task of a stream, for a step of the plan and the index of its instruction. The computation's own
    /// thread [runs](Running::hold) it if it is `here`. Returns its place among the tasks of the stream.
    pub(crate) fn push(
        &mut self,
        stream: PlanStream,
        (step, index): (usize, usize),
        task: Task,
        waits: &[Wait],
        here: bool,
    ) -> u32 {
        let queue = &mut self.queues[stream as usize];
        let first = queue.waits.len();
        // When the computation reaches a task of its own, its earlier instructions are done.
        let needed = |wait: &&Wait| !here || wait.stream != PlanStream::Compute;
        queue.waits.extend(waits.iter().filter(needed));
        // The tasks of a stream run in order, on either thread.
        if let Some(before) = queue.entries.last().filter(|before| before.here != here) {
            queue.waits.push(Wait { stream, until: before.until });
        }
        let waits = first..queue.waits.len();
        queue.entries.push(Entry { task, step: step as u32, until: index as u64 + 1, waits, here });
        queue.entries.len() as u32 - 1
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.entries.is_empty())
    }

    /// The tasks of a stream for a range of instructions.
    fn among(&self, stream: PlanStream, instructions: &Range<usize>) -> Range<usize> {
        let entries = &self.queues[stream as usize].entries;
        let before = |index: usize| entries.partition_point(|e| e.until <= index as u64);
        before(instructions.start)..before(instructions.end)
    }

    /// Whether a stream needs its thread for a range of instructions.
    fn needs_thread(&self, stream: PlanStream, instructions: &Range<usize>) -> bool {
        let entries = &self.queues[stream as usize].entries;
        entries[self.among(stream, instructions)].iter().any(|entry| !entry.here)
    }
}

/// Tasks for one thread.
struct Job {
    tasks: Arc<Tasks>,
    which: Range<usize>,
    disk: Option<Arc<Disk>>,
    caller: Thread,
}

/// Why a task failed.
#[derive(Debug)]
pub enum Fault {
    /// The disk failed.
    Disk(DiskError),
    /// A collective failed.
    Exchange {
        /// The value of its result.
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
    /// Whether there are more threads than cores, so that waiting threads must sleep.
    crowded: bool,
    /// For each stream, one more than the index of its last completed instruction.
    done: [AtomicU64; STREAMS.len()],
    /// Ends all waits; no stream begins another task.
    stop: AtomicBool,
    /// Number of threads that have not finished their job.
    pending: AtomicUsize,
    failure: Mutex<Option<Failure>>,
    /// The running threads.
    threads: [OnceLock<Thread>; STREAMS.len()],
    /// For each stream, what it waits for, as [`Shared::code`] encodes it; 0 for nothing.
    wanted: [AtomicU64; STREAMS.len()],
    /// Bytes moved: the fields of [`Ledger`], in order.
    moved: [AtomicU64; 4],
    /// Whether times are recorded, and the recorded times.
    recording: AtomicBool,
    seen: Mutex<Vec<StepTime>>,
}

impl Shared {
    fn wake(&self) {
        self.threads.iter().filter_map(OnceLock::get).for_each(Thread::unpark);
    }

    /// A wait as one number.
    fn code(stream: PlanStream, until: u64) -> u64 {
        (stream as u64 + 1) << 56 | until
    }

    /// Stores the progress of a stream and wakes the streams that wait for it. Returns whether the computation waits for
    /// it. SeqCst here and in [`Shared::wait`]: either we see the waiter's request, or the waiter sees our progress.
    fn done(&self, stream: PlanStream, until: u64) -> bool {
        self.done[stream as usize].store(until, Ordering::SeqCst);
        let reached = |wanted: &AtomicU64| {
            (Shared::code(stream, 0)..=Shared::code(stream, until)).contains(&wanted.load(Ordering::SeqCst))
        };
        for (wanted, thread) in self.wanted.iter().zip(&self.threads) {
            if let Some(thread) = thread.get().filter(|_| reached(wanted)) {
                thread.unpark();
            }
        }
        reached(&self.wanted[PlanStream::Compute as usize])
    }

    /// Blocks stream `who` until another has progressed; false if the run was stopped.
    fn wait(&self, who: PlanStream, wait: Wait) -> bool {
        let reached = || self.done[wait.stream as usize].load(Ordering::SeqCst) >= wait.until;
        let stopped = || self.stop.load(Ordering::Acquire);
        if !reached() {
            let wanted = &self.wanted[who as usize];
            wanted.store(Shared::code(wait.stream, wait.until), Ordering::SeqCst);
            let over = || reached() || stopped();
            // The computation has nothing else to do, and a sleeping core is slow to wake up.
            if self.crowded || who != PlanStream::Compute || !polled(over) {
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

    /// Calls `f` and records its time if recording is on.
    fn timed<T>(
        &self,
        stream: PlanStream,
        step: u32,
        f: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let start = self.recording.load(Ordering::Relaxed).then(Instant::now);
        let done = f()?;
        if let Some(start) = start {
            let seen = StepTime { stream, step, start, end: Instant::now() };
            lock(&self.seen).push(seen);
        }
        Ok(done)
    }

    fn fail(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
        self.stop();
    }
}

struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

/// The threads of the streams, started when they are first needed.
pub struct Streams {
    shared: Arc<Shared>,
    workers: [Option<Worker>; STREAMS.len()],
    port: Option<Port>,
}

impl Streams {
    /// Without threads. With a `port`, moves take as long as they would over its links. If there are more threads than
    /// cores (`crowded`), the computation sleeps as soon as it waits.
    pub fn new(port: Option<Port>, crowded: bool) -> Streams {
        let shared = Arc::new(Shared { crowded, ..Shared::default() });
        Streams { shared, workers: Default::default(), port }
    }

    /// Turns the recording of task times on or off.
    pub fn record(&self, on: bool) {
        self.shared.recording.store(on, Ordering::Relaxed);
    }

    /// Takes the times recorded since the last call.
    pub fn take_seen(&self) -> Vec<StepTime> {
        std::mem::take(&mut lock(&self.shared.seen))
    }

    /// Bytes moved so far.
    pub fn moved(&self) -> Ledger {
        let [to_device, to_host, disk_read, disk_written] =
            std::array::from_fn(|link| self.shared.moved[link].load(Ordering::Relaxed));
        Ledger { to_device, to_host, disk_read, disk_written, from_peers: 0 }
    }

    /// Begins the tasks of a range of instructions; all earlier instructions count as done.
    ///
    /// # Safety
    /// Until the result is finished or dropped, the bytes of these tasks are valid memory that nothing else touches, except
    /// tasks and instructions that wait for the task or that it waits for.
    pub unsafe fn begin(
        &mut self,
        tasks: &Arc<Tasks>,
        instructions: &Range<usize>,
        disk: Option<&Arc<Disk>>,
    ) -> Result<Running<'_>, NoThread> {
        let shared = &*self.shared;
        let with_work = || STREAMS.into_iter().filter(|s| tasks.needs_thread(*s, instructions));
        // All threads are known before any begins; otherwise a sleeping one might not be woken.
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

/// Tasks in progress. Dropping it lets begun tasks finish and starts no others.
pub struct Running<'a> {
    shared: &'a Shared,
    tasks: Arc<Tasks>,
}

impl Running<'_> {
    /// Waits for another stream; false if one has failed.
    pub fn wait(&self, wait: Wait) -> bool {
        self.shared.wait(PlanStream::Compute, wait)
    }

    /// Runs the collective at this place of its stream on the computation's own thread; false if another stream has
    /// failed.
    pub fn hold(&self, place: usize) -> Result<bool, Fault> {
        let Queue { entries, waits } = &self.tasks.queues[PlanStream::Exchange as usize];
        let one = &entries[place];
        if !waits[one.waits.clone()].iter().all(|wait| self.wait(*wait)) {
            return Ok(false);
        }
        let Task::Exchange { collective, own, result, value } = &one.task else {
            unreachable!("the computation runs no other tasks than collectives");
        };
        self.shared
            .timed(PlanStream::Exchange, one.step, || meet(collective, (*own, *result), *value, true))?;
        self.shared.done(PlanStream::Exchange, one.until);
        Ok(true)
    }

    /// Reports that the computation has completed all instructions before this one.
    pub fn computed(&self, until: u64) {
        self.shared.done(PlanStream::Compute, until);
    }

    /// Waits until all tasks are done or one has failed.
    pub fn finish(self) -> Result<(), Fault> {
        wait_until(|| self.shared.pending.load(Ordering::Acquire) == 0);
        match lock(&self.shared.failure).take() {
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
        lock(&self.shared.failure).take();
    }
}

fn work(shared: &Shared, stream: PlanStream, jobs: &Receiver<Job>, port: Option<Port>) {
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
                shared.timed(stream, one.step, || match &one.task {
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

/// Takes part in a collective. `idle` says that the core of this thread has nothing else to do meanwhile. Only for tasks
/// that have begun.
fn meet(
    collective: &ExchangeCall,
    (own, result): (Option<MemorySlot>, MemorySlot),
    value: Value,
    idle: bool,
) -> Result<(), Fault> {
    // SAFETY: by the contract of `begin`; verified plans give the result bytes of its own.
    let (own, result) = unsafe {
        let buffer = |slot: MemorySlot| HostBuffer::new(slot.start, slot.bytes);
        (own.map(buffer), buffer(result))
    };
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
unsafe fn bytes<'a>(slot: MemorySlot) -> &'a [u8] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(slot.start, slot.bytes) }
}

/// # Safety
/// The slot is initialised memory that nothing else touches during `'a`.
unsafe fn bytes_mut<'a>(slot: MemorySlot) -> &'a mut [u8] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(slot.start, slot.bytes) }
}

/// Runs a move. Returns its link in the ledger and its number of bytes.
fn transfer(
    ends: (End, End),
    stream: PlanStream,
    disk: Option<&Arc<Disk>>,
) -> Result<(usize, usize), DiskError> {
    let disk = || disk.expect("moves to and from disk have one");
    match ends {
        (End::Memory(from), End::Memory(to)) => {
            // SAFETY: by the contract of `begin`; the ends lie in different arenas and have the same size.
            unsafe { copy(from.start, to.start, from.bytes) };
            Ok((if stream == PlanStream::In { 0 } else { 1 }, from.bytes))
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
