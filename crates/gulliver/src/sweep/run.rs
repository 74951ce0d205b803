//! The boundary between a sweep and training: [`RungRunner`] gets a wave of rungs and reports each evaluation and each
//! end. [`groups`] puts rungs together that have the same graph and shapes and can be members of one array.

use super::store::{RungId, RungOutcome};
use crate::error::Error;
use crate::job::{Job, Length};
use crate::setup::{Prepared, data_error, open_data, optimizer, prepare};
use gulliver_graph::graph::{Graph, Origin, Role};
use gulliver_plan::devices::strategy::JobGraphs;
use gulliver_run::checkpoint::{self, CheckpointFile};
use gulliver_run::data::{Buckets, Dataset, Sampler};
use gulliver_run::files::atomic::{remove_unfinished, write_atomic};
use gulliver_run::train::TrainError;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// One repeat of a trial, to be trained from one step to another. Its learning rate and data are those of the whole
/// job: a trial trained rung by rung has the bits of one trained at once.
#[derive(Clone, Debug)]
pub struct TrialRung {
    /// Trial, repeat and rung.
    pub place: RungId,
    /// The job with the trial's values and the repeat's seed.
    pub job: Job,
    /// Steps done before; a checkpoint of that step or a later one is in `dir`, unless it is 0.
    pub from: u64,
    /// Steps done after, in all.
    pub to: u64,
    /// Steps of the whole job.
    pub end: u64,
    /// The run directory of this repeat, for its `job.toml` and `checkpoints`; it may not exist yet.
    pub dir: PathBuf,
}

/// News of a rung, named by its position in the wave.
#[derive(Clone, Debug)]
pub enum RungNews<'n> {
    /// A step was done.
    Step {
        /// The rung.
        rung: usize,
        /// Steps done in all.
        step: u64,
        /// Measured since the last report.
        samples_per_second: f64,
    },
    /// An evaluation before the end of the rung.
    Evaluated {
        /// The rung.
        rung: usize,
        /// Steps done in all.
        step: u64,
        /// Its metrics.
        metrics: &'n BTreeMap<String, f64>,
    },
    /// The rung is over. If it is done, a checkpoint of its last step is in the rung's directory.
    Ended {
        /// The rung.
        rung: usize,
        /// How.
        outcome: RungOutcome,
    },
}

/// Receives the news of a runner; an error must end the run at once.
pub type NewsListener<'l> = dyn FnMut(RungNews<'_>) -> Result<(), Error> + 'l;

/// Trains rungs.
pub trait RungRunner {
    /// Trains every rung of a wave and reports the end of each, once. News is stored when the call returns, so an
    /// evaluation is reported before a checkpoint of a later step is written. A job that cannot be trained is an
    /// outcome; an error ends the whole wave. Returns early, with rungs not ended, only if it was asked to stop. Those
    /// rungs are handed over again later and continue from their newest checkpoint.
    fn run(&mut self, wave: &[TrialRung], news: &mut NewsListener<'_>) -> Result<(), Error>;
}

/// Whether an error is the machine's and not the trial's: a full disk, a directory that cannot be written.
pub(super) fn is_machine(error: &Error) -> bool {
    matches!(error, Error::File { .. } | Error::Output(_) | Error::Train(TrainError::Checkpoint(_)))
}

/// Makes the run directory and removes unfinished files of a killed process.
pub(super) fn take(dir: &Path, job: &Job) -> Result<(), Error> {
    let checkpoints = dir.join("checkpoints");
    let made = fs::create_dir_all(&checkpoints)
        .and_then(|()| remove_unfinished(dir))
        .and_then(|()| remove_unfinished(&checkpoints))
        .and_then(|()| {
            let path = dir.join("job.toml");
            if path.exists() {
                return Ok(());
            }
            write_atomic(&path, |file| file.write_all(job.to_toml().as_bytes()))
        });
    made.map_err(|source| Error::File { path: dir.to_path_buf(), source })
}

/// The newest whole checkpoint up to a step, with the steps in it.
pub(super) fn newest(checkpoints: &Path, step: u64) -> Result<Option<(u64, CheckpointFile)>, Error> {
    let saved = checkpoint::list(checkpoints)?;
    let up_to = saved.into_iter().rev().filter(|(saved, _)| *saved <= step);
    Ok(up_to.filter_map(|(step, path)| Some((step, CheckpointFile::open(&path).ok()?))).next())
}

/// Known lengths of jobs, by everything that decides them.
pub type JobLengths = BTreeMap<String, u64>;

/// Steps of a whole job. Data is opened only for a length that is not yet known.
pub fn length(job: &Job, known: &mut JobLengths) -> Result<u64, Error> {
    let epochs = match job.train.length {
        Length::Steps(steps) => return Ok(steps),
        Length::Epochs(epochs) => epochs,
    };
    let key = format!("{:?} {epochs} {}", job.data, job.train.batch);
    if let Some(steps) = known.get(&key) {
        return Ok(*steps);
    }
    let (train, _) = open_data(job)?;
    let buckets = if job.data.buckets { Buckets::of(train.as_ref()) } else { None };
    let (batch, seed) = (job.train.batch as usize, job.train.seed);
    let sampler = Sampler::new(train.len(), batch, seed, job.data.shuffle, true, buckets)
        .map_err(|error| data_error(job, error))?;
    let steps = epochs.saturating_mul(sampler.steps_per_epoch());
    known.insert(key, steps);
    Ok(steps)
}

/// Rungs that differ only in numbers fed to the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RungGroup {
    /// Positions in the wave, ascending; never empty.
    pub rungs: Vec<usize>,
    /// Why its only rung cannot be trained.
    pub problem: Option<String>,
}

/// Groups rungs with the same graphs, shapes and steps. Members of a group differ only in hyper-parameters, seeds or
/// schedules. Groups are in the order of their first rungs; a rung that cannot be trained is a group of its own.
pub fn groups(rungs: &[TrialRung], shapes: &mut JobShapes) -> Vec<RungGroup> {
    let mut groups: Vec<RungGroup> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for (i, rung) in rungs.iter().enumerate() {
        match shapes.of(&rung.job) {
            Ok(shape) => {
                let key = format!("{} {} {}\n{shape}", rung.from, rung.to, rung.end);
                let group = *known.entry(key).or_insert(groups.len());
                match groups.get_mut(group) {
                    Some(group) => group.rungs.push(i),
                    None => groups.push(RungGroup { rungs: vec![i], problem: None }),
                }
            }
            Err(error) => groups.push(RungGroup { rungs: vec![i], problem: Some(error.to_string()) }),
        }
    }
    groups
}

/// Shapes of jobs: texts that are equal for jobs that can be members of one array. Jobs that differ only in numbers fed
/// to the graph are built once.
#[derive(Default)]
pub struct JobShapes {
    known: BTreeMap<String, String>,
}

impl JobShapes {
    /// The shape of a job.
    pub fn of(&mut self, job: &Job) -> Result<String, Error> {
        let fields = without_fed_fields(job)?;
        if let Some(shape) = self.known.get(&fields) {
            return Ok(shape.clone());
        }
        let shape = shape(job)?;
        self.known.insert(fields, shape.clone());
        Ok(shape)
    }
}

/// The fields of a job that decide its shape: all but numbers fed to the graph.
fn without_fed_fields(job: &Job) -> Result<String, Error> {
    let (train, update) = (&job.train, optimizer(job)?.op);
    let clipped = [train.clip_norm, train.clip_value].map(|limit| limit.is_some());
    let sizes = (train.batch, train.partials, train.norm_group, train.eval_every, train.checkpoint_every);
    let weighted = train.class_weights.is_some();
    Ok(format!(
        "{:?} {:?} {update:?} {clipped:?} {weighted} {sizes:?} {:?}",
        job.model, job.data, job.devices
    ))
}

fn shape(job: &Job) -> Result<String, Error> {
    let Prepared { graphs, sources, options, .. } = prepare(job, open_data(job)?, None)?;
    let JobGraphs { train, evaluation, largest } = graphs;
    let mut text = without_numbers(&train) + &without_numbers(&evaluation);
    let sizes: Vec<String> = largest.iter().map(|(symbol, size)| format!("{symbol}={size}")).collect();
    let _ = writeln!(text, "sizes {}", sizes.join(" "));
    let _ = writeln!(text, "partials {} {:?}", job.train.partials, job.devices);
    let _ = writeln!(text, "every {} {}", options.eval_every, options.checkpoint_every);
    if of_many_lengths(sources.train.as_ref()) {
        // The examples of a batch decide its length.
        let fold = job.data.options.fold;
        let _ = writeln!(text, "seed {} {fold} {} {}", options.seed, job.data.buckets, job.data.shuffle);
    }
    Ok(text)
}

/// The text of a graph without the defaults of hyper-parameters, which are set at every step.
fn without_numbers(graph: &Graph) -> String {
    let mut graph = graph.clone();
    for info in &mut graph.values {
        if let Origin::Input(Role::Hyper(_, default)) = &mut info.origin {
            *default = 0.0;
        }
    }
    graph.to_string()
}

fn of_many_lengths(set: &dyn Dataset) -> bool {
    let first = if set.is_empty() { None } else { set.length(0) };
    first.is_some() && (1..set.len()).any(|i| set.length(i) != first)
}

#[cfg(test)]
mod tests;
