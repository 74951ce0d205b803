//! The machine that a graph is cut for, and its mesh: faster devices get larger shares, and the outermost level has the
//! slowest links.

use super::{CutDevice, MeshLevel, primes};
use crate::document::topology::{Site, Topology};

/// Devices and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct CutMachine {
    /// The devices, by number.
    pub devices: Vec<CutDevice>,
    /// Bytes per second that a device receives where the topology has no slower link.
    pub bandwidth: f64,
    /// Links of limited speed, if there are any.
    pub topology: Option<Topology>,
}

/// What the share of a device is proportional to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareBy {
    Speed,
    Memory,
}

impl CutMachine {
    /// Equal devices of usual speed, without memory limits.
    pub fn new(count: usize) -> CutMachine {
        CutMachine { devices: vec![CutDevice::default(); count], bandwidth: 1e10, topology: None }
    }

    /// The number of devices.
    pub fn count(&self) -> usize {
        self.devices.len()
    }

    /// Levels of these numbers of groups, outermost first; one level if the groups of a level would have different shares.
    pub fn grouped(&self, groups: &[usize]) -> Vec<MeshLevel> {
        self.divided(groups, ShareBy::Speed).unwrap_or_else(|| self.flat(ShareBy::Speed))
    }

    /// Levels of prime numbers of groups; the outermost are the sockets, if each has equally many neighbouring devices.
    pub(crate) fn levels(&self, by: ShareBy) -> Vec<MeshLevel> {
        let sockets = self.sockets();
        let prime = [primes(sockets), primes(self.count() / sockets)].concat();
        let some = [prime, vec![sockets, self.count() / sockets]].into_iter();
        some.filter(|groups| !groups.contains(&1))
            .find_map(|groups| self.divided(&groups, by))
            .unwrap_or_else(|| self.flat(by))
    }

    /// Whether devices have different amounts of memory.
    pub(crate) fn uneven(&self) -> bool {
        self.devices.iter().any(|device| device.memory != self.devices[0].memory)
    }

    /// The number of sockets, if each has equally many neighbouring devices; else one.
    fn sockets(&self) -> usize {
        let Some(topology) = &self.topology else { return 1 };
        let of: Vec<u32> = topology.devices.iter().take(self.count()).map(|device| device.socket).collect();
        let count = 1 + of.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let even = of.len() == self.count() && of.len().is_multiple_of(count);
        let together = |block: &[u32]| block.iter().all(|socket| *socket == block[0]);
        if even && of.chunks(of.len() / count).all(together) { count } else { 1 }
    }

    fn flat(&self, by: ShareBy) -> Vec<MeshLevel> {
        if self.count() < 2 {
            return Vec::new();
        }
        let bandwidth = self.received(1, self.count());
        vec![MeshLevel { shares: whole_numbers(&self.weights(by)), bandwidth }]
    }

    fn weights(&self, by: ShareBy) -> Vec<f64> {
        let least = |m: u64| self.devices.iter().filter_map(|device| device.memory).max().unwrap_or(m).max(m);
        let weight = |device: &CutDevice| match by {
            ShareBy::Speed => device.rates.flops,
            ShareBy::Memory => device.memory.map_or(least(1), |m| m.max(1)) as f64,
        };
        self.devices.iter().map(weight).collect()
    }

    /// `None` if the groups of a level would have different shares.
    fn divided(&self, groups: &[usize], by: ShareBy) -> Option<Vec<MeshLevel>> {
        let mut weights = self.weights(by);
        let mut stride = 1;
        let mut levels = Vec::new();
        for &count in groups.iter().rev() {
            let shares: Vec<Vec<u64>> = weights.chunks(count).map(whole_numbers).collect();
            if shares.iter().any(|s| *s != shares[0]) {
                return None;
            }
            weights = weights.chunks(count).map(|group| group.iter().sum()).collect();
            levels.push(MeshLevel { shares: shares[0].clone(), bandwidth: self.received(stride, count) });
            stride *= count;
        }
        levels.reverse();
        (stride == self.count()).then_some(levels)
    }

    /// Bytes per second that a device receives when all devices receive from the next group of a level of `groups` groups
    /// that are `stride` devices apart.
    fn received(&self, stride: usize, groups: usize) -> f64 {
        let Some(topology) = &self.topology else { return self.bandwidth };
        let next = |device: usize| {
            let group = device / stride % groups;
            device - group * stride + (group + 1) % groups * stride
        };
        let route = |d: usize| topology.route(Site::Device(next(d) as u32), Site::Device(d as u32));
        let rate = |link: &u32| {
            let sharing = (0..self.count()).filter(|&d| route(d).contains(link)).count();
            topology.links()[*link as usize].rate / sharing.max(1) as f64
        };
        (0..self.count()).flat_map(route).map(rate).fold(self.bandwidth, f64::min)
    }
}

/// Small integers in about these proportions.
fn whole_numbers(weights: &[f64]) -> Vec<u64> {
    // A number below 2^20 with many divisors.
    let most = weights.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let numbers: Vec<u64> = weights.iter().map(|w| ((720_720.0 * w / most).round() as u64).max(1)).collect();
    let common = numbers.iter().fold(0, |a, &b| divisor(a, b)).max(1);
    numbers.into_iter().map(|n| n / common).collect()
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::topology::{BoxWiring, DeviceSpec};
    use crate::time::cost::Rates;

    fn of_speeds(speeds: &[f64]) -> CutMachine {
        let device = |s: &f64| CutDevice {
            rates: Rates { flops: s * 1e9, ..Rates::default() },
            ..CutDevice::default()
        };
        CutMachine { devices: speeds.iter().map(device).collect(), ..CutMachine::new(0) }
    }

    #[test]
    fn shares_are_in_proportion_to_speed() {
        for (speeds, expected) in [
            (vec![1.0; 8], vec![vec![1, 1], vec![1, 1], vec![1, 1]]),
            (vec![1.0; 6], vec![vec![1, 1, 1], vec![1, 1]]),
            (vec![1.0], vec![]),
            (vec![2.0, 1.0], vec![vec![2, 1]]),
            (vec![3.0, 1.0, 2.0], vec![vec![3, 1, 2]]),
            (vec![2.0, 2.0, 1.0, 1.0], vec![vec![2, 1], vec![1, 1]]),
            (vec![6.0, 2.0, 3.0, 1.0], vec![vec![2, 1], vec![3, 1]]),
            (vec![2.0, 1.0, 1.0, 1.0], vec![vec![2, 1, 1, 1]]),
        ] {
            let shares: Vec<Vec<u64>> =
                of_speeds(&speeds).levels(ShareBy::Speed).into_iter().map(|l| l.shares).collect();
            assert_eq!(shares, expected, "{speeds:?}");
        }
    }

    #[test]
    fn the_slowest_links_come_first() {
        let wired = |sockets: &[u32]| {
            let devices = sockets.iter().map(|&socket| DeviceSpec { socket }).collect();
            let wiring = BoxWiring { peer: Some(4e9), sockets: Some(1e9), ..BoxWiring::default() };
            let topology = Some(Topology::wired(devices, &wiring).unwrap());
            let levels = CutMachine { topology, ..CutMachine::new(sockets.len()) }.levels(ShareBy::Speed);
            levels.into_iter().map(|l| (l.shares.len(), l.bandwidth)).collect::<Vec<_>>()
        };
        // The devices of a socket share the link that leaves it.
        assert_eq!(wired(&[0, 0, 1, 1]), [(2, 0.5e9), (2, 4e9)]);
        assert_eq!(wired(&[0, 0, 0, 1, 1, 1]), [(2, 1e9 / 3.0), (3, 4e9)]);
        assert_eq!(wired(&[0, 0, 0, 0]), [(2, 4e9), (2, 4e9)]);
        assert_eq!(wired(&[0, 0, 1])[0].0, 3, "sockets with different numbers of devices are one group");
        assert!(wired(&[0, 0, 1])[0].1 < 4e9, "and the slowest link counts");
    }
}
