//! Devices of this machine: what their plans are made for, and the devices themselves. The only place that knows both
//! planner and runner.

use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Node};
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::devices::options::{DeviceOptions, PlanWatch, ScriptWriter};
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::strategy::{ALONE, DevicePlanners, DeviceSet, JobGraphs, Strategy, job};
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::job::JobPlan;
use gulliver_plan::document::links::Links;
use gulliver_plan::time::cost::{Curves, Rates};
use gulliver_run::device::cpu::{Cpu, CpuOptions};
use gulliver_run::device::{Device, RunError};
use gulliver_run::lower::{Kernels, lower_node};
use gulliver_run::peers::link::Throttle;
use gulliver_run::session::{Session, SessionError};
use gulliver_run::team::{cores, side_by_side};
use std::path::PathBuf;
use std::sync::Arc;

/// A group of threads with a memory budget, as a device.
#[derive(Clone, Debug)]
pub struct LocalDevice {
    /// Its threads.
    pub threads: usize,
    /// Hard limit of device memory; without one the device grows as plans need it.
    pub memory: Option<u64>,
    /// Hard limit of host memory for what does not stay on the device.
    pub host_memory: Option<u64>,
    /// Hard limit of the disk tier; there is none without one.
    pub disk: Option<u64>,
    /// Where the file of the disk tier is made; the system's place for temporary files if not given.
    pub disk_dir: Option<PathBuf>,
    /// Links of stated speeds, between all devices and their host; without them links hold nothing up.
    pub throttle: Option<Arc<Throttle>>,
    /// The largest input there will be. With it a budget is proven before the first step, and weights and states leave
    /// the device if they must.
    pub largest: Option<Bindings>,
    /// Plans with the scripts of another method, for comparison.
    pub writer: Option<Arc<dyn ScriptWriter>>,
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
    /// Fast kernels of operators from outside.
    pub kernels: Kernels,
    /// Sees how planning goes, and may stop it.
    pub watch: Option<Arc<dyn PlanWatch>>,
}

impl Default for LocalDevice {
    /// All cores, no limit, the batch in one piece.
    fn default() -> LocalDevice {
        let threads = cores();
        LocalDevice {
            threads,
            memory: None,
            host_memory: None,
            disk: None,
            disk_dir: None,
            throttle: None,
            largest: None,
            writer: None,
            grouped: false,
            recompute: true,
            rates: Rates { flops: threads as f64 * Rates::default().flops, ..Rates::default() },
            curves: None,
            links: Links::default(),
            partials: 1,
            kernels: Kernels::default(),
            watch: None,
        }
    }
}

impl LocalDevice {
    /// The requirements that its plans meet.
    pub fn options(&self) -> DeviceOptions {
        let kernels = self.kernels.clone();
        let scratch = move |graph: &Graph, node: &Node, sizes: &Bindings, threads: usize| {
            Ok(lower_node(graph, node, sizes, threads, &kernels)?.scratch)
        };
        DeviceOptions {
            threads: self.threads,
            cores: cores(),
            memory: self.memory,
            host_memory: self.host_memory,
            disk: self.disk,
            topology: self.throttle.as_ref().map(|throttle| Arc::new(throttle.topology().clone())),
            largest: self.largest.clone(),
            grouped: self.grouped,
            recompute: self.recompute,
            rates: self.rates,
            curves: self.curves.clone(),
            links: self.links,
            partials: self.partials,
            rank: None,
            scratch: Arc::new(scratch),
            watch: self.watch.clone(),
            writer: self.writer.clone(),
        }
    }

    /// The device itself, without memory yet; `number` is its number among all.
    pub fn open(&self, number: usize) -> Result<Box<dyn Device>, RunError> {
        let options = CpuOptions {
            name: format!("cpu{number}"),
            threads: self.threads,
            disk_dir: self.disk_dir.clone(),
            throttle: self.throttle.clone(),
            kernels: self.kernels.clone(),
        };
        Ok(Box::new(Cpu::new(options)?))
    }
}

/// Why a job does not start on devices of this machine.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] JobPlanError),
    /// A device cannot be started.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl From<PlanError> for LocalError {
    fn from(e: PlanError) -> LocalError {
        LocalError::Plan(e.into())
    }
}

impl From<RunError> for LocalError {
    fn from(e: RunError) -> LocalError {
        LocalError::Session(e.into())
    }
}

/// Devices as strategies see them, planned side by side.
pub fn device_set(devices: &[LocalDevice]) -> DeviceSet {
    let devices = devices.iter().map(LocalDevice::options).collect();
    DeviceSet { devices, for_each: Arc::new(side_by_side) }
}

/// The planners of a named strategy on these devices.
pub fn shared(
    name: &str,
    graphs: &JobGraphs,
    devices: &[LocalDevice],
) -> Result<DevicePlanners, JobPlanError> {
    let strategy = Strategy::named(name).expect("strategies are named by the table");
    (strategy.plan)(graphs, &device_set(devices))
}

/// The plans of a job on one device.
pub fn planner(train: Graph, evaluate: Option<Graph>, device: &LocalDevice) -> Result<Planner, PlanError> {
    Planner::new(train, evaluate, device.options())
}

/// A session of a planned job, with all weights and states at their first values.
pub fn start(plan: JobPlan, devices: &[LocalDevice], seed: u64) -> Result<Session, SessionError> {
    let used = devices.iter().take(plan.devices.len()).enumerate();
    let devices = used.map(|(number, device)| device.open(number)).collect::<Result<Vec<_>, _>>()?;
    Session::new(plan, devices, seed)
}

/// A session on one device, with all weights and states at their first values.
pub fn session(
    train: Graph,
    evaluate: Option<Graph>,
    device: &LocalDevice,
    seed: u64,
) -> Result<Session, LocalError> {
    let plan = job(ALONE, vec![planner(train, evaluate, device)?])?;
    Ok(start(plan, std::slice::from_ref(device), seed)?)
}

/// A session of several devices, whose planners a strategy has made.
pub fn together(
    strategy: &str,
    planners: Vec<Planner>,
    devices: &[LocalDevice],
    seed: u64,
) -> Result<Session, LocalError> {
    Ok(start(job(strategy, planners)?, devices, seed)?)
}
