//! What a sweep would do, before anything runs: which fields keep jobs apart, the arrays of its first wave, and how long
//! everything would take.

use super::SweepError;
use super::drive::{run_dir, steps_at};
use super::file::Sweep;
use super::run::{self, Group, Rung, Shapes};
use super::search::{self, Ask};
use super::store::Place;
use crate::command::CommandError;
use crate::report::table::{Column, render};
use crate::report::units;
use crate::setup::{Setup, measured, setup};
use gulliver_run::session::{SessionError, Which};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Trials of the first wave that are looked at.
const LOOKED_AT: usize = 64;

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
    /// Seconds of the whole sweep, one job after the other, if later waves are like the first.
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
    /// Seconds of a step of one member.
    pub step_seconds: f64,
    /// Why it cannot be trained.
    pub problem: Option<String>,
}

/// Plans a sweep.
pub fn plan(sweep: &Sweep) -> Result<SweepPlan, SweepError> {
    let asks = search::next(sweep, &[]);
    let (mut rungs, mut failed) = (Vec::new(), Vec::new());
    for Ask { trial, point, level } in asks.iter().take(LOOKED_AT) {
        for repeat in 0..sweep.runs() {
            let place = Place { trial: *trial, repeat, level: *level };
            let made = sweep.job(point, repeat).map_err(CommandError::from).and_then(|job| {
                let end = run::length(&job)?;
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
    for Group { rungs: members, problem } in run::groups(&rungs) {
        let first = &rungs[members[0]];
        let point = &asks[first.place.trial as usize].point;
        let values = sweep.space.values(point).filter(|(field, _)| apart.contains(field));
        let step_seconds = match problem {
            None => step_seconds(first).unwrap_or(f64::NAN),
            Some(_) => f64::NAN,
        };
        if step_seconds.is_finite() {
            whole += step_seconds * first.end as f64 * members.len() as f64;
            trained += members.len() as f64;
        }
        arrays.push(Array {
            members: members.iter().map(|&i| (rungs[i].place.trial, rungs[i].place.repeat)).collect(),
            values: values.map(|(field, value)| (field.to_string(), value.to_string())).collect(),
            steps: first.to,
            step_seconds,
            problem,
        });
    }
    for (place, problem) in failed {
        let members = vec![(place.trial, place.repeat)];
        let problem = Some(problem);
        arrays.push(Array { members, values: BTreeMap::new(), steps: 0, step_seconds: f64::NAN, problem });
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

/// Predicted seconds of a training step.
fn step_seconds(rung: &Rung) -> Result<f64, CommandError> {
    let Setup { mut planner, largest, .. } = setup(&rung.job, None)?;
    if planner.options().memory.is_none() {
        planner.set_rates(measured(planner.options().threads));
    }
    let plan = planner.plan(Which::Train, &largest).map_err(SessionError::from)?;
    Ok(planner.timing(Which::Train, &largest, &plan).map_err(SessionError::from)?.seconds)
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
    let columns = [
        Column::Right("array"),
        Column::Right("width"),
        Column::Right("steps"),
        Column::Right("step time"),
        Column::Right("in all"),
        Column::Left("kept apart by"),
    ];
    let row = |(i, array): (usize, &Array)| {
        let values: Vec<String> =
            array.values.iter().map(|(field, value)| format!("{field}={value}")).collect();
        let all = array.step_seconds * array.steps as f64 * array.members.len() as f64;
        vec![
            (i + 1).to_string(),
            array.members.len().to_string(),
            array.steps.to_string(),
            time(array.step_seconds),
            time(all),
            array.problem.clone().map_or(values.join(" "), |problem| format!("fails: {problem}")),
        ]
    };
    let rows: Vec<Vec<String>> = plan.arrays.iter().enumerate().map(row).collect();
    text += &render(&columns, &rows);
    let looked_at =
        if plan.wave > LOOKED_AT { format!(", of which {LOOKED_AT} are shown") } else { String::new() };
    text += &format!("\nthe first wave has {} trials{looked_at}\n", plan.wave);
    if let Some(seconds) = plan.seconds {
        let work = plan.work;
        text += &format!("the whole sweep is {work:.1} jobs: {} one after the other\n", time(seconds));
    }
    text
}
