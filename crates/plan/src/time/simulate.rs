//! The simulated time of a plan: each stream does its steps in order, each as soon as the steps it waits for are done.
//! [`together`] times the plans of several devices at once.

mod together;

pub use together::{JointTiming, LinkUse, RankPlan, SimulatedDeadlock, Unevenness, crowds, together};

use crate::document::ledger::Ledger;
use crate::document::links::Links;
use crate::document::plan::{Act, Plan, PlanStream, STREAMS, Tier};
use gulliver_graph::graph::NodeId;
use serde::Serialize;

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Seconds from the first step to the last.
    pub seconds: f64,
    /// Busy seconds of each stream.
    pub busy: [f64; STREAMS.len()],
    /// Seconds of recompute.
    pub again: f64,
    /// Bytes moved.
    pub moved: Ledger,
}

/// Seconds per byte from tier to tier.
pub fn per_byte(links: &Links, from: Tier, to: Tier) -> f64 {
    1.0 / match (from, to) {
        (Tier::Disk, _) => links.disk_read,
        (_, Tier::Disk) => links.disk_write,
        (Tier::Host, _) => links.to_device,
        _ => links.to_host,
    }
}

/// Memory traffic of an addition relative to a copy: two bytes are read and one is written.
const ADDED: f64 = 1.5;

/// Times a plan; `node` gives the seconds of its kernels.
pub fn simulate(plan: &Plan, node: impl Fn(NodeId) -> f64, links: &Links) -> Timing {
    let mut timing = Timing { moved: Ledger::of(plan), ..Timing::default() };
    let mut free = [0.0f64; STREAMS.len()];
    let mut done = vec![0.0f64; plan.steps.len()];
    let mut ran = Ran::default();
    // Bytes per second of copies and sums on the device.
    let pass = links.to_device;
    for (i, step) in plan.steps.iter().enumerate() {
        let seconds = match &step.act {
            Act::Alloc(_) | Act::Free(_) => continue,
            Act::Run { node: id, partial, .. } => {
                let seconds = node(*id);
                if !ran.insert(plan, *id, *partial) {
                    timing.again += seconds;
                }
                seconds
            }
            Act::Exchange { node: id, .. } => node(*id),
            Act::Copy { from, .. } => from.bytes as f64 / pass,
            Act::Add { from, .. } => ADDED * from.bytes as f64 / pass,
            Act::Move { from, to } => from.bytes as f64 * per_byte(links, plan.tier(from), plan.tier(to)),
        };
        let stream = plan.stream(&step.act).unwrap_or(PlanStream::Compute) as usize;
        let ready = step.after.iter().map(|&other| done[other as usize]).fold(free[stream], f64::max);
        done[i] = ready + seconds;
        free[stream] = done[i];
        timing.busy[stream] += seconds;
        timing.seconds = timing.seconds.max(done[i]);
    }
    timing
}

/// Which nodes have run, for which partials.
#[derive(Default)]
struct Ran(Vec<bool>);

impl Ran {
    /// Notes a run; false if it is not the first.
    fn insert(&mut self, plan: &Plan, node: NodeId, partial: u32) -> bool {
        let at = node.index() * plan.partials.max(1) as usize + partial as usize;
        if self.0.len() <= at {
            self.0.resize(2 * at + 1, false);
        }
        !std::mem::replace(&mut self.0[at], true)
    }
}
