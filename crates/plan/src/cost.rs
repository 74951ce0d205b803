//! What things cost: seconds of kernels, and of bytes over links.

/// Bytes a second over each link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// From host to device.
    pub to_device: f64,
    /// From device to host.
    pub to_host: f64,
    /// From disk.
    pub disk_read: f64,
    /// To disk.
    pub disk_write: f64,
}

impl Default for Links {
    /// A copy in the memory of an ordinary machine, and an ordinary disk.
    fn default() -> Links {
        Links { to_device: 8e9, to_host: 8e9, disk_read: 1e9, disk_write: 5e8 }
    }
}

/// Hard limits of the tiers beside the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Bytes of host memory; none is no limit.
    pub host: Option<u64>,
    /// Bytes on disk; none is no disk.
    pub disk: Option<u64>,
}

/// How fast kernels are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations a second where arithmetic is what takes time.
    pub flops: f64,
    /// Bytes read and written a second where memory is.
    pub bytes: f64,
    /// Seconds of a call that does next to nothing.
    pub call: f64,
}

impl Default for Rates {
    /// One core of an ordinary machine.
    fn default() -> Rates {
        Rates { flops: 60e9, bytes: 10e9, call: 1e-6 }
    }
}

impl Rates {
    /// Seconds of a kernel that does so much.
    pub fn seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops).max(bytes / self.bytes) + self.call
    }
}
