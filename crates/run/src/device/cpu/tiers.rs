//! The memory of a device by tier: its own, memory of the host, and a file. Values are read and written by tier and
//! offset; the plan decides what is where.

use super::disk::{Disk, DiskError};
use super::memory::{Arena, OutOfMemory};
use crate::device::RunError;
use gulliver_plan::document::plan::Tier;
use std::path::PathBuf;
use std::sync::Arc;

/// Memory of every tier.
pub struct Tiers {
    /// Memory that kernels work on.
    pub device: Arena,
    /// Memory beside the device.
    pub host: Arena,
    disk: Option<Arc<Disk>>,
    dir: PathBuf,
}

impl Tiers {
    /// Empty tiers. `device` names the device in errors; the file of the disk tier will be in `dir`.
    pub fn new(device: &str, dir: PathBuf) -> Result<Tiers, OutOfMemory> {
        Ok(Tiers { device: Arena::new(0, device)?, host: Arena::new(0, "host")?, disk: None, dir })
    }

    /// The file, if there is one.
    pub fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    /// Bytes of a tier.
    pub fn bytes(&self, tier: Tier) -> u64 {
        match tier {
            Tier::Device => self.device.bytes(),
            Tier::Host => self.host.bytes(),
            Tier::Disk => self.disk.as_ref().map_or(0, |disk| disk.bytes()),
        }
    }

    /// Makes a tier larger and keeps its contents; does nothing if it is as large already. Earlier pointers to the tier
    /// become invalid.
    pub fn grow(&mut self, tier: Tier, bytes: u64) -> Result<(), RunError> {
        match (tier, &self.disk) {
            (Tier::Device, _) => self.device.grow(bytes)?,
            (Tier::Host, _) => self.host.grow(bytes)?,
            (Tier::Disk, Some(disk)) => disk.grow(bytes)?,
            (Tier::Disk, None) if bytes == 0 => {}
            (Tier::Disk, None) => {
                self.disk = Some(Arc::new(Disk::create(&self.dir, bytes)?));
            }
        }
        Ok(())
    }

    /// Copies bytes into a tier. Panics if they do not lie in it.
    pub fn write(&mut self, tier: Tier, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let arena = match tier {
            Tier::Device => &self.device,
            Tier::Host => &self.host,
            Tier::Disk => return self.file(bytes.len()).map_or(Ok(()), |d| d.write(offset, bytes)),
        };
        let to = arena.at(offset, bytes.len() as u64);
        // SAFETY: `at` checked the range, and a slice handed to us is not in an arena.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies bytes out of a tier. Panics if they do not lie in it.
    pub fn read(&self, tier: Tier, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        let arena = match tier {
            Tier::Device => &self.device,
            Tier::Host => &self.host,
            Tier::Disk => return self.file(bytes.len()).map_or(Ok(()), |d| d.read(offset, bytes)),
        };
        let from = arena.at(offset, bytes.len() as u64);
        // SAFETY: `at` checked the range, and a slice handed to us is not in an arena.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// The file. Panics if there is none and `bytes` is not 0.
    fn file(&self, bytes: usize) -> Option<&Disk> {
        assert!(self.disk.is_some() || bytes == 0, "{bytes} bytes of a disk tier that is not there");
        self.disk.as_deref()
    }
}
