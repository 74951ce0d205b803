//! The memory of a device: one block of exactly the planned size, with offsets from the plan. The system provides pages
//! when they are first touched, and a block grows without a copy.

use memmap2::MmapMut;

/// An owned, zeroed, page-aligned block of bytes, shared by raw pointer with kernels.
#[derive(Debug)]
pub struct Arena {
    /// `None` for a block of no bytes.
    map: Option<MmapMut>,
    start: *mut u8,
    bytes: usize,
    device: String,
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
    /// A block of `bytes` bytes, all zero.
    pub fn new(bytes: u64, device: &str) -> Result<Arena, OutOfMemory> {
        let failed = || OutOfMemory { bytes, device: device.to_string() };
        let size = usize::try_from(bytes).map_err(|_| failed())?;
        let mut map = match size {
            0 => None,
            _ => Some(mapped(size).ok_or_else(failed)?),
        };
        let start = first_byte(&mut map);
        Ok(Arena { map, start, bytes: size, device: device.to_string() })
    }

    /// Makes the block larger: bytes keep their contents and offsets, and new ones are zero. Earlier pointers become
    /// invalid. Does nothing if the block is as large already.
    pub fn grow(&mut self, bytes: u64) -> Result<(), OutOfMemory> {
        let failed = || OutOfMemory { bytes, device: self.device.clone() };
        let size = usize::try_from(bytes).map_err(|_| failed())?;
        if size <= self.bytes {
            return Ok(());
        }
        match &mut self.map {
            Some(map) => extend(map, size).ok_or_else(failed)?,
            None => self.map = Some(mapped(size).ok_or_else(failed)?),
        }
        self.start = first_byte(&mut self.map);
        self.bytes = size;
        Ok(())
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
        unsafe { self.start.add(offset as usize) }
    }
}

/// The start of a map; without a map, an aligned address that is never read.
fn first_byte(map: &mut Option<MmapMut>) -> *mut u8 {
    #[repr(align(64))]
    struct Aligned;
    const _: () = assert!(align_of::<Aligned>() == gulliver_plan::document::plan::ALIGN as usize);
    map.as_mut().map_or(std::ptr::NonNull::<Aligned>::dangling().as_ptr().cast(), |m| m.as_mut_ptr())
}

fn mapped(size: usize) -> Option<MmapMut> {
    // The system maps whole pages; sizes near the end of the address space would overflow there.
    isize::try_from(size).ok()?;
    let map = MmapMut::map_anon(size).ok()?;
    // Kernels walk matrices across their rows, a page per step: huge pages save most look-ups. Without them it works
    // too.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Some(map)
}

#[cfg(target_os = "linux")]
fn extend(map: &mut MmapMut, size: usize) -> Option<()> {
    isize::try_from(size).ok()?;
    // SAFETY: pointers into the old map are invalid by the contract of `grow`; new pages are zero.
    unsafe { map.remap(size, memmap2::RemapOptions::new().may_move(true)) }.ok()
}

#[cfg(not(target_os = "linux"))]
fn extend(map: &mut MmapMut, size: usize) -> Option<()> {
    let mut larger = mapped(size)?;
    larger[..map.len()].copy_from_slice(map);
    *map = larger;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_contents_and_adds_zeros() {
        for first in [0u64, 1, 4096, 1 << 20] {
            let mut arena = Arena::new(first, "cpu0").unwrap();
            // SAFETY: the bytes are inside the arena, and nothing else uses it.
            unsafe { std::slice::from_raw_parts_mut(arena.at(0, first), first as usize) }.fill(7);
            for size in [first / 2, first + 100, 3 << 20] {
                arena.grow(size).unwrap();
                assert!(arena.bytes() == size.max(first).max(arena.bytes()));
                let bytes = arena.bytes() as usize;
                // SAFETY: as above.
                let all = unsafe { std::slice::from_raw_parts(arena.at(0, bytes as u64), bytes) };
                let (kept, new) = all.split_at(first as usize);
                assert!(kept.iter().all(|&b| b == 7) && new.iter().all(|&b| b == 0), "{first} to {size}");
                assert!((all.as_ptr() as u64).is_multiple_of(gulliver_plan::document::plan::ALIGN));
            }
        }
    }

    #[test]
    fn what_the_machine_has_not_is_an_error() {
        for bytes in [u64::MAX, u64::MAX / 2, 1 << 62] {
            assert_eq!(Arena::new(bytes, "cpu0").unwrap_err(), OutOfMemory { bytes, device: "cpu0".into() });
            assert_eq!(Arena::new(64, "cpu1").unwrap().grow(bytes).unwrap_err().device, "cpu1");
        }
    }
}
