//! One thread's view of a chain at work: the bytes of operands, results and temporaries, and a block of them
//! going through the steps.

use super::{MOST, Place, Program, Step};
use crate::kernel::elementwise::{self, Side};
use crate::team::isa::Isa;
use gulliver_graph::dtype::DType;
use gulliver_graph::graph::op::elementwise::Apply;
use std::ops::Range;

/// Bytes of an operand, result or temporary that several threads touch at disjoint places.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: a plain address; whoever follows it says why nobody else writes there.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    pub(super) const NOWHERE: Bytes = Bytes { start: std::ptr::null_mut(), len: 0 };

    pub(super) fn of(bytes: &mut [u8]) -> Bytes {
        Bytes { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// Never written through.
    pub(super) fn of_shared(bytes: &[u8]) -> Bytes {
        Bytes { start: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }

    pub(super) fn of_floats(floats: &mut [f32]) -> Bytes {
        Bytes { start: floats.as_mut_ptr().cast(), len: size_of_val(floats) }
    }

    pub(super) fn is_nowhere(&self) -> bool {
        self.start.is_null()
    }

    /// The bytes from an offset on.
    pub(super) fn at(self, offset: usize) -> Bytes {
        assert!(offset <= self.len, "offset {offset} of {} bytes", self.len);
        Bytes { start: self.start.wrapping_add(offset), len: self.len - offset }
    }

    /// All of it as floats; for results that no other thread touches at the moment.
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
    /// The first `count` elements are valid and nobody writes them while the slice lives.
    unsafe fn slice<'a, T>(self, count: usize) -> &'a [T] {
        assert!(count * size_of::<T>() <= self.len, "{count} elements of {} bytes", self.len);
        // SAFETY: the caller's promise; addresses come from typed slices of the same element size or larger.
        unsafe { std::slice::from_raw_parts(self.start.cast(), count) }
    }

    /// # Safety
    /// The first `count` elements are valid and nobody else touches them while the slice lives.
    unsafe fn slice_mut<'a, T>(self, count: usize) -> &'a mut [T] {
        assert!(count * size_of::<T>() <= self.len, "{count} elements of {} bytes", self.len);
        // SAFETY: the caller's promise, as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), count) }
    }
}

/// How a value is met within a block.
#[derive(Clone, Copy)]
enum Met {
    Run(Bytes),
    Same(Bytes),
}

/// A thread at work.
pub(super) struct Frame<'a> {
    program: &'a Program,
    ins: &'a [Bytes; MOST],
    outs: &'a [Bytes; MOST],
    temporaries: Bytes,
    isa: Isa,
    /// What each operand's temporary holds: position within its period, and length.
    laid_out: [(usize, usize); MOST],
}

impl<'a> Frame<'a> {
    pub(super) fn new(
        program: &'a Program,
        ins: &'a [Bytes; MOST],
        outs: &'a [Bytes; MOST],
        temporaries: Bytes,
        isa: Isa,
    ) -> Frame<'a> {
        Frame { program, ins, outs, temporaries, isa, laid_out: [(usize::MAX, 0); MOST] }
    }

    fn temporary(&self, t: usize) -> Bytes {
        self.temporaries.at(t * self.program.temporary() * size_of::<f32>())
    }

    /// Where a value that is not an operand is, for the block that starts at an element.
    fn place(&self, place: Place, start: usize) -> Bytes {
        match place {
            Place::Operand(i) => self.ins[i].at(start * self.program.operands[i].dtype.size()),
            Place::Temporary(t) => self.temporary(t),
            Place::Out(o) => self.outs[o].at(start * self.program.widths[o]),
        }
    }

    /// A value of the block that just went through.
    pub(super) fn floats(&self, place: Place, block: Range<usize>) -> &[f32] {
        // SAFETY: what is reduced is a step's result, made by this thread for this block and not written since.
        unsafe { self.place(place, block.start).slice(block.len()) }
    }

    /// Lays out an operand for a block where it is not met in one run.
    fn meet(&mut self, i: usize, block: &Range<usize>) -> Met {
        let operand = &self.program.operands[i];
        let (walk, bytes, size) = (&operand.walk, self.ins[i], operand.dtype.size());
        if walk.whole {
            return Met::Run(bytes.at(block.start * size));
        }
        let within = block.start % walk.run + block.len() <= walk.run;
        let to = match operand.laid_out {
            Some(t) if !within || (walk.stays() && operand.flat) => self.temporary(t),
            _ if walk.stays() => return Met::Same(bytes.at(walk.at(block.start) * size)),
            _ => return Met::Run(bytes.at(walk.at(block.start) * size)),
        };
        let key = (block.start % walk.period, block.len());
        // One element for the whole loop fills its temporary once.
        let held = self.laid_out[i];
        if held != key && !(walk.period == 1 && held.0 == 0 && held.1 >= key.1) {
            self.laid_out[i] = key;
            // SAFETY: operands are read by all and written by none, as broadcast ones lie under no result;
            // the temporary is this thread's own.
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
        Met::Run(to)
    }

    /// Takes a block through all steps.
    pub(super) fn block(&mut self, block: Range<usize>) {
        let program = self.program;
        let mut met = [Met::Run(Bytes::NOWHERE); MOST];
        for (i, met) in met.iter_mut().enumerate().take(program.operands.len()) {
            *met = self.meet(i, &block);
        }
        for step in &program.steps {
            let side = |place: &Place| match place {
                Place::Operand(i) => met[*i],
                other => Met::Run(self.place(*other, block.start)),
            };
            self.step(step, &side, self.place(step.to, block.start), block.len());
        }
        for &(place, o) in &program.copies {
            let to = self.place(Place::Out(o), block.start);
            let bytes = block.len() * program.widths[o];
            // SAFETY: a temporary or another result of this block and this result's part of it: disjoint, and
            // this thread's own.
            unsafe { to.slice_mut::<u8>(bytes).copy_from_slice(self.place(place, block.start).slice(bytes)) };
        }
    }

    fn step(&self, step: &Step, side: &dyn Fn(&Place) -> Met, to: Bytes, len: usize) {
        let isa = self.isa;
        let at = |k: usize| side(&step.of[k]);
        // SAFETY: operands of a step are valid for the block and, where they are not the result's own bytes
        // (and then seen only through it), nobody writes them during the step; the result's part of the block
        // is this thread's own.
        unsafe {
            match step.apply {
                Apply::Map(f) => elementwise::map(isa, f, meet(at(0), to, len), to.slice_mut(len)),
                Apply::MapGrad(f) => {
                    let (v, dy) = (meet(at(0), to, len), meet(at(1), to, len));
                    elementwise::map_grad(isa, f, v, dy, to.slice_mut(len));
                }
                Apply::Zip(f) if !f.compares() => {
                    let (x, y) = (meet(at(0), to, len), meet(at(1), to, len));
                    elementwise::zip(isa, f, x, y, to.slice_mut(len));
                }
                Apply::Zip(f) if step.from == DType::I64 => {
                    let (x, y) = (meet(at(0), to, len), meet(at(1), to, len));
                    elementwise::compare_integers(isa, f, x, y, to.slice_mut(len));
                }
                Apply::Zip(f) => {
                    let (x, y) = (meet(at(0), to, len), meet(at(1), to, len));
                    elementwise::compare(isa, f, x, y, to.slice_mut(len));
                }
                Apply::Select => {
                    let (yes, no) = (meet(at(1), to, len), meet(at(2), to, len));
                    elementwise::select(isa, run(at(0)).slice(len), yes, no, to.slice_mut(len));
                }
                Apply::Cast(_) => match step.from {
                    DType::I64 => elementwise::from_i64(isa, run(at(0)).slice(len), to.slice_mut(len)),
                    DType::I32 => elementwise::from_i32(isa, run(at(0)).slice(len), to.slice_mut(len)),
                    DType::F32 => {
                        if let Side::Run(x) = meet::<f32>(at(0), to, len) {
                            to.slice_mut(len).copy_from_slice(x);
                        }
                    }
                    _ => elementwise::from_bytes(isa, run(at(0)).slice(len), to.slice_mut(len)),
                },
            }
        }
    }
}

/// The bytes of a value that is met as a run.
fn run(met: Met) -> Bytes {
    match met {
        Met::Run(bytes) | Met::Same(bytes) => bytes,
    }
}

/// A value as the loops see it.
///
/// # Safety
/// It is valid for `len` elements (one, where it is the same for all), and not written while the side lives
/// unless it lies exactly under the result.
unsafe fn meet<'a, T: Copy>(met: Met, result: Bytes, len: usize) -> Side<'a, T> {
    match met {
        Met::Run(bytes) if bytes.start == result.start => Side::Under,
        // SAFETY: the caller's promise.
        Met::Run(bytes) => Side::Run(unsafe { bytes.slice(len) }),
        // SAFETY: the caller's promise.
        Met::Same(bytes) => Side::Same(unsafe { bytes.slice::<T>(1)[0] }),
    }
}
