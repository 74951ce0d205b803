//! A job's values on its devices: weights and states that stay, and a program per input size, loaded when a size is
//! first met. Obeys a job plan; knows nothing of data sets, learning rates or files.

mod error;
mod evaluate;
mod feed;
mod group;
mod programs;
mod rank;
mod residences;
mod scalars;
mod step;
mod trace;
mod values;

pub use error::SessionError;
pub use evaluate::Evaluated;
pub use feed::sizes_of;
pub use programs::Reuse;
pub use rank::RankSession;
pub use scalars::{Scalar, Scalars};
pub use step::{Hyper, MemberHyper, StepKey, StepOutcome, TimedWork};

use crate::collector::{Alarm, Collector};
use crate::data::Batch;
use crate::device::{Device, RunError};
use crate::peers::Peers;
use crate::peers::local::LocalGroup;
use crate::team::{Team, cores};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_plan::document::job::{JobPlan, Purpose};
use gulliver_plan::document::ledger::Ledger;
use gulliver_plan::document::plan::{Plan, Tier};
use std::sync::Arc;
use std::time::Duration;

/// A job on its devices.
pub struct Session {
    train: Arc<Graph>,
    evaluate: Option<Arc<Graph>>,
    ranks: Vec<RankSession>,
    /// A thread for each of several devices.
    crew: Option<Team>,
}

impl Session {
    /// A session with all weights and states at their first values. There is a device for each rank of the plan.
    pub fn new(job: JobPlan, devices: Vec<Box<dyn Device>>, seed: u64) -> Result<Session, SessionError> {
        let threads: usize = devices.iter().map(|device| device.host_threads()).sum();
        let group: Arc<dyn Peers> = Arc::new(LocalGroup::new(devices.len(), threads > cores()));
        Session::among(job, devices, group, seed)
    }

    /// The same with these peers.
    pub fn among(
        job: JobPlan,
        devices: Vec<Box<dyn Device>>,
        peers: Arc<dyn Peers>,
        seed: u64,
    ) -> Result<Session, SessionError> {
        Session::start(job, devices, peers, &[seed], false)
    }

    /// A session of an array on one device, whose graphs have an [array axis](gulliver_graph::array): one member for
    /// each seed.
    pub fn array(job: JobPlan, device: Box<dyn Device>, seeds: &[u64]) -> Result<Session, SessionError> {
        Session::start(job, vec![device], Arc::new(LocalGroup::new(1, false)), seeds, true)
    }

    fn start(
        job: JobPlan,
        devices: Vec<Box<dyn Device>>,
        peers: Arc<dyn Peers>,
        seeds: &[u64],
        array: bool,
    ) -> Result<Session, SessionError> {
        if devices.len() != job.devices.len() {
            return Err(SessionError::Devices { planned: job.devices.len(), given: devices.len() });
        }
        let threads: usize = devices.iter().map(|device| device.host_threads()).sum();
        let rank = |(plan, mut device): (_, Box<dyn Device>)| {
            let plan: gulliver_plan::document::job::DevicePlan = plan;
            let peers = plan.rank.map(|rank| {
                device.connect(rank.rank, Arc::clone(&peers), threads > cores());
                Arc::clone(&peers)
            });
            RankSession::new(plan, device, peers, seeds, array)
        };
        let ranks = job.devices.into_iter().zip(devices).map(rank).collect::<Result<Vec<_>, _>>()?;
        // If the machine starts no threads for them, that is an error now and not in the first step.
        let crew = (ranks.len() > 1).then(|| Team::started(ranks.len()).map_err(RunError::from));
        Ok(Session { train: job.train, evaluate: job.evaluate, ranks, crew: crew.transpose()? })
    }

    fn first(&mut self) -> &mut RankSession {
        &mut self.ranks[0]
    }

    /// The sessions of all devices, by rank.
    pub fn ranks(&self) -> &[RankSession] {
        &self.ranks
    }

    /// Number of jobs that are trained together: one, unless this is an array.
    pub fn members(&self) -> usize {
        self.ranks[0].members()
    }

    /// The job's training graph, undivided.
    pub fn graph(&self) -> &Graph {
        &self.train
    }

    /// A graph of the job, undivided.
    fn graph_of(&self, purpose: Purpose) -> &Graph {
        match (purpose, &self.evaluate) {
            (Purpose::Evaluate, Some(graph)) => graph,
            _ => &self.train,
        }
    }

    /// Bytes moved so far, on all devices.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        self.ranks.iter().for_each(|rank| ledger += rank.ledger());
        ledger
    }

    /// Planned and measured amounts of the first device.
    pub fn collector(&self) -> &Collector {
        self.ranks[0].collector()
    }

    /// Takes the alarms since the last call: bytes that differed from the plan.
    pub fn take_alarms(&mut self) -> Vec<Alarm> {
        self.ranks.iter_mut().flat_map(RankSession::take_alarms).collect()
    }

    /// Hits and misses of the first device's cache of programs.
    pub fn reuse(&self) -> Reuse {
        self.ranks[0].reuse()
    }

    /// Peak bytes of device memory.
    pub fn peak(&self) -> u64 {
        self.peak_of(Tier::Device)
    }

    /// Name of the first device.
    pub fn device_name(&self) -> &str {
        self.ranks[0].device_name()
    }

    /// Peak bytes of a tier, on the device with the highest peak.
    pub fn peak_of(&self, tier: Tier) -> u64 {
        self.ranks.iter().map(|rank| rank.peak_of(tier)).max().unwrap_or(0)
    }

    /// Bytes of device and host memory.
    pub fn memory(&self) -> u64 {
        self.ranks.iter().map(RankSession::memory).sum()
    }

    /// Loads the plan of the first device for inputs of these sizes; it replaces an earlier one.
    pub fn plan(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<Arc<Plan>, SessionError> {
        self.first().plan(purpose, sizes)
    }

    /// Makes sure that the first device has a program for inputs of these sizes.
    pub fn ready(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<(), SessionError> {
        self.first().load(purpose, sizes).map(|_| ())
    }

    /// Operators of loaded programs that run on reference kernels.
    pub fn slow_operators(&self) -> Vec<&'static str> {
        self.ranks[0].slow_operators()
    }

    /// The sizes that make the graph's data inputs fit a batch.
    pub fn sizes(&self, purpose: Purpose, batch: &Batch) -> Result<Bindings, SessionError> {
        Ok(sizes_of(self.graph_of(purpose), batch)?)
    }

    /// One training step. If a loss is not finite, its objective leaves weights and states as they were; updates of
    /// objectives before it in the same step stay.
    pub fn step(
        &mut self,
        batch: &Batch,
        key: StepKey,
        hyper: Hyper<'_>,
    ) -> Result<StepOutcome, SessionError> {
        if self.ranks.len() > 1 {
            return self.step_on_all(batch, key, hyper);
        }
        let mut outcomes = self.step_together(batch, &[key], &|_, role, name| hyper(role, name))?;
        Ok(outcomes.remove(0))
    }

    /// One training step of every member, each as [`Session::step`].
    pub fn step_together(
        &mut self,
        batch: &Batch,
        keys: &[StepKey],
        hyper: MemberHyper<'_>,
    ) -> Result<Vec<StepOutcome>, SessionError> {
        let sizes = self.sizes(Purpose::Train, batch)?;
        self.first().step_alone((batch, &sizes), keys, hyper)
    }

    /// One training step of the first device that checks no loss and times each step of the plan, in order.
    pub fn profile(
        &mut self,
        batch: &Batch,
        key: StepKey,
        hyper: Hyper<'_>,
    ) -> Result<Vec<(TimedWork, Duration)>, SessionError> {
        let sizes = self.sizes(Purpose::Train, batch)?;
        self.first().profile((batch, &sizes), key, hyper)
    }
}

#[cfg(test)]
mod tests;
