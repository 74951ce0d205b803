//! A device's memory: one block of exactly the planned size. Offsets come from the plan.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of the arena; offsets in it are multiples of it.
const ALIGN: usize = gulliver_plan::layout::ALIGN as usize;

/// An owned, zeroed, aligned block of bytes, shared by raw pointer with kernels.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the arena is plain memory; all access goes through pointers whose users uphold exclusivity.
unsafe impl Send for Arena {}
// SAFETY: as above; a shared reference only hands out the pointer.
unsafe impl Sync for Arena {}

/// The machine has not enough memory.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("cannot allocate {bytes} bytes for device {device}")]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub bytes: u64,
    /// For which device.
    pub device: String,
}

impl Arena {
    /// A block of that many bytes, all zero.
    pub fn new(bytes: u64, device: &str) -> Result<Arena, OutOfMemory> {
        let failed = || OutOfMemory { bytes, device: device.to_string() };
        let size = usize::try_from(bytes).map_err(|_| failed())?;
        if size == 0 {
            return Ok(Arena { start: NonNull::<[u8; ALIGN]>::dangling().cast(), bytes: 0 });
        }
        let layout = Layout::from_size_align(size, ALIGN).map_err(|_| failed())?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(failed)?;
        Ok(Arena { start, bytes: size })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Pointer to `len` bytes at an offset. Panics if they are not inside.
    pub fn at(&self, offset: u64, len: u64) -> *mut u8 {
        let end = offset.checked_add(len).expect("an offset of a verified plan");
        assert!(end <= self.bytes as u64, "bytes {offset}..{end} of an arena of {}", self.bytes);
        // SAFETY: the offset is within the block, or one past its end for empty places.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let layout = Layout::from_size_align(self.bytes, ALIGN).expect("the layout it was made with");
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
