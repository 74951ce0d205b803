//! Obeys plans on a CPU device: walks the instructions of a program in order, with other streams beside
//! it, and decides nothing.

use crate::disk::{BLOCK, DiskError};
use crate::host::HostTensor;
use crate::link::Port;
use crate::lower::call::{Call, Slot};
use crate::lower::{KernelError, Kernels};
use crate::memory::OutOfMemory;
use crate::program::{Instruction, Output, Program, Spot};
use crate::stream::{Fault, Seen, Streams};
use crate::team::{NoThread, Team};
use crate::tiers::Tiers;
use gulliver_graph::dim::DimError;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, NodeId, Origin, Value};
use gulliver_graph::kinds::Kinds;
use gulliver_graph::role::OutputScope;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Plan, Stream, TIERS, Tier};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A group of threads with memory of its own, and of its host and disk.
pub struct Cpu {
    team: Team,
    // Before the memory they use, as they must be gone first.
    streams: Streams,
    tiers: Tiers,
    live: [u64; TIERS.len()],
    /// Most in use at once: in the last run, and in any.
    run_peak: [u64; TIERS.len()],
    peak: [u64; TIERS.len()],
    /// When what happened since the first instruction of a program was last run, if that is noted.
    seen: Option<Vec<Seen>>,
}

/// What a device is made of.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Its threads.
    pub threads: usize,
    /// Bytes of device memory to begin with; other tiers have none until they [grow](Cpu::grow).
    pub bytes: u64,
    /// Where the file of the disk tier is made.
    pub disk_dir: PathBuf,
    /// Where it is among links of stated speeds; moves are as fast as they can be without them.
    pub port: Option<Port>,
    /// Whether it and others at work at once have more threads than there are cores.
    pub crowded: bool,
}

/// What one instruction of a program does, for those who time it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Runs a node.
    Node(NodeId),
    /// Copies so many bytes.
    Copy(u64),
    /// Adds so many bytes to as many.
    Add(u64),
    /// Moves bytes between tiers.
    Move,
}

/// Sees the f32 results of a run, one after the other.
pub type Watch<'a> = &'a mut dyn FnMut(Value, &[f32]);

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The machine has not enough memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A size is missing or makes no sense.
    #[error(transparent)]
    Size(#[from] DimError),
    /// A kernel refused its data.
    #[error("{value}: {source}")]
    Kernel {
        /// The value that was being computed.
        value: String,
        /// What was wrong.
        source: KernelError,
    },
    /// A tensor does not match the input it is for.
    #[error("input `{name}` is {expected}, the tensor given for it is {got}")]
    Input {
        /// Name of the input.
        name: String,
        /// Its type.
        expected: String,
        /// The tensor's type.
        got: String,
    },
    /// The plan needs more than there is.
    #[error("the plan needs {needed} bytes of {space}, which has {available}")]
    Space {
        /// The space.
        space: String,
        /// Bytes of the plan.
        needed: u64,
        /// Bytes that are there.
        available: u64,
    },
    /// The plan puts something on disk where no block begins: a defect of this program.
    #[error("the plan puts bytes on disk at offset {offset}, not a multiple of {BLOCK}; please report this")]
    Unaligned {
        /// The offset.
        offset: u64,
    },
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A thread could not be started.
    #[error(transparent)]
    Thread(#[from] NoThread),
}

impl Cpu {
    /// A device of so many threads and bytes.
    pub fn new(threads: usize, bytes: u64) -> Result<Cpu, RunError> {
        Cpu::with(CpuOptions { threads, bytes, disk_dir: std::env::temp_dir(), port: None, crowded: false })
    }

    /// A device.
    pub fn with(options: CpuOptions) -> Result<Cpu, RunError> {
        Ok(Cpu {
            team: Team::started(options.threads)?,
            streams: Streams::new(options.port, options.crowded),
            tiers: Tiers::new(options.bytes, options.disk_dir)?,
            live: Default::default(),
            run_peak: Default::default(),
            peak: Default::default(),
            seen: None,
        })
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Bytes of a tier.
    pub fn bytes(&self, tier: Tier) -> u64 {
        self.tiers.bytes(tier)
    }

    /// Most bytes of a tier in use at once so far.
    pub fn peak(&self, tier: Tier) -> u64 {
        self.peak[tier as usize]
    }

    /// Most bytes of each tier in use at once since the first instruction of a program was last run.
    pub fn run_peaks(&self) -> [u64; TIERS.len()] {
        self.run_peak
    }

    /// Notes from now on when each step is done, or no longer.
    pub fn record(&mut self, on: bool) {
        self.streams.record(on);
        self.seen = on.then(Vec::new);
    }

    /// Whether it is noted when steps are done.
    pub fn records(&self) -> bool {
        self.seen.is_some()
    }

    /// When steps were done since the first instruction of a program was last run, if that was noted.
    pub fn seen(&self) -> &[Seen] {
        self.seen.as_deref().unwrap_or_default()
    }

    /// Bytes that plans have moved between tiers so far.
    pub fn moved(&self) -> Ledger {
        self.streams.moved()
    }

    /// Gives a tier more bytes, keeping what is there. Programs loaded before are void, unless it has as
    /// many already.
    pub fn grow(&mut self, tier: Tier, bytes: u64) -> Result<(), RunError> {
        self.tiers.grow(tier, bytes)
    }

    /// Copies bytes into a tier; on disk the offset is a multiple of [`BLOCK`].
    pub fn write(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), RunError> {
        Ok(self.tiers.write(tier, offset, bytes)?)
    }

    /// Copies numbers into a tier, as [`Cpu::write`] does.
    pub fn write_floats(&mut self, tier: Tier, offset: u64, floats: &[f32]) -> Result<(), RunError> {
        Ok(self.tiers.write_floats(tier, offset, floats)?)
    }

    /// Copies bytes out of a tier.
    pub fn read(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), RunError> {
        Ok(self.tiers.read(tier, offset, bytes)?)
    }

    /// Settles kernels and addresses of a verified plan. `kinds` are those of the graph; `kernels` are
    /// those of operators from outside.
    pub fn load(
        &self,
        graph: &Graph,
        kinds: &Kinds,
        plan: &Plan,
        kernels: &Kernels,
    ) -> Result<Program, RunError> {
        Program::new(graph, kinds, plan, kernels, &self.tiers, self.threads())
    }

    /// Fills an input; the bytes must be as many as the plan gave it.
    pub fn feed(
        &mut self,
        graph: &Graph,
        program: &Program,
        value: Value,
        bytes: &[u8],
    ) -> Result<(), RunError> {
        match program.input(value) {
            Some(Spot { tier, offset, bytes: size }) if size == bytes.len() => {
                Ok(self.tiers.write(tier, offset, bytes)?)
            }
            other => {
                let info = graph.value(value);
                let expected = format!("{} of {} bytes", info.ty, other.map_or(0, |s| s.bytes));
                Err(RunError::Input {
                    name: info.name.clone(),
                    expected,
                    got: format!("{} bytes", bytes.len()),
                })
            }
        }
    }

    /// Runs a range of instructions; all that they move is there when it returns. `watch` sees the name
    /// and contents of every f32 result, if given.
    pub fn run(
        &mut self,
        graph: &Graph,
        program: &Program,
        range: Range<usize>,
        watch: Option<Watch<'_>>,
    ) -> Result<(), RunError> {
        self.walk(graph, program, range, watch, None)
    }

    /// As [`Cpu::run`], noting how long each instruction of the range took that computes something, by its
    /// number in the program. What it waits for other streams is not counted.
    pub fn run_timed(
        &mut self,
        graph: &Graph,
        program: &Program,
        range: Range<usize>,
        times: &mut [Duration],
    ) -> Result<(), RunError> {
        self.walk(graph, program, range, None, Some(times))
    }

    fn walk(
        &mut self,
        graph: &Graph,
        program: &Program,
        range: Range<usize>,
        mut watch: Option<Watch<'_>>,
        mut times: Option<&mut [Duration]>,
    ) -> Result<(), RunError> {
        if range.start == 0 {
            self.live = Default::default();
            self.run_peak = Default::default();
            self.seen.iter_mut().for_each(Vec::clear);
        }
        let recording = self.records();
        let failed = |fault: Fault| match fault {
            Fault::Disk(e) => e.into(),
            Fault::Exchange { value, why } => {
                RunError::Kernel { value: graph.value(value).name.clone(), source: why }
            }
        };
        // SAFETY: slots lie in our memory, which nobody else uses while we have `&mut self`, and which is
        // not dropped before `beside`; in a verified plan all that touches the same bytes waits in turn.
        let beside = (!program.beside.is_empty())
            .then(|| unsafe { self.streams.begin(&program.beside, &range, self.tiers.disk()) })
            .transpose()?;
        let first = range.start;
        for (i, instruction) in program.instructions[range].iter().enumerate() {
            let began = ((recording || times.is_some()) && instruction.computes()).then(Instant::now);
            match instruction {
                Instruction::Alloc { space, bytes } => {
                    self.live[*space] += bytes;
                    self.run_peak[*space] = self.run_peak[*space].max(self.live[*space]);
                }
                Instruction::Free { space, bytes } => self.live[*space] -= bytes,
                Instruction::Move | Instruction::Exchange { here: None, .. } => {}
                Instruction::Exchange { here: Some(place), .. } => {
                    let beside = beside.as_ref().expect("collectives are beside the computation");
                    if !beside.hold(*place as usize).map_err(failed)? {
                        break;
                    }
                }
                Instruction::Wait(wait) => {
                    if beside.as_ref().is_some_and(|beside| !beside.wait(*wait)) {
                        break;
                    }
                }
                Instruction::Computed => {
                    if let Some(beside) = &beside {
                        beside.computed((first + i) as u64);
                    }
                }
                Instruction::Run { kernel, slots, ins, outs, scratch, first } => {
                    let operands = &program.slots[*slots as usize..];
                    let (ins, rest) = operands.split_at(*ins as usize);
                    let (outs, rest) = rest.split_at(*outs as usize);
                    let scratch = scratch.then(|| rest[0]);
                    let kernel = program.kernels[*kernel as usize].as_ref().expect("views never run");
                    // SAFETY: slots lie in the arena; the plan was verified to give results and scratch
                    // bytes of their own, or exactly those of an operand where the operator allows it.
                    let mut call = unsafe { Call::new(&self.team, ins, outs, scratch) };
                    kernel(&mut call).map_err(|source| RunError::Kernel {
                        value: graph.value(*first).name.clone(),
                        source,
                    })?;
                    if let Some(watch) = &mut watch
                        && graph.ty(*first).dtype == DType::F32
                    {
                        // SAFETY: the slot is a completely written f32 result.
                        watch(*first, unsafe { floats(&outs[0]) });
                    }
                }
                Instruction::Copy { from, to } => {
                    // SAFETY: both lie in the arena and have the same size; `copy` allows overlap.
                    unsafe { std::ptr::copy(from.start, to.start, from.bytes) };
                }
                Instruction::Add { from, into } => {
                    // SAFETY: verified plans add distinct buffers of f32.
                    let (from, into) = unsafe { (floats(from), floats_mut(into)) };
                    for (sum, x) in into.iter_mut().zip(from) {
                        *sum += x;
                    }
                }
            }
            if let Some(start) = began {
                let end = Instant::now();
                if let Some(times) = &mut times {
                    times[first + i] = end - start;
                }
                if let Some(seen) = &mut self.seen {
                    seen.push(Seen { stream: Stream::Compute, step: program.steps[first + i], start, end });
                }
            }
        }
        for (peak, run) in self.peak.iter_mut().zip(self.run_peak) {
            *peak = (*peak).max(run);
        }
        let finished = beside.map_or(Ok(()), |beside| beside.finish());
        if let Some(seen) = &mut self.seen {
            seen.extend(self.streams.take_seen());
        }
        finished.map_err(failed)
    }

    /// Runs the whole program, one instruction or move after the other with nothing beside it, timing each
    /// that does something.
    pub fn profile(&mut self, graph: &Graph, program: &Program) -> Result<Vec<(Work, Duration)>, RunError> {
        let mut times = Vec::new();
        for i in 0..program.len() {
            let start = Instant::now();
            self.run(graph, program, i..i + 1, None)?;
            let time = start.elapsed();
            let work = match &program.instructions[i] {
                Instruction::Alloc { .. } | Instruction::Free { .. } => continue,
                Instruction::Wait(_) | Instruction::Computed => continue,
                Instruction::Move => Work::Move,
                Instruction::Run { first, .. } | Instruction::Exchange { first, .. } => {
                    match graph.value(*first).origin {
                        Origin::Node { node, .. } => Work::Node(node),
                        Origin::Input(_) => continue,
                    }
                }
                Instruction::Copy { from, .. } => Work::Copy(from.bytes as u64),
                Instruction::Add { from, .. } => Work::Add(from.bytes as u64),
            };
            times.push((work, time));
        }
        Ok(times)
    }

    /// Losses of an objective that must be known before its updates.
    pub fn losses(&self, program: &Program, objective: u32) -> Result<Vec<f32>, RunError> {
        let mut losses = Vec::new();
        for o in &program.outputs {
            if o.objective == objective && o.early_loss {
                losses.extend_from_slice(self.tensor(o)?.as_f32().unwrap_or_default());
            }
        }
        Ok(losses)
    }

    /// An output of the last run over the device's own partials, if there is one of that name.
    pub fn output(&self, program: &Program, name: &str) -> Result<Option<HostTensor>, RunError> {
        let own = |o: &&Output| o.name == name && o.scope == OutputScope::Device;
        program.outputs.iter().find(own).map(|o| self.tensor(o)).transpose()
    }

    pub(crate) fn tensor(&self, output: &Output) -> Result<HostTensor, RunError> {
        let mut tensor = HostTensor::zeros(output.dtype, &output.shape);
        self.tiers.read(output.spot.tier, output.spot.offset, tensor.as_bytes_mut())?;
        Ok(tensor)
    }
}

/// # Safety
/// The slot holds initialised f32 that nothing writes during `'a`.
unsafe fn floats<'a>(slot: &Slot) -> &'a [f32] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(slot.start.cast(), slot.bytes / size_of::<f32>()) }
}

/// # Safety
/// The slot holds initialised f32 that nothing else touches during `'a`.
unsafe fn floats_mut<'a>(slot: &Slot) -> &'a mut [f32] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(slot.start.cast(), slot.bytes / size_of::<f32>()) }
}
