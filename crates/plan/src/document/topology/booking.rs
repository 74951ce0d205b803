//! How transfers share links, in simulations and in runs. A transfer is sent in chunks. Each chunk queues at every link of
//! its route, first come first served, and arrives when the last link has carried it.

use super::Topology;

/// Seconds that a chunk should take: shorter chunks cost more switches between threads, longer ones make others wait.
const TURN: f64 = 2e-3;
/// Fewest and most bytes of a chunk.
const CHUNK: (u64, u64) = (16 << 10, 4 << 20);

/// The state of all links.
#[derive(Clone, Debug)]
pub struct Booking {
    free: Vec<f64>,
    per_byte: Vec<f64>,
    latency: Vec<f64>,
    /// Bytes over each link so far.
    pub bytes: Vec<u64>,
    /// Busy seconds of each link so far.
    pub busy: Vec<f64>,
}

impl Booking {
    /// All links are free.
    pub fn new(topology: &Topology) -> Booking {
        let links = topology.links();
        Booking {
            free: vec![0.0; links.len()],
            per_byte: links.iter().map(|link| 1.0 / link.rate).collect(),
            latency: links.iter().map(|link| link.latency).collect(),
            bytes: vec![0; links.len()],
            busy: vec![0.0; links.len()],
        }
    }

    /// Begins a transfer over a route.
    pub fn transfer(&self, route: &[u32], bytes: u64, begins: f64) -> Transfer {
        let slowest = route.iter().map(|&link| self.per_byte[link as usize]).fold(0.0, f64::max);
        let begins = route.iter().fold(begins, |begins, &link| begins + self.latency[link as usize]);
        let turn = if slowest > 0.0 { (TURN / slowest) as u64 } else { u64::MAX };
        Transfer {
            chunk: turn.clamp(CHUNK.0, CHUNK.1),
            slowest,
            left: bytes,
            ready: begins,
            anchor: begins,
            since: 0,
        }
    }
}

/// Bytes on their way over a route.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    chunk: u64,
    /// Seconds a byte takes over the slowest link.
    slowest: f64,
    left: u64,
    /// When the next chunk can begin.
    ready: f64,
    /// When it last had to wait for others, and bytes sent since.
    anchor: f64,
    since: u64,
}

impl Transfer {
    /// Whether all is sent.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// When all that was sent is across, and the next chunk can begin.
    pub fn ready(&self) -> f64 {
        self.ready
    }

    /// Sends the next chunk over the route it was begun for.
    pub fn send(&mut self, booking: &mut Booking, route: &[u32]) {
        let chunk = self.chunk.min(self.left);
        let mut end = self.ready;
        let mut waits = false;
        for &link in route {
            let link = link as usize;
            let seconds = chunk as f64 * booking.per_byte[link];
            waits |= booking.free[link] > self.ready;
            booking.free[link] = booking.free[link].max(self.ready) + seconds;
            booking.bytes[link] += chunk;
            booking.busy[link] += seconds;
            end = end.max(booking.free[link]);
        }
        self.left -= chunk;
        self.since += chunk;
        if waits {
            (self.anchor, self.since) = (end, 0);
        } else {
            // A transfer that never waits takes exactly the time of its bytes.
            end = self.anchor + self.since as f64 * self.slowest;
            for &link in route {
                let free = &mut booking.free[link as usize];
                *free = free.min(end);
            }
        }
        self.ready = end;
    }
}
