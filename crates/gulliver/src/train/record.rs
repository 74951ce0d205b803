//! The record of a finished run: its predicted and measured steps.

use crate::history::{RunRecord, name_of};
use crate::job::Job;
use crate::setup::threads;
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::predict::predict;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::time::cost::MachineProfile;
use gulliver_run::collector::Record;
use gulliver_run::team::side_by_side;
use gulliver_run::train::Done;

/// Predicted against measured, for inputs of the size that was met most often; none if fewer than two steps were,
/// as the first touches memory that nobody has touched. The planners are those of the run, before it.
pub fn record(
    job: &Job,
    strategy: &'static str,
    machine: Option<&MachineProfile>,
    mut planners: Vec<Planner>,
    done: &Done,
) -> Option<RunRecord> {
    let trained = done.sizes.iter().filter(|record| record.purpose == Purpose::Train);
    let record = trained.max_by_key(|record| record.runs).filter(|record| record.runs > 1)?;
    let foreseen = predict(&side_by_side, &mut planners, &record.sizes).ok()?;
    let Record { runs, planned, measured, first, .. } = record;
    let each = (measured.seconds - first) / (runs - 1) as f64;
    Some(RunRecord {
        when: super::now(),
        model: job.model.name.clone(),
        strategy: strategy.to_string(),
        devices: job.devices.count as usize,
        threads: threads(job),
        batch: job.train.batch,
        steps: runs - 1,
        profile: machine.map(name_of),
        seconds: [foreseen.together.seconds, each],
        peak: [planned.peaks[0], measured.peaks[0]],
        bytes: [planned.moved.total(), measured.moved.total()],
    })
}
