//! Devices, and the links between them, their host and its disk: the speed of each link, and the links that a transfer
//! passes. [`booking`] says how transfers share links.

pub mod booking;

use crate::document::links::Links;

/// One of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The socket of the host that it is attached to.
    pub socket: u32,
}

/// A link in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyLink {
    /// Its name; no two links have the same.
    pub name: String,
    /// Bytes per second.
    pub rate: f64,
    /// Seconds until the first byte of a transfer has arrived.
    pub latency: f64,
}

/// Where bytes come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// The memory of a device, by its number.
    Device(u32),
    /// The memory of the host.
    Host,
    /// The disk.
    Disk,
}

/// Devices, links and the routes of transfers over them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// The devices.
    pub devices: Vec<DeviceSpec>,
    links: Vec<TopologyLink>,
    /// (from, to, indices of links), sorted. Transfers between other sites pass no link.
    routes: Vec<(Site, Site, Vec<u32>)>,
}

/// What is wrong with a topology.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TopologyError {
    /// There is nothing to run on.
    #[error("there is no device; give at least one")]
    NoDevice,
    /// A link that carries nothing, or a latency that is no time.
    #[error("link `{0}` needs a rate above zero and a latency of at least zero")]
    Speed(String),
}

/// The wiring of a box of several devices. A link without a speed takes no time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoxWiring {
    /// Bytes per second between host and devices, each way.
    pub host: Option<f64>,
    /// Whether all devices of a socket share that link, or each has its own.
    pub shared: bool,
    /// Bytes per second in and out of each device, whatever the other end.
    pub lane: Option<f64>,
    /// Bytes per second between each device and others. Without it they use the lanes, or else the host's links.
    pub peer: Option<f64>,
    /// Bytes per second between sockets, each way.
    pub sockets: Option<f64>,
    /// Bytes per second from disk and to disk.
    pub disk: Option<[f64; 2]>,
    /// Latency of each link, in seconds.
    pub latency: f64,
}

impl Default for BoxWiring {
    /// No link has a speed; that of the host is shared.
    fn default() -> BoxWiring {
        BoxWiring {
            host: None,
            shared: true,
            lane: None,
            peer: None,
            sockets: None,
            disk: None,
            latency: 0.0,
        }
    }
}

impl Topology {
    /// One device without links.
    pub fn alone() -> Topology {
        Topology { devices: vec![DeviceSpec::default()], ..Topology::default() }
    }

    /// Devices in one box.
    pub fn wired(devices: Vec<DeviceSpec>, wiring: &BoxWiring) -> Result<Topology, TopologyError> {
        if devices.is_empty() {
            return Err(TopologyError::NoDevice);
        }
        let mut links: Vec<TopologyLink> = Vec::new();
        let sockets = devices.iter().map(|device| device.socket + 1).max().unwrap_or(1);
        let latency = wiring.latency;
        let named = |socket: u32| if sockets > 1 { format!(" of socket {socket}") } else { String::new() };
        let mut each = |rate: Option<f64>, name: &dyn Fn(u32) -> String, count: u32| -> Vec<Vec<u32>> {
            let lay = |i: u32| {
                let Some(rate) = rate else { return Vec::new() };
                links.push(TopologyLink { name: name(i), rate, latency });
                vec![links.len() as u32 - 1]
            };
            (0..count).map(lay).collect()
        };
        let count = devices.len() as u32;
        // By device or by socket.
        let (ups, downs) = match wiring.shared {
            true => (
                each(wiring.host, &|s| format!("devices{} to host", named(s)), sockets),
                each(wiring.host, &|s| format!("host to devices{}", named(s)), sockets),
            ),
            false => (
                each(wiring.host, &|d| format!("device {d} to host"), count),
                each(wiring.host, &|d| format!("host to device {d}"), count),
            ),
        };
        let outs = each(wiring.lane, &|d| format!("out of device {d}"), count);
        let ins = each(wiring.lane, &|d| format!("into device {d}"), count);
        let peer_outs = each(wiring.peer, &|d| format!("device {d} to others"), count);
        let peer_ins = each(wiring.peer, &|d| format!("others to device {d}"), count);
        let across = each(wiring.sockets, &|s| format!("out of socket {s}"), sockets);
        let [read, write] = [(0, "from disk"), (1, "to disk")]
            .map(|(i, name)| each(wiring.disk.map(|rates| rates[i]), &|_| name.into(), 1).remove(0));
        let sound = |link: &&TopologyLink| link.rate > 0.0 && (0.0..f64::INFINITY).contains(&link.latency);
        if let Some(wrong) = links.iter().find(|link| !sound(link)) {
            return Err(TopologyError::Speed(wrong.name.clone()));
        }
        let socket = |d: u32| devices[d as usize].socket;
        let host = |d: u32| if wiring.shared { socket(d) as usize } else { d as usize };
        let up = |d: u32| [&outs[d as usize][..], &ups[host(d)]].concat();
        let down = |d: u32| [&downs[host(d)][..], &ins[d as usize]].concat();
        let mut routes =
            vec![(Site::Disk, Site::Host, read.clone()), (Site::Host, Site::Disk, write.clone())];
        for d in 0..count {
            routes.push((Site::Device(d), Site::Host, up(d)));
            routes.push((Site::Host, Site::Device(d), down(d)));
            routes.push((Site::Disk, Site::Device(d), [read.clone(), down(d)].concat()));
            routes.push((Site::Device(d), Site::Disk, [up(d), write.clone()].concat()));
            for other in (0..count).filter(|&other| other != d) {
                let (near, far) = (d as usize, other as usize);
                let between: &[u32] =
                    if socket(d) == socket(other) { &[] } else { &across[socket(d) as usize] };
                let over = if wiring.peer.is_some() {
                    [&peer_outs[near][..], between, &peer_ins[far]].concat()
                } else if wiring.lane.is_some() && socket(d) == socket(other) {
                    [&outs[near][..], &ins[far]].concat()
                } else {
                    [&up(d)[..], between, &down(other)].concat()
                };
                routes.push((Site::Device(d), Site::Device(other), over));
            }
        }
        routes.retain(|(.., over)| !over.is_empty());
        routes.sort();
        Ok(Topology { devices, links, routes })
    }

    /// The links.
    pub fn links(&self) -> &[TopologyLink] {
        &self.links
    }

    /// The links that a transfer passes, if any.
    pub fn route(&self, from: Site, to: Site) -> &[u32] {
        let found = self.routes.binary_search_by_key(&(from, to), |(from, to, _)| (*from, *to));
        found.map_or(&[], |i| &self.routes[i].2)
    }

    /// Bytes per second from site to site if every device transfers the same way at once; none without links.
    pub fn rate(&self, from: Site, to: Site) -> Option<f64> {
        // Devices share links evenly, and send to each other in a ring.
        let alike = |d: u32| {
            let of = |site| if matches!(site, Site::Device(_)) { Site::Device(d) } else { site };
            match (from, to) {
                (Site::Device(a), Site::Device(b)) => {
                    let count = self.devices.len() as u32;
                    self.route(Site::Device(d), Site::Device((d + count + b - a) % count))
                }
                _ => self.route(of(from), of(to)),
            }
        };
        let rate = |&link: &u32| {
            let sharing = (0..self.devices.len() as u32).filter(|&d| alike(d).contains(&link)).count();
            self.links[link as usize].rate / sharing.max(1) as f64
        };
        self.route(from, to).iter().map(rate).reduce(f64::min)
    }

    /// Speeds of the links of a device: at most `otherwise`, and as slow as the links here.
    pub fn seen_by(&self, device: u32, otherwise: Links) -> Links {
        let own = Site::Device(device);
        let slower = |rate: f64, from, to| self.rate(from, to).map_or(rate, |held_up| held_up.min(rate));
        let others = (0..self.devices.len() as u32).filter(|&d| d != device);
        let from = |rate: f64, d| slower(rate, Site::Device(d), own);
        Links {
            to_device: slower(otherwise.to_device, Site::Host, own),
            to_host: slower(otherwise.to_host, own, Site::Host),
            disk_read: slower(otherwise.disk_read, Site::Disk, Site::Host),
            disk_write: slower(otherwise.disk_write, Site::Host, Site::Disk),
            from_peers: others.fold(otherwise.from_peers, from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(topology: &Topology, from: Site, to: Site) -> Vec<&str> {
        topology.route(from, to).iter().map(|&link| topology.links[link as usize].name.as_str()).collect()
    }

    #[test]
    fn transfers_pass_what_is_on_their_way() {
        use Site::{Device, Disk, Host};
        let sockets = [0, 0, 1, 1].map(|socket| DeviceSpec { socket });
        let (host, lane, between) = (Some(12e9), Some(12e9), Some(12e9));
        let wiring = BoxWiring { host, lane, sockets: between, ..BoxWiring::default() };
        let pcie = Topology::wired(sockets.to_vec(), &wiring).unwrap();
        let host = BoxWiring { host: Some(1e9), ..BoxWiring::default() };
        let own = BoxWiring { shared: false, peer: Some(2e9), disk: Some([3e9, 1e9]), ..host };
        let [host, own] = [host, own].map(|w| Topology::wired(vec![DeviceSpec::default(); 3], &w).unwrap());
        for (topology, from, to, expected) in [
            (&pcie, Host, Device(3), vec!["host to devices of socket 1", "into device 3"]),
            (&pcie, Device(0), Device(1), vec!["out of device 0", "into device 1"]),
            (
                &pcie,
                Device(1),
                Device(2),
                vec![
                    "out of device 1",
                    "devices of socket 0 to host",
                    "out of socket 0",
                    "host to devices of socket 1",
                    "into device 2",
                ],
            ),
            (&pcie, Disk, Host, vec![]),
            (&host, Device(2), Host, vec!["devices to host"]),
            (&host, Device(2), Device(0), vec!["devices to host", "host to devices"]),
            (&own, Device(2), Host, vec!["device 2 to host"]),
            (&own, Device(2), Device(0), vec!["device 2 to others", "others to device 0"]),
            (&own, Disk, Device(1), vec!["from disk", "host to device 1"]),
            (&Topology::alone(), Host, Device(0), vec![]),
        ] {
            assert_eq!(names(topology, from, to), expected, "{from:?} to {to:?}");
        }
        assert_eq!(host.rate(Host, Device(0)), Some(1e9 / 3.0), "shared by three");
        assert_eq!(own.rate(Host, Device(0)), Some(1e9));
        assert_eq!(own.seen_by(1, Links::default()).from_peers, 2e9);
    }

    #[test]
    fn wrong_topologies_are_refused() {
        let wired = |devices, host, latency| {
            let wiring = BoxWiring { host: Some(host), latency, ..BoxWiring::default() };
            Topology::wired(vec![DeviceSpec::default(); devices], &wiring)
        };
        for (made, expected) in [
            (wired(0, 1.0, 0.0), "there is no device"),
            (wired(2, 0.0, 0.0), "link `devices to host` needs a rate above zero"),
            (wired(2, f64::NAN, 0.0), "link `devices to host` needs a rate above zero"),
            (wired(2, 1.0, f64::INFINITY), "link `devices to host` needs a rate above zero"),
            (wired(2, 1.0, -1.0), "link `devices to host` needs a rate above zero"),
        ] {
            let said = made.unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
        }
    }
}
