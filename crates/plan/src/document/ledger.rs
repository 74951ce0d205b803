//! Bytes over the links of one device: between its tiers, and from other devices. Planned and measured alike.

use crate::document::plan::{Act, Plan, Tier};
use serde::{Deserialize, Serialize};
use std::ops::{AddAssign, Sub};

/// Bytes over each link of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// From host to device.
    pub to_device: u64,
    /// From device to host.
    pub to_host: u64,
    /// From disk.
    pub disk_read: u64,
    /// To disk.
    pub disk_written: u64,
    /// From other devices.
    #[serde(default)]
    pub from_peers: u64,
}

impl Ledger {
    /// Bytes between tiers when a plan runs once.
    pub fn of(plan: &Plan) -> Ledger {
        let mut ledger = Ledger::default();
        for step in &plan.steps {
            if let Act::Move { from, to } = &step.act {
                *ledger.link(plan.tier(from), plan.tier(to)) += from.bytes;
            }
        }
        ledger
    }

    /// The count of the link from one tier to another.
    pub fn link(&mut self, from: Tier, to: Tier) -> &mut u64 {
        match (from, to) {
            (Tier::Disk, _) => &mut self.disk_read,
            (_, Tier::Disk) => &mut self.disk_written,
            (Tier::Host, _) => &mut self.to_device,
            _ => &mut self.to_host,
        }
    }

    /// Bytes over all links.
    pub fn total(&self) -> u64 {
        let Ledger { to_device, to_host, disk_read, disk_written, from_peers } = self;
        to_device + to_host + disk_read + disk_written + from_peers
    }
}

impl AddAssign for Ledger {
    fn add_assign(&mut self, other: Ledger) {
        self.to_device += other.to_device;
        self.to_host += other.to_host;
        self.disk_read += other.disk_read;
        self.disk_written += other.disk_written;
        self.from_peers += other.from_peers;
    }
}

impl Sub for Ledger {
    type Output = Ledger;

    fn sub(self, before: Ledger) -> Ledger {
        Ledger {
            to_device: self.to_device - before.to_device,
            to_host: self.to_host - before.to_host,
            disk_read: self.disk_read - before.disk_read,
            disk_written: self.disk_written - before.disk_written,
            from_peers: self.from_peers - before.from_peers,
        }
    }
}
