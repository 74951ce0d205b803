//! What a sweep would do, before anything runs: which fields keep jobs apart, the arrays of its first wave, how wide
//! each would be trained, and how long everything would take.

use super::SweepError;
use super::drive::{run_dir, steps_at};
use super::file::Sweep;
use super::run::{self, Group, Lengths, Rung, Shapes};
use super::search::{self, Ask};
use super::store::Place;
use super::width::{self, Outcome, Way};
use crate::command::CommandError;
use crate::job::Devices;
use crate::report::table::{Column, render};
use crate::report::units;
use crate::setup::{Prepared, Speeds, measured, open_data, prepare, threads};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Trials of the first wave that are looked at.
const LOOKED_AT: usize = 64;

/// Arrays whose ways to be trained are shown to people.
const SHOWN: usize = 8;

/// Points tried to find two that differ in one field alone.
const TRIED: u64 = 8;

/// See the top of this file.
#[derive(Clone, Debug, Serialize)]
pub struct SweepPlan {
    /// Trials in all.
    pub trials: u64,
    /// Each is trained with so many seeds.
    pub repeats: u64,
    /// And on so many folds.
    pub folds: u64,
    /// Training of the whole sweep, in jobs trained to their end.
    pub work: f64,
    /// Fields that members of one array may differ in.
    pub fusible: Vec<String>,
    /// Fields that keep jobs apart.
    pub apart: Vec<String>,
    /// Trials of the first wave.
    pub wave: usize,
    /// Arrays of as many of them as were looked at.
    pub arrays: Vec<Array>,
    /// Predicted seconds of the whole sweep, if later waves are like the first.
    pub seconds: Option<f64>,
}

/// Jobs with the same graph and shapes.
#[derive(Clone, Debug, Serialize)]
pub struct Array {
    /// Trials and repeats in it.
    pub members: Vec<(u64, u64)>,
    /// What keeps it apart from others.
    pub values: BTreeMap<String, String>,
    /// Steps of each.
    pub steps: u64,
    /// How it would be trained.
    pub width: Option<Chosen>,
    /// Why it cannot be trained.
    pub problem: Option<String>,
}

/// How an array would be trained.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// Bytes of the weights and states of a member, in which it waits.
    pub state_bytes: u64,
    /// What was looked at, most lanes first.
    pub ways: Vec<Way>,
    /// Which of them is done soonest.
    pub chosen: usize,
}

impl Chosen {
    /// Lanes, and what comes of them.
    fn best(&self) -> Option<(&Way, Outcome)> {
        self.ways.get(self.chosen).and_then(|way| Some((way, way.outcome?)))
    }
}

/// Plans a sweep.
pub fn plan(sweep: &Sweep) -> Result<SweepPlan, SweepError> {
    let asks = search::next(sweep, &[]);
    let (mut rungs, mut failed, mut lengths) = (Vec::new(), Vec::new(), Lengths::new());
    for Ask { trial, point, level } in asks.iter().take(LOOKED_AT) {
        for repeat in 0..sweep.runs() {
            let place = Place { trial: *trial, repeat, level: *level };
            let made = sweep.job(point, repeat).map_err(CommandError::from).and_then(|job| {
                let end = run::length(&job, &mut lengths)?;
                let to = steps_at(end, *level, sweep.top());
                Ok(Rung { place, job, from: 0, to, end, dir: run_dir(Path::new(""), *trial, repeat) })
            });
            match made {
                Ok(rung) => rungs.push(rung),
                Err(error) => failed.push((place, error.to_string())),
            }
        }
    }
    let fields: Vec<&str> = sweep.space.parameters.iter().map(|p| p.field.as_str()).collect();
    let mut shapes = Shapes::default();
    let (fusible, apart): (Vec<&str>, Vec<&str>) =
        fields.iter().partition(|field| is_fusible(sweep, field, &mut shapes));
    let mut arrays = Vec::new();
    let (mut whole, mut trained) = (0.0, 0.0);
    let mut speeds = Vec::new();
    for Group { rungs: members, problem } in run::groups(&rungs, &mut shapes) {
        let first = &rungs[members[0]];
        let point = &asks[first.place.trial as usize].point;
        let values = sweep.space.values(point).filter(|(field, _)| apart.contains(field));
        let width = match problem {
            Some(problem) => Err(problem),
            None => chosen(first, members.len(), &mut speeds).map_err(|error| error.to_string()),
        };
        let (width, problem) = match width {
            Ok(width) => (Some(width), None),
            Err(problem) => (None, Some(problem)),
        };
        if let Some((_, outcome)) = width.as_ref().and_then(Chosen::best) {
            whole += outcome.seconds * first.end as f64 / first.to.max(1) as f64;
            trained += members.len() as f64;
        }
        arrays.push(Array {
            members: members.iter().map(|&i| (rungs[i].place.trial, rungs[i].place.repeat)).collect(),
            values: values.map(|(field, value)| (field.to_string(), value.to_string())).collect(),
            steps: first.to,
            width,
            problem,
        });
    }
    for (place, problem) in failed {
        let members = vec![(place.trial, place.repeat)];
        let problem = Some(problem);
        arrays.push(Array { members, values: BTreeMap::new(), steps: 0, width: None, problem });
    }
    let work = search::work(sweep) * sweep.runs() as f64;
    Ok(SweepPlan {
        trials: sweep.trials,
        repeats: sweep.repeats,
        folds: sweep.folds,
        work,
        fusible: fusible.into_iter().map(String::from).collect(),
        apart: apart.into_iter().map(String::from).collect(),
        wave: asks.len(),
        arrays,
        seconds: (trained > 0.0).then(|| whole / trained * work),
    })
}

/// Whether two jobs that differ in this field alone can be members of one array; not if none can be trained.
fn is_fusible(sweep: &Sweep, field: &str, shapes: &mut Shapes) -> bool {
    let mut shape = |point: &_| sweep.job(point, 0).ok().and_then(|job| shapes.of(&job).ok());
    let parameter = sweep.space.parameter(field);
    for trial in 0..TRIED {
        let point = sweep.space.random(sweep.seed, trial);
        let (Some(parameter), Some(code)) = (parameter, point.get(field)) else { continue };
        let other = (1..=TRIED).map(|i| parameter.kind.at((i as f64 - 0.5) / TRIED as f64));
        let Some(other) = other.into_iter().find(|other| other != code) else { return true };
        // Parameters that depend on this one follow it.
        let mut changed = sweep.space.random(sweep.seed, trial);
        changed.insert(field.to_string(), other);
        let changed = sweep.space.point(|p| match changed.get(&p.field) {
            Some(code) => *code,
            None => p.kind.at(0.5),
        });
        if let (Some(one), Some(two)) = (shape(&point), shape(&changed)) {
            return one == two;
        }
    }
    false
}

/// How an array of so many members like this one would be trained. A machine is measured once.
fn chosen(
    rung: &Rung,
    members: usize,
    measured_speeds: &mut Vec<(Devices, Speeds)>,
) -> Result<Chosen, CommandError> {
    let job = &rung.job;
    let Prepared { graphs, .. } = prepare(job, open_data(job)?, None)?;
    let known = measured_speeds.iter().find(|(devices, _)| *devices == job.devices);
    let speeds = match known {
        Some((_, speeds)) => *speeds,
        None => {
            let mut speeds = Speeds::for_job(job, None);
            if job.devices.memory.is_none() {
                speeds.rates = measured(threads(job));
            }
            measured_speeds.push((job.devices.clone(), speeds));
            speeds
        }
    };
    let width = width::choose(job, &graphs, (members, rung.to - rung.from), &speeds, None)?;
    Ok(Chosen { state_bytes: width.state, ways: width.ways, chosen: width.chosen })
}

fn time(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or(String::new(), units::duration)
}

/// The plan in words.
pub fn text(sweep: &Sweep, plan: &SweepPlan) -> String {
    let algorithm = format!("{:?}", sweep.algorithm).to_lowercase();
    let times = [(plan.repeats, "with", "seeds"), (plan.folds, "on", "folds")].into_iter();
    let times = times.filter(|(n, ..)| *n > 1).map(|(n, how, of)| format!("{how} {n} {of}"));
    let times = times.collect::<Vec<_>>().join(" and ");
    let each = if times.is_empty() { String::new() } else { format!(", each {times}") };
    let mut text = format!("{} trials by {algorithm}{each}\n", plan.trials);
    let list = |fields: &[String]| if fields.is_empty() { "nothing".into() } else { fields.join(", ") };
    text += &format!("members of an array may differ in {}\n", list(&plan.fusible));
    text += &format!("jobs are kept apart by {}\n\n", list(&plan.apart));
    text += &arrays(&plan.arrays);
    text += &ways(&plan.arrays);
    let looked_at =
        if plan.wave > LOOKED_AT { format!(", of which {LOOKED_AT} are shown") } else { String::new() };
    text += &format!("\nthe first wave has {} trials{looked_at}\n", plan.wave);
    if let Some(seconds) = plan.seconds {
        text += &format!("the whole sweep is {:.1} jobs: {}\n", plan.work, time(seconds));
    }
    text
}

/// Arrays, and how each would be trained.
fn arrays(arrays: &[Array]) -> String {
    let columns = [
        Column::Right("array"),
        Column::Right("width"),
        Column::Right("lanes"),
        Column::Right("steps"),
        Column::Right("in all"),
        Column::Left("kept apart by"),
    ];
    let row = |(i, array): (usize, &Array)| {
        let values: Vec<String> =
            array.values.iter().map(|(field, value)| format!("{field}={value}")).collect();
        let best = array.width.as_ref().and_then(Chosen::best);
        vec![
            (i + 1).to_string(),
            array.members.len().to_string(),
            best.map_or(String::new(), |(way, _)| way.lanes.to_string()),
            array.steps.to_string(),
            best.map_or(String::new(), |(_, outcome)| time(outcome.seconds)),
            array.problem.clone().map_or(values.join(" "), |problem| format!("fails: {problem}")),
        ]
    };
    render(&columns, &arrays.iter().enumerate().map(row).collect::<Vec<_>>())
}

/// What the widths of the first arrays were chosen from.
fn ways(arrays: &[Array]) -> String {
    let columns = [
        Column::Right("array"),
        Column::Right("lanes"),
        Column::Right("threads"),
        Column::Right("lane"),
        Column::Right("member"),
        Column::Right("in memory"),
        Column::Right("step time"),
        Column::Right("in all"),
        Column::Left(""),
    ];
    let mut rows = Vec::new();
    for (i, array) in arrays.iter().enumerate().take(SHOWN) {
        let Some(width) = &array.width else { continue };
        for (n, way) in width.ways.iter().enumerate() {
            let mut row = vec![(i + 1).to_string(), way.lanes.to_string(), way.threads.to_string()];
            row.extend(match way.outcome {
                Some(outcome) => [
                    units::bytes(outcome.bytes.iter().sum()),
                    units::bytes(width.state_bytes),
                    outcome.resident.to_string(),
                    time(outcome.step_seconds),
                    time(outcome.seconds),
                    if n == width.chosen { "chosen".into() } else { String::new() },
                ],
                None => ["", "", "", "", "", "does not fit"].map(String::from),
            });
            rows.push(row);
        }
    }
    if rows.is_empty() { String::new() } else { format!("\n{}", render(&columns, &rows)) }
}
