//! Arrays: the kernel of the operator inside, once per member. Threads take members each for themselves,
//! so that none waits for another within a member; what is left over is done by all of them together.

use super::{KernelError, Kernels, Lowered, TensorType, lower};
use crate::lower::call::{Call, Member, Slot};
use crate::team::isa::Isa;
use crate::team::{Team, share};
use gulliver_graph::graph::op::array::Array;
use std::sync::Mutex;

/// Bytes between the working memories of threads.
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
        let member = |index| Member { index, of: members, shared: &shared };
        let single = singles.iter().find(|t| t.isa() == call.team.isa()).unwrap_or(&singles[0]);
        let failed: Mutex<Option<(usize, KernelError)>> = Mutex::new(None);
        let note = |index: usize, result: Result<(), KernelError>| {
            if let Err(e) = result {
                let mut failed = failed.lock().unwrap_or_else(|e| e.into_inner());
                if failed.as_ref().is_none_or(|(first, _)| index < *first) {
                    *failed = Some((index, e));
                }
            }
        };
        let (calls, parts) = (Calls(call), threads.min(apart));
        call.team.run(parts, &|part| {
            let scratch = start.part(part, each, alone.scratch);
            for index in share(apart, 1, parts, part) {
                // SAFETY: parts have members and stretches of scratch of their own; the array's call is
                // not used while they run.
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
        failed.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), |(_, e)| Err(e))
    };
    Lowered { run: Box::new(run), scratch, reference }
}

/// The first byte of the working memory, which parts share out among themselves.
struct Start(*mut u8);

// SAFETY: parts use disjoint stretches of it.
unsafe impl Sync for Start {}

impl Start {
    /// The `bytes` of part number `part`, where parts lie `each` apart.
    fn part(&self, part: usize, each: u64, bytes: u64) -> Option<Slot> {
        let start = self.0.wrapping_add(part * each as usize);
        (bytes > 0).then_some(Slot { start, bytes: bytes as usize })
    }
}

/// An array's call as its parts see it.
struct Calls<'c, 'a>(&'c Call<'a>);

// SAFETY: parts only derive calls of different members from it.
unsafe impl Sync for Calls<'_, '_> {}

impl<'c, 'a> Calls<'c, 'a> {
    fn get(&self) -> &'c Call<'a> {
        self.0
    }
}
