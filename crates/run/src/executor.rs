//! Obeys plans on a CPU device. Loading a plan settles every kernel and address; running it walks the
//! instructions in order and decides nothing.

use crate::call::{Call, Slot};
use crate::host::HostTensor;
use crate::lower::{KernelError, Kernels, Run, lower_node};
use crate::memory::{Arena, OutOfMemory};
use crate::team::Team;
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, NodeId, Origin, Phase, Value};
use gulliver_plan::kind::Kinds;
use gulliver_plan::plan::{Act, Place, Plan};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A group of threads with memory of its own.
pub struct Cpu {
    team: Team,
    arena: Arena,
    live: u64,
    peak: u64,
}

/// A plan made ready for one device.
pub struct Program {
    instructions: Vec<Instruction>,
    /// The kernel of each kind of node; kinds that are views have none.
    kernels: Vec<Option<Run>>,
    /// Operands, results and scratch of all instructions, one after the other.
    slots: Vec<Slot>,
    /// The first update of each objective that has one.
    updates: Vec<(u32, usize)>,
    /// By value, in order.
    inputs: Vec<(Value, Slot)>,
    outputs: Vec<(String, Output)>,
    /// Names of operators that have no fast kernel.
    pub slow: Vec<&'static str>,
}

struct Output {
    stage: u32,
    dtype: DType,
    shape: Vec<usize>,
    slot: Slot,
}

enum Instruction {
    Alloc(u64),
    Free(u64),
    /// From `slots` on: so many operands, so many results, and scratch if there is any.
    Run {
        kernel: u32,
        slots: u32,
        ins: u32,
        outs: u32,
        scratch: bool,
        first: Value,
    },
    Copy {
        from: Slot,
        to: Slot,
    },
    Add {
        from: Slot,
        into: Slot,
    },
}

// SAFETY: slots point into the device's arena, which outlives its programs' use; programs are run
// through `&mut Cpu` only, so no two threads touch the arena through them at once.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

/// What one instruction of a program does, for those who time it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Runs a node.
    Node(NodeId),
    /// Copies so many bytes.
    Copy(u64),
    /// Adds so many bytes to as many.
    Add(u64),
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
    /// The plan needs more than the device has.
    #[error("the plan needs {needed} bytes, device memory is {available}")]
    Arena {
        /// Bytes of the plan.
        needed: u64,
        /// Bytes of the device.
        available: u64,
    },
}

impl Cpu {
    /// A device of so many threads and bytes.
    pub fn new(threads: usize, bytes: u64) -> Result<Cpu, OutOfMemory> {
        Ok(Cpu { team: Team::new(threads), arena: Arena::new(bytes, "cpu0")?, live: 0, peak: 0 })
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Most bytes in use at once so far.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Gives the device more memory, keeping what is there. Programs loaded before are void.
    pub fn grow(&mut self, bytes: u64) -> Result<(), OutOfMemory> {
        self.arena.grow(bytes)
    }

    /// Copies bytes into the arena.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let to = self.arena.at(offset, bytes.len() as u64);
        // SAFETY: `at` checked the range, and host memory is not in the arena.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies numbers into the arena.
    pub fn write_floats(&mut self, offset: u64, floats: &[f32]) {
        let to = self.arena.at(offset, size_of_val(floats) as u64);
        // SAFETY: `at` checked the range, and host memory is not in the arena.
        unsafe { std::ptr::copy_nonoverlapping(floats.as_ptr().cast(), to, size_of_val(floats)) };
    }

    /// Copies bytes out of the arena.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        let from = self.arena.at(offset, bytes.len() as u64);
        // SAFETY: `at` checked the range, and host memory is not in the arena.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
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
        let needed = plan.spaces.iter().map(|s| s.bytes).max().unwrap_or(0);
        if needed > self.arena.bytes() {
            return Err(RunError::Arena { needed, available: self.arena.bytes() });
        }
        let mut sizes = Bindings::new();
        for (symbol, value) in &plan.sizes {
            sizes.set(symbol, *value);
        }
        let slot = |p: &Place| Slot {
            start: self.arena.at(plan.buffer(p.buffer).offset + p.start, p.bytes),
            bytes: p.bytes as usize,
        };
        let mut program = Program {
            instructions: Vec::with_capacity(plan.steps.len()),
            kernels: Vec::with_capacity(kinds.nodes.len()),
            slots: Vec::new(),
            updates: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            slow: Vec::new(),
        };
        for id in &kinds.nodes {
            let node = &graph.nodes[id.index()];
            if node.op.def().is_view() {
                program.kernels.push(None);
                continue;
            }
            let lowered = lower_node(graph, node, &sizes, self.threads(), kernels)?;
            if lowered.reference && !program.slow.contains(&node.op.def().name()) {
                program.slow.push(node.op.def().name());
            }
            program.kernels.push(Some(lowered.run));
        }
        for step in &plan.steps {
            let instruction = match &step.act {
                Act::Alloc(b) => Instruction::Alloc(plan.buffer(*b).bytes),
                Act::Free(b) => Instruction::Free(plan.buffer(*b).bytes),
                Act::Copy { from, to } | Act::Move { from, to } => {
                    Instruction::Copy { from: slot(from), to: slot(to) }
                }
                Act::Add { from, into } => Instruction::Add { from: slot(from), into: slot(into) },
                Act::Run { node: id, ins, outs, scratch, .. } => {
                    let node = &graph.nodes[id.index()];
                    let known = program.updates.last().is_some_and(|(stage, _)| *stage == node.stage);
                    if node.phase == Phase::Update && !known {
                        program.updates.push((node.stage, program.instructions.len()));
                    }
                    let slots = program.slots.len() as u32;
                    program.slots.extend(ins.iter().chain(outs).chain(scratch).map(slot));
                    Instruction::Run {
                        kernel: kinds.kind_of[id.index()],
                        slots,
                        ins: ins.len() as u32,
                        outs: outs.len() as u32,
                        scratch: scratch.is_some(),
                        first: node.outs[0],
                    }
                }
            };
            program.instructions.push(instruction);
        }
        program.inputs = plan.inputs.iter().map(|i| (i.value, slot(&i.place))).collect();
        program.inputs.sort_by_key(|(value, _)| *value);
        for o in &plan.outputs {
            let ty = graph.ty(o.value);
            let stage = match graph.value(o.value).origin {
                Origin::Node { node, .. } => graph.nodes[node.index()].stage,
                Origin::Input(_) => 0,
            };
            let output = Output { stage, dtype: ty.dtype, shape: ty.bind(&sizes)?, slot: slot(&o.place) };
            program.outputs.push((o.name.clone(), output));
        }
        Ok(program)
    }

    /// Fills an input; the bytes must be as many as the plan gave it.
    pub fn feed(
        &mut self,
        graph: &Graph,
        program: &Program,
        value: Value,
        bytes: &[u8],
    ) -> Result<(), RunError> {
        let at = program.inputs.binary_search_by_key(&value, |(v, _)| *v);
        let slot = at.ok().map(|i| program.inputs[i].1);
        match slot {
            Some(slot) if slot.bytes == bytes.len() => {
                // SAFETY: the slot lies in the arena, which nothing else uses while we have `&mut self`.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), slot.start, bytes.len()) };
                Ok(())
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

    /// Runs a range of instructions. `watch` sees the name and contents of every f32 result, if given.
    pub fn run(
        &mut self,
        graph: &Graph,
        program: &Program,
        range: Range<usize>,
        mut watch: Option<Watch<'_>>,
    ) -> Result<(), RunError> {
        if range.start == 0 {
            self.live = 0;
        }
        for instruction in &program.instructions[range] {
            match instruction {
                Instruction::Alloc(bytes) => {
                    self.live += bytes;
                    self.peak = self.peak.max(self.live);
                }
                Instruction::Free(bytes) => self.live -= bytes,
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
        }
        Ok(())
    }

    /// Runs the whole program, timing each instruction that does something.
    pub fn profile(&mut self, graph: &Graph, program: &Program) -> Result<Vec<(Work, Duration)>, RunError> {
        let mut times = Vec::new();
        for i in 0..program.len() {
            let start = Instant::now();
            self.run(graph, program, i..i + 1, None)?;
            let time = start.elapsed();
            let work = match &program.instructions[i] {
                Instruction::Alloc(_) | Instruction::Free(_) => continue,
                Instruction::Run { first, .. } => match graph.value(*first).origin {
                    Origin::Node { node, .. } => Work::Node(node),
                    Origin::Input(_) => continue,
                },
                Instruction::Copy { from, .. } => Work::Copy(from.bytes as u64),
                Instruction::Add { from, .. } => Work::Add(from.bytes as u64),
            };
            times.push((work, time));
        }
        Ok(times)
    }

    /// Losses of an objective: its outputs called `loss`, or `….loss`.
    pub fn losses(&self, program: &Program, stage: u32) -> Vec<f32> {
        let losses =
            program.outputs.iter().filter(|(n, o)| o.stage == stage && n.rsplit('.').next() == Some("loss"));
        // SAFETY: outputs lie in the arena and keep their bytes until the end of the step.
        losses.flat_map(|(_, o)| unsafe { floats(&o.slot) }.to_vec()).collect()
    }

    /// An output of the last run.
    pub fn output(&self, program: &Program, name: &str) -> Option<HostTensor> {
        let (_, out) = program.outputs.iter().find(|(n, _)| n == name)?;
        let mut tensor = HostTensor::zeros(out.dtype, &out.shape);
        let bytes = tensor.as_bytes_mut();
        // SAFETY: the slot lies in the arena and has the bytes of its type.
        unsafe { std::ptr::copy_nonoverlapping(out.slot.start, bytes.as_mut_ptr(), bytes.len()) };
        Some(tensor)
    }
}

impl Program {
    /// The number of instructions.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Whether nothing happens.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// Objective and instruction of the first update of each: what comes before changes no weight and
    /// makes the objective's loss known.
    pub fn updates(&self) -> &[(u32, usize)] {
        &self.updates
    }

    /// Names of the outputs.
    pub fn output_names(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(|(n, _)| n.as_str())
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
