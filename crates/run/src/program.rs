//! A plan made ready for one device: every kernel, address and wait settled, so that running it decides
//! nothing.

use crate::disk::BLOCK;
use crate::executor::RunError;
use crate::lower::call::Slot;
use crate::lower::{ExchangeCall, Kernels, Run, lower_node};
use crate::stream::{End, Task, Tasks, Wait};
use crate::tiers::Tiers;
use gulliver_graph::dim::Bindings;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::{Graph, Origin, Phase, Value};
use gulliver_graph::kinds::Kinds;
use gulliver_graph::role::{OutputRole, OutputScope};
use gulliver_plan::document::collectives::collective_of;
use gulliver_plan::document::collectives::held_here;
use gulliver_plan::document::plan::{Act, Place, Plan, Stream, Tier};
use std::sync::Arc;
use std::time::Duration;

/// See the top of this file.
pub struct Program {
    pub(crate) instructions: Vec<Instruction>,
    /// The step of the plan that each is for.
    pub(crate) steps: Vec<u32>,
    /// The kernel of each kind of node; kinds that are views have none.
    pub(crate) kernels: Vec<Option<Run>>,
    /// Operands, results and scratch of all instructions, one after the other.
    pub(crate) slots: Vec<Slot>,
    /// What other streams than the computation do.
    pub(crate) beside: Arc<Tasks>,
    /// The first update of each objective that has one.
    updates: Vec<(u32, usize)>,
    /// By value, in order.
    inputs: Vec<(Value, Spot)>,
    pub(crate) outputs: Vec<Output>,
    /// Names of operators that have no fast kernel.
    pub slow: Vec<&'static str>,
}

/// Bytes of a tier.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    pub tier: Tier,
    pub offset: u64,
    pub bytes: usize,
}

pub(crate) struct Output {
    pub name: String,
    pub role: OutputRole,
    pub scope: OutputScope,
    /// Whether it must be known before the updates of its objective.
    pub early_loss: bool,
    pub objective: u32,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub spot: Spot,
}

pub(crate) enum Instruction {
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
    /// Other devices are met for this value: by another stream, or, if it has such a place among collectives, here.
    Exchange {
        first: Value,
        here: Option<u32>,
    },
    /// The next instruction waits for another stream.
    Wait(Wait),
    /// Another stream waits for the last instruction.
    Computed,
}

impl Instruction {
    /// Whether it takes the time of the computing threads.
    pub(crate) fn computes(&self) -> bool {
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
    pub(crate) fn new(
        graph: &Graph,
        kinds: &Kinds,
        plan: &Plan,
        kernels: &Kernels,
        tiers: &Tiers,
        threads: usize,
    ) -> Result<Program, RunError> {
        for space in &plan.spaces {
            let (needed, available) = (space.bytes, tiers.bytes(space.tier));
            if needed > available {
                return Err(RunError::Space { space: space.name.clone(), needed, available });
            }
        }
        let sizes = plan.bindings();
        let spot = |p: &Place| {
            let buffer = plan.buffer(p.buffer);
            let tier = plan.spaces[buffer.space as usize].tier;
            Spot { tier, offset: buffer.offset + p.start, bytes: p.bytes as usize }
        };
        let mut program = Program {
            instructions: Vec::with_capacity(plan.steps.len()),
            steps: Vec::with_capacity(plan.steps.len()),
            kernels: Vec::with_capacity(kinds.nodes.len()),
            slots: Vec::new(),
            beside: Arc::default(),
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
            let lowered = lower_node(graph, node, &sizes, threads, kernels)?;
            if lowered.reference && !program.slow.contains(&node.op.done()) {
                program.slow.push(node.op.done());
            }
            program.kernels.push(Some(lowered.run));
        }
        program.settle(graph, kinds, plan, (kernels, tiers, &sizes), &spot)?;
        program.inputs = plan.inputs.iter().map(|i| (i.value, spot(&i.place))).collect();
        program.inputs.sort_by_key(|(value, _)| *value);
        for o in &plan.outputs {
            let ty = graph.ty(o.value);
            let objective = match graph.value(o.value).origin {
                Origin::Node { node, .. } => graph.nodes[node.index()].objective,
                Origin::Input(_) => 0,
            };
            program.outputs.push(Output {
                name: o.name.clone(),
                role: o.role,
                scope: o.scope,
                early_loss: o.is_early_loss(),
                objective,
                dtype: ty.dtype,
                shape: ty.bind(&sizes)?,
                spot: spot(&o.place),
            });
        }
        Ok(program)
    }

    /// Makes instructions of the steps.
    fn settle(
        &mut self,
        graph: &Graph,
        kinds: &Kinds,
        plan: &Plan,
        (kernels, tiers, sizes): (&Kernels, &Tiers, &Bindings),
        spot: &dyn Fn(&Place) -> Spot,
    ) -> Result<(), RunError> {
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
            if let Act::Run { node: id, .. } | Act::Exchange { node: id, .. } = &step.act {
                let node = &graph.nodes[id.index()];
                let known = self.updates.last().is_some_and(|(objective, _)| *objective == node.objective);
                if node.phase == Phase::Update && !known {
                    self.updates.push((node.objective, self.instructions.len()));
                }
            }
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
                    let collective = ExchangeCall::new(&what, kernels);
                    let task = Task::Exchange { collective, own, result, value: first };
                    let here = match here[i] {
                        true => Some(beside.push_here(Stream::Exchange, (i, index), task, &waits) as u32),
                        false => {
                            beside.push(Stream::Exchange, (i, index), task, &waits);
                            None
                        }
                    };
                    Instruction::Exchange { first, here }
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

    /// Where an input is fed.
    pub(crate) fn input(&self, value: Value) -> Option<Spot> {
        let at = self.inputs.binary_search_by_key(&value, |(v, _)| *v);
        at.ok().map(|i| self.inputs[i].1)
    }

    /// The number of instructions.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Whether nothing happens.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// Bytes of memory it takes itself, roughly.
    pub fn bytes(&self) -> usize {
        // A move is kept with its waits, a kernel with what it was settled for.
        const MOVE: usize = 128;
        const KERNEL: usize = 256;
        let beside = |i: &&Instruction| matches!(i, Instruction::Move | Instruction::Exchange { .. });
        let moves = self.instructions.iter().filter(beside).count();
        size_of_val(self.instructions.as_slice())
            + size_of_val(self.steps.as_slice())
            + size_of_val(self.slots.as_slice())
            + MOVE * moves
            + KERNEL * (self.kernels.len() + self.inputs.len() + self.outputs.len())
    }

    /// Seconds of one call of each kind of node, given the times of all instructions; zero for kinds that
    /// are not called.
    pub(crate) fn seconds_by_kind(&self, times: &[Duration]) -> Vec<f64> {
        let mut sums = vec![(0u32, Duration::ZERO); self.kernels.len()];
        for (instruction, time) in self.instructions.iter().zip(times) {
            if let Instruction::Run { kernel, .. } = instruction {
                let (calls, sum) = &mut sums[*kernel as usize];
                *calls += 1;
                *sum += *time;
            }
        }
        sums.into_iter().map(|(calls, sum)| sum.as_secs_f64() / f64::from(calls.max(1))).collect()
    }

    /// Objective and instruction of the first update of each: what comes before changes no weight and
    /// makes the objective's loss known.
    pub fn updates(&self) -> &[(u32, usize)] {
        &self.updates
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
