//! The disk tier: one file of reserved size that disappears with the process, however it ends. Every extent has a
//! checksum in memory, and reads verify it. The page cache is bypassed where the system allows it, because no budget
//! counts its memory. Threads may use the file concurrently; callers order accesses to the same bytes.

use super::copy::checksum::{checksum, copy_summed};
use crate::team::{Team, into_inner, lock};
use memmap2::MmapMut;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of a block. An extent starts at a multiple of it and owns all blocks that it touches.
pub const BLOCK: u64 = 4096;

/// Bytes of a chunk, which is read or written at once.
pub const CHUNK: usize = 1 << 20;

/// Chunks of one move in flight: while one is checked and copied, the disk works on another. Each has a buffer; the
/// buffers and a few words per extent are all the memory of the tier.
const IN_FLIGHT: usize = 3;

/// A file that holds values.
pub struct Disk {
    file: File,
    path: PathBuf,
    /// Whether it still has a name in the file system.
    named: bool,
    /// Whether it bypasses the page cache.
    direct: bool,
    bytes: AtomicU64,
    /// Free buffers.
    buffers: Mutex<Vec<MmapMut>>,
    /// Extents by first byte; none is longer than a chunk.
    extents: Mutex<BTreeMap<u64, Extent>>,
    team: Team,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    bytes: usize,
    sum: u64,
}

/// First byte of an extent, the extent, number of its bytes to skip, and the destination of the others.
type Wanted<'w> = (u64, Extent, usize, &'w mut [u8]);

/// Processes the chunk of this number with a buffer.
type Task<'t> = &'t (dyn Fn(usize, &mut [u8]) -> Result<(), DiskError> + Sync);

/// Why the disk tier failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// No room for the file.
    #[error("{}: {free} bytes are free, the disk tier needs {needed}; make room, or choose another directory", dir.display())]
    Full {
        /// The directory.
        dir: PathBuf,
        /// Bytes that were to be reserved.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The file cannot be made, or not as large as it must be.
    #[error("{}: cannot reserve {bytes} bytes for the disk tier: {why}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What the system said.
        why: String,
    },
    /// The system could not read or write.
    #[error("{}: cannot {what} {bytes} bytes at offset {offset}: {why}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// `read` or `write`.
        what: &'static str,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: usize,
        /// What the system said.
        why: String,
    },
    /// The bytes read differ from the bytes written.
    #[error("{}: the {bytes} bytes at offset {offset} are not those that were written; the disk is not to be trusted", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: usize,
    },
    /// A read of bytes that were never written: a defect of this program.
    #[error("{}: nothing was written at offset {offset}; please report this", path.display())]
    Unwritten {
        /// The file.
        path: PathBuf,
        /// First byte.
        offset: u64,
    },
}

impl Disk {
    /// A file of `bytes` bytes in a directory. Reserves all of it, so that a full disk is an error now and not in the
    /// middle of a run.
    pub fn create(dir: &Path, bytes: u64) -> Result<Disk, DiskError> {
        let mut buffer = new_buffer().map_err(|e| cannot_create(dir, bytes, &e))?;
        let (file, path) = new_file(dir).map_err(|(path, e)| cannot_create(&path, bytes, &e))?;
        let past_cache = open_past_cache(&path);
        // An open file without a name disappears with its process, even if that is killed.
        let named = !cfg!(unix) || std::fs::remove_file(&path).is_err();
        let mut disk = Disk {
            file,
            path,
            named,
            direct: false,
            bytes: AtomicU64::new(0),
            buffers: Mutex::default(),
            extents: Mutex::default(),
            team: Team::new(IN_FLIGHT),
        };
        disk.grow(bytes)?;
        if let Some(mut file) = past_cache {
            // Some file systems open such a file and then refuse to read or write it.
            let block = &mut buffer[..BLOCK.min(disk.bytes()) as usize];
            if file.write_all(block).is_ok() && file.rewind().is_ok() && file.read_exact(block).is_ok() {
                disk.file = file;
                disk.direct = true;
            }
        }
        lock(&disk.buffers).push(buffer);
        Ok(disk)
    }

    /// Reserves more bytes; does nothing if the file is as large already. For one thread at a time.
    pub fn grow(&self, bytes: u64) -> Result<(), DiskError> {
        let too_large = || cannot_create(&self.path, bytes, &ErrorKind::FileTooLarge.into());
        let end = bytes.checked_next_multiple_of(BLOCK).ok_or_else(too_large)?;
        if i64::try_from(end).is_err() {
            return Err(too_large());
        }
        let before = self.bytes();
        if end <= before {
            return Ok(());
        }
        let dir = self.path.parent().unwrap_or(Path::new(".")).to_path_buf();
        let needed = end - before;
        if let Some(free) = free_bytes(&dir).filter(|&free| free < needed) {
            return Err(DiskError::Full { dir, needed, free });
        }
        match self.reserve(before, end) {
            Ok(()) => {
                self.bytes.store(end, Ordering::Release);
                Ok(())
            }
            Err(e) => {
                // Gives back what was reserved in vain.
                let _ = self.file.set_len(before);
                Err(match (e.kind(), free_bytes(&dir)) {
                    (ErrorKind::StorageFull | ErrorKind::QuotaExceeded, Some(free)) => {
                        DiskError::Full { dir, needed, free: free.min(needed - 1) }
                    }
                    _ => cannot_create(&self.path, end, &e),
                })
            }
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Writes bytes at an offset, a multiple of [`BLOCK`]. Other bytes of the blocks that they touch are lost. Panics if
    /// they are not inside the file.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.check(offset, bytes.len());
        assert!(offset.is_multiple_of(BLOCK), "extents begin at whole blocks, not at byte {offset}");
        // Chunks as even as they can be.
        let count = bytes.len().div_ceil(CHUNK).max(1);
        let size = whole_blocks(bytes.len().div_ceil(count)).max(BLOCK as usize);
        let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
        self.each(chunks.len(), &|i, buffer| self.write_chunk(offset + (i * size) as u64, chunks[i], buffer))
    }

    fn write_chunk(&self, offset: u64, chunk: &[u8], buffer: &mut [u8]) -> Result<(), DiskError> {
        let padded = whole_blocks(chunk.len());
        let sum = copy_summed(offset, chunk, &mut buffer[..chunk.len()]);
        buffer[chunk.len()..padded].fill(0);
        forget(&mut lock(&self.extents), offset, padded);
        let written = self.write_at(&buffer[..padded], offset);
        written.map_err(|e| self.failed("write", offset, chunk.len(), &e))?;
        self.leave_cache(offset, padded, true);
        lock(&self.extents).insert(offset, Extent { bytes: chunk.len(), sum });
        Ok(())
    }

    /// Reads bytes that were written before. Panics if they are not inside the file.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        self.check(offset, bytes.len());
        let mut parts: Vec<Mutex<Wanted<'_>>> = Vec::new();
        let (mut at, mut left) = (offset, bytes);
        while !left.is_empty() {
            let extents = lock(&self.extents);
            let near = extents.range(..=at).next_back().map(|(start, extent)| (*start, *extent));
            let Some((start, extent)) = near.filter(|(start, extent)| start + extent.bytes as u64 > at)
            else {
                return Err(DiskError::Unwritten { path: self.path.clone(), offset: at });
            };
            let skipped = (at - start) as usize;
            let (part, rest) = left.split_at_mut((extent.bytes - skipped).min(left.len()));
            at += part.len() as u64;
            left = rest;
            parts.push(Mutex::new((start, extent, skipped, part)));
        }
        self.each(parts.len(), &|i, buffer| {
            let (start, extent, skipped, part) = &mut *lock(&parts[i]);
            self.read_extent(*start, *extent, *skipped, part, buffer)
        })
    }

    /// Reads a whole extent and keeps the part that is wanted.
    fn read_extent(
        &self,
        start: u64,
        extent: Extent,
        skipped: usize,
        part: &mut [u8],
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        let padded = whole_blocks(extent.bytes);
        let read = self.read_at(&mut buffer[..padded], start);
        read.map_err(|e| self.failed("read", start, extent.bytes, &e))?;
        self.leave_cache(start, padded, false);
        let found = &buffer[..extent.bytes];
        let sum = match part.len() == found.len() {
            true => copy_summed(start, found, part),
            false => {
                part.copy_from_slice(&found[skipped..skipped + part.len()]);
                checksum(start, found)
            }
        };
        if sum != extent.sum {
            let (path, bytes) = (self.path.clone(), extent.bytes);
            return Err(DiskError::Damaged { path, offset: start, bytes });
        }
        Ok(())
    }

    /// Calls `f` for every number below `count`, several at a time, each with its own buffer. Returns the error of the
    /// lowest number.
    fn each(&self, count: usize, f: Task<'_>) -> Result<(), DiskError> {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None::<(usize, DiskError)>));
        let work = |_: usize| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count || lock(&failed).is_some() {
                    return;
                }
                let done = self.buffer().and_then(|mut buffer| {
                    let done = f(i, &mut buffer);
                    lock(&self.buffers).push(buffer);
                    done
                });
                if let Err(e) = done {
                    let mut failed = lock(&failed);
                    if failed.as_ref().is_none_or(|(first, _)| i < *first) {
                        *failed = Some((i, e));
                    }
                }
            }
        };
        self.team.run(count.min(IN_FLIGHT), &work);
        into_inner(failed).map_or(Ok(()), |(_, e)| Err(e))
    }

    fn buffer(&self) -> Result<MmapMut, DiskError> {
        let free = lock(&self.buffers).pop();
        free.map_or_else(new_buffer, Ok).map_err(|e| self.failed("buffer", 0, CHUNK, &e))
    }

    #[cfg(unix)]
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }

    #[cfg(unix)]
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, buffer, offset)
    }

    /// Files of other systems have one position for all threads.
    #[cfg(not(unix))]
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let _turn = lock(&self.extents);
        (&self.file).seek(io::SeekFrom::Start(offset))?;
        (&self.file).read_exact(buffer)
    }

    #[cfg(not(unix))]
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let _turn = lock(&self.extents);
        (&self.file).seek(io::SeekFrom::Start(offset))?;
        (&self.file).write_all(buffer)
    }

    fn check(&self, offset: u64, bytes: usize) {
        let end = offset.checked_add(bytes as u64).expect("an offset of a verified plan");
        assert!(end <= self.bytes(), "bytes {offset}..{end} of a disk tier of {}", self.bytes());
    }

    fn failed(&self, what: &'static str, offset: u64, bytes: usize, e: &io::Error) -> DiskError {
        let why = match e.kind() {
            ErrorKind::UnexpectedEof => "the file has become shorter".into(),
            _ => e.to_string(),
        };
        DiskError::Io { path: self.path.clone(), what, offset, bytes, why }
    }

    /// Extends the file from `before` to `end` bytes, with space on disk for every byte.
    fn reserve(&self, before: u64, end: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let (start, length) = (before as libc::off64_t, (end - before) as libc::off64_t);
            loop {
                // SAFETY: the descriptor is that of an open file; no memory is involved.
                if unsafe { libc::fallocate64(self.file.as_raw_fd(), 0, start, length) } == 0 {
                    return Ok(());
                }
                let e = io::Error::last_os_error();
                match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EOPNOTSUPP | libc::ENOSYS) => break,
                    _ => return Err(e),
                }
            }
        }
        let zeros = new_buffer()?;
        let mut at = before;
        while at < end {
            let count = (end - at).min(CHUNK as u64);
            self.write_at(&zeros[..count as usize], at)?;
            at += count;
        }
        Ok(())
    }

    /// Drops a range that was just read or written from the page cache.
    fn leave_cache(&self, offset: u64, bytes: usize, written: bool) {
        #[cfg(target_os = "linux")]
        if !self.direct {
            use std::os::fd::AsRawFd;
            let (fd, offset, bytes) =
                (self.file.as_raw_fd(), offset as libc::off64_t, bytes as libc::off64_t);
            // Only pages that are on disk can be dropped. A failure of these calls does no harm.
            if written {
                let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                    | libc::SYNC_FILE_RANGE_WRITE
                    | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                // SAFETY: the descriptor is that of an open file; no memory is involved.
                unsafe { libc::sync_file_range(fd, offset, bytes, flags) };
            }
            // SAFETY: as above.
            unsafe { libc::posix_fadvise64(fd, offset, bytes, libc::POSIX_FADV_DONTNEED) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes, written);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.named {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Drops the extents that have bytes in a range.
fn forget(extents: &mut BTreeMap<u64, Extent>, offset: u64, bytes: usize) {
    let end = offset + bytes as u64;
    while let Some((&start, extent)) = extents.range(..end).next_back() {
        if start + extent.bytes as u64 <= offset {
            break;
        }
        extents.remove(&start);
    }
}

fn new_buffer() -> io::Result<MmapMut> {
    MmapMut::map_anon(CHUNK)
}

fn cannot_create(path: &Path, bytes: u64, e: &io::Error) -> DiskError {
    DiskError::Create { path: path.to_path_buf(), bytes, why: e.to_string() }
}

/// A new file with a name that is not in use.
fn new_file(dir: &Path) -> Result<(File, PathBuf), (PathBuf, io::Error)> {
    let mut number = 0u32;
    loop {
        let path = dir.join(format!("gulliver-{}-{number}.tier", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists && number < u32::MAX => number += 1,
            Err(e) => return Err((path, e)),
        }
    }
}

/// Opens a file again to bypass the page cache; `None` if the file system cannot.
#[cfg(target_os = "linux")]
fn open_past_cache(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_past_cache(_: &Path) -> Option<File> {
    None
}

/// Free bytes that this process may use, if the system reports them.
#[cfg(target_os = "linux")]
#[allow(clippy::unnecessary_cast)] // The fields are narrower on other machines.
fn free_bytes(dir: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let dir = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and the structure has room for the answer.
    let done = unsafe { libc::statvfs(dir.as_ptr(), stat.as_mut_ptr()) };
    if done != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it filled the structure.
    let stat = unsafe { stat.assume_init() };
    (stat.f_bavail as u64).checked_mul(stat.f_frsize as u64)
}

#[cfg(not(target_os = "linux"))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

fn whole_blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchDir;

    fn noise(seed: u8, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let dir = ScratchDir::new();
        for direct in [true, false] {
            let mut disk = Disk::create(&dir, 3 * CHUNK as u64).unwrap();
            if !direct {
                let (file, path) = new_file(&dir).unwrap();
                (disk.file, disk.path, disk.named, disk.direct) = (file, path, true, false);
            }
            for (i, bytes) in
                [0, 1, 64, 4095, 4096, 4097, 100_000, CHUNK, 2 * CHUNK + 5].into_iter().enumerate()
            {
                let offset = (i as u64 % 3) * BLOCK;
                let data = noise(i as u8, bytes);
                disk.write(offset, &data).unwrap();
                let mut back = vec![0; bytes];
                disk.read(offset, &mut back).unwrap();
                assert!(back == data, "{bytes} bytes, direct {direct}");
                let part = bytes / 3..bytes / 2;
                disk.read(offset + part.start as u64, &mut back[..part.len()]).unwrap();
                assert!(back[..part.len()] == data[part], "part of {bytes}");
            }
        }
    }

    #[test]
    fn nothing_is_left_behind_and_only_what_was_written_is_read() {
        let dir = ScratchDir::new();
        let disk = Disk::create(&dir, 10 * BLOCK).unwrap();
        if cfg!(unix) {
            assert_eq!(std::fs::read_dir(&*dir).unwrap().count(), 0, "the file has no name");
        }
        disk.write(BLOCK, &noise(0, 3 * BLOCK as usize)).unwrap();
        let mut one = [0; 1];
        for (offset, written) in [(0, false), (BLOCK, true), (4 * BLOCK - 1, true), (4 * BLOCK, false)] {
            assert_eq!(disk.read(offset, &mut one).is_ok(), written, "{offset}");
        }
        disk.write(2 * BLOCK, &[1]).unwrap();
        assert!(
            matches!(disk.read(BLOCK, &mut one), Err(DiskError::Unwritten { .. })),
            "overwritten in part"
        );
        disk.read(2 * BLOCK, &mut one).unwrap();
        disk.grow(20 * BLOCK).unwrap();
        disk.write(19 * BLOCK, &[5]).unwrap();
        disk.read(2 * BLOCK, &mut one).unwrap();
        drop(disk);
        assert_eq!(std::fs::read_dir(&*dir).unwrap().count(), 0);
    }

    #[test]
    fn a_full_disk_is_an_error_before_the_first_write() {
        let dir = ScratchDir::new();
        for bytes in [1 << 60, u64::MAX, i64::MAX as u64] {
            let error = Disk::create(&dir, bytes).err().unwrap();
            assert!(matches!(error, DiskError::Full { .. } | DiskError::Create { .. }), "{error}");
        }
        if cfg!(target_os = "linux") {
            let error = Disk::create(&dir, 1 << 60).err().unwrap();
            assert!(matches!(error, DiskError::Full { needed, .. } if needed == 1 << 60), "{error}");
        }
        assert_eq!(std::fs::read_dir(&*dir).unwrap().count(), 0, "nothing is left of a failure");
        let missing = Disk::create(&dir.join("missing"), 1).err().unwrap();
        assert!(missing.to_string().contains("missing"), "{missing}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn failures_of_the_system_name_file_and_offset() {
        let dir = ScratchDir::new();
        let data = noise(1, 2 * BLOCK as usize);
        let mut back = vec![0; data.len()];
        let made = || {
            let disk = Disk::create(&dir, 8 * BLOCK).unwrap();
            disk.write(BLOCK, &data).unwrap();
            disk
        };
        let io = |error: DiskError, wanted: &str| {
            let DiskError::Io { path, what, offset, bytes, why } = &error else { panic!("{error}") };
            assert_eq!((*what, *offset, *bytes), (wanted, BLOCK, data.len()));
            assert!(path.starts_with(&*dir) && error.to_string().contains(&path.display().to_string()));
            why.clone()
        };

        let disk = made();
        disk.file.set_len(2 * BLOCK).unwrap();
        assert!(io(disk.read(BLOCK, &mut back).unwrap_err(), "read").contains("shorter"));

        let mut disk = made();
        disk.file = OpenOptions::new().write(true).open("/dev/null").unwrap();
        io(disk.read(BLOCK, &mut back).unwrap_err(), "read");

        let mut disk = made();
        disk.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!(io(disk.write(BLOCK, &data).unwrap_err(), "write").contains("space"));
        assert!(matches!(disk.read(BLOCK, &mut back), Err(DiskError::Unwritten { .. })));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let dir = ScratchDir::new();
        let disk = Disk::create(&dir, 4 * BLOCK).unwrap();
        let data = noise(9, BLOCK as usize + 77);
        disk.write(BLOCK, &data).unwrap();
        let stored = lock(&disk.extents)[&BLOCK];
        for position in [0, 1, 7, 8, 100, 4095, 4096, data.len() - 1] {
            for bit in 0..8 {
                let mut damaged = data.clone();
                damaged[position] ^= 1 << bit;
                disk.write(BLOCK, &damaged).unwrap();
                lock(&disk.extents).insert(BLOCK, stored);
                let error = disk.read(BLOCK, &mut damaged).unwrap_err();
                let (path, bytes) = (disk.path.clone(), data.len());
                assert_eq!(error, DiskError::Damaged { path, offset: BLOCK, bytes });
            }
        }
    }
}
