//! One call of a kernel: typed views of its operands in the arena of a device. An operand that a result overwrites is
//! accessible only through that result.

use crate::team::Team;

/// Bytes of an operand.
#[derive(Clone, Copy, Debug)]
pub struct MemorySlot {
    /// First byte.
    pub start: *mut u8,
    /// Number of bytes.
    pub bytes: usize,
}

/// Plain element types, for which every bit pattern is valid.
pub trait Pod: Copy + Send + Sync + 'static {}
impl Pod for f32 {}
impl Pod for i64 {}
impl Pod for i32 {}
impl Pod for u16 {}
impl Pod for u8 {}

/// Operands of one call.
pub struct Call<'a> {
    /// The threads to use.
    pub team: &'a Team,
    ins: &'a [MemorySlot],
    outs: &'a [MemorySlot],
    taken: u64,
    scratch: Option<MemorySlot>,
    /// The member whose part of the operands and results is visible, in an array.
    member: Option<ArrayMember<'a>>,
}

/// The member of an array that a call is for.
#[derive(Clone, Copy)]
pub struct ArrayMember<'a> {
    /// Number of the member.
    pub index: usize,
    /// Number of members.
    pub of: usize,
    /// For each operand, whether all members share it.
    pub shared: &'a [bool],
}

impl ArrayMember<'_> {
    /// The part of this member.
    fn share(&self, slot: MemorySlot) -> MemorySlot {
        let bytes = slot.bytes / self.of;
        MemorySlot { start: slot.start.wrapping_add(self.index * bytes), bytes }
    }
}

impl<'a> Call<'a> {
    /// Wraps operands for one call.
    ///
    /// # Safety
    /// For `'a` every slot is valid and initialised memory, aligned for its elements, that nothing else
    /// writes; results and scratch are disjoint from each other and from all operands, except that a
    /// result may be exactly the bytes of an operand.
    pub unsafe fn new(
        team: &'a Team,
        ins: &'a [MemorySlot],
        outs: &'a [MemorySlot],
        scratch: Option<MemorySlot>,
    ) -> Call<'a> {
        Call { team, ins, outs, taken: 0, scratch, member: None }
    }

    /// The call of one member of an array, with its own threads and scratch.
    ///
    /// # Safety
    /// No two calls that live at once are for the same member, and no operand or result of `self` is taken meanwhile.
    /// Nothing else uses the scratch.
    pub unsafe fn member<'b>(
        &self,
        team: &'b Team,
        member: ArrayMember<'b>,
        scratch: Option<MemorySlot>,
    ) -> Call<'b>
    where
        'a: 'b,
    {
        Call { team, ins: self.ins, outs: self.outs, taken: 0, scratch, member: Some(member) }
    }

    fn operand(&self, i: usize) -> MemorySlot {
        match self.member {
            Some(member) if !member.shared[i] => member.share(self.ins[i]),
            _ => self.ins[i],
        }
    }

    fn result(&self, o: usize) -> MemorySlot {
        self.member.map_or(self.outs[o], |member| member.share(self.outs[o]))
    }

    /// Number of operands.
    pub fn inputs(&self) -> usize {
        self.ins.len()
    }

    /// Whether the result overwrites the operand.
    pub fn in_place(&self, input: usize, output: usize) -> bool {
        let (operand, result) = (self.operand(input), self.result(output));
        result.bytes > 0 && operand.start == result.start
    }

    /// An operand. Panics if a result overwrites it.
    pub fn input<T: Pod>(&self, i: usize) -> &'a [T] {
        let slot = self.operand(i);
        let overwritten = (0..self.outs.len()).any(|o| self.in_place(i, o));
        assert!(!overwritten || slot.bytes == 0, "operand {i} is overwritten by a result");
        // SAFETY: by the contract of `new` the bytes are valid for 'a and no result overlaps them.
        unsafe { std::slice::from_raw_parts(slot.start.cast(), slot.bytes / size_of::<T>()) }
    }

    /// A copy of an operand, even of one that a result will overwrite. Panics if that result was already taken.
    pub fn input_copy<T: Pod>(&self, i: usize) -> Vec<T> {
        let slot = self.operand(i);
        let gone = (0..self.outs.len()).any(|o| self.in_place(i, o) && self.taken & (1 << o) != 0);
        assert!(!gone, "operand {i} was overwritten by a result");
        // SAFETY: by the contract of `new` the bytes are valid, and no exclusive view of them exists.
        unsafe { std::slice::from_raw_parts(slot.start.cast::<T>(), slot.bytes / size_of::<T>()) }.to_vec()
    }

    /// A result. Panics if it is taken twice.
    pub fn output<T: Pod>(&mut self, o: usize) -> &'a mut [T] {
        assert!(self.taken & (1 << o) == 0, "result {o} is taken twice");
        self.taken |= 1 << o;
        let slot = self.result(o);
        // SAFETY: by the contract of `new` the bytes are disjoint from all other slices: `input` refuses operands that
        // this result overwrites, and each result is handed out once.
        unsafe { std::slice::from_raw_parts_mut(slot.start.cast(), slot.bytes / size_of::<T>()) }
    }

    /// The scratch memory. Empty on the second call.
    pub fn scratch<T: Pod>(&mut self) -> &'a mut [T] {
        let Some(slot) = self.scratch.take() else { return &mut [] };
        // SAFETY: by the contract of `new`, and handed out once.
        unsafe { std::slice::from_raw_parts_mut(slot.start.cast(), slot.bytes / size_of::<T>()) }
    }
}
