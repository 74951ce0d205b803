//! Where and how a job runs.

use crate::link::{Port, Throttle};
use crate::lower::Kernels;
use crate::peers::{Seat, Takes};
use crate::team::cores;
use gulliver_graph::dim::Bindings;
use gulliver_plan::comparator::paging::Paged;
use gulliver_plan::document::links::Links;
use gulliver_plan::step::progress::Progress;
use gulliver_plan::time::cost::{Curves, Rates};
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

/// Where and how a job runs.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Threads of the device.
    pub threads: usize,
    /// Hard limit of device memory; without one the device grows as plans need it.
    pub memory: Option<u64>,
    /// Hard limit of host memory for what does not stay on the device.
    pub host_memory: Option<u64>,
    /// Hard limit of the disk tier; there is none without one.
    pub disk: Option<u64>,
    /// Where the file of the disk tier is made; the system's place for temporary files if not given.
    pub disk_dir: Option<PathBuf>,
    /// Links of stated speeds, between all devices and their host; none hold anything up.
    pub throttle: Option<Arc<Throttle>>,
    /// The largest input there will be. With it a budget is proven before the first step, and weights
    /// and states leave the device if they must.
    pub largest: Option<Bindings>,
    /// Instead of planning what moves, have it paged on demand as others do; for
    /// comparison.
    pub paged: Option<Paged>,
    /// Have partials take turns layer by layer, whether or not weights leave the device.
    pub grouped: bool,
    /// Whether values may be computed again to save memory.
    pub recompute: bool,
    /// How fast kernels are thought to be.
    pub rates: Rates,
    /// How fast kernels like them were measured to be.
    pub curves: Option<Arc<Curves>>,
    /// How fast links are thought to be.
    pub links: Links,
    /// Slices of a training batch whose gradients are added in order.
    pub partials: u32,
    /// Fast kernels of operators from outside.
    pub kernels: Kernels,
    /// The place among other devices.
    pub seat: Option<Seat>,
    /// Sees how planning goes, and may stop it.
    pub watch: Option<Arc<dyn PlanWatch>>,
}

/// Sees how planning goes; devices may be planned by several threads at once.
pub trait PlanWatch: Debug + Send + Sync {
    /// Called many times a second; planning ends if it says so.
    fn see(&self, progress: Progress) -> ControlFlow<()>;
}

impl SessionOptions {
    /// Whether devices meet in the middle of a step, so that none can run anything again by itself.
    pub(crate) fn meets_within(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.takes != Takes::Partials)
    }

    /// Whether the computation waits for collectives where it comes to them: there are no links to wait for meanwhile, nor
    /// a core for another thread. Stages of a pipeline must not wait for each other.
    pub(crate) fn meets_in_turn(&self) -> bool {
        let links = self.throttle.as_ref().is_some_and(|throttle| !throttle.topology().links().is_empty());
        self.seat
            .as_ref()
            .filter(|seat| seat.takes != Takes::Packs && !links)
            .is_some_and(|_| self.threads_of_all() >= cores())
    }

    /// Whether all devices together have more threads than there are cores.
    pub(crate) fn crowded(&self) -> bool {
        self.threads_of_all() > cores()
    }

    /// Threads of all devices, if others have as many as this one.
    fn threads_of_all(&self) -> usize {
        self.threads * self.seat.as_ref().map_or(1, |seat| seat.ranks as usize)
    }

    /// Where the device is among links.
    pub(crate) fn port(&self) -> Option<Port> {
        let device = self.seat.as_ref().map_or(0, |seat| seat.rank);
        self.throttle.as_ref().map(|throttle| Port { throttle: Arc::clone(throttle), device })
    }

    /// How fast links are thought to be, whatever holds them up.
    pub(crate) fn held_up(&self) -> Links {
        self.port().map_or(self.links, |port| port.throttle.topology().seen_by(port.device, self.links))
    }

    /// The place among other devices, if each takes partials of its own.
    pub(crate) fn own_partials(&self) -> Option<&Seat> {
        self.seat.as_ref().filter(|seat| matches!(seat.takes, Takes::Partials | Takes::Shards))
    }

    /// Slices of a training batch on all devices together.
    pub fn all_partials(&self) -> u32 {
        self.partials * self.own_partials().map_or(1, |seat| seat.ranks)
    }
}

impl Default for SessionOptions {
    /// All cores, no limit, the batch in one piece.
    fn default() -> SessionOptions {
        let threads = cores();
        SessionOptions {
            threads,
            memory: None,
            host_memory: None,
            disk: None,
            disk_dir: None,
            throttle: None,
            largest: None,
            paged: None,
            grouped: false,
            recompute: true,
            rates: Rates { flops: threads as f64 * Rates::default().flops, ..Rates::default() },
            curves: None,
            links: Links::default(),
            partials: 1,
            kernels: Kernels::default(),
            seat: None,
            watch: None,
        }
    }
}
