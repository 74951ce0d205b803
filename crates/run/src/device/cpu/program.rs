//! A plan lowered for one device: every kernel, address and wait is fixed, so that running it decides nothing.

use super::disk::BLOCK;
use super::stream::{End, Task, Tasks, Wait};
use super::tiers::Tiers;
use crate::device::{RunError, Spot};
use crate::lower::call::MemorySlot;
use crate::lower::{ExchangeCall, Kernels, Run, lower_node};
use crate::peers::Peers;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Value};
use gulliver_graph::kinds::Kinds;
use gulliver_plan::document::collectives::{collective_of, inline_collectives};
use gulliver_plan::document::plan::{Act, BufferRange, Plan, PlanStream, Tier};
use std::ops::Range;
use std::sync::Arc;

/// A plan that is ready to run on a CPU device.
pub(super) struct Program {
    pub(super) graph: Arc<Graph>,
    pub(super) instructions: Vec<Instruction>,
    /// The step of the plan of each instruction.
    pub(super) steps: Vec<u32>,
    /// The kernel of each kind of node; `None` for views.
    pub(super) kernels: Vec<Option<Run>>,
    /// Operands, results and scratch of all instructions, in order.
    pub(super) slots: Vec<MemorySlot>,
    /// Tasks of the streams beside the computation.
    pub(super) beside: Arc<Tasks>,
    /// Names of operators that have no fast kernel.
    pub(super) slow: Vec<&'static str>,
}

pub(super) enum Instruction {
    /// Counts bytes of a space as in use.
    Alloc {
        space: usize,
        bytes: u64,
    },
    Free {
        space: usize,
        bytes: u64,
    },
    /// A kernel. From `slots` on: its operands, its results, and its scratch if it has any.
    Run {
        kernel: u32,
        slots: u32,
        ins: u32,
        outs: u32,
        scratch: bool,
        first: Value,
    },
    Copy {
        from: MemorySlot,
        to: MemorySlot,
    },
    Add {
        from: MemorySlot,
        into: MemorySlot,
    },
    /// A move of another stream.
    Move,
    /// A collective: on another stream, or inline, if it has a place among the inline ones.
    Exchange {
        here: Option<u32>,
    },
    /// Waits for another stream before the next instruction.
    Wait(Wait),
    /// Tells other streams that the last instruction is done.
    Computed,
}

impl Instruction {
    /// Whether it takes time of the computing threads.
    pub(super) fn computes(&self) -> bool {
        matches!(self, Instruction::Run { .. } | Instruction::Copy { .. } | Instruction::Add { .. })
    }
}

// SAFETY: slots point into the device's memory, which outlives its programs' use; programs are run
// through `&mut Cpu` only, so no two threads touch that memory through them at once, but for streams
// that wait for each other.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    /// Lowers a verified plan for the present memory. Invalid once a tier grows.
    pub(super) fn new(
        graph: &Arc<Graph>,
        plan: &Plan,
        kernels: &Kernels,
        peers: Option<&Arc<dyn Peers>>,
        tiers: &Tiers,
        threads: usize,
    ) -> Result<Program, RunError> {
        for space in &plan.spaces {
            let (needed, available) = (space.bytes, tiers.bytes(space.tier));
            if needed > available {
                return Err(RunError::Space { tier: space.tier, needed, available });
            }
        }
        let (sizes, kinds) = (plan.bindings(), Kinds::of(graph));
        let mut program = Program {
            graph: Arc::clone(graph),
            instructions: Vec::with_capacity(plan.steps.len()),
            steps: Vec::with_capacity(plan.steps.len()),
            kernels: Vec::with_capacity(kinds.nodes.len()),
            slots: Vec::new(),
            beside: Arc::default(),
            slow: Vec::new(),
        };
        for id in &kinds.nodes {
            let node = &graph.nodes[id.index()];
            if node.op.def().is_view() {
                program.kernels.push(None);
                continue;
            }
            let lowered = lower_node(graph, node, &sizes, threads, kernels)?;
            if lowered.reference && !program.slow.contains(&node.op.done()) {
                program.slow.push(node.op.done());
            }
            program.kernels.push(Some(lowered.run));
        }
        program.lower_steps(&kinds, plan, peers, tiers, &sizes)?;
        Ok(program)
    }

    /// Makes instructions of the steps.
    fn lower_steps(
        &mut self,
        kinds: &Kinds,
        plan: &Plan,
        peers: Option<&Arc<dyn Peers>>,
        tiers: &Tiers,
        sizes: &Bindings,
    ) -> Result<(), RunError> {
        let graph = Arc::clone(&self.graph);
        let spot = |p: &BufferRange| Spot::of(plan, p);
        let slot = |p: &BufferRange| memory(tiers, spot(p)).expect("kernels work on device memory");
        let end = |p: &BufferRange| match memory(tiers, spot(p)) {
            Some(slot) => Ok(End::Memory(slot)),
            None if spot(p).offset.is_multiple_of(BLOCK) => Ok(End::Disk(spot(p).offset)),
            None => Err(RunError::Unaligned { offset: spot(p).offset }),
        };
        // Two buffers in one block would overwrite each other.
        let on_disk = plan.buffers.iter().filter(|b| plan.spaces[b.space as usize].tier == Tier::Disk);
        if let Some(b) = on_disk.into_iter().find(|b| !b.offset.is_multiple_of(BLOCK)) {
            return Err(RunError::Unaligned { offset: b.offset });
        }
        let here = inline_collectives(plan);
        // Whether another thread waits for a step of the computation.
        let mut awaited = vec![false; plan.steps.len()];
        let others = plan.steps.iter().zip(&here).filter(|(_, here)| !**here);
        others.flat_map(|(s, _)| &s.after).for_each(|&other| awaited[other as usize] = true);
        // For each step, one more than the index of its instruction.
        let mut until = vec![0u64; plan.steps.len()];
        let mut beside = Tasks::default();
        for (i, step) in plan.steps.iter().enumerate() {
            let wait = |&other: &u32| -> Option<Wait> {
                let other = other as usize;
                let stream = plan.stream(&plan.steps[other].act)?;
                Some(Wait { stream, until: until[other] })
            };
            let waits: Vec<Wait> = step.after.iter().filter_map(wait).collect();
            let stream = plan.stream(&step.act);
            if stream == Some(PlanStream::Compute) {
                self.instructions.extend(waits.iter().copied().map(Instruction::Wait));
            }
            let index = self.instructions.len();
            until[i] = index as u64 + 1;
            let instruction = match &step.act {
                Act::Alloc(b) => {
                    let b = plan.buffer(*b);
                    Instruction::Alloc { space: b.space as usize, bytes: b.bytes }
                }
                Act::Free(b) => {
                    let b = plan.buffer(*b);
                    Instruction::Free { space: b.space as usize, bytes: b.bytes }
                }
                Act::Move { from, to } => {
                    let stream = stream.expect("moves have a stream");
                    let tiers = (spot(from).tier, spot(to).tier);
                    let task = Task::Move { from: end(from)?, to: end(to)?, tiers };
                    beside.push(stream, (i, index), task, &waits, false);
                    Instruction::Move
                }
                Act::Exchange { node: id, own, result, .. } => {
                    let node = &graph.nodes[id.index()];
                    let what = collective_of(node, sizes).expect("verified plans meet to exchange");
                    let (own, result, first) = (own.as_ref().map(slot), slot(result), node.outs[0]);
                    let collective = ExchangeCall::new(&what, peers);
                    let task = Task::Exchange { collective, own, result, value: first };
                    let place = beside.push(PlanStream::Exchange, (i, index), task, &waits, here[i]);
                    Instruction::Exchange { here: here[i].then_some(place) }
                }
                Act::Copy { from, to } => Instruction::Copy { from: slot(from), to: slot(to) },
                Act::Add { from, into } => Instruction::Add { from: slot(from), into: slot(into) },
                Act::Run { node: id, ins, outs, scratch, .. } => {
                    let slots = self.slots.len() as u32;
                    self.slots.extend(ins.iter().chain(outs).chain(scratch).map(slot));
                    Instruction::Run {
                        kernel: kinds.kind_of[id.index()],
                        slots,
                        ins: ins.len() as u32,
                        outs: outs.len() as u32,
                        scratch: scratch.is_some(),
                        first: graph.nodes[id.index()].outs[0],
                    }
                }
            };
            self.instructions.push(instruction);
            if awaited[i] && stream == Some(PlanStream::Compute) {
                self.instructions.push(Instruction::Computed);
            }
            self.steps.resize(self.instructions.len(), i as u32);
        }
        self.beside = Arc::new(beside);
        Ok(())
    }

    /// The instructions of a range of the plan's steps.
    pub(super) fn instructions_of(&self, steps: Range<usize>) -> Range<usize> {
        let before = |step: usize| self.steps.partition_point(|of| (*of as usize) < step);
        before(steps.start)..before(steps.end)
    }

    /// Bytes of memory it takes itself, roughly.
    pub(super) fn bytes(&self) -> usize {
        // A move with its waits, and a kernel with its captured shapes.
        const MOVE: usize = 128;
        const KERNEL: usize = 256;
        let beside = |i: &&Instruction| matches!(i, Instruction::Move | Instruction::Exchange { .. });
        let moves = self.instructions.iter().filter(beside).count();
        size_of_val(self.instructions.as_slice())
            + size_of_val(self.steps.as_slice())
            + size_of_val(self.slots.as_slice())
            + MOVE * moves
            + KERNEL * self.kernels.len()
    }
}

/// The bytes of a spot; `None` if it is on disk.
fn memory(tiers: &Tiers, spot: Spot) -> Option<MemorySlot> {
    let arena = match spot.tier {
        Tier::Device => &tiers.device,
        Tier::Host => &tiers.host,
        Tier::Disk => return None,
    };
    Some(MemorySlot { start: arena.at(spot.offset, spot.bytes), bytes: spot.bytes as usize })
}
