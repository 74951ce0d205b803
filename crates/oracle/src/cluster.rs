//! Nodes of devices, the links within and between them, and where a group of devices lies.

use crate::OracleError;
use crate::hardware::Accelerator;
use crate::network::{ClusterLink, NodeWiring};

/// Equal nodes of equal devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// As users name it.
    pub name: String,
    /// The accelerator.
    pub device: Accelerator,
    /// Devices of a node.
    pub devices: u32,
    /// Nodes there are at most.
    pub nodes: u32,
    /// Between devices of a node.
    pub within: ClusterLink,
    /// Between nodes: one adapter.
    pub between: ClusterLink,
    /// Adapters of a node, which its devices share.
    pub adapters: u32,
    /// How many times less the network's core carries than its leaves, once a job spans more than a leaf.
    pub oversubscription: f64,
    /// Nodes below one leaf of the network.
    pub leaf: u32,
    /// Between a device and host memory.
    pub host: ClusterLink,
    /// Bytes of host memory of a node.
    pub host_memory: f64,
    /// Samples a second that a node can load; none is no limit.
    pub loading: Option<f64>,
    /// Money for a device and hour, if it is known.
    pub price: Option<f64>,
    /// Money for a kilowatt hour, if it is known.
    pub energy_price: Option<f64>,
}

/// Devices that take part in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// How many.
    pub size: u32,
    /// How many of them are in one node.
    pub local: u32,
    /// Groups of the same kind that share a node's adapters at that time.
    pub sharing: u32,
}

type Row = (&'static str, &'static str, u32, u32, &'static str, &'static str, u32, f64, u32, &'static str);

/// Name, accelerator, devices, nodes, within, between, adapters, oversubscription, leaf, host link.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    ("abci", "v100-16", 4, 1088, "nvlink2", "ib-edr", 1, 3.0, 17, "pcie3"),
    ("dgx1-16", "v100-16", 8, 128, "nvlink2-cube", "ib-edr", 4, 1.0, 18, "pcie3"),
    ("dgx1-32", "v100-32", 8, 128, "nvlink2-cube", "ib-edr", 4, 1.0, 18, "pcie3"),
    ("dgx2", "v100-32", 16, 64, "nvswitch2", "ib-edr", 8, 1.0, 18, "pcie3"),
    ("dgx2h", "v100-450w", 16, 64, "nvswitch2", "ib-edr", 8, 1.0, 18, "pcie3"),
    ("dgx-a100-40", "a100-40", 8, 560, "nvlink3", "ib-hdr", 8, 1.0, 20, "pcie4"),
    ("dgx-a100", "a100-80", 8, 560, "nvlink3", "ib-hdr", 8, 1.0, 20, "pcie4"),
    ("dgx-h100", "h100", 8, 560, "nvlink4", "ib-ndr", 8, 1.0, 32, "pcie5"),
    ("jean-zay-16", "v100-16", 4, 396, "nvlink2", "omni-path", 4, 1.0, 24, "pcie3"),
    ("jean-zay-32", "v100-32", 4, 396, "nvlink2", "omni-path", 4, 1.0, 24, "pcie3"),
    ("box-1080ti", "gtx-1080ti", 4, 1, "pcie3", "10gbe", 1, 1.0, 1, "pcie3"),
    ("box-3090", "rtx-3090", 4, 1, "pcie4", "10gbe", 1, 1.0, 1, "pcie4"),
    ("box-4090", "rtx-4090", 4, 1, "pcie4", "10gbe", 1, 1.0, 1, "pcie4"),
    ("p100-box", "p100", 4, 16, "pcie3", "ib-edr", 1, 1.0, 18, "pcie3"),
    ("mi250-node", "mi250", 8, 128, "infinity-fabric", "ib-hdr", 4, 1.0, 20, "pcie4"),
    ("mi300-node", "mi300x", 8, 128, "infinity-fabric", "ib-ndr", 8, 1.0, 32, "pcie5"),
    ("tpu-v3-pod", "tpu-v3", 8, 256, "ici-v3", "ici-v3", 8, 1.0, 256, "pcie3"),
];

impl Cluster {
    /// A cluster of the table, by name.
    pub fn named(name: &str) -> Result<Cluster, OracleError> {
        let row = crate::named(TABLE, "cluster", name, |row| row.0)?;
        let &(name, device, devices, nodes, within, between, adapters, oversubscription, leaf, host) = row;
        Ok(Cluster {
            name: name.to_string(),
            adapters,
            oversubscription,
            leaf,
            host: ClusterLink::named(host)?,
            ..Cluster::of(
                Accelerator::named(device)?,
                (nodes, devices),
                ClusterLink::named(within)?,
                ClusterLink::named(between)?,
            )
        })
    }

    /// All names of the table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|row| row.0)
    }

    /// `nodes` of `devices`, with one adapter each on a full network.
    pub fn of(
        device: Accelerator,
        (nodes, devices): (u32, u32),
        within: ClusterLink,
        between: ClusterLink,
    ) -> Cluster {
        Cluster {
            name: device.name.clone(),
            device,
            devices,
            nodes,
            host: ClusterLink { bandwidth: 15.75e9, ..within.clone() },
            within,
            between,
            adapters: 1,
            oversubscription: 1.0,
            leaf: u32::MAX,
            host_memory: 256e9,
            loading: None,
            price: None,
            energy_price: None,
        }
    }

    /// Refuses figures that no cluster has.
    pub fn check(&self) -> Result<(), OracleError> {
        self.device.check()?;
        for link in [&self.within, &self.between, &self.host] {
            link.check()?;
        }
        if self.devices == 0 || self.nodes == 0 || self.adapters == 0 || self.leaf == 0 {
            return Err(OracleError::Count {
                what: "devices",
                asked: 0,
                most: self.devices.max(1) * self.nodes.max(1),
            });
        }
        if !(self.oversubscription.is_finite() && self.oversubscription >= 1.0) {
            return Err(OracleError::Figure {
                what: "oversubscription (at least 1)".into(),
                value: self.oversubscription,
            });
        }
        Ok(())
    }

    /// Devices in all.
    pub fn size(&self) -> u32 {
        self.devices.saturating_mul(self.nodes)
    }

    /// The group of `size` devices that lie `stride` apart, where `total` devices take part and all of
    /// them are in such groups.
    pub fn group(&self, size: u32, stride: u32, total: u32) -> Group {
        let here = self.devices.min(total).max(1);
        let local = (here / stride.max(1)).clamp(1, size);
        let sharing = if local == size { 1 } else { (here / local).max(1) };
        Group { size, local, sharing }
    }

    /// Bytes a second that each of `devices` devices may fetch from host memory and send there at the same time. The
    /// devices of a node share a bus.
    pub fn from_host(&self, devices: u32) -> f64 {
        let share = self.host.protocols.iter().map(|way| way.share).fold(0.0, f64::max);
        let sharing = if self.host.wiring == NodeWiring::Bus { devices.clamp(1, self.devices) } else { 1 };
        self.host.bandwidth * share / sharing as f64
    }

    /// Bytes a second that one group may send out of a node, while others do the same. A ring leaves each leaf
    /// of the network once, so a lean core does not slow it.
    pub fn outward(&self, group: Group) -> f64 {
        self.between.bandwidth * self.adapters as f64 / group.sharing as f64
    }

    /// The same where all that leaves a node also passes the core of the network.
    pub fn across(&self, group: Group) -> f64 {
        let nodes = group.size.div_ceil(group.local);
        self.outward(group) / if nodes > self.leaf { self.oversubscription } else { 1.0 }
    }
}
