//! Arrays: the kernel of the inner operator, once per member. Each thread runs whole members alone, so that none waits
//! within a member; the remaining members are run by all threads together.

use super::{KernelError, Kernels, Lowered, TensorType, lower};
use crate::lower::call::{ArrayMember, Call, MemorySlot};
use crate::team::isa::Isa;
use crate::team::{Team, into_inner, lock, share};
use gulliver_graph::graph::op::array::Array;
use std::sync::Mutex;

/// Alignment of the scratch memory of each thread.
const APART: u64 = 64;

pub fn array(
    op: &Array,
    ins: &[TensorType],
    outs: &[TensorType],
    threads: usize,
    kernels: &Kernels,
) -> Lowered {
    let of_member = |t: &TensorType| TensorType { dtype: t.dtype, shape: t.shape[1..].to_vec() };
    let ins = op.inner(ins, of_member);
    let outs: Vec<TensorType> = outs.iter().map(of_member).collect();
    let apart = op.members / threads * threads;
    let alone = lower(&op.op, &ins, &outs, 1, kernels);
    let together = (apart < op.members && threads > 1).then(|| lower(&op.op, &ins, &outs, threads, kernels));
    let each = alone.scratch.next_multiple_of(APART);
    let scratch = (threads as u64 * each).max(together.as_ref().map_or(0, |l| l.scratch));
    let reference = alone.reference;
    let (members, shared) = (op.members, op.shared.clone());
    let singles: Vec<Team> = Isa::all().into_iter().map(|isa| Team::with_isa(1, isa)).collect();
    let run = move |call: &mut Call<'_>| {
        let memory = call.scratch::<u8>();
        let start = Start(memory.as_mut_ptr());
        let member = |index| ArrayMember { index, of: members, shared: &shared };
        let single = singles.iter().find(|t| t.isa() == call.team.isa()).unwrap_or(&singles[0]);
        let failed: Mutex<Option<(usize, KernelError)>> = Mutex::new(None);
        let note = |index: usize, result: Result<(), KernelError>| {
            if let Err(e) = result {
                let mut failed = lock(&failed);
                if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                    *failed = Some((index, e));
                }
            }
        };
        let (calls, parts) = (Calls(call), threads.min(apart));
        call.team.run(parts, &|part| {
            let scratch = start.part(part, each, alone.scratch);
            for index in share(apart, 1, parts, part) {
                // SAFETY: each part has its own members and range of scratch; the call of the array is not used while
                // they run.
                let mut one = unsafe { calls.get().member(single, member(index), scratch) };
                note(index, (alone.run)(&mut one));
            }
        });
        for index in apart..members {
            let kernel = together.as_ref().unwrap_or(&alone);
            let scratch = start.part(0, 0, kernel.scratch);
            // SAFETY: one after the other, and the calls above are done.
            let mut one = unsafe { call.member(call.team, member(index), scratch) };
            note(index, (kernel.run)(&mut one));
        }
        into_inner(failed).map_or(Ok(()), |(_, e)| Err(e))
    };
    Lowered { run: Box::new(run), scratch, reference }
}

/// The first byte of the scratch memory, which the parts divide.
struct Start(*mut u8);

// SAFETY: parts use disjoint ranges of it.
unsafe impl Sync for Start {}

impl Start {
    /// The `bytes` of part number `part`, where parts lie `each` apart.
    fn part(&self, part: usize, each: u64, bytes: u64) -> Option<MemorySlot> {
        let start = self.0.wrapping_add(part * each as usize);
        (bytes > 0).then_some(MemorySlot { start, bytes: bytes as usize })
    }
}

/// The call of an array, shared by its parts.
struct Calls<'c, 'a>(&'c Call<'a>);

// SAFETY: parts only derive calls of different members from it.
unsafe impl Sync for Calls<'_, '_> {}

impl<'c, 'a> Calls<'c, 'a> {
    fn get(&self) -> &'c Call<'a> {
        self.0
    }
}
