//! A CPU device: runs the instructions of a program in order, with other streams beside it, and decides nothing.

mod copy;
pub mod disk;
pub mod memory;
mod program;
mod stream;
pub mod tiers;

pub(crate) use copy::copy;

use super::{Device, LoadedProgram, Observe, ProgramId, RunError, StepTime};
use crate::lower::Kernels;
use crate::lower::call::{Call, MemorySlot};
use crate::peers::Peers;
use crate::peers::link::{Port, Throttle};
use crate::team::{Team, cores};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::Graph;
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Plan, PlanStream, TIERS, Tier};
use program::{Instruction, Program};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use stream::{Fault, Streams};
use tiers::Tiers;

/// A group of threads with memory of its own, host memory and a disk tier.
pub struct Cpu {
    name: String,
    team: Team,
    // Declared before the memory that they use, so that they are dropped first.
    streams: Streams,
    tiers: Tiers,
    kernels: Kernels,
    throttle: Option<Arc<Throttle>>,
    peers: Option<(u32, Arc<dyn Peers>)>,
    /// Programs by number; `None` where one was unloaded.
    programs: Vec<Option<Arc<Program>>>,
    live: [u64; TIERS.len()],
    /// Most bytes in use at once: in the last run, and in any run.
    run_peak: [u64; TIERS.len()],
    peak: [u64; TIERS.len()],
    /// Recorded times of the steps since step 0 of a program was last run, if recording is on.
    seen: Option<Vec<StepTime>>,
}

/// Options of a CPU device.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Its name for people.
    pub name: String,
    /// Its threads.
    pub threads: usize,
    /// Directory for the file of the disk tier; the system's temporary directory by default.
    pub disk_dir: Option<PathBuf>,
    /// Emulated links between all devices and their host; without them moves run at full speed.
    pub throttle: Option<Arc<Throttle>>,
    /// Fast kernels of custom operators.
    pub kernels: Kernels,
}

impl Default for CpuOptions {
    /// All cores, no emulated links.
    fn default() -> CpuOptions {
        CpuOptions {
            name: "cpu0".into(),
            threads: cores(),
            disk_dir: None,
            throttle: None,
            kernels: Kernels::default(),
        }
    }
}

impl Cpu {
    /// A device without memory; its tiers [grow](Device::grow).
    pub fn new(options: CpuOptions) -> Result<Cpu, RunError> {
        let CpuOptions { name, threads, disk_dir, throttle, kernels } = options;
        let port = throttle.clone().map(|throttle| Port { throttle, device: 0 });
        let dir = disk_dir.unwrap_or_else(std::env::temp_dir);
        Ok(Cpu {
            team: Team::started(threads)?,
            streams: Streams::new(port, threads > cores()),
            tiers: Tiers::new(&name, dir)?,
            name,
            kernels,
            throttle,
            peers: None,
            programs: Vec::new(),
            live: Default::default(),
            run_peak: Default::default(),
            peak: Default::default(),
            seen: None,
        })
    }

    fn walk(
        &mut self,
        program: &Program,
        range: Range<usize>,
        mut observe: Observe<'_>,
    ) -> Result<(), RunError> {
        let recording = self.records();
        let failed = |fault: Fault| match fault {
            Fault::Disk(e) => e.into(),
            Fault::Exchange { value, why } => {
                RunError::Kernel { value: program.graph.value(value).name.clone(), source: why }
            }
        };
        // SAFETY: slots lie in memory of this device, which nothing else uses during `&mut self` and which is not
        // dropped before `beside`; in a verified plan, steps on the same bytes wait for each other.
        let beside = (!program.beside.is_empty())
            .then(|| unsafe { self.streams.begin(&program.beside, &range, self.tiers.disk()) })
            .transpose()?;
        let (graph, first) = (&program.graph, range.start);
        for (i, instruction) in program.instructions[range].iter().enumerate() {
            let timed = recording || matches!(observe, Observe::Times(_));
            let began = (timed && instruction.computes()).then(Instant::now);
            match instruction {
                Instruction::Alloc { space, bytes } => {
                    self.live[*space] += bytes;
                    self.run_peak[*space] = self.run_peak[*space].max(self.live[*space]);
                }
                Instruction::Free { space, bytes } => self.live[*space] -= bytes,
                Instruction::Move | Instruction::Exchange { here: None } => {}
                Instruction::Exchange { here: Some(place) } => {
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
                    // SAFETY: slots lie in the arena; a verified plan gives results and scratch bytes of their own, or
                    // exactly those of an operand where the operator allows it.
                    let mut call = unsafe { Call::new(&self.team, ins, outs, scratch) };
                    kernel(&mut call).map_err(|source| RunError::Kernel {
                        value: graph.value(*first).name.clone(),
                        source,
                    })?;
                    if let Observe::NotFinite(found @ None) = &mut observe
                        && graph.ty(*first).dtype == DType::F32
                        // SAFETY: the slot is a completely written f32 result.
                        && unsafe { floats(&outs[0]) }.iter().any(|x| !x.is_finite())
                    {
                        **found = Some(*first);
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
                let step = program.steps[first + i];
                if let Observe::Times(times) = &mut observe {
                    times[step as usize] = end - start;
                }
                if let Some(seen) = &mut self.seen {
                    seen.push(StepTime { stream: PlanStream::Compute, step, start, end });
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
}

impl Device for Cpu {
    fn name(&self) -> &str {
        &self.name
    }

    fn host_threads(&self) -> usize {
        self.team.threads()
    }

    fn connect(&mut self, rank: u32, peers: Arc<dyn Peers>, crowded: bool) {
        let port = self.throttle.clone().map(|throttle| Port { throttle, device: rank });
        if let Some(throttle) = &self.throttle {
            peers.over(throttle);
        }
        self.streams = Streams::new(port, crowded);
        self.streams.record(self.seen.is_some());
        self.peers = Some((rank, peers));
    }

    fn bytes(&self, tier: Tier) -> u64 {
        self.tiers.bytes(tier)
    }

    fn grow(&mut self, tier: Tier, bytes: u64) -> Result<(), RunError> {
        if tier != Tier::Disk && bytes > self.tiers.bytes(tier) {
            self.programs.iter_mut().for_each(|program| *program = None);
        }
        self.tiers.grow(tier, bytes)
    }

    fn write(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), RunError> {
        Ok(self.tiers.write(tier, offset, bytes)?)
    }

    fn read(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), RunError> {
        Ok(self.tiers.read(tier, offset, bytes)?)
    }

    fn load(&mut self, graph: &Arc<Graph>, plan: &Arc<Plan>) -> Result<LoadedProgram, RunError> {
        let peers = self.peers.as_ref().map(|(_, peers)| peers);
        let program = Program::new(graph, plan, &self.kernels, peers, &self.tiers, self.team.threads())?;
        let free = self.programs.iter().position(Option::is_none).unwrap_or(self.programs.len());
        let id = ProgramId(free as u32);
        let loaded = LoadedProgram { id, bytes: program.bytes(), slow: program.slow.clone() };
        if free == self.programs.len() {
            self.programs.push(None);
        }
        self.programs[free] = Some(Arc::new(program));
        Ok(loaded)
    }

    fn unload(&mut self, program: ProgramId) {
        self.programs[program.0 as usize] = None;
    }

    fn run(&mut self, program: ProgramId, steps: Range<usize>, observe: Observe<'_>) -> Result<(), RunError> {
        let program = self.programs[program.0 as usize].clone().expect("only loaded programs are run");
        if steps.start == 0 {
            self.live = Default::default();
            self.run_peak = Default::default();
            self.seen.iter_mut().for_each(Vec::clear);
        }
        self.walk(&program, program.instructions_of(steps), observe)
    }

    fn moved(&self) -> Ledger {
        let from_peers = self.peers.as_ref().map_or(0, |(rank, peers)| peers.taken(*rank).iter().sum());
        Ledger { from_peers, ..self.streams.moved() }
    }

    fn run_peaks(&self) -> [u64; TIERS.len()] {
        self.run_peak
    }

    fn peaks(&self) -> [u64; TIERS.len()] {
        self.peak
    }

    fn record(&mut self, on: bool) {
        self.streams.record(on);
        self.seen = on.then(Vec::new);
    }

    fn records(&self) -> bool {
        self.seen.is_some()
    }

    fn recorded(&self) -> &[StepTime] {
        self.seen.as_deref().unwrap_or_default()
    }
}

/// # Safety
/// The slot holds initialised f32 that nothing writes during `'a`.
unsafe fn floats<'a>(slot: &MemorySlot) -> &'a [f32] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(slot.start.cast(), slot.bytes / size_of::<f32>()) }
}

/// # Safety
/// The slot holds initialised f32 that nothing else touches during `'a`.
unsafe fn floats_mut<'a>(slot: &MemorySlot) -> &'a mut [f32] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(slot.start.cast(), slot.bytes / size_of::<f32>()) }
}
