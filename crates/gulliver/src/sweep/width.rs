//! The width of an array on this machine: candidate divisions of threads and budgets into lanes, with the memory of a
//! lane and the predicted time of its steps. [`lanes`] chooses among them.

use crate::error::Error;
use crate::job::Job;
use crate::local::{LocalDevice, planner};
use crate::setup::{Speeds, planned, session_options};
use gulliver_graph::dim::Bindings;
use gulliver_graph::graph::Graph;
use gulliver_plan::devices::error::JobPlanError;
use gulliver_plan::devices::planner::Planner;
use gulliver_plan::devices::strategy::JobGraphs;
use gulliver_plan::document::error::PlanError;
use gulliver_plan::document::job::Purpose;
use gulliver_plan::document::plan::Tier;
use gulliver_plan::document::residence::Persistent;
use gulliver_plan::time::lanes::{self, Array, Division};
use serde::Serialize;
use std::path::Path;

/// The width chosen for an array, and the candidates.
pub struct ArrayWidth {
    /// Planner and device of each lane.
    pub lanes: Vec<(Planner, LocalDevice)>,
    /// Members in memory at once.
    pub resident: usize,
    /// Bytes of the weights and states of one member.
    pub state: u64,
    /// All candidates, most lanes first.
    pub ways: Vec<WidthOption>,
    /// The index of the chosen one.
    pub chosen: usize,
}

/// A way to divide the machine.
#[derive(Clone, Debug, Serialize)]
pub struct WidthOption {
    /// Members trained at once.
    pub lanes: usize,
    /// Threads of the widest lane.
    pub threads: usize,
    /// The estimate; none if a lane does not fit its share of the budgets.
    pub outcome: Option<WidthEstimate>,
}

/// The predicted cost of a width.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WidthEstimate {
    /// Bytes of device and host memory of a lane.
    pub bytes: [u64; 2],
    /// Members in memory at once.
    pub resident: usize,
    /// Predicted seconds of a step in the widest lane, while all are at work.
    pub step_seconds: f64,
    /// Predicted seconds of the array.
    pub seconds: f64,
}

/// A lane as it is planned.
struct Lane {
    planner: Planner,
    device: LocalDevice,
    seconds: f64,
    bytes: [u64; 2],
}

/// Chooses the width of an array with these members and steps of each. Budgets and threads are those of the job;
/// `speeds` are those of the whole machine.
pub fn choose(
    job: &Job,
    graphs: &JobGraphs,
    (members, steps): (usize, u64),
    speeds: &Speeds,
    checkpoints: Option<&Path>,
) -> Result<ArrayWidth, Error> {
    let whole = session_options(job, &graphs.largest, speeds, checkpoints);
    let state = state_bytes(&graphs.train);
    let array = Array { members, steps, state, budgets: [whole.memory, whole.host_memory] };
    let (mut ways, mut divisions, mut planners) = (Vec::new(), Vec::new(), Vec::new());
    for count in counts(whole.threads, members) {
        let (threads, wider) = (whole.threads / count, whole.threads % count);
        let mut way = WidthOption { lanes: count, threads: threads + usize::from(wider > 0), outcome: None };
        // The widest lane first: there is at least one of it.
        let kinds = [(wider, threads + 1), (count - wider, threads)];
        let made = kinds.into_iter().filter(|(lanes, _)| *lanes > 0).map(|(lanes, threads)| {
            let options = part(&whole, threads.max(1), count);
            Ok((lanes, lane(graphs, options, count == 1)?))
        });
        let Some(made) = fitting(made.collect::<Result<Vec<(usize, Lane)>, _>>(), count == 1)? else {
            ways.push(way);
            continue;
        };
        let each = || made.iter().flat_map(|(lanes, lane)| std::iter::repeat_n(lane, *lanes));
        let total = |tier: usize| each().map(|lane| lane.bytes[tier]).sum();
        let division = Division { seconds: each().map(|l| l.seconds).collect(), bytes: [total(0), total(1)] };
        way.outcome = lanes::weigh(&division, &array).map(|width| WidthEstimate {
            bytes: made[0].1.bytes,
            resident: width.resident,
            step_seconds: made[0].1.seconds,
            seconds: width.seconds,
        });
        planners.push((
            ways.len(),
            each().map(|lane| (lane.planner.clone(), lane.device.clone())).collect::<Vec<_>>(),
        ));
        divisions.push(division);
        ways.push(way);
    }
    let (index, width) = lanes::choose(&divisions, &array).ok_or(PlanError::NoRoom)?;
    let (chosen, lanes) = planners.swap_remove(index);
    Ok(ArrayWidth { lanes, resident: width.resident, state, ways, chosen })
}

/// The lane, or none if it does not fit its share of the budgets: fewer lanes may.
fn fitting<T>(made: Result<T, Error>, last: bool) -> Result<Option<T>, Error> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(
            Error::DoesNotFit(_)
            | Error::Plan(JobPlanError::Plan(PlanError::TierFull { .. } | PlanError::NoRoom)),
        ) if !last => Ok(None),
        Err(error) => Err(error),
    }
}

/// Numbers of lanes to compare, most first: all small ones, and those that divide the threads evenly.
fn counts(threads: usize, members: usize) -> Vec<usize> {
    let most = threads.min(members).max(1);
    (1..=most).rev().filter(|&n| n <= 4 || n == most || threads.is_multiple_of(n)).collect()
}

/// The devices of a job as one of several lanes has them.
fn part(whole: &LocalDevice, threads: usize, lanes: usize) -> LocalDevice {
    let share = |budget: Option<u64>| budget.map(|bytes| bytes / lanes as u64);
    let (rates, links) = lanes::share((whole.rates, whole.links), (threads, whole.threads), lanes);
    LocalDevice {
        threads,
        memory: share(whole.memory),
        host_memory: share(whole.host_memory),
        disk: share(whole.disk),
        rates,
        links,
        ..whole.clone()
    }
}

/// Plans a lane with no more of its budget than it can use. The error of a single lane gives advice.
fn lane(graphs: &JobGraphs, mut options: LocalDevice, only: bool) -> Result<Lane, Error> {
    let JobGraphs { train, evaluation, largest } = graphs;
    let new = |device: &LocalDevice| planner(train.clone(), Some(evaluation.clone()), device);
    if let Some(budget) = options.memory {
        let mut free = new(&LocalDevice { memory: None, ..options.clone() })?;
        options.memory = Some(budget.min(needs(&mut free, largest)?[0]));
    }
    let memory = options.memory;
    let mut planner = match only {
        true => planned(graphs, &options, false)?,
        false => new(&options)?,
    };
    let [device, host] = needs(&mut planner, largest)?;
    let plan = planner.plan(Purpose::Train, largest)?;
    let seconds = planner.timing(Purpose::Train, largest, &plan)?.seconds;
    Ok(Lane { planner, device: options, seconds, bytes: [memory.unwrap_or(device), host] })
}

/// Bytes of device and host memory that the largest input needs, trained or evaluated.
fn needs(planner: &mut Planner, largest: &Bindings) -> Result<[u64; 2], PlanError> {
    let slice = planner.evaluated_at(largest);
    let mut most = [0; 2];
    for (which, sizes) in [(Purpose::Train, largest), (Purpose::Evaluate, &slice)] {
        let plan = planner.plan(which, sizes)?;
        for (most, tier) in most.iter_mut().zip([Tier::Device, Tier::Host]) {
            *most = plan.spaces[tier as usize].bytes.max(*most);
        }
    }
    Ok(most)
}

/// Bytes of a member that waits outside the lanes.
fn state_bytes(train: &Graph) -> u64 {
    Persistent::of(train)
        .map_or(0, |persistent| persistent.residences.values().map(|residence| residence.bytes).sum())
}

#[cfg(test)]
mod tests;
