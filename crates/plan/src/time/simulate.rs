//! How long a plan takes, without running it: each stream does its steps in order, each step as soon as
//! what it waits for is done. [`together`] times the plans of several devices at once.

mod together;

pub use together::{
    JointTiming, LinkUse, RankPlan, SimulatedDeadlock, Unevenness, crowds, over_links, together,
};

use crate::document::ledger::Ledger;
use crate::document::links::Links;
use crate::document::plan::{Act, Plan, PlanStream, STREAMS, Tier};
use gulliver_graph::graph::NodeId;
use serde::Serialize;

/// What a simulated step comes to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Seconds from the first step to the last.
    pub seconds: f64,
    /// Seconds each stream is at work.
    pub busy: [f64; STREAMS.len()],
    /// Seconds spent on computing what was computed before.
    pub again: f64,
    /// Bytes moved.
    pub moved: Ledger,
}

/// Seconds a byte takes from tier to tier.
pub fn per_byte(links: &Links, from: Tier, to: Tier) -> f64 {
    1.0 / match (from, to) {
        (Tier::Disk, _) => links.disk_read,
        (_, Tier::Disk) => links.disk_write,
        (Tier::Host, _) => links.to_device,
        _ => links.to_host,
    }
}

/// Bytes that pass through memory when one is added, for each when one is copied: two are read and one is written.
const ADDED: f64 = 1.5;

/// Times a plan whose kernels take so many seconds.
pub fn simulate(plan: &Plan, node: impl Fn(NodeId) -> f64, links: &Links) -> Timing {
    let mut timing = Timing { moved: Ledger::of(plan), ..Timing::default() };
    let mut free = [0.0f64; STREAMS.len()];
    let mut done = vec![0.0f64; plan.steps.len()];
    let mut ran = Ran::default();
    // Bytes read and written a second by copies and sums on the device.
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
