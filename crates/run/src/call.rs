//! One call of a kernel: typed views of its operands in a device's arena. An operand that is
//! overwritten by a result is seen only through that result.

use crate::team::Team;

/// Bytes of an operand.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// First byte.
    pub start: *mut u8,
    /// Number of bytes.
    pub bytes: usize,
}

/// Types whose every bit pattern is a value.
pub trait Element: Copy + Send + Sync + 'static {}
impl Element for f32 {}
impl Element for i64 {}
impl Element for i32 {}
impl Element for u16 {}
impl Element for u8 {}

/// Operands of one call.
pub struct Call<'a> {
    /// The threads that may be used.
    pub team: &'a Team,
    ins: &'a [Slot],
    outs: &'a [Slot],
    taken: u64,
    scratch: Option<Slot>,
}

impl<'a> Call<'a> {
    /// Wraps operands for one call.
    ///
    /// # Safety
    /// For `'a` every slot is valid and initialised memory, aligned for its elements, that nothing else
    /// writes; results and scratch are disjoint from each other and from all operands, except that a
    /// result may be exactly the bytes of an operand.
    pub unsafe fn new(team: &'a Team, ins: &'a [Slot], outs: &'a [Slot], scratch: Option<Slot>) -> Call<'a> {
        Call { team, ins, outs, taken: 0, scratch }
    }

    /// Number of operands.
    pub fn inputs(&self) -> usize {
        self.ins.len()
    }

    /// Whether the result is written over the operand.
    pub fn in_place(&self, input: usize, output: usize) -> bool {
        self.outs[output].bytes > 0 && self.ins[input].start == self.outs[output].start
    }

    /// An operand. Panics if a result is written over it.
    pub fn input<T: Element>(&self, i: usize) -> &'a [T] {
        let slot = self.ins[i];
        let overwritten = (0..self.outs.len()).any(|o| self.in_place(i, o));
        assert!(!overwritten || slot.bytes == 0, "operand {i} is overwritten by a result");
        // SAFETY: by the contract of `new` the bytes are valid for 'a and no result overlaps them.
        unsafe { std::slice::from_raw_parts(slot.start.cast(), slot.bytes / size_of::<T>()) }
    }

    /// A copy of an operand, also of one that a result is going to be written over. Panics if that
    /// result was taken already.
    pub fn input_copy<T: Element>(&self, i: usize) -> Vec<T> {
        let slot = self.ins[i];
        let gone = (0..self.outs.len()).any(|o| self.in_place(i, o) && self.taken & (1 << o) != 0);
        assert!(!gone, "operand {i} was overwritten by a result");
        // SAFETY: by the contract of `new` the bytes are valid, and no exclusive view of them exists.
        unsafe { std::slice::from_raw_parts(slot.start.cast::<T>(), slot.bytes / size_of::<T>()) }.to_vec()
    }

    /// A result, to be written. Panics if it is taken twice.
    pub fn output<T: Element>(&mut self, o: usize) -> &'a mut [T] {
        assert!(self.taken & (1 << o) == 0, "result {o} is taken twice");
        self.taken |= 1 << o;
        let slot = self.outs[o];
        // SAFETY: by the contract of `new` the bytes are disjoint from all that is handed out, as operands
        // under them are refused by `input` and each result is handed out once.
        unsafe { std::slice::from_raw_parts_mut(slot.start.cast(), slot.bytes / size_of::<T>()) }
    }

    /// The working memory. Empty on the second call.
    pub fn scratch<T: Element>(&mut self) -> &'a mut [T] {
        let Some(slot) = self.scratch.take() else { return &mut [] };
        // SAFETY: by the contract of `new`, and handed out once.
        unsafe { std::slice::from_raw_parts_mut(slot.start.cast(), slot.bytes / size_of::<T>()) }
    }
}
