//! One job on several devices: data parallel, where each has all weights and takes one partial of every batch,
//! or as a pipeline, where each has some of the nodes. The session of the first has those of the others; they
//! meet as their graphs say.

use super::{Evaluated, Hyper, Key, Outcome, Scalar, Scalars, Session, SessionError, SessionOptions, Which};
use crate::data::Batch;
use crate::executor::RunError;
use crate::host::HostTensor;
use crate::lower::KernelError;
use crate::peers::{Peers, Room, Seat, Takes};
use crate::planner::Planner;
use crate::team::{NoThread, Team, cores, start_scoped};
use gulliver_graph::dim::BATCH;
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::{Graph, Origin, Phase, Role, Value, ValueInfo};
use gulliver_graph::role::OutputScope;
use gulliver_plan::devices::replicate::replica;
use gulliver_plan::document::collectives::all_get_through;
use gulliver_plan::document::error::PlanError;
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The planners of several devices, each with the options of one, in which batch and partials are those of
/// the whole job. There must be as many partials for each device, and at least one device. The first evaluates.
pub fn planners(
    train: &Graph,
    evaluate: Option<&Graph>,
    devices: Vec<SessionOptions>,
) -> Result<Vec<Planner>, SessionError> {
    let ranks = devices.len() as u32;
    let seated = seated(devices, Takes::Partials)?;
    let planner = |(rank, options): (u32, SessionOptions)| {
        let evaluate = evaluate.filter(|_| rank == 0).cloned();
        Ok(Planner::new(replica(train, rank, ranks, options.partials)?, evaluate, options)?)
    };
    at_once((0..).zip(seated).collect(), planner)
}

/// The options of devices that share a batch, each with its own partials.
pub(super) fn seated(
    devices: Vec<SessionOptions>,
    takes: Takes,
) -> Result<Vec<SessionOptions>, SessionError> {
    let ranks = devices.len() as u32;
    let room = room(&devices);
    let seated = |(rank, mut options): (u32, SessionOptions)| {
        if options.partials == 0 || !options.partials.is_multiple_of(ranks) {
            let (partials, devices) = (options.partials, ranks);
            return Err(SessionError::Partials { partials, devices });
        }
        options.partials /= ranks;
        if let Some(largest) = &mut options.largest
            && let Some(batch) = largest.get(BATCH)
        {
            largest.set(BATCH, share_of(batch, ranks)?);
        }
        options.kernels = options.kernels.among(Arc::clone(&room));
        options.seat = Some(Seat { rank, ranks, takes, peers: Arc::clone(&room) });
        Ok(options)
    };
    (0..ranks).zip(devices).map(seated).collect()
}

/// What `make` makes of each, several at a time; the first error in their order, if there are any.
pub(super) fn at_once<A: Send, T: Send>(
    all: Vec<A>,
    make: impl Fn(A) -> Result<T, SessionError> + Sync,
) -> Result<Vec<T>, SessionError> {
    let make = &make;
    thread::scope(|scope| {
        let start = |one| start_scoped(scope, "planner", move || make(one));
        let workers: Vec<_> = all.into_iter().map(start).collect();
        let join = |worker: Result<thread::ScopedJoinHandle<'_, Result<T, SessionError>>, NoThread>| {
            let worker = worker.map_err(RunError::from)?;
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        // All are waited for, whatever the first of them says.
        let made: Vec<Result<T, SessionError>> = workers.into_iter().map(join).collect();
        made.into_iter().collect()
    })
}

/// Where these devices meet: where their kernels were told to, or in a room of this process.
pub(super) fn room(devices: &[SessionOptions]) -> Arc<dyn Peers> {
    if let Some(peers) = devices.first().and_then(|options| options.kernels.peers.clone()) {
        return peers;
    }
    let threads: usize = devices.iter().map(|options| options.threads).sum();
    Arc::new(Room::new(devices.len(), threads > cores()))
}

/// One step of every device, each with its own batch, at the same time. If one fails, that is the error.
fn step_all(
    crew: &Team,
    devices: Vec<(&mut Session, &Batch)>,
    key: Key,
    set: &HashMap<String, f32>,
) -> Result<Vec<Outcome>, SessionError> {
    on_all(crew, devices, key, |session, batch| {
        let outcomes = session.sums_of_step(batch, &[key], &|_, _, name| set.get(name).copied());
        Ok(outcomes?.remove(0))
    })
}

/// What every device makes of its own batch, each on a thread of the crew. If one fails, that is the error.
fn on_all<T: Send>(
    crew: &Team,
    devices: Vec<(&mut Session, &Batch)>,
    key: Key,
    does: impl Fn(&mut Session, &Batch) -> Result<T, SessionError> + Sync,
) -> Result<Vec<T>, SessionError> {
    let seat = devices[0].0.planner.options().seat.clone().expect("one of several has a seat");
    debug_assert_eq!(crew.threads(), devices.len(), "devices wait for each other");
    // What each device has to do, and what came of it: nothing, if its thread panicked.
    let parts: Vec<_> = devices.into_iter().map(|device| Mutex::new((Some(device), None))).collect();
    crew.run(parts.len(), &|part| {
        let mut part = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        let (session, batch) = part.0.take().expect("every part is run once");
        let one = || session.among(|session| does(session, batch));
        part.1 = catch_unwind(AssertUnwindSafe(one)).ok();
    });
    let results = parts.into_iter().map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner).1);
    let results: Vec<Option<Result<T, SessionError>>> = results.collect();
    // The device that failed first, not one that was told of it.
    let fine = |result: &Option<Result<T, SessionError>>| matches!(result, Some(Ok(_)));
    if !results.iter().all(fine)
        && let Some(parted) = seat.peers.gone()
    {
        let (device, why) = (parted.rank, parted.why);
        return Err(SessionError::Device { device, step: key.step + 1, why });
    }
    results.into_iter().flatten().collect()
}

/// The hyper-parameters of a graph that are not at their defaults.
pub(super) fn hypers(graph: &Graph, hyper: Hyper<'_>) -> HashMap<String, f32> {
    let set = |(_, role, info): (Value, Role, &ValueInfo)| match role {
        Role::Hyper(role, _) => Some((info.name.clone(), hyper(role, &info.name)?)),
        _ => None,
    };
    graph.inputs().filter_map(set).collect()
}

impl Session {
    /// A session on several devices, with all weights and states at their first values; the planners are
    /// those that [`planners`] made.
    pub fn together(planners: Vec<Planner>, seed: u64) -> Result<Session, SessionError> {
        let sessions = planners.into_iter().map(|planner| Session::with(planner, seed));
        Ok(Session::joined_by(sessions.collect::<Result<Vec<Session>, SessionError>>()?))
    }

    /// One session of those of all devices, of which there is at least one.
    pub(crate) fn joined_by(mut sessions: Vec<Session>) -> Session {
        let mut first = sessions.remove(0);
        first.others = sessions;
        first
    }

    /// The sizes of what each device gets of inputs of these sizes.
    pub fn share(&self, mut sizes: Bindings) -> Result<Bindings, SessionError> {
        if let Some(batch) = sizes.get(BATCH).filter(|_| self.shares_batches()) {
            sizes.set(BATCH, share_of(batch, 1 + self.others.len() as u32)?);
        }
        Ok(sizes)
    }

    /// Whether each of several devices takes its share of a batch.
    fn shares_batches(&self) -> bool {
        let options = self.planner.options();
        options.seat.is_none() || options.own_partials().is_some()
    }

    /// The sessions of all devices, this one's first.
    pub fn devices(&self) -> impl Iterator<Item = &Session> {
        std::iter::once(self).chain(&self.others)
    }

    /// Losses summed over all devices, in order. All who take part get the same.
    pub(super) fn agreed(&self, losses: Vec<f32>) -> Result<Vec<f32>, RunError> {
        let options = self.planner.options();
        // Whoever meets within a step has been told of them there.
        let Some(seat) = options.own_partials().filter(|_| !options.meets_within()) else {
            return Ok(losses);
        };
        let lost = |parted| RunError::Kernel { value: "loss".into(), source: KernelError::PeerLost(parted) };
        let all = seat.peers.share(seat.rank, &losses).map_err(lost)?;
        let add = |sum: Vec<f32>, one: Vec<f32>| sum.iter().zip(one).map(|(a, b)| a + b).collect();
        Ok(all.into_iter().reduce(add).unwrap_or_default())
    }

    /// One training step on all devices.
    pub(super) fn step_on_all(
        &mut self,
        batch: &Batch,
        key: Key,
        hyper: Hyper<'_>,
    ) -> Result<Outcome, SessionError> {
        let ranks = 1 + self.others.len();
        let set = hypers(self.whole(), hyper);
        if !self.shares_batches() {
            self.ready_on_all(Which::Train, &self.sizes(Which::Train, batch)?)?;
            let outcomes = self.with_others(|crew, all| {
                step_all(crew, all.into_iter().map(|session| (session, batch)).collect(), key, &set)
            })?;
            return Ok(self.united(outcomes));
        }
        let rows = batch.fields.first().and_then(|(_, t)| t.shape().first()).copied().unwrap_or(0);
        share_of(rows, ranks as u32)?;
        self.ready_on_all(Which::Train, &self.share(self.sizes(Which::Train, batch)?)?)?;
        let shares: Vec<Batch> = (0..ranks).map(|rank| share_of_batch(batch, rank, ranks)).collect();
        let outcomes =
            self.with_others(|crew, all| step_all(crew, all.into_iter().zip(&shares).collect(), key, &set))?;
        Ok(self.joined(outcomes))
    }

    /// What the evaluation graph gives for a batch, each output from whichever device makes it.
    pub(super) fn evaluate_on_all(&mut self, batch: &Batch, key: Key) -> Result<Evaluated, SessionError> {
        self.ready_on_all(Which::Evaluate, &self.sizes(Which::Evaluate, batch)?)?;
        let all = self.with_others(|crew, all| {
            let all = all.into_iter().map(|session| (session, batch)).collect();
            on_all(crew, all, key, |session, batch| session.evaluate_here(batch, key))
        })?;
        Ok(all.into_iter().fold(Evaluated::default(), Evaluated::join))
    }

    /// Makes sure that all devices have a program for their inputs, which are of these sizes, and that nobody
    /// will wait for ever.
    fn ready_on_all(&mut self, which: Which, sizes: &Bindings) -> Result<(), SessionError> {
        if self.devices().all(|device| device.programs.has(which, sizes)) {
            return Ok(());
        }
        let load = |session: &mut Session| {
            let at = session.load(which, sizes)?;
            Ok(session.programs.get(at).collectives.clone())
        };
        let collectives = self.with_others(|_, all| at_once(all, load))?;
        Ok(all_get_through(&collectives)?)
    }

    /// Calls `f` with the sessions of all devices, and threads for each of them.
    fn with_others<T>(
        &mut self,
        f: impl FnOnce(&Team, Vec<&mut Session>) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let crew = match self.crew.take() {
            Some(crew) => crew,
            None => Team::started(1 + self.others.len()).map_err(RunError::from)?,
        };
        let mut others = std::mem::take(&mut self.others);
        let result = f(&crew, std::iter::once(&mut *self).chain(&mut others).collect());
        (self.others, self.crew) = (others, Some(crew));
        result
    }

    /// What this device does; if it fails, the others are told.
    fn among<T>(
        &mut self,
        does: impl FnOnce(&mut Session) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let seat = self.planner.options().seat.clone().expect("one of several has a seat");
        let mut told = Told { seat: &seat, why: "its thread died".into(), armed: true };
        match catch_unwind(AssertUnwindSafe(|| does(self))) {
            Ok(result) => {
                told.disarm(result.as_ref().err());
                result
            }
            Err(panic) => {
                if let Some(last_words) = last_words(panic.as_ref()) {
                    told.why = format!("its thread died: {last_words}");
                }
                drop(told);
                resume_unwind(panic)
            }
        }
    }

    /// The outcome of a step in which every device has some of the results of all partials.
    fn united(&self, outcomes: Vec<Outcome>) -> Outcome {
        if let Some(failed) = outcomes.iter().find(|outcome| outcome.not_finite.is_some()) {
            return failed.clone();
        }
        let mut outcome = Outcome { scalars: Scalars::default(), not_finite: None };
        outcomes.into_iter().for_each(|one| outcome.scalars.extend(one.scalars));
        outcome.average(self.planner.options().partials);
        outcome
    }

    /// What the devices' outcomes come to.
    fn joined(&self, outcomes: Vec<Outcome>) -> Outcome {
        if outcomes.iter().any(|outcome| outcome.not_finite.is_some()) {
            let named = outcomes.iter().filter_map(|outcome| outcome.not_finite.clone());
            let value = named.into_iter().find(|name| name != "loss").unwrap_or_else(|| "loss".into());
            return Outcome::failed(value);
        }
        let mut outcomes = outcomes.into_iter();
        let mut sum = outcomes.next().expect("there is a first device");
        let of_forward = |name: &str| self.graph().output(name).is_some_and(|v| repeats(self.graph(), v));
        let own = |(name, sum): &(&str, &mut Scalar)| sum.scope == OutputScope::Device && of_forward(name);
        for outcome in outcomes {
            for (name, sum) in sum.scalars.iter_mut().filter(own) {
                if let Some(x) = outcome.scalars.get(name) {
                    // As f32, like the sums over the partials of one device.
                    sum.value = f64::from(sum.value as f32 + x as f32);
                }
            }
        }
        sum.average(self.planner.options().all_partials());
        sum
    }
}

/// Tells the others that a device has failed, even if it panics.
struct Told<'a> {
    seat: &'a Seat,
    why: String,
    armed: bool,
}

impl Told<'_> {
    fn disarm(mut self, error: Option<&SessionError>) {
        self.armed = error.is_some();
        if let Some(error) = error {
            self.why = error.to_string();
        }
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.seat.peers.part(self.seat.rank, &self.why);
        }
    }
}

/// What a thread said when it died.
fn last_words(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str))
}

fn repeats(graph: &Graph, v: Value) -> bool {
    match graph.value(v).origin {
        Origin::Node { node, .. } => graph.nodes[node.index()].phase != Phase::Update,
        Origin::Input(_) => false,
    }
}

/// Examples that each device takes of a batch.
fn share_of(batch: usize, ranks: u32) -> Result<usize, PlanError> {
    if batch == 0 || !batch.is_multiple_of(ranks as usize) {
        return Err(PlanError::Partials { batch, partials: ranks });
    }
    Ok(batch / ranks as usize)
}

fn share_of_batch(batch: &Batch, rank: usize, ranks: usize) -> Batch {
    let share = |tensor: &HostTensor| {
        let mut shape = tensor.shape().to_vec();
        shape[0] /= ranks;
        let mut share = HostTensor::zeros(tensor.dtype(), &shape);
        let bytes = share.as_bytes().len();
        share.as_bytes_mut().copy_from_slice(&tensor.as_bytes()[rank * bytes..][..bytes]);
        share
    };
    Batch { fields: batch.fields.iter().map(|(name, tensor)| (name.clone(), share(tensor))).collect() }
}
