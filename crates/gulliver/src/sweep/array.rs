//! Training a wave as arrays: rungs that are the same but for numbers are members of one array, whose lanes
//! share the machine's threads and memory. Every rung ends with the bits it has alone.

use super::SweepError;
use super::run::{Group, Listener, News, Rung, Runner, groups, is_machine, newest, take};
use super::store::Outcome;
use crate::command::CommandError;
use crate::setup::{Prepared, Setup, open_data, prepare, setup};
use gulliver_graph::graph::Role;
use gulliver_run::session::Session;
use gulliver_run::train::{Ended, Lane, Member, Notice, Sources, TrainError, train_array};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

/// Trains rungs as arrays.
pub struct Arrays {
    /// Becomes true when it should stop.
    pub stop: Arc<AtomicBool>,
}

impl Runner for Arrays {
    fn run(&mut self, wave: &[Rung], news: &mut Listener<'_>) -> Result<(), SweepError> {
        for Group { rungs, problem } in groups(wave) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            match problem {
                Some(reason) => news(News::Ended { rung: rungs[0], outcome: Outcome::Failed { reason } })?,
                None => self.train(wave, &rungs, news)?,
            }
        }
        Ok(())
    }
}

impl Arrays {
    fn train(&self, wave: &[Rung], rungs: &[usize], news: &mut Listener<'_>) -> Result<(), SweepError> {
        let first = &wave[rungs[0]];
        let machine =
            |rung: &Rung, source| SweepError::Machine { trial: rung.place.trial, source: Box::new(source) };
        // Whoever cannot be made ready fails alone.
        let (mut ready, mut members, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for &index in rungs {
            match member(&wave[index], &mut data) {
                Ok(one) => {
                    ready.push(index);
                    members.push(one);
                }
                Err(error) if is_machine(&error) => return Err(machine(&wave[index], error)),
                Err(error) => {
                    let outcome = Outcome::Failed { reason: error.to_string() };
                    news(News::Ended { rung: index, outcome })?;
                }
            }
        }
        let mut lanes = match lanes(first, members.len()) {
            Ok(lanes) => lanes,
            Err(error) if is_machine(&error) => return Err(machine(first, error)),
            Err(error) => {
                let reason = error.to_string();
                return ready.iter().try_for_each(|&rung| {
                    news(News::Ended { rung, outcome: Outcome::Failed { reason: reason.clone() } })
                });
            }
        };
        let (sender, receiver) = channel();
        let halt = AtomicBool::new(false);
        let (ended, heard) = thread::scope(|scope| {
            let (halt, stop, lanes) = (&halt, &self.stop, &mut lanes);
            let work = scope.spawn(move || {
                let sender = Line { sender, stop, halt, until: first.to };
                train_array(lanes, members, first.to, halt, &|m, notice| sender.tell(m, notice))
            });
            let heard = listen(&receiver, &ready, &self.stop, halt, news);
            (work.join(), heard)
        });
        heard?;
        let ended = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        for (&index, ended) in ready.iter().zip(ended) {
            let outcome = match ended {
                Ok(Ended { steps, metrics, work: (_, seconds), .. }) if steps >= first.to => {
                    Outcome::Done { step: first.to, metrics, seconds }
                }
                // It was told to stop, and goes on from where it is.
                Ok(_) => continue,
                Err(error @ TrainError::Checkpoint(_)) => return Err(machine(&wave[index], error.into())),
                Err(error) => Outcome::Failed { reason: error.to_string() },
            };
            news(News::Ended { rung: index, outcome })?;
        }
        Ok(())
    }
}

/// One rung as a member. Members whose batches are the same share them.
fn member(rung: &Rung, data: &mut Vec<(String, Arc<Sources>)>) -> Result<Member, CommandError> {
    let (job, checkpoints) = (&rung.job, rung.dir.join("checkpoints"));
    let batches = format!("{:?} {} {}", job.data, job.train.batch, job.train.seed);
    let known = data.iter().find(|(same, _)| *same == batches).map(|(_, sources)| sources.clone());
    let opened = match &known {
        Some(sources) => (sources.train.clone(), sources.validation.as_ref().map(|(set, _)| set.clone())),
        None => open_data(job)?,
    };
    let Prepared { train, schedule, sources, mut options, .. } = prepare(job, opened, Some(&checkpoints))?;
    take(&rung.dir, job)?;
    // Every step is told of.
    options.log_every = 1;
    options.hyper = train
        .inputs()
        .filter_map(|(_, role, info)| match role {
            Role::Hyper(number) => Some((info.name.clone(), number)),
            _ => None,
        })
        .collect::<BTreeMap<String, f32>>();
    let sources = known.unwrap_or_else(|| {
        let sources = Arc::new(sources);
        data.push((batches, sources.clone()));
        sources
    });
    let weights = job.train.weights.clone();
    let one = Member::new(schedule, sources, options);
    Ok(match (newest(&checkpoints, rung.to)?, weights) {
        (Some((step, stored)), _) => one.resumed(stored, step),
        (None, Some(weights)) => one.with_weights(gulliver_run::checkpoint::Stored::open(&weights)?),
        (None, None) => one,
    })
}

/// As many lanes as there are threads, or members, or as fit the budgets, which they share evenly.
fn lanes(rung: &Rung, members: usize) -> Result<Vec<Lane>, CommandError> {
    let threads = match rung.job.devices.threads {
        0 => thread::available_parallelism().map_or(1, |n| n.get()),
        n => n as usize,
    };
    let mut count = threads.min(members).max(1);
    loop {
        let mut job = rung.job.clone();
        let devices = &mut job.devices;
        for budget in [&mut devices.memory, &mut devices.host_memory, &mut devices.disk] {
            *budget = budget.map(|bytes| bytes / count as u64);
        }
        let lane = |lane: usize| -> Result<Lane, CommandError> {
            let mut job = job.clone();
            job.devices.threads = (threads / count + usize::from(lane < threads % count)) as u64;
            let Setup { planner, .. } = setup(&job, Some(&rung.dir.join("checkpoints")))?;
            Ok(Lane { session: Session::with(planner, job.train.seed)? })
        };
        match (0..count).map(lane).collect() {
            Err(_) if count > 1 && rung.job.devices.memory.is_some() => count -= 1,
            made => return made,
        }
    }
}

/// What lanes tell, and who waits for it to be heard.
type Told = (usize, Notice, Option<SyncSender<()>>);

/// How lanes tell what happens.
struct Line<'l> {
    sender: Sender<Told>,
    stop: &'l AtomicBool,
    halt: &'l AtomicBool,
    until: u64,
}

impl Line<'_> {
    fn tell(&self, member: usize, notice: Notice) {
        if self.stop.load(Ordering::Relaxed) {
            self.halt.store(true, Ordering::Relaxed);
        }
        // An evaluation must be noted before a checkpoint of a later step is there.
        let waits = matches!(&notice, Notice::Evaluation { step, .. } if *step < self.until);
        let (done, heard) = sync_channel(1);
        let told = self.sender.send((member, notice, waits.then_some(done)));
        if waits && told.is_ok() {
            // Whoever does not answer is gone, and the run is halted.
            let _ = heard.recv();
        }
    }
}

/// Passes on what lanes tell until they are done.
fn listen(
    receiver: &Receiver<Told>,
    ready: &[usize],
    stop: &AtomicBool,
    halt: &AtomicBool,
    news: &mut Listener<'_>,
) -> Result<(), SweepError> {
    let mut result = Ok(());
    for (member, notice, _answer) in receiver {
        let rung = ready[member];
        if stop.load(Ordering::Relaxed) {
            halt.store(true, Ordering::Relaxed);
        }
        let heard = match &notice {
            _ if result.is_err() => Ok(()),
            Notice::Step { step, samples_per_second, .. } => {
                news(News::Step { rung, step: *step, samples_per_second: *samples_per_second })
            }
            Notice::Evaluation { step, metrics } if _answer.is_some() => {
                news(News::Evaluated { rung, step: *step, metrics })
            }
            _ => Ok(()),
        };
        if let Err(error) = heard {
            result = Err(error);
            halt.store(true, Ordering::Relaxed);
        }
    }
    result
}
