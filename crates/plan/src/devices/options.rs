//! Options of the plans of one device: budgets, speeds, and properties of the machine as numbers and callbacks.

use crate::document::job::{Limits, Rank};
use crate::document::links::Links;
use crate::document::topology::Topology;
use crate::step::base::Base;
use crate::step::outline::{BoundSizes, Outline};
use crate::step::progress::Progress;
use crate::step::script::Script;
use crate::time::cost::{Curves, Rates};
use gulliver_graph::dim::{Bindings, DimError};
use gulliver_graph::graph::{Graph, Node};
use std::fmt::{self, Debug};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Working memory, in bytes, of the kernel of a node, for the sizes of one partial and a number of threads.
pub type Scratch = dyn Fn(&Graph, &Node, &Bindings, usize) -> Result<u64, DimError> + Send + Sync;

/// Runs a function for each number below the first argument, several at a time if the machine allows.
pub type ForEach = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync;

/// Watches planning; several threads may plan devices at once.
pub trait PlanWatch: Debug + Send + Sync {
    /// Called many times a second; `Break` ends planning.
    fn see(&self, progress: Progress) -> ControlFlow<()>;
}

/// Writes the script of a step in place of the planner, to measure other methods by the same executor. Weights and
/// states reside in host memory, and nodes keep the order of the graph.
pub trait ScriptWriter: Debug + Send + Sync {
    /// The script for inputs of these sizes; none if they do not fit.
    fn write(&self, outline: &Outline, base: &Base, sizes: &BoundSizes) -> Option<Script>;
}

/// Options of the plans of one device.
#[derive(Clone)]
pub struct DeviceOptions {
    /// Threads that run its kernels.
    pub threads: usize,
    /// Cores of the machine, which all devices share.
    pub cores: usize,
    /// Hard limit of device memory; without one the device grows as plans need it.
    pub memory: Option<u64>,
    /// Hard limit of host memory for values that leave the device.
    pub host_memory: Option<u64>,
    /// Hard limit of the disk tier; there is none without one.
    pub disk: Option<u64>,
    /// Links of stated speeds between all devices and their host; without it transfers take no time on links.
    pub topology: Option<Arc<Topology>>,
    /// The largest input there will be. With it a budget is proven before the first step, and weights and states leave
    /// the device if they must.
    pub largest: Option<Bindings>,
    /// Run all partials of a layer before the next layer, whether or not weights leave the device.
    pub grouped: bool,
    /// Whether values may be recomputed to save memory.
    pub recompute: bool,
    /// Assumed speeds of kernels.
    pub rates: Rates,
    /// Measured speeds of kernels like them.
    pub curves: Option<Arc<Curves>>,
    /// Assumed speeds of links.
    pub links: Links,
    /// Slices of a training batch whose gradients are added in order.
    pub partials: u32,
    /// The place among other devices.
    pub rank: Option<Rank>,
    /// Working memory of kernels.
    pub scratch: Arc<Scratch>,
    /// Watches planning, and may stop it.
    pub watch: Option<Arc<dyn PlanWatch>>,
    /// Plans with the scripts of another method.
    pub writer: Option<Arc<dyn ScriptWriter>>,
}

impl Debug for DeviceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceOptions")
            .field("threads", &self.threads)
            .field("limits", &self.limits())
            .field("partials", &self.partials)
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl Default for DeviceOptions {
    /// One core, no limit, the batch in one piece, kernels that need no working memory.
    fn default() -> DeviceOptions {
        DeviceOptions {
            threads: 1,
            cores: 1,
            memory: None,
            host_memory: None,
            disk: None,
            topology: None,
            largest: None,
            grouped: false,
            recompute: true,
            rates: Rates::default(),
            curves: None,
            links: Links::default(),
            partials: 1,
            rank: None,
            scratch: Arc::new(|_, _, _, _| Ok(0)),
            watch: None,
            writer: None,
        }
    }
}

impl DeviceOptions {
    /// Hard limits of the tiers.
    pub fn limits(&self) -> Limits {
        Limits { device: self.memory, host: self.host_memory, disk: self.disk }
    }

    /// Whether collectives run inline: there is neither a link to wait for nor a core for another thread. Stages of a
    /// pipeline must not wait for each other.
    pub(crate) fn exchanges_inline(&self) -> bool {
        use crate::document::job::WorkSharing;
        let links = self.topology.as_ref().is_some_and(|topology| !topology.links().is_empty());
        let rank = self.rank.filter(|rank| rank.sharing != WorkSharing::Layers && !links);
        rank.is_some_and(|rank| self.threads * rank.ranks as usize >= self.cores)
    }

    /// Speeds of links, with the stated ones where there are any.
    pub(crate) fn stated_links(&self) -> Links {
        let device = self.rank.map_or(0, |rank| rank.rank);
        self.topology.as_ref().map_or(self.links, |topology| topology.seen_by(device, self.links))
    }
}
