//! Emulated links: a transfer takes at least as long as it would over the links of a topology, which it shares with other
//! transfers as [`booking`](gulliver_plan::document::topology::booking) says. Callers copy the bytes; this module only
//! waits and counts.

use crate::team::{AWAKE, lock};
use gulliver_plan::document::topology::booking::Booking;
use gulliver_plan::document::topology::{Site, Topology};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds. A transfer that begins within this time after another counts as begun at the end of that one: the thread was
/// only woken up late.
const AT_ONCE: f64 = 5e-5;

/// The links of all devices of a machine.
pub struct Throttle {
    topology: Topology,
    began: Instant,
    booking: Mutex<Booking>,
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} devices, {} links", self.topology.devices.len(), self.topology.links().len())
    }
}

impl Throttle {
    /// The links of a topology, all idle.
    pub fn new(topology: Topology) -> Throttle {
        let booking = Mutex::new(Booking::new(&topology));
        Throttle { topology, began: Instant::now(), booking }
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Bytes over each link so far, by link of the topology.
    pub fn bytes(&self) -> Vec<u64> {
        lock(&self.booking).bytes.clone()
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Waits until the time `then`. Sleeps first; an `idle` caller polls for the last [`AWAKE`], to be on time.
    fn wait_for(&self, then: f64, idle: bool) {
        let early = if idle { AWAKE.as_secs_f64() } else { 0.0 };
        if let Ok(left) = Duration::try_from_secs_f64(then - early - self.now()) {
            thread::sleep(left);
        }
        while self.now() < then {
            if idle { thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

/// The place of a device among links.
#[derive(Clone, Debug)]
pub struct Port {
    /// The links.
    pub throttle: Arc<Throttle>,
    /// The device's number.
    pub device: u32,
}

/// The sender of one transfer after another.
#[derive(Debug)]
pub struct Pace {
    throttle: Arc<Throttle>,
    /// The end of the last transfer, and the time at which the sender noticed it.
    over: f64,
    woke: f64,
}

/// The time at which a transfer began or can begin.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Began(pub(crate) f64);

impl Pace {
    /// Without transfers so far.
    pub fn new(throttle: &Arc<Throttle>) -> Pace {
        Pace { throttle: Arc::clone(throttle), over: f64::NEG_INFINITY, woke: f64::NEG_INFINITY }
    }

    /// Begins a transfer: its bytes may be copied now.
    pub fn begin(&self) -> Began {
        let now = self.throttle.now();
        Began(if now - self.woke < AT_ONCE { self.over } else { now })
    }

    /// Waits until the bytes would have arrived and returns that time; a transfer that follows at once begins then. `idle`
    /// says that the core has nothing else to do meanwhile.
    pub fn end(&mut self, began: Began, (from, to): (Site, Site), bytes: u64, idle: bool) -> Began {
        let throttle = &*self.throttle;
        let route = throttle.topology.route(from, to);
        if route.is_empty() {
            return began;
        }
        let mut transfer = lock(&throttle.booking).transfer(route, bytes, began.0);
        while !transfer.is_done() {
            transfer.send(&mut lock(&throttle.booking), route);
            // The next chunk is booked when this one has arrived, so that other transfers can come between.
            throttle.wait_for(transfer.ready(), idle);
        }
        let over = Began(transfer.ready());
        self.leave(over);
        over
    }

    /// Ends a transfer at this time; the sender notices it now.
    pub fn leave(&mut self, over: Began) {
        (self.over, self.woke) = (over.0, self.throttle.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gulliver_plan::document::topology::{BoxWiring, DeviceSpec};

    /// Links so slow that sleeping is exact enough.
    fn shared(shared: bool) -> Arc<Throttle> {
        let wiring = BoxWiring { host: Some(1e7), shared, latency: 1e-3, ..BoxWiring::default() };
        Arc::new(Throttle::new(Topology::wired(vec![DeviceSpec::default(); 2], &wiring).unwrap()))
    }

    #[test]
    fn what_shares_a_link_takes_as_long_as_all_of_it() {
        let bytes = [150_000u64, 250_000];
        for together in [true, false] {
            let throttle = shared(together);
            let began = Instant::now();
            thread::scope(|scope| {
                for (device, bytes) in bytes.into_iter().enumerate() {
                    let mut pace = Pace::new(&throttle);
                    scope.spawn(move || {
                        let to = Site::Device(device as u32);
                        let first = pace.begin();
                        let next = pace.end(first, (Site::Host, to), bytes / 2, false);
                        pace.end(next, (Site::Host, to), bytes / 2, true);
                    });
                }
            });
            let seconds = began.elapsed().as_secs_f64();
            let least = bytes.iter().sum::<u64>() as f64 / 1e7;
            assert!(!together || seconds >= least, "{seconds} of {least}");
            assert!(seconds >= 0.025 + 2e-3, "alone it takes as long as its bytes: {seconds}");
            let counted = |name: &str| {
                let links = throttle.topology().links().iter().position(|link| link.name == name);
                links.map(|i| throttle.bytes()[i])
            };
            match together {
                true => assert_eq!(counted("host to devices"), Some(400_000)),
                false => assert_eq!(counted("host to device 1"), Some(250_000)),
            }
            assert_eq!(throttle.bytes().iter().sum::<u64>(), 400_000);
        }
    }

    #[test]
    fn what_passes_no_link_takes_no_time_and_is_not_counted() {
        let throttle = shared(true);
        let mut pace = Pace::new(&throttle);
        let began = pace.begin();
        // A year, if it were over a link.
        pace.end(began, (Site::Disk, Site::Host), u64::MAX / 1000, false);
        assert_eq!(throttle.bytes(), [0, 0]);
    }
}
