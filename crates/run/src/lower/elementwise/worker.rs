//! One thread that runs an element-wise program: the memory of operands, results and temporaries, and the steps of a
//! block.

use super::{ElementwiseProgram, MOST, Step, ValueSlot};
use crate::kernel::elementwise::{self, OperandView};
use crate::team::isa::Isa;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::elementwise::Apply;
use std::ops::Range;

/// Bytes of an operand, result or temporary, which several threads access at disjoint offsets.
#[derive(Clone, Copy)]
pub(super) struct SharedBytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: a plain address; every access states why no other thread writes there.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    pub(super) const NOWHERE: SharedBytes = SharedBytes { start: std::ptr::null_mut(), len: 0 };

    pub(super) fn of(bytes: &mut [u8]) -> SharedBytes {
        SharedBytes { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// For reading only.
    pub(super) fn of_shared(bytes: &[u8]) -> SharedBytes {
        SharedBytes { start: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    pub(super) fn of_floats(floats: &mut [f32]) -> SharedBytes {
        SharedBytes { start: floats.as_mut_ptr().cast(), len: size_of_val(floats) }
    }

    pub(super) fn is_nowhere(&self) -> bool {
        self.start.is_null()
    }

    /// The bytes from an offset on.
    pub(super) fn at(self, offset: usize) -> SharedBytes {
        assert!(offset <= self.len, "offset {offset} of {} bytes", self.len);
        SharedBytes { start: self.start.wrapping_add(offset), len: self.len - offset }
    }

    /// All bytes as floats; only for results that no other thread accesses meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(super) fn floats_mut<'a>(&self) -> &'a mut [f32] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: `Call` hands out results whole, aligned and exclusively; the threads of the team are done.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len / size_of::<f32>()) }
    }

    /// Writes one float.
    pub(super) fn set(&self, at: usize, value: f32) {
        assert!((at + 1) * size_of::<f32>() <= self.len, "float {at} of {} bytes", self.len);
        // SAFETY: within the bytes, which are aligned for floats; each is written by one thread.
        unsafe { self.start.cast::<f32>().add(at).write(value) }
    }

    /// # Safety
    /// The first `count` elements are valid, and nothing writes them while the slice lives.
    unsafe fn slice<'a, T>(self, count: usize) -> &'a [T] {
        assert!(count * size_of::<T>() <= self.len, "{count} elements of {} bytes", self.len);
        // SAFETY: the caller's promise; addresses come from typed slices of the same element size or larger.
        unsafe { std::slice::from_raw_parts(self.start.cast(), count) }
    }

    /// # Safety
    /// The first `count` elements are valid, and nothing else accesses them while the slice lives.
    unsafe fn slice_mut<'a, T>(self, count: usize) -> &'a mut [T] {
        assert!(count * size_of::<T>() <= self.len, "{count} elements of {} bytes", self.len);
        // SAFETY: the caller's promise, as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), count) }
    }
}

/// An operand within a block.
#[derive(Clone, Copy)]
enum BlockOperand {
    Run(SharedBytes),
    Scalar(SharedBytes),
}

/// The state of one thread.
pub(super) struct BlockWorker<'a> {
    program: &'a ElementwiseProgram,
    ins: &'a [SharedBytes; MOST],
    outs: &'a [SharedBytes; MOST],
    temporaries: SharedBytes,
    isa: Isa,
    /// Content of the temporary of each operand: position within its period, and length.
    laid_out: [(usize, usize); MOST],
}

impl<'a> BlockWorker<'a> {
    pub(super) fn new(
        program: &'a ElementwiseProgram,
        ins: &'a [SharedBytes; MOST],
        outs: &'a [SharedBytes; MOST],
        temporaries: SharedBytes,
        isa: Isa,
    ) -> BlockWorker<'a> {
        BlockWorker { program, ins, outs, temporaries, isa, laid_out: [(usize::MAX, 0); MOST] }
    }

    fn temporary(&self, t: usize) -> SharedBytes {
        self.temporaries.at(t * self.program.temporary() * size_of::<f32>())
    }

    /// The bytes of a slot for the block that starts at this element; not for broadcast operands.
    fn slot(&self, slot: ValueSlot, start: usize) -> SharedBytes {
        match slot {
            ValueSlot::Operand(i) => self.ins[i].at(start * self.program.operands[i].dtype.size()),
            ValueSlot::Temporary(t) => self.temporary(t),
            ValueSlot::Out(o) => self.outs[o].at(start * self.program.widths[o]),
        }
    }

    /// A value of the last block.
    pub(super) fn floats(&self, slot: ValueSlot, block: Range<usize>) -> &[f32] {
        // SAFETY: a reduced value is the result of a step, made by this thread for this block and not written since.
        unsafe { self.slot(slot, block.start).slice(block.len()) }
    }

    /// An operand for a block; expanded in its temporary if the block is not within one run.
    fn operand(&mut self, i: usize, block: &Range<usize>) -> BlockOperand {
        let operand = &self.program.operands[i];
        let (walk, bytes, size) = (&operand.walk, self.ins[i], operand.dtype.size());
        if walk.whole {
            return BlockOperand::Run(bytes.at(block.start * size));
        }
        let within = block.start % walk.run + block.len() <= walk.run;
        let to = match operand.laid_out {
            Some(t) if !within || (walk.stays() && operand.flat) => self.temporary(t),
            _ if walk.stays() => return BlockOperand::Scalar(bytes.at(walk.at(block.start) * size)),
            _ => return BlockOperand::Run(bytes.at(walk.at(block.start) * size)),
        };
        let key = (block.start % walk.period, block.len());
        // A scalar fills its temporary once.
        let held = self.laid_out[i];
        if held != key && !(walk.period == 1 && held.0 == 0 && held.1 >= key.1) {
            self.laid_out[i] = key;
            // SAFETY: no thread writes a broadcast operand, since none is overwritten by a result; only this thread
            // uses the temporary.
            unsafe {
                match size {
                    1 => walk.gather::<u8>(bytes.slice(bytes.len), block.start, to.slice_mut(block.len())),
                    _ => walk.gather::<f32>(
                        bytes.slice(bytes.len / size),
                        block.start,
                        to.slice_mut(block.len()),
                    ),
                }
            }
        }
        BlockOperand::Run(to)
    }

    /// Runs all steps on a block.
    pub(super) fn block(&mut self, block: Range<usize>) {
        let program = self.program;
        let mut operands = [BlockOperand::Run(SharedBytes::NOWHERE); MOST];
        for (i, operand) in operands.iter_mut().enumerate().take(program.operands.len()) {
            *operand = self.operand(i, &block);
        }
        for step in &program.steps {
            let side = |slot: &ValueSlot| match slot {
                ValueSlot::Operand(i) => operands[*i],
                other => BlockOperand::Run(self.slot(*other, block.start)),
            };
            self.step(step, &side, self.slot(step.to, block.start), block.len());
        }
        for &(slot, o) in &program.copies {
            let to = self.slot(ValueSlot::Out(o), block.start);
            let bytes = block.len() * program.widths[o];
            // SAFETY: a temporary, or the block of another result, and the block of this result: disjoint, and only
            // this thread accesses them.
            unsafe { to.slice_mut::<u8>(bytes).copy_from_slice(self.slot(slot, block.start).slice(bytes)) };
        }
    }

    fn step(&self, step: &Step, side: &dyn Fn(&ValueSlot) -> BlockOperand, to: SharedBytes, len: usize) {
        let isa = self.isa;
        let at = |k: usize| side(&step.of[k]);
        // SAFETY: operands of a step are valid for the block and not written during it, unless they are the bytes of the
        // result (and then read only through it); only this thread accesses the block of the result.
        unsafe {
            match step.apply {
                Apply::Map(f) => elementwise::map(isa, f, view(at(0), to, len), to.slice_mut(len)),
                Apply::MapGrad(f) => {
                    let (v, dy) = (view(at(0), to, len), view(at(1), to, len));
                    elementwise::map_grad(isa, f, v, dy, to.slice_mut(len));
                }
                Apply::Zip(f) if !f.compares() => {
                    let (x, y) = (view(at(0), to, len), view(at(1), to, len));
                    elementwise::zip(isa, f, x, y, to.slice_mut(len));
                }
                Apply::Zip(f) if step.from == DType::I64 => {
                    let (x, y) = (view(at(0), to, len), view(at(1), to, len));
                    elementwise::compare_integers(isa, f, x, y, to.slice_mut(len));
                }
                Apply::Zip(f) => {
                    let (x, y) = (view(at(0), to, len), view(at(1), to, len));
                    elementwise::compare(isa, f, x, y, to.slice_mut(len));
                }
                Apply::Select => {
                    let (yes, no) = (view(at(1), to, len), view(at(2), to, len));
                    elementwise::select(isa, run(at(0)).slice(len), yes, no, to.slice_mut(len));
                }
                Apply::Cast(_) => match step.from {
                    DType::I64 => elementwise::from_i64(isa, run(at(0)).slice(len), to.slice_mut(len)),
                    DType::I32 => elementwise::from_i32(isa, run(at(0)).slice(len), to.slice_mut(len)),
                    DType::F32 => {
                        if let OperandView::Run(x) = view::<f32>(at(0), to, len) {
                            to.slice_mut(len).copy_from_slice(x);
                        }
                    }
                    _ => elementwise::from_bytes(isa, run(at(0)).slice(len), to.slice_mut(len)),
                },
            }
        }
    }
}

/// The bytes of an operand.
fn run(operand: BlockOperand) -> SharedBytes {
    match operand {
        BlockOperand::Run(bytes) | BlockOperand::Scalar(bytes) => bytes,
    }
}

/// An operand as the loops read it.
///
/// # Safety
/// It is valid for `len` elements (one, if it is a scalar), and not written while the view lives unless its bytes are
/// those of the result.
unsafe fn view<'a, T: Copy>(operand: BlockOperand, result: SharedBytes, len: usize) -> OperandView<'a, T> {
    match operand {
        BlockOperand::Run(bytes) if bytes.start == result.start => OperandView::InPlace,
        // SAFETY: the caller's promise.
        BlockOperand::Run(bytes) => OperandView::Run(unsafe { bytes.slice(len) }),
        // SAFETY: the caller's promise.
        BlockOperand::Scalar(bytes) => OperandView::Scalar(unsafe { bytes.slice::<T>(1)[0] }),
    }
}
