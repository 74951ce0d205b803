//! A step on several devices at once: each on a thread of its own, exchanging values as their graphs say.

use super::feed::batch_of_rank;
use super::{Evaluated, Hyper, RankSession, Scalar, Scalars, Session, SessionError, StepKey, StepOutcome};
use crate::data::Batch;
use crate::team::{Team, into_inner, lock, side_by_side};
use gulliver_graph::dim::{BATCH, Bindings};
use gulliver_graph::graph::{Graph, Role, Value, ValueInfo};
use gulliver_graph::role::{OutputRole, OutputScope};
use gulliver_plan::document::collectives::all_get_through;
use gulliver_plan::document::job::{Purpose, share_of_batch};
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

/// A device with its batch and the sizes of that batch.
type Fed<'a> = (&'a mut RankSession, (&'a Batch, &'a Bindings));

/// The results of `does` for every device and its batch, each on a thread of the crew, or the error of the first device
/// that failed.
fn on_all<T: Send>(
    crew: &Team,
    devices: Vec<Fed<'_>>,
    key: StepKey,
    does: impl Fn(&mut RankSession, (&Batch, &Bindings)) -> Result<T, SessionError> + Sync,
) -> Result<Vec<T>, SessionError> {
    let peers = devices[0].0.peers.clone().expect("one of several has peers");
    debug_assert_eq!(crew.threads(), devices.len(), "devices wait for each other");
    // The input of each device, and its result: `None` if its thread panicked.
    let parts: Vec<_> = devices.into_iter().map(|device| Mutex::new((Some(device), None))).collect();
    crew.run(parts.len(), &|part| {
        let mut part = lock(&parts[part]);
        let (session, fed) = part.0.take().expect("every part is run once");
        let one = || session.in_group(|session| does(session, fed));
        part.1 = catch_unwind(AssertUnwindSafe(one)).ok();
    });
    let results: Vec<Option<Result<T, SessionError>>> =
        parts.into_iter().map(|part| into_inner(part).1).collect();
    // The device that failed first, not one that was told of it.
    let fine = |result: &Option<Result<T, SessionError>>| matches!(result, Some(Ok(_)));
    if !results.iter().all(fine)
        && let Some(lost) = peers.lost()
    {
        return Err(SessionError::Device { device: lost.rank, step: key.step + 1, why: lost.why });
    }
    results.into_iter().flatten().collect()
}

/// The hyper-parameters of a graph that are not at their defaults.
fn hypers(graph: &Graph, hyper: Hyper<'_>) -> HashMap<String, f32> {
    let set = |(_, role, info): (Value, Role, &ValueInfo)| match role {
        Role::Hyper(role, _) => Some((info.name.clone(), hyper(role, &info.name)?)),
        _ => None,
    };
    graph.inputs().filter_map(set).collect()
}

impl Session {
    /// The sizes of each device's share of inputs of these sizes.
    pub fn share(&self, mut sizes: Bindings) -> Result<Bindings, SessionError> {
        if let Some(batch) = sizes.get(BATCH).filter(|_| self.divides_batches()) {
            sizes.set(BATCH, share_of_batch(batch, self.ranks.len() as u32)?);
        }
        Ok(sizes)
    }

    /// Whether each device takes its share of a batch.
    fn divides_batches(&self) -> bool {
        self.ranks[0].plan.rank.is_none_or(|rank| rank.sharing.divides_batch())
    }

    /// One training step on all devices.
    pub(super) fn step_on_all(
        &mut self,
        batch: &Batch,
        key: StepKey,
        hyper: Hyper<'_>,
    ) -> Result<StepOutcome, SessionError> {
        let ranks = self.ranks.len();
        let set = hypers(&self.train, hyper);
        let step = |session: &mut RankSession, fed: (&Batch, &Bindings)| {
            let outcomes = session.sums_of_step(fed, &[key], &|_, _, name| set.get(name).copied());
            Ok(outcomes?.remove(0))
        };
        let whole = self.sizes(Purpose::Train, batch)?;
        if !self.divides_batches() {
            self.ready_on_all(Purpose::Train, &whole)?;
            let outcomes = self.with_crew(|crew, all| {
                on_all(crew, all.into_iter().map(|rank| (rank, (batch, &whole))).collect(), key, step)
            })?;
            return Ok(self.united(outcomes));
        }
        share_of_batch(batch.rows(), ranks as u32)?;
        let sizes = self.share(whole)?;
        self.ready_on_all(Purpose::Train, &sizes)?;
        let shares: Vec<Batch> = (0..ranks).map(|rank| batch_of_rank(batch, rank, ranks)).collect();
        let outcomes = self.with_crew(|crew, all| {
            let fed = all.into_iter().zip(&shares).map(|(rank, share)| (rank, (share, &sizes)));
            on_all(crew, fed.collect(), key, step)
        })?;
        Ok(self.joined(outcomes))
    }

    /// The results of the evaluation graph for a batch, each output from the device that makes it.
    pub(super) fn evaluate_on_all(&mut self, batch: &Batch, key: StepKey) -> Result<Evaluated, SessionError> {
        let sizes = self.sizes(Purpose::Evaluate, batch)?;
        self.ready_on_all(Purpose::Evaluate, &sizes)?;
        let all = self.with_crew(|crew, all| {
            let fed = all.into_iter().map(|rank| (rank, (batch, &sizes))).collect();
            on_all(crew, fed, key, |session, fed| session.evaluate(fed, key))
        })?;
        Ok(all.into_iter().fold(Evaluated::default(), Evaluated::join))
    }

    /// Makes sure that all devices have a program for their inputs, which are of these sizes, and that no device will
    /// wait forever.
    fn ready_on_all(&mut self, purpose: Purpose, sizes: &Bindings) -> Result<(), SessionError> {
        if self.ranks.iter().all(|rank| rank.programs.has(purpose, sizes)) {
            return Ok(());
        }
        let slots: Vec<_> = self.ranks.iter_mut().map(|rank| Mutex::new((rank, None))).collect();
        side_by_side(slots.len(), &|i| {
            let mut slot = lock(&slots[i]);
            let at = slot.0.load(purpose, sizes);
            slot.1 = Some(at.map(|at| slot.0.programs.get(at).collectives.clone()));
        });
        let loaded = slots.into_iter().map(|slot| into_inner(slot).1.expect("each was loaded"));
        let collectives = loaded.collect::<Result<Vec<_>, _>>()?;
        Ok(all_get_through(&collectives)?)
    }

    /// Calls `f` with a thread for each device, and the devices.
    fn with_crew<T>(
        &mut self,
        f: impl FnOnce(&Team, Vec<&mut RankSession>) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let Session { crew, ranks, .. } = self;
        f(crew.as_ref().expect("several devices have threads"), ranks.iter_mut().collect())
    }

    /// The outcome of a step in which every device has some of the results of all partials.
    fn united(&self, outcomes: Vec<StepOutcome>) -> StepOutcome {
        if let Some(failed) = outcomes.iter().find(|outcome| outcome.not_finite.is_some()) {
            return failed.clone();
        }
        let mut outcome = StepOutcome { scalars: Scalars::default(), not_finite: None };
        outcomes.into_iter().for_each(|one| outcome.scalars.extend(one.scalars));
        outcome.average(self.ranks[0].plan.partials);
        outcome
    }

    /// The outcome of a step in which every device has the results of its own partials.
    fn joined(&self, outcomes: Vec<StepOutcome>) -> StepOutcome {
        if outcomes.iter().any(|outcome| outcome.not_finite.is_some()) {
            let named = outcomes.iter().filter_map(|outcome| outcome.not_finite.clone());
            let loss = OutputRole::Loss.name();
            let value = named.into_iter().find(|name| name != loss).unwrap_or_else(|| loss.into());
            return StepOutcome::failed(value);
        }
        let graph = self.ranks[0].graph();
        let mut outcomes = outcomes.into_iter();
        let mut sum = outcomes.next().expect("there is a first device");
        let of_forward = |name: &str| graph.output(name).is_some_and(|value| graph.repeats(value));
        let own = |(name, sum): &(&str, &mut Scalar)| sum.scope == OutputScope::Device && of_forward(name);
        for outcome in outcomes {
            for (name, sum) in sum.scalars.iter_mut().filter(own) {
                if let Some(x) = outcome.scalars.get(name) {
                    // As f32, like the sums over the partials of one device.
                    sum.value = f64::from(sum.value as f32 + x as f32);
                }
            }
        }
        sum.average(self.ranks[0].plan.all_partials());
        sum
    }
}

impl RankSession {
    /// Calls `does`; if it fails or panics, tells the other devices.
    fn in_group<T>(
        &mut self,
        does: impl FnOnce(&mut RankSession) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let peers = self.peers.clone().expect("one of several has peers");
        let rank = self.plan.rank.expect("one of several has a rank").rank;
        match catch_unwind(AssertUnwindSafe(|| does(self))) {
            Ok(result) => {
                if let Err(error) = &result {
                    peers.leave(rank, &error.to_string());
                }
                result
            }
            Err(panic) => {
                let words = last_words(panic.as_ref());
                let why = words.map_or("its thread died".into(), |words| format!("its thread died: {words}"));
                peers.leave(rank, &why);
                resume_unwind(panic)
            }
        }
    }
}

/// The message of a panic.
fn last_words(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str))
}
