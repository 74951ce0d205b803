//! The training loop of an array: every member as it would be trained alone, with its own schedule, seed,
//! evaluations and checkpoints, in steps that all take together.

use super::{
    Key, Notice, OnNan, Progress, Session, SessionError, Sources, TrainError, TrainOptions,
    evaluate_together, hyper, save, warn_of_alarms,
};
use crate::checkpoint;
use crate::data::{Batch, DataError, Prefetch};
use gulliver_graph::fuse::own_data;
use gulliver_graph::graph::Role;
use gulliver_graph::schedule::Schedule;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What one member is trained with.
pub struct Member<'m> {
    /// Its learning rates.
    pub schedule: &'m mut Schedule,
    /// Its data. Validation examples are the same for all members.
    pub sources: &'m Sources,
    /// Its options; those that say when something is due are the same for all members.
    pub options: &'m TrainOptions,
}

/// How a stretch of steps went.
#[derive(Debug)]
pub struct Stretch {
    /// Steps done in all.
    pub reached: u64,
    /// Members whose step was the last, with the reason. They had their updates undone.
    pub failed: Vec<(usize, TrainError)>,
    /// The last loss of each member.
    pub losses: Vec<f64>,
    /// Samples of all members together, and the seconds their steps took.
    pub work: (u64, f64),
}

/// What a member came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The last evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// SHA-256 of all weights and states.
    pub fingerprint: String,
}

/// Trains all members through these steps, of the many that their options state. Ends early when told to, and
/// after a step in which a member failed, so that it can leave.
pub fn train_together(
    session: &mut Session,
    members: &mut [Member<'_>],
    steps: Range<u64>,
    stop: &AtomicBool,
    notify: &mut dyn FnMut(usize, Notice),
) -> Result<Stretch, TrainError> {
    let mut batches = Batches::new(session, members, steps.clone());
    let mut runs: Vec<Progress> = members.iter().map(|_| Progress::new(steps.start)).collect();
    let mut reached = steps.start;
    let mut failed = Vec::new();
    for step in steps.clone() {
        if stop.load(Ordering::Relaxed) || !failed.is_empty() {
            break;
        }
        let batch = batches.next()?;
        let rows = batch.fields.first().and_then(|(_, t)| t.shape().first()).copied().unwrap_or(0);
        let rate = |m: &Member<'_>| m.schedule.lr(m.options.base_lr, step, m.options.steps);
        let rates: Vec<f64> = members.iter().map(rate).collect();
        let keys: Vec<Key> = members.iter().map(|m| Key { seed: m.options.seed, step }).collect();
        let began = Instant::now();
        let outcomes = session.step_together(&batch, &keys, &|m, name| hyper(name, rates[m], step))?;
        let took = began.elapsed();
        reached = step + 1;
        warn_of_alarms(session, &mut |notice| notify(0, notice));
        for (m, outcome) in outcomes.into_iter().enumerate() {
            runs[m].account(rows, took);
            runs[m].steps = reached;
            match outcome.not_finite {
                Some(value) if members[m].options.on_nan == OnNan::Stop => {
                    failed.push((m, TrainError::NotFinite { step: reached, value }));
                }
                Some(value) => {
                    let message = format!("step {reached}: `{value}` is not finite; the step is skipped");
                    notify(m, Notice::Warning(message));
                }
                None => runs[m].learned(outcome.scalars),
            }
        }
        let options = members[0].options;
        let due = |every: u64| every > 0 && reached.is_multiple_of(every);
        if due(options.log_every) || reached == steps.end {
            runs.iter_mut()
                .zip(&rates)
                .enumerate()
                .for_each(|(m, (run, lr))| notify(m, run.step_notice(*lr)));
        }
        if due(options.eval_every) && reached < options.steps {
            let losses: Vec<f64> = runs.iter().map(|run| run.loss).collect();
            watch(session, members, &losses, reached, notify)?;
        }
        if due(options.checkpoint_every) && reached < steps.end && failed.is_empty() {
            for (m, member) in members.iter().enumerate() {
                let tell = &mut |notice| notify(m, notice);
                save(session, m, member.schedule, member.options, reached, tell)?;
            }
        }
    }
    let samples = runs.iter().map(|run| run.samples).sum();
    let seconds = runs.first().map_or(0.0, |run| run.busy.as_secs_f64());
    let losses = runs.iter().map(|run| run.loss).collect();
    Ok(Stretch { reached, failed, losses, work: (samples, seconds) })
}

/// Evaluates every member and writes its checkpoint. Schedules watch this evaluation only if it is due alone
/// too: at the last of all steps.
pub fn finish_together(
    session: &mut Session,
    members: &mut [Member<'_>],
    stretch: &Stretch,
    notify: &mut dyn FnMut(usize, Notice),
) -> Result<Vec<Result<Ended, TrainError>>, TrainError> {
    let reached = stretch.reached;
    let last = members.first().is_some_and(|m| reached == m.options.steps);
    let metrics = match last {
        true => watch(session, members, &stretch.losses, reached, notify)?,
        false => evaluated(session, members)?,
    };
    let layout = session.layout();
    let mut all = Vec::new();
    for ((m, member), metrics) in members.iter().enumerate().zip(metrics) {
        let saved = save(session, m, member.schedule, member.options, reached, &mut |n| notify(m, n));
        let fingerprint = match saved {
            Ok(Some(fingerprint)) => fingerprint,
            Ok(None) => checkpoint::fingerprint_from(&layout, &mut session.reader(m, &layout))
                .map_err(SessionError::from)?,
            Err(e) => {
                all.push(Err(e));
                continue;
            }
        };
        all.push(Ok(Ended { metrics, fingerprint }));
    }
    Ok(all)
}

/// Evaluates, tells, and lets schedules see the losses.
fn watch(
    session: &mut Session,
    members: &mut [Member<'_>],
    losses: &[f64],
    step: u64,
    notify: &mut dyn FnMut(usize, Notice),
) -> Result<Vec<BTreeMap<String, f64>>, TrainError> {
    let all = evaluated(session, members)?;
    for (m, (member, metrics)) in members.iter_mut().zip(&all).enumerate() {
        if !metrics.is_empty() {
            notify(m, Notice::Evaluation { step, metrics: metrics.clone() });
        }
        member.schedule.observe(metrics.get("loss").copied().unwrap_or(losses[m]));
    }
    Ok(all)
}

/// Metrics of every member; empty without validation examples.
fn evaluated(
    session: &mut Session,
    members: &[Member<'_>],
) -> Result<Vec<BTreeMap<String, f64>>, TrainError> {
    let Some((dataset, sampler)) = members.first().and_then(|m| m.sources.validation.as_ref()) else {
        return Ok(vec![BTreeMap::new(); members.len()]);
    };
    let seeds: Vec<u64> = members.iter().map(|m| m.options.seed).collect();
    evaluate_together(session, dataset, sampler, &seeds, members[0].options.perplexity)
}

/// Batches as the session's graph reads them: everybody's, or one for each member under its own names.
enum Batches {
    Shared(Prefetch),
    Own(Vec<Prefetch>),
}

impl Batches {
    fn new(session: &Session, members: &[Member<'_>], steps: Range<u64>) -> Batches {
        let fetch = |m: &Member<'_>| {
            Prefetch::new(m.sources.train.clone(), m.sources.sampler.clone(), steps.clone(), 2)
        };
        let graph = session.graph();
        let shared = graph.inputs().any(|(_, role, info)| role == Role::Data && !info.name.contains('@'));
        if shared {
            Batches::Shared(fetch(&members[0]))
        } else {
            Batches::Own(members.iter().map(fetch).collect())
        }
    }

    fn next(&mut self) -> Result<Batch, DataError> {
        let one = |batches: &mut Prefetch| batches.next().expect("as many batches as steps");
        match self {
            Batches::Shared(batches) => one(batches),
            Batches::Own(all) => {
                let mut fields = Vec::new();
                for (m, batches) in all.iter_mut().enumerate() {
                    let own = one(batches)?.fields.into_iter();
                    fields.extend(own.map(|(name, tensor)| (own_data(&name, m), tensor)));
                }
                Ok(Batch { fields })
            }
        }
    }
}
