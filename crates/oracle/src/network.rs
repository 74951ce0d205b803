//! Links between devices as tables: public bandwidths with their source, and the shares of them that collectives reach.
//! Shares of NVLink are fitted on published all-reduce times; the others are assumed.

use crate::OracleError;

/// How the devices of a node are wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeWiring {
    /// Every pair has a device's whole bandwidth.
    Switch,
    /// Every pair has its own share of the wires.
    Mesh,
    /// Eight devices in two groups of four: a hybrid cube mesh.
    Cube,
    /// All share a bus.
    Bus,
}

/// One of two ways in which a collective runs: quick to start, or fast for much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protocol {
    /// Seconds before anything moves.
    pub start: f64,
    /// Seconds for every further device of a ring that goes round twice.
    pub hop: f64,
    /// Share of the bandwidth that is reached.
    pub share: f64,
}

/// A link over which a device sends and receives at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterLink {
    /// As users name it.
    pub name: String,
    /// Bytes a second in each direction.
    pub bandwidth: f64,
    /// Wires between the devices of a node.
    pub wiring: NodeWiring,
    /// The ways to run a collective; the quicker one is taken.
    pub protocols: [Protocol; 2],
    /// Where the figures are from.
    pub source: &'static str,
}

/// Fitted: two to eight A100 behind switches.
const SWITCHED: [Protocol; 2] =
    [Protocol { start: 40e-6, hop: 3.5e-6, share: 0.68 }, Protocol { start: 145e-6, hop: 0.0, share: 0.75 }];
/// Fitted: two to eight V100 in a cube mesh.
const WIRED: [Protocol; 2] = [
    Protocol { start: 21e-6, hop: 5.2e-6, share: 0.58 },
    Protocol { start: 16e-6, hop: 10.5e-6, share: 0.92 },
];
/// Assumed: start and hops as wired, through host memory.
const BUS: [Protocol; 2] = [Protocol { start: 25e-6, hop: 7e-6, share: 0.75 }; 2];
/// Assumed: hops through switches and adapters.
const CABLE: [Protocol; 2] =
    [Protocol { start: 30e-6, hop: 8e-6, share: 0.60 }, Protocol { start: 50e-6, hop: 14e-6, share: 0.80 }];
/// Assumed: the kernel's network stack.
const SOCKET: [Protocol; 2] = [Protocol { start: 100e-6, hop: 40e-6, share: 0.75 }; 2];

type Row = (&'static str, f64, NodeWiring, [Protocol; 2], &'static str);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    ("pcie3", 15.75, NodeWiring::Bus, BUS, "PCI Express 3.0, 16 lanes"),
    ("pcie4", 31.5, NodeWiring::Bus, BUS, "PCI Express 4.0, 16 lanes"),
    ("pcie5", 63.0, NodeWiring::Bus, BUS, "PCI Express 5.0, 16 lanes"),
    ("nvlink2", 150.0, NodeWiring::Mesh, WIRED, "NVIDIA V100: six links of 25 GB/s"),
    ("nvlink2-cube", 150.0, NodeWiring::Cube, WIRED, "NVIDIA DGX-1: six links of 25 GB/s, hybrid cube mesh"),
    ("nvswitch2", 150.0, NodeWiring::Switch, WIRED, "NVIDIA DGX-2: six links of 25 GB/s behind switches"),
    ("nvlink3", 300.0, NodeWiring::Switch, SWITCHED, "NVIDIA A100: twelve links of 25 GB/s behind switches"),
    ("nvlink4", 450.0, NodeWiring::Switch, SWITCHED, "NVIDIA H100: eighteen links of 25 GB/s behind switches"),
    ("infinity-fabric", 350.0, NodeWiring::Mesh, WIRED, "AMD MI300X: seven links of 50 GB/s"),
    ("ici-v3", 81.25, NodeWiring::Mesh, WIRED, "Google TPU v3: 650 Gb/s a link"),
    ("ib-edr", 12.5, NodeWiring::Switch, CABLE, "InfiniBand EDR, four lanes"),
    ("ib-hdr", 25.0, NodeWiring::Switch, CABLE, "InfiniBand HDR, four lanes"),
    ("ib-ndr", 50.0, NodeWiring::Switch, CABLE, "InfiniBand NDR, four lanes"),
    ("omni-path", 12.5, NodeWiring::Switch, CABLE, "Intel Omni-Path 100"),
    ("10gbe", 1.25, NodeWiring::Switch, SOCKET, "10 Gb/s Ethernet"),
    ("100gbe", 12.5, NodeWiring::Switch, SOCKET, "100 Gb/s Ethernet"),
];

impl ClusterLink {
    /// A link of the table, by name.
    pub fn named(name: &str) -> Result<ClusterLink, OracleError> {
        let row = crate::named(TABLE, "link", name, |row| row.0)?;
        let (name, bandwidth, wiring, protocols, source) = row;
        Ok(ClusterLink {
            name: name.to_string(),
            bandwidth: bandwidth * 1e9,
            wiring: *wiring,
            protocols: *protocols,
            source,
        })
    }

    /// All names of the table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|row| row.0)
    }

    /// A link of which only start-up seconds and seconds a byte are known, as in an α–β model.
    pub fn plain(start: f64, seconds_a_byte: f64) -> ClusterLink {
        ClusterLink {
            name: "plain".into(),
            bandwidth: 1.0 / seconds_a_byte,
            wiring: NodeWiring::Switch,
            protocols: [Protocol { start: 0.0, hop: 2.0 * start, share: 1.0 }; 2],
            source: "given",
        }
    }

    /// Refuses a bandwidth that no link has.
    pub fn check(&self) -> Result<(), OracleError> {
        if self.bandwidth.is_finite() && self.bandwidth > 0.0 {
            return Ok(());
        }
        Err(OracleError::Figure { what: format!("bandwidth of {}", self.name), value: self.bandwidth })
    }

    /// The share of a device's bandwidth that a ring over `size` of the node's `devices` can use.
    pub fn ring_share(&self, size: u32, devices: u32) -> f64 {
        // Rings of a cube mesh by the number of devices, of six.
        const CUBE: [f64; 7] = [1.0, 2.0, 3.8, 1.65, 2.0, 3.85, 6.0];
        match self.wiring {
            NodeWiring::Switch => 1.0,
            NodeWiring::Mesh => (size.max(2) - 1) as f64 / (devices.max(size).max(2) - 1) as f64,
            NodeWiring::Cube => CUBE[(size.clamp(2, 8) - 2) as usize] / 6.0,
            NodeWiring::Bus => 2.0 / size.max(2) as f64,
        }
    }
}
