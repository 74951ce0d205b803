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
    /// Of an array's operands and results, those of one member are seen.
    member: Option<Member<'a>>,
}

/// Which member of an array a call is for.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// Its number.
    pub index: usize,
    /// How many there are.
    pub of: usize,
    /// The operands that all of them read.
    pub shared: &'a [bool],
}

impl Member<'_> {
    /// The bytes of this member.
    fn share(&self, slot: Slot) -> Slot {
        let bytes = slot.bytes / self.of;
        Slot { start: slot.start.wrapping_add(self.index * bytes), bytes }
    }
}

impl<'a> Call<'a> {
    /// Wraps operands for one call.
    ///
    /// # Safety
    /// For `'a` every slot is valid and initialised memory, aligned for its elements, that nothing else
    /// writes; results and scratch are disjoint from each other and from all operands, except that a
    /// result may be exactly the bytes of an operand.
    pub unsafe fn new(team: &'a Team, ins: &'a [Slot], outs: &'a [Slot], scratch: Option<Slot>) -> Call<'a> {
        Call { team, ins, outs, taken: 0, scratch, member: None }
    }

    /// The call of one member of an array, by threads of its own and with scratch of its own.
    ///
    /// # Safety
    /// No two calls that live at once are for the same member, and none of this call's own operands and
    /// results are taken meanwhile. Nothing else uses the scratch.
    pub unsafe fn member<'b>(&self, team: &'b Team, member: Member<'b>, scratch: Option<Slot>) -> Call<'b>
    where
        'a: 'b,
    {
        Call { team, ins: self.ins, outs: self.outs, taken: 0, scratch, member: Some(member) }
    }

    fn operand(&self, i: usize) -> Slot {
        match self.member {
            Some(member) if !member.shared[i] => member.share(self.ins[i]),
            _ => self.ins[i],
        }
    }

    fn result(&self, o: usize) -> Slot {
        self.member.map_or(self.outs[o], |member| member.share(self.outs[o]))
    }

    /// Number of operands.
    pub fn inputs(&self) -> usize {
        self.ins.len()
    }

    /// Whether the result is written over the operand.
    pub fn in_place(&self, input: usize, output: usize) -> bool {
        let (operand, result) = (self.operand(input), self.result(output));
        result.bytes > 0 && operand.start == result.start
    }

    /// An operand. Panics if a result is written over it.
    pub fn input<T: Element>(&self, i: usize) -> &'a [T] {
        let slot = self.operand(i);
        let overwritten = (0..self.outs.len()).any(|o| self.in_place(i, o));
        assert!(!overwritten || slot.bytes == 0, "operand {i} is overwritten by a result");
        // SAFETY: by the contract of `new` the bytes are valid for 'a and no result overlaps them.
        unsafe { std::slice::from_raw_parts(slot.start.cast(), slot.bytes / size_of::<T>()) }
    }

    /// A copy of an operand, also of one that a result is going to be written over. Panics if that
    /// result was taken already.
    pub fn input_copy<T: Element>(&self, i: usize) -> Vec<T> {
        let slot = self.operand(i);
        let gone = (0..self.outs.len()).any(|o| self.in_place(i, o) && self.taken & (1 << o) != 0);
        assert!(!gone, "operand {i} was overwritten by a result");
        // SAFETY: by the contract of `new` the bytes are valid, and no exclusive view of them exists.
        unsafe { std::slice::from_raw_parts(slot.start.cast::<T>(), slot.bytes / size_of::<T>()) }.to_vec()
    }

    /// A result, to be written. Panics if it is taken twice.
    pub fn output<T: Element>(&mut self, o: usize) -> &'a mut [T] {
        assert!(self.taken & (1 << o) == 0, "result {o} is taken twice");
        self.taken |= 1 << o;
        let slot = self.result(o);
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
