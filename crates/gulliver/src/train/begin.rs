//! The state in which a run starts.

use crate::error::Error;
use crate::job::Job;
use crate::model::weights_file;
use crate::run_dir::{JOB, RunDir};
use gulliver_graph::lr::LrSchedule;
use gulliver_run::checkpoint::{self, CheckpointFile, Newest};
use gulliver_run::session::Session;
use gulliver_run::train::{self, Resumed, TrainOptions};
use std::path::Path;

/// Brings the session to where the run starts: a checkpoint, weights of another run, or first values. Also returns
/// warnings, a line each.
pub fn begin(
    resume: bool,
    job: &Job,
    dir: &RunDir,
    session: &mut Session,
    schedule: &mut LrSchedule,
    options: &TrainOptions,
) -> Result<(Resumed, Vec<String>), Error> {
    let mut warnings = Vec::new();
    let mut newest = None;
    if resume {
        let Newest { found, mut skipped } = checkpoint::latest(&dir.checkpoints())?;
        if found.is_none() && !skipped.is_empty() {
            let (count, dir) = (skipped.len(), dir.checkpoints());
            return Err(Error::DamagedCheckpoints { dir, count, first: Box::new(skipped.swap_remove(0)) });
        }
        for skipped in skipped {
            warnings.push(format!("skipped: {skipped}"));
        }
        newest = found;
    }
    match (newest, &job.train.weights) {
        (Some((_, mut stored)), _) => {
            let resumed = train::restore(session, schedule, &mut stored, options)?;
            if resumed.schedule_changed {
                let step = resumed.steps;
                warnings.push(format!(
                    "the schedule is another one from step {} on: {}",
                    step + 1,
                    job.schedule.name
                ));
            }
            for change in changes(&dir.join(JOB), job) {
                warnings.push(format!("changed since the run began: {change}"));
            }
            for change in &resumed.mapping_changed {
                warnings.push(format!("changed data: {change}"));
            }
            Ok((resumed, warnings))
        }
        (None, Some(path)) => {
            let strict = job.train.weights_strict;
            let mut stored = CheckpointFile::open(&weights_file(path))?;
            let fit = train::load_weights(session, &mut stored, options, strict)?;
            for problem in fit.problems().into_iter().chain(fit.mapping) {
                warnings.push(format!("{}: {problem}", stored.path.display()));
            }
            Ok((Resumed::default(), warnings))
        }
        (None, None) => Ok((Resumed::default(), warnings)),
    }
}

/// The fields of a job that have changed since it was written.
fn changes(written: &Path, job: &Job) -> Vec<String> {
    let before = Job::load(written);
    before.map_or_else(|_| Vec::new(), |before| before.changes(job))
}
