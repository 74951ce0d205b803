//! A plan made ready for one device: every kernel, address and wait settled, so that running it decides
//! nothing.

use super::disk::BLOCK;
use super::stream::{End, Task, Tasks, Wait};
use super::tiers::Tiers;
use crate::device::RunError;
use crate::lower::call::Slot;
use crate::lower::{ExchangeCall, Kernels, Run, lower_node};
use crate::peers::Peers;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Value};
use gulliver_graph::kinds::Kinds;
use gulliver_plan::document::collectives::{collective_of, held_here};
use gulliver_plan::document::plan::{Act, Place, Plan, Stream, Tier};
use std::ops::Range;
use std::sync::Arc;

/// A plan that is ready to run on a CPU device.
pub(super) struct Program {
    pub(super) graph: Arc<Graph>,
    pub(super) instructions: Vec<Instruction>,
    /// The step of the plan that each is for.
    pub(super) steps: Vec<u32>,
    /// The kernel of each kind of node; kinds that are views have none.
    pub(super) kernels: Vec<Option<Run>>,
    /// Operands, results and scratch of all instructions, one after the other.
    pub(super) slots: Vec<Slot>,
    /// What other streams than the computation do.
    pub(super) beside: Arc<Tasks>,
    /// Names of operators that have no fast kernel.
    pub(super) slow: Vec<&'static str>,
}

/// Bytes of a tier.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub tier: Tier,
    pub offset: u64,
    pub bytes: usize,
}

pub(super) enum Instruction {
    /// So many bytes of a space come into use.
    Alloc {
        space: usize,
        bytes: u64,
    },
    Free {
        space: usize,
        bytes: u64,
    },
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
    /// Another stream moves something.
    Move,
    /// A collective: on another stream, or inline, if it has a place among the inline ones.
    Exchange {
        here: Option<u32>,
    },
    /// The next instruction waits for another stream.
    Wait(Wait),
    /// Another stream waits for the last instruction.
    Computed,
}

impl Instruction {
    /// Whether it takes the time of the computing threads.
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
    /// Settles kernels and addresses of a verified plan for memory that is there. Void once a tier grows.
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
                return Err(RunError::Space { space: space.name.clone(), needed, available });
            }
        }
        let (sizes, kinds) = (plan.bindings(), Kinds::of(graph));
        let spot = |p: &Place| {
            let buffer = plan.buffer(p.buffer);
            let tier = plan.spaces[buffer.space as usize].tier;
            Spot { tier, offset: buffer.offset + p.start, bytes: p.bytes as usize }
        };
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
        program.lower_steps(&kinds, plan, (peers, tiers, &sizes), &spot)?;
        Ok(program)
    }

    /// Makes instructions of the steps.
    fn lower_steps(
        &mut self,
        kinds: &Kinds,
        plan: &Plan,
        (peers, tiers, sizes): (Option<&Arc<dyn Peers>>, &Tiers, &Bindings),
        spot: &dyn Fn(&Place) -> Spot,
    ) -> Result<(), RunError> {
        let graph = Arc::clone(&self.graph);
        let slot = |p: &Place| memory(tiers, spot(p)).expect("kernels work on device memory");
        let end = |p: &Place| match memory(tiers, spot(p)) {
            Some(slot) => Ok(End::Memory(slot)),
            None if spot(p).offset.is_multiple_of(BLOCK) => Ok(End::Disk(spot(p).offset)),
            None => Err(RunError::Unaligned { offset: spot(p).offset }),
        };
        // Blocks that two buffers share would be lost.
        let on_disk = plan.buffers.iter().filter(|b| plan.spaces[b.space as usize].tier == Tier::Disk);
        if let Some(b) = on_disk.into_iter().find(|b| !b.offset.is_multiple_of(BLOCK)) {
            return Err(RunError::Unaligned { offset: b.offset });
        }
        let here = held_here(plan);
        // Of the computation, whether another thread waits for it.
        let mut awaited = vec![false; plan.steps.len()];
        let others = plan.steps.iter().zip(&here).filter(|(_, here)| !**here);
        others.flat_map(|(s, _)| &s.after).for_each(|&other| awaited[other as usize] = true);
        // By step, one more than the index of its instruction.
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
            if stream == Some(Stream::Compute) {
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
                    beside.push(
                        stream,
                        (i, index),
                        Task::Move {
                            from: end(from)?,
                            to: end(to)?,
                            tiers: (spot(from).tier, spot(to).tier),
                        },
                        &waits,
                    );
                    Instruction::Move
                }
                Act::Exchange { node: id, own, result, .. } => {
                    let node = &graph.nodes[id.index()];
                    let what = collective_of(node, sizes).expect("verified plans meet to exchange");
                    let (own, result, first) = (own.as_ref().map(slot), slot(result), node.outs[0]);
                    let collective = ExchangeCall::new(&what, peers);
                    let task = Task::Exchange { collective, own, result, value: first };
                    let here = match here[i] {
                        true => Some(beside.push_here(Stream::Exchange, (i, index), task, &waits) as u32),
                        false => {
                            beside.push(Stream::Exchange, (i, index), task, &waits);
                            None
                        }
                    };
                    Instruction::Exchange { here }
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
            if awaited[i] && stream == Some(Stream::Compute) {
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
        // A move is kept with its waits, a kernel with what it was settled for.
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

/// The bytes of a spot, if they are in memory.
fn memory(tiers: &Tiers, spot: Spot) -> Option<Slot> {
    let arena = match spot.tier {
        Tier::Device => &tiers.device,
        Tier::Host => &tiers.host,
        Tier::Disk => return None,
    };
    Some(Slot { start: arena.at(spot.offset, spot.bytes as u64), bytes: spot.bytes })
}
