//! How fast the links of a device are.

use serde::{Deserialize, Serialize};

/// Bytes a second over each link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// From host to device.
    pub to_device: f64,
    /// From device to host.
    pub to_host: f64,
    /// From disk.
    pub disk_read: f64,
    /// To disk.
    pub disk_write: f64,
    /// From other devices.
    pub from_peers: f64,
}

impl Default for Links {
    /// A copy in the memory of an ordinary machine, and an ordinary disk.
    fn default() -> Links {
        Links { to_device: 8e9, to_host: 8e9, disk_read: 1e9, disk_write: 5e8, from_peers: 8e9 }
    }
}
