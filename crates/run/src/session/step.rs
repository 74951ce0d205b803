//! A training step of one device: fed, run objective by objective, undone where a loss is not finite.

use super::programs::Loaded;
use super::residences::{carried, fetch, put_back};
use super::{RankSession, Scalar, Scalars, SessionError};
use crate::data::Batch;
use crate::device::{Observe, RunError};
use crate::host::HostTensor;
use crate::lower::KernelError;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Node, NodeId, Phase};
use gulliver_graph::role::{HyperRole, OutputRole, OutputScope};
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::plan::{Act, OutputPlace};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Results of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// Scalar outputs, averaged (losses, norms) or summed (counts) over the partials.
    pub scalars: Scalars,
    /// If a loss was not finite: the name of the first value that was not.
    pub not_finite: Option<String>,
}

impl StepOutcome {
    /// Makes losses, which are sums over the partials, their means.
    pub(super) fn average(&mut self, partials: u32) {
        let losses = self.scalars.iter_mut().filter(|(_, scalar)| scalar.role == OutputRole::Loss);
        losses.for_each(|(_, loss)| loss.value /= f64::from(partials));
    }

    pub(super) fn failed(value: String) -> StepOutcome {
        StepOutcome { scalars: Scalars::default(), not_finite: Some(value) }
    }
}

/// The value of a hyper-parameter, by role and name, that is not at its default.
pub type Hyper<'h> = &'h dyn Fn(HyperRole, &str) -> Option<f32>;

/// The same of a member of an array.
pub type MemberHyper<'h> = &'h dyn Fn(usize, HyperRole, &str) -> Option<f32>;

/// The key of a step's random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepKey {
    /// The job's seed.
    pub seed: u64,
    /// The step, counted from zero.
    pub step: u64,
}

impl StepKey {
    /// Hyper-parameters of a step where none is set: optimizers that count steps are told which this is, from 1.
    pub fn number(self) -> impl Fn(HyperRole, &str) -> Option<f32> + Copy {
        move |role, _| (role == HyperRole::Step).then_some((self.step + 1) as f32)
    }
}

/// The work of a timed step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedWork {
    /// Runs a node.
    Node(NodeId),
    /// Copies this many bytes.
    Copy(u64),
    /// Adds this many bytes to as many.
    Add(u64),
    /// Moves bytes between tiers.
    Move,
}

/// The values of a member before the updates of the objective that failed.
struct Failed {
    member: usize,
    before: BTreeMap<String, HostTensor>,
}

impl RankSession {
    /// The number of the program for a batch, with everything fed.
    pub(super) fn prepare(
        &mut self,
        purpose: Purpose,
        (batch, sizes): (&Batch, &Bindings),
        keys: &[StepKey],
        hyper: MemberHyper<'_>,
    ) -> Result<usize, SessionError> {
        let at = self.load(purpose, sizes)?;
        let loss_scale = (1.0 / f64::from(self.plan.all_partials())) as f32;
        let with_scale = |member: usize, role: HyperRole, name: &str| match role {
            HyperRole::LossScale if purpose == Purpose::Train => Some(loss_scale),
            _ => hyper(member, role, name),
        };
        self.feed(purpose, at, batch, keys, &with_scale)?;
        Ok(at)
    }

    /// A training step of a device alone.
    pub(super) fn step_alone(
        &mut self,
        fed: (&Batch, &Bindings),
        keys: &[StepKey],
        hyper: MemberHyper<'_>,
    ) -> Result<Vec<StepOutcome>, SessionError> {
        let mut outcomes = self.sums_of_step(fed, keys, hyper)?;
        outcomes.iter_mut().for_each(|outcome| outcome.average(self.plan.partials));
        Ok(outcomes)
    }

    /// As [`super::Session::step_together`]; losses are sums over the partials of this device.
    pub(super) fn sums_of_step(
        &mut self,
        fed: (&Batch, &Bindings),
        keys: &[StepKey],
        hyper: MemberHyper<'_>,
    ) -> Result<Vec<StepOutcome>, SessionError> {
        let at = self.prepare(Purpose::Train, fed, keys, hyper)?;
        self.remember()?;
        let mut watch = self.begin(at);
        let mut failed: Vec<Failed> = Vec::new();
        let (mut done, mut next) = (0, 0);
        loop {
            let Loaded { updates, made, .. } = self.programs.get(at);
            let update = updates.get(next).copied();
            let until = update.map_or(made.plan.steps.len(), |(_, update)| update);
            self.run(at, done..until, &mut watch)?;
            let Some((objective, update)) = update else { break };
            (done, next) = (update, next + 1);
            let losses = self.agreed(self.losses(at, objective)?)?;
            let fails = |m: usize| !losses.iter().skip(m).step_by(self.members).all(|x| x.is_finite());
            let fresh: Vec<usize> =
                (0..self.members).filter(|&m| fails(m) && failed.iter().all(|f| f.member != m)).collect();
            if failed.is_empty() && fresh.len() == self.members {
                // Devices that exchange values within a step cannot rerun part of it alone.
                if self.array || self.exchanges_within() {
                    self.take_part_in_the_rest(at, done)?;
                    self.undo()?;
                    return Ok(vec![StepOutcome::failed(OutputRole::Loss.name().into()); self.members]);
                }
                // The memory the batch was fed into may have been used for other values since.
                let at = self.prepare(Purpose::Train, fed, keys, hyper)?;
                return Ok(vec![StepOutcome::failed(self.diagnose(at, objective, update)?)]);
            }
            for member in fresh {
                failed.push(Failed { member, before: self.tensors_of(member)? });
            }
        }
        self.end(Purpose::Train, at, watch);
        let mut outcomes = self.scalars(at)?;
        for one in failed {
            outcomes[one.member] = StepOutcome::failed(OutputRole::Loss.name().into());
            self.put_back(one)?;
        }
        Ok(outcomes)
    }

    /// Whether devices exchange values before the updates.
    pub(super) fn exchanges_within(&self) -> bool {
        self.plan.rank.is_some_and(|rank| rank.sharing.exchanges_within())
    }

    /// Losses summed over all devices, in order. All devices get the same.
    fn agreed(&self, losses: Vec<f32>) -> Result<Vec<f32>, RunError> {
        // Devices that exchange values within a step have the sums already.
        let (Some(rank), Some(peers)) = (self.plan.rank, &self.peers) else { return Ok(losses) };
        if self.exchanges_within() {
            return Ok(losses);
        }
        let lost = |lost| RunError::Kernel {
            value: OutputRole::Loss.name().into(),
            source: KernelError::PeerLost(lost),
        };
        let all = peers.share(rank.rank, &losses).map_err(lost)?;
        let add = |sum: Vec<f32>, one: Vec<f32>| sum.iter().zip(one).map(|(a, b)| a + b).collect();
        Ok(all.into_iter().reduce(add).unwrap_or_default())
    }

    /// Scalar outputs of the last run, by member; those that do not depend on the member are the same for all.
    pub(super) fn scalars(&mut self, at: usize) -> Result<Vec<StepOutcome>, SessionError> {
        let mut outcomes = vec![StepOutcome { scalars: Scalars::default(), not_finite: None }; self.members];
        for output in &self.programs.get(at).outputs {
            let own = self.array && output.shape == [self.members];
            if output.place.scope == OutputScope::Agreed || !own && !output.shape.is_empty() {
                continue;
            }
            let tensor = self.output(output)?;
            let Some(numbers) = tensor.as_f32() else { continue };
            self.ledger.to_host += size_of_val(numbers) as u64;
            for (m, outcome) in outcomes.iter_mut().enumerate() {
                let value = f64::from(numbers[if own { m } else { 0 }]);
                let OutputPlace { name, role, scope, .. } = &output.place;
                outcome.scalars.insert(name, Scalar { role: *role, scope: *scope, value });
            }
        }
        Ok(outcomes)
    }

    /// Gives a member its values before the step; states that the forward pass changes are as before it too.
    fn put_back(&mut self, Failed { member, before }: Failed) -> Result<(), RunError> {
        for (name, mut tensor) in before {
            let residence = self.plan.residences.residences[&name];
            let own = tensor.as_bytes().len();
            let mut at = member * own;
            for before in &self.forward {
                if (before.tier, before.offset) == (residence.tier, residence.offset) {
                    tensor.as_bytes_mut().copy_from_slice(&self.undo[at..at + own]);
                }
                at += before.bytes as usize;
            }
            self.write(member, &name, 0, tensor.as_bytes())?;
        }
        Ok(())
    }

    /// One training step that looks at no loss and times each step of the plan.
    pub(super) fn profile(
        &mut self,
        fed: (&Batch, &Bindings),
        key: StepKey,
        hyper: Hyper<'_>,
    ) -> Result<Vec<(TimedWork, Duration)>, SessionError> {
        let keys = vec![key; self.members];
        let at = self.prepare(Purpose::Train, fed, &keys, &|_, role, name| hyper(role, name))?;
        let program = self.programs.get(at).program;
        let plan = std::sync::Arc::clone(&self.programs.get(at).made.plan);
        let mut times = Vec::new();
        for (i, step) in plan.steps.iter().enumerate() {
            let start = Instant::now();
            self.device.run(program, i..i + 1, Observe::Nothing)?;
            let time = start.elapsed();
            let work = match &step.act {
                Act::Alloc(_) | Act::Free(_) => continue,
                Act::Run { node, .. } | Act::Exchange { node, .. } => TimedWork::Node(*node),
                Act::Copy { from, .. } => TimedWork::Copy(from.bytes),
                Act::Add { from, .. } => TimedWork::Add(from.bytes),
                Act::Move { .. } => TimedWork::Move,
            };
            times.push((work, time));
        }
        Ok(times)
    }

    /// Saves the states that the forward pass changes.
    pub(super) fn remember(&mut self) -> Result<(), RunError> {
        fetch(&*self.device, &self.forward, &mut self.undo)
    }

    pub(super) fn undo(&mut self) -> Result<(), RunError> {
        put_back(&mut *self.device, &self.forward, &self.undo)
    }

    /// Runs the rest of a failed step if other devices may wait for this one in later collectives. Undoes its updates.
    fn take_part_in_the_rest(&mut self, at: usize, done: usize) -> Result<(), RunError> {
        if !self.exchanges_within() {
            return Ok(());
        }
        let end = self.programs.get(at).made.plan.steps.len();
        self.run_and_restore(at, done..end, Observe::Nothing, |node| node.phase == Phase::Update)
    }

    /// Runs steps, and then gives the weights and states that these nodes update their values from before.
    fn run_and_restore(
        &mut self,
        at: usize,
        steps: Range<usize>,
        observe: Observe<'_>,
        by: impl Fn(&Node) -> bool,
    ) -> Result<(), RunError> {
        let Loaded { made, program, .. } = self.programs.get(at);
        let updated = carried(&made.graph, &self.plan.residences, |node| node.is_some_and(&by));
        let mut kept = vec![0; updated.iter().map(|residence| residence.bytes as usize).sum()];
        fetch(&*self.device, &updated, &mut kept)?;
        self.device.run(*program, steps, observe)?;
        put_back(&mut *self.device, &updated, &kept)
    }

    /// Undoes the changes of the forward pass and reruns the step up to the first update of the objective that failed.
    /// Returns the name of the first value that is not finite. The batch must have been fed anew.
    fn diagnose(&mut self, at: usize, objective: u32, until: usize) -> Result<String, SessionError> {
        self.undo()?;
        if let Some(name) = self.first_not_finite(0)? {
            return Ok(name);
        }
        let mut first = None;
        // Updates of earlier objectives run again and must not count twice.
        let earlier = |node: &Node| node.phase == Phase::Update && node.objective < objective;
        self.run_and_restore(at, 0..until, Observe::NotFinite(&mut first), earlier)?;
        self.undo()?;
        let graph = &self.programs.get(at).made.graph;
        Ok(first.map_or(OutputRole::Loss.name().into(), |value| graph.value(value).name.clone()))
    }
}
