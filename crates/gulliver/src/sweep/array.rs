//! Trains a wave as arrays. Rungs that differ only in numbers fed to the graph are members of one array, whose lanes
//! share the machine's threads and memory. Every rung ends with the same bits as trained alone.

use super::run::{
    JobShapes, NewsListener, RungGroup, RungNews, RungRunner, TrialRung, groups, is_machine, newest, take,
};
use super::store::RungOutcome;
use super::width::{self, ArrayWidth};
use crate::error::Error;
use crate::job::{DevicesSection, Job, TrainSection};
use crate::local::{LocalDevice, together};
use crate::model::weights_file;
use crate::setup::{Prepared, Speeds, open_data, prepare};
use gulliver_graph::graph::Role;
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::strategy::{ALONE, JobGraphs};
use gulliver_run::device::RunError;
use gulliver_run::session::SessionError;
use gulliver_run::team::start_scoped;
use gulliver_run::train::{Ended, Lane, Member, Notice, Sources, TrainError, train_array};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

/// Trains rungs as arrays.
pub struct ArrayRunner {
    stop: Arc<AtomicBool>,
    /// Measured speeds of the machine, by the devices they were measured for.
    speeds: Vec<(DevicesSection, Speeds)>,
    shapes: JobShapes,
}

impl RungRunner for ArrayRunner {
    fn run(&mut self, wave: &[TrialRung], news: &mut NewsListener<'_>) -> Result<(), Error> {
        for RungGroup { rungs, problem } in groups(wave, &mut self.shapes) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            match problem {
                Some(reason) => {
                    news(RungNews::Ended { rung: rungs[0], outcome: RungOutcome::Failed { reason } })?
                }
                None => self.train(wave, &rungs, news)?,
            }
        }
        Ok(())
    }
}

impl ArrayRunner {
    /// Stops when `stop` becomes true.
    pub fn new(stop: Arc<AtomicBool>) -> ArrayRunner {
        ArrayRunner { stop, speeds: Vec::new(), shapes: JobShapes::default() }
    }

    fn train(
        &mut self,
        wave: &[TrialRung],
        rungs: &[usize],
        news: &mut NewsListener<'_>,
    ) -> Result<(), Error> {
        let first = &wave[rungs[0]];
        let machine =
            |rung: &TrialRung, source| Error::Trial { trial: rung.place.trial, source: Box::new(source) };
        // A member that cannot be prepared fails alone.
        let (mut ready, mut members, mut data) = (Vec::new(), Vec::new(), Vec::new());
        let mut graphs = None;
        for &index in rungs {
            match member(&wave[index], &mut data) {
                Ok((one, own)) => {
                    ready.push(index);
                    members.push(one);
                    graphs = graphs.or(Some(own));
                }
                Err(error) if is_machine(&error) => return Err(machine(&wave[index], error)),
                Err(error) => {
                    let outcome = RungOutcome::Failed { reason: error.to_string() };
                    news(RungNews::Ended { rung: index, outcome })?;
                }
            }
        }
        let Some(graphs) = graphs else { return Ok(()) };
        let (mut lanes, resident) = match self.lanes(first, &graphs, members.len()) {
            Ok(lanes) => lanes,
            Err(error) if is_machine(&error) => return Err(machine(first, error)),
            Err(error) => {
                let reason = error.to_string();
                return ready.iter().try_for_each(|&rung| {
                    news(RungNews::Ended { rung, outcome: RungOutcome::Failed { reason: reason.clone() } })
                });
            }
        };
        let (sender, receiver) = channel();
        let halt = AtomicBool::new(false);
        let (ended, heard) = thread::scope(|scope| -> Result<_, SessionError> {
            let (halt, stop, lanes) = (&halt, &self.stop, &mut lanes);
            let work = start_scoped(scope, "array", move || {
                let sender = Line { sender, stop, halt, until: first.to };
                let tell = |m, notice| sender.tell(m, notice);
                train_array(lanes, members, resident, first.to, halt, &tell)
            });
            let work = work.map_err(RunError::from)?;
            let heard = listen(&receiver, &ready, &self.stop, halt, news);
            Ok((work.join(), heard))
        })
        .map_err(|error| machine(first, error.into()))?;
        heard?;
        let ended = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        for (&index, ended) in ready.iter().zip(ended) {
            let outcome = match ended {
                Ok(Ended { interrupted: false, metrics, work: (_, seconds), .. }) => {
                    RungOutcome::Done { step: first.to, metrics, seconds }
                }
                // Interrupted: it goes on from its checkpoint later.
                Ok(_) => continue,
                Err(error @ TrainError::Checkpoint(_)) => return Err(machine(&wave[index], error.into())),
                Err(error) => RungOutcome::Failed { reason: error.to_string() },
            };
            news(RungNews::Ended { rung: index, outcome })?;
        }
        Ok(())
    }

    /// The lanes that are predicted to finish first, and the number of members in memory at once.
    fn lanes(
        &mut self,
        rung: &TrialRung,
        graphs: &JobGraphs,
        members: usize,
    ) -> Result<(Vec<Lane>, usize), Error> {
        let checkpoints = rung.dir.join("checkpoints");
        let width = self.width(rung, graphs, members, Some(&checkpoints))?;
        Ok((sessions(width.lanes, rung.job.train.seed)?, width.resident))
    }

    /// The width at which an array of such rungs is trained.
    pub(super) fn width(
        &mut self,
        rung: &TrialRung,
        graphs: &JobGraphs,
        members: usize,
        checkpoints: Option<&Path>,
    ) -> Result<ArrayWidth, Error> {
        let known = self.speeds.iter().find(|(devices, _)| *devices == rung.job.devices);
        let speeds = match known {
            Some((_, speeds)) => *speeds,
            None => Speeds::for_job(&rung.job, checkpoints),
        };
        if known.is_none() {
            self.speeds.push((rung.job.devices.clone(), speeds));
        }
        width::choose(&rung.job, graphs, (members, rung.to - rung.from), &speeds, checkpoints)
    }
}

/// A session for each lane.
pub(super) fn sessions(lanes: Vec<(Planner, LocalDevice)>, seed: u64) -> Result<Vec<Lane>, Error> {
    let lane = |(planner, device): (Planner, LocalDevice)| {
        Ok(Lane { session: together(ALONE, vec![planner], &[device], seed)? })
    };
    lanes.into_iter().map(lane).collect()
}

/// One rung as a member, and its graphs. Members whose batches are the same share them.
pub(super) fn member(
    rung: &TrialRung,
    data: &mut Vec<(String, Arc<Sources>)>,
) -> Result<(Member, JobGraphs), Error> {
    let (job, checkpoints) = (&rung.job, rung.dir.join("checkpoints"));
    let batches = batches(job);
    let known = data.iter().find(|(same, _)| *same == batches).map(|(_, sources)| sources.clone());
    let opened = match &known {
        Some(sources) => (sources.train.clone(), sources.validation.as_ref().map(|(set, _)| set.clone())),
        None => open_data(job)?,
    };
    let Prepared { graphs, schedule, sources, mut options, .. } = prepare(job, opened, Some(&checkpoints))?;
    take(&rung.dir, job)?;
    // The sweep reports every step.
    options.log_every = 1;
    options.best = None;
    options.hyper = graphs
        .train
        .inputs()
        .filter_map(|(_, role, info)| match role {
            Role::Hyper(_, number) => Some((info.name.clone(), number)),
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
    let one = match (newest(&checkpoints, rung.to)?, weights) {
        (Some((step, stored)), _) => one.resumed(stored, step),
        (None, Some(weights)) => one.with_weights(
            gulliver_run::checkpoint::Stored::open(&weights_file(&weights))?,
            job.train.weights_strict,
        ),
        (None, None) => one,
    };
    Ok((one, graphs))
}

/// A key of the batches of a job: jobs with equal keys share them.
pub(super) fn batches(job: &Job) -> String {
    let TrainSection { batch, seed, class_weights, .. } = &job.train;
    format!("{:?} {batch} {seed} {class_weights:?}", job.data)
}

/// A member, its notice, and the channel on which the lane waits for an answer.
type Told = (usize, Notice, Option<SyncSender<()>>);

/// The lanes' end of the channel to the sweep.
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
        // An evaluation must be stored before a checkpoint of a later step is written.
        let waits = matches!(&notice, Notice::Evaluation { step, .. } if *step < self.until);
        let (done, heard) = sync_channel(1);
        let told = self.sender.send((member, notice, waits.then_some(done)));
        if waits && told.is_ok() {
            // No answer means that the receiver is gone and the run is halted.
            let _ = heard.recv();
        }
    }
}

/// Passes on notices of the lanes until all lanes are done.
fn listen(
    receiver: &Receiver<Told>,
    ready: &[usize],
    stop: &AtomicBool,
    halt: &AtomicBool,
    news: &mut NewsListener<'_>,
) -> Result<(), Error> {
    let mut result = Ok(());
    for (member, notice, _answer) in receiver {
        let rung = ready[member];
        if stop.load(Ordering::Relaxed) {
            halt.store(true, Ordering::Relaxed);
        }
        let heard = match &notice {
            _ if result.is_err() => Ok(()),
            Notice::Step { step, samples_per_second, .. } => {
                news(RungNews::Step { rung, step: *step, samples_per_second: *samples_per_second })
            }
            Notice::Evaluation { step, metrics } if _answer.is_some() => {
                news(RungNews::Evaluated { rung, step: *step, metrics })
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
