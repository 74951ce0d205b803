//! What others do with a model that does not fit: data parallel and pipelines on virtual memory for each device,
//! and data parallel whose weights are shared out and wait on the host. For tests and tables to measure ours by.

mod pager;
mod passes;
mod pipeline;
mod sharded;

pub use crate::comparator::paging::Eviction;
pub use sharded::sharded;

use super::task::shares;
use super::{LayerChain, ScheduleMachine, ScheduleOutcome, pieces};
use passes::{Stage, Step};

/// A way to train on virtual memory. Every tensor an operation needs is brought to its device when it is needed;
/// on shortage whatever was used least recently goes to the host. There is no prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Every device has all layers and its share of the samples.
    DataParallel,
    /// Every device has neighbouring layers; all micro-batches go forward, then all go back.
    GPipe,
    /// The same, but every device goes back with a micro-batch as soon as it can.
    OneForwardOneBackward,
}

/// Every way.
pub const WAYS: [Way; 3] = [Way::DataParallel, Way::GPipe, Way::OneForwardOneBackward];

/// What is asked of a way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Devices that take part.
    pub devices: usize,
    /// Samples of a step.
    pub batch: u32,
    /// Samples of a micro-batch.
    pub size: u32,
    /// Whether layers keep their inputs alone, and compute the rest again.
    pub recompute: bool,
    /// What becomes of bytes that are evicted.
    pub eviction: Eviction,
}

/// What a way comes to. None if an operation alone does not fit, or there are fewer layers or samples than
/// devices.
pub fn virtualised(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    way: Way,
    request: &Request,
) -> Option<ScheduleOutcome> {
    let devices = request.devices;
    if devices == 0 || devices > machine.devices.len() || request.size == 0 || chain.layers.is_empty() {
        return None;
    }
    let rate = |d: usize| {
        let share = machine.uplink.unwrap_or(f64::INFINITY) / devices as f64;
        (machine.devices[d].to_device.min(share), machine.devices[d].to_host.min(share))
    };
    let mut stages = Vec::with_capacity(devices);
    if way == Way::DataParallel {
        for (d, samples) in shares(machine, devices, request.batch).into_iter().enumerate() {
            let pieces = pieces(samples, request.size);
            if pieces.is_empty() {
                return None;
            }
            let order = (0..pieces.len()).flat_map(|k| [Step::Forward(k), Step::Backward(k)]).collect();
            let layers = 0..chain.layers.len();
            stages.push(Stage { device: d, layers, pieces, order, rate: rate(d), ranks: devices });
        }
    } else {
        let pieces = pieces(request.batch, request.size);
        for (d, layers) in pipeline::stages(chain, machine, devices, request.size)?.into_iter().enumerate() {
            let order = pipeline::order(way, d, devices, pieces.len());
            let pieces = pieces.clone();
            stages.push(Stage { device: d, layers, pieces, order, rate: rate(d), ranks: 1 });
        }
    }
    let told: Option<Vec<_>> =
        stages.iter().map(|stage| passes::run(chain, machine, stage, request)).collect();
    let told = told?;
    let seconds = match way {
        Way::DataParallel => told.iter().map(|t| t.steps.iter().sum::<f64>() + t.update).fold(0.0, f64::max),
        _ => pipeline::seconds(chain, machine, &stages, &told),
    };
    Some(ScheduleOutcome {
        seconds,
        busy: told.iter().map(|t| t.busy).collect(),
        peaks: told.iter().map(|t| t.peak).collect(),
        moved: told.iter().map(|t| t.moved).collect(),
    })
}

/// The micro-batch size with which a way takes least time, and what it then comes to.
pub fn best(
    chain: &LayerChain,
    machine: &ScheduleMachine,
    way: Way,
    request: &Request,
) -> Option<(u32, ScheduleOutcome)> {
    let samples = match way {
        Way::DataParallel => request.batch.div_ceil(request.devices.max(1) as u32),
        _ => request.batch,
    };
    let sizes = (0..).map(|p| samples >> p).take_while(|size| *size > 0);
    let tries = sizes
        .filter_map(|size| Some((size, virtualised(chain, machine, way, &Request { size, ..*request })?)));
    tries.min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds))
}
