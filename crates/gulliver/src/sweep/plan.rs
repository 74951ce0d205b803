//! A sweep before it runs: the fields that keep jobs in different arrays, the arrays of the first wave with their widths,
//! and the predicted time.

use super::array::{ArrayRunner, batches};
use super::drive::{run_dir, steps_at};
use super::file::Sweep;
use super::forecast::{self, ArrayCosts, ArrayTask};
use super::rehearse::rehearse;
use super::run::{self, JobLengths, JobShapes, RungGroup, TrialRung};
use super::search::{self, Ask};
use super::store::RungId;
use super::width::{WidthEstimate, WidthOption};
use crate::error::Error;
use crate::report::table::{Column, render};
use crate::setup::{Prepared, open_data, prepare, threads};
use crate::units;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most trials of a wave that are examined.
const LOOKED_AT: usize = 64;

/// Time after which no further array is rehearsed.
const REHEARSED: Duration = Duration::from_secs(3);

/// Arrays whose widths are printed.
const SHOWN: usize = 8;

/// Points tried to find two that differ in one field alone.
const TRIED: u64 = 8;

/// The plan of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct SweepPlan {
    /// Trials in all.
    pub trials: u64,
    /// Seeds that each trial is trained with.
    pub repeats: u64,
    /// Folds that each trial is trained on.
    pub folds: u64,
    /// Training of the whole sweep, in jobs trained to their end.
    pub work: f64,
    /// Fields that members of one array may differ in.
    pub fusible: Vec<String>,
    /// Fields that keep jobs apart.
    pub apart: Vec<String>,
    /// Trials of the first wave.
    pub wave: usize,
    /// The arrays of the trials that were examined.
    pub arrays: Vec<PlannedArray>,
    /// Arrays that were rehearsed to measure steps, evaluations and checkpoints.
    pub rehearsed: usize,
    /// Predicted seconds of the whole sweep, extrapolated from the trials that were examined; none if nothing could be
    /// rehearsed.
    pub seconds: Option<f64>,
}

/// Jobs with the same graph and shapes.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedArray {
    /// Trials and repeats in it.
    pub members: Vec<(u64, u64)>,
    /// Values of the fields that keep it apart from other arrays.
    pub values: BTreeMap<String, String>,
    /// Steps of each.
    pub steps: u64,
    /// How it would be trained.
    pub width: Option<ChosenWidth>,
    /// Seconds of its parts.
    pub costs: Option<ArrayCosts>,
    /// Predicted seconds of all members, up to these steps.
    pub seconds: Option<f64>,
    /// Why it cannot be trained.
    pub problem: Option<String>,
}

/// How an array would be trained.
#[derive(Clone, Debug, Serialize)]
pub struct ChosenWidth {
    /// Bytes of the weights and states of a member that waits.
    pub state_bytes: u64,
    /// The widths that were compared, most lanes first.
    pub ways: Vec<WidthOption>,
    /// The index of the one that finishes first.
    pub chosen: usize,
}

impl ChosenWidth {
    /// The chosen width and its estimate.
    fn best(&self) -> Option<(&WidthOption, WidthEstimate)> {
        self.ways.get(self.chosen).and_then(|way| Some((way, way.outcome?)))
    }
}

/// Plans a sweep. Some of its arrays are rehearsed to measure what training costs; nothing of that is kept.
pub fn plan(sweep: &Sweep) -> Result<SweepPlan, Error> {
    let mut shapes = JobShapes::default();
    let fields: Vec<&str> = sweep.space.parameters.iter().map(|p| p.field.as_str()).collect();
    let (fusible, apart): (Vec<&str>, Vec<&str>) =
        fields.iter().partition(|field| is_fusible(sweep, field, &mut shapes));
    let (waves, all) = forecast::waves(sweep, LOOKED_AT);
    let mut lengths = JobLengths::new();
    let mut looked_at = Vec::new();
    let mut reached = BTreeMap::new();
    let work = search::work(sweep) * sweep.runs() as f64;
    let mut seen = 0.0;
    for asks in &waves {
        let wave = Wave::of(sweep, asks, &mut reached, &mut lengths, &mut shapes);
        seen += wave.work;
        looked_at.push(wave);
    }
    let mut arrays = ArrayRunner::new(Arc::default());
    let mut known = Known::default();
    known.rehearse(&mut arrays, &looked_at);
    let mut shown = Vec::new();
    if let (Some(wave), Some(asks)) = (looked_at.first(), waves.first()) {
        for made in &wave.arrays {
            let (first, costs) = (&wave.rungs[made.members[0]], known.costs(made));
            let point = asks.iter().find(|ask| ask.trial == first.place.trial).map(|ask| &ask.point);
            let values = point.map(|point| sweep.space.values(point).collect::<Vec<_>>()).unwrap_or_default();
            let values = values.into_iter().filter(|(field, _)| apart.contains(field));
            let width = match &made.problem {
                Some(problem) => Err(problem.clone()),
                None => chosen(&mut arrays, first, made.members.len(), costs).map_err(|e| e.to_string()),
            };
            let (width, problem) = match width {
                Ok(width) => (Some(width), None),
                Err(problem) => (None, Some(problem)),
            };
            let place = |&i: &usize| (wave.rungs[i].place.trial, wave.rungs[i].place.repeat);
            shown.push(PlannedArray {
                members: made.members.iter().map(place).collect(),
                values: values.map(|(field, value)| (field.to_string(), value.to_string())).collect(),
                steps: first.to,
                width,
                costs: costs.filter(|_| problem.is_none()).copied(),
                seconds: costs.filter(|_| problem.is_none()).map(|costs| made.task(1.0).seconds(costs)),
                problem,
            });
        }
        for (place, problem) in &wave.failed {
            let (members, problem) = (vec![(place.trial, place.repeat)], Some(problem.clone()));
            let values = BTreeMap::new();
            let (width, costs, seconds) = (None, None, None);
            shown.push(PlannedArray { members, values, steps: 0, width, costs, seconds, problem });
        }
    }
    let seconds = known.seconds(&looked_at).map(|seconds| match all {
        true => seconds,
        false => seconds * work / seen.max(1e-9),
    });
    Ok(SweepPlan {
        trials: sweep.trials,
        repeats: sweep.repeats,
        folds: sweep.folds,
        work,
        fusible: fusible.into_iter().map(String::from).collect(),
        apart: apart.into_iter().map(String::from).collect(),
        wave: waves.first().map_or(0, Vec::len),
        arrays: shown,
        rehearsed: known.rehearsed,
        seconds,
    })
}

/// A wave that the search would ask for.
struct Wave {
    rungs: Vec<TrialRung>,
    arrays: Vec<Together>,
    failed: Vec<(RungId, String)>,
    /// Trials of the wave for each that was examined.
    scale: f64,
    /// Training of the whole wave, in jobs trained to their end.
    work: f64,
}

/// Rungs of a wave that are trained as one array.
struct Together {
    /// Positions in the wave.
    members: Vec<usize>,
    problem: Option<String>,
    shape: String,
    data: usize,
    lanes: usize,
    steps: [u64; 3],
    every: [u64; 2],
}

impl Wave {
    /// `reached` is the length to which each trial was trained in earlier waves.
    fn of(
        sweep: &Sweep,
        asks: &[Ask],
        reached: &mut BTreeMap<u64, u64>,
        lengths: &mut JobLengths,
        shapes: &mut JobShapes,
    ) -> Wave {
        let top = sweep.top();
        let looked_at = asks.len().min(LOOKED_AT.div_ceil(sweep.runs() as usize));
        let scale = asks.len() as f64 / looked_at.max(1) as f64;
        let (mut rungs, mut failed, mut work) = (Vec::new(), Vec::new(), 0.0);
        for Ask { trial, point, level } in &asks[..looked_at] {
            let before = reached.insert(*trial, *level).unwrap_or(0);
            work += level.saturating_sub(before) as f64 / top as f64 * sweep.runs() as f64 * scale;
            for repeat in 0..sweep.runs() {
                let place = RungId { trial: *trial, repeat, level: *level };
                let made = sweep.job(point, repeat).map_err(Error::from).and_then(|job| {
                    let end = run::length(&job, lengths)?;
                    let to = steps_at(end, *level, top);
                    let from = if before == 0 { 0 } else { steps_at(end, before, top).min(to) };
                    Ok(TrialRung { place, job, from, to, end, dir: run_dir(Path::new(""), *trial, repeat) })
                });
                match made {
                    Ok(rung) => rungs.push(rung),
                    Err(error) => failed.push((place, error.to_string())),
                }
            }
        }
        let groups = run::groups(&rungs, shapes);
        let together = |RungGroup { rungs: members, problem }: RungGroup| {
            let first: &TrialRung = &rungs[members[0]];
            let data: BTreeSet<String> = members.iter().map(|&i| batches(&rungs[i].job)).collect();
            let train = &first.job.train;
            Together {
                shape: shapes.of(&first.job).unwrap_or_default(),
                data: data.len(),
                lanes: threads(&first.job).min(members.len()),
                steps: [first.from, first.to, first.end],
                every: [train.eval_every, train.checkpoint_every],
                members,
                problem,
            }
        };
        let arrays = groups.into_iter().map(together).collect();
        Wave { rungs, arrays, failed, scale, work }
    }
}

impl Together {
    /// The work of this array, if each of its members stands for `scale` members.
    fn task(&self, scale: f64) -> ArrayTask {
        let data = if self.data > 1 { self.data as f64 * scale } else { 1.0 };
        let members = self.members.len() as f64 * scale;
        ArrayTask { members, data, lanes: self.lanes, steps: self.steps, every: self.every }
    }
}

/// Measured costs of arrays, by shape and lanes.
#[derive(Default)]
struct Known {
    /// Arrays that were run; for the others the time of a step is predicted.
    rehearsed: usize,
    measured: Vec<((String, usize), ArrayCosts)>,
}

impl Known {
    /// Measures arrays, those with most steps first, for a limited time. Arrays that cannot be measured are left
    /// out.
    fn rehearse(&mut self, arrays: &mut ArrayRunner, waves: &[Wave]) {
        let mut steps: Vec<(f64, (&str, usize), Vec<TrialRung>)> = Vec::new();
        for wave in waves {
            for made in wave.arrays.iter().filter(|made| made.problem.is_none()) {
                let key = (made.shape.as_str(), made.lanes);
                let weight = (made.steps[1] - made.steps[0]) as f64 * made.members.len() as f64;
                match steps.iter_mut().find(|(_, other, _)| *other == key) {
                    Some(one) => one.0 += weight,
                    None => {
                        let lanes = made.members.iter().take(made.lanes);
                        steps.push((weight, key, lanes.map(|&i| wave.rungs[i].clone()).collect()));
                    }
                }
            }
        }
        steps.sort_by(|a, b| b.0.total_cmp(&a.0));
        let began = Instant::now();
        for (_, (shape, lanes), rungs) in steps {
            if began.elapsed() > REHEARSED {
                break;
            }
            if let Ok(Some((costs, measured))) = rehearse(arrays, &rungs) {
                self.rehearsed += usize::from(measured);
                self.measured.push(((shape.to_string(), lanes), costs));
            }
        }
    }

    /// The costs of an array as measured; else those of its shape, of its number of lanes, or of the first measured.
    fn costs(&self, made: &Together) -> Option<&ArrayCosts> {
        let same = |lanes: usize| {
            let of = |((shape, other), _): &&((String, usize), ArrayCosts)| {
                *shape == made.shape && (lanes == 0 || *other == lanes)
            };
            self.measured.iter().find(of)
        };
        let like = || self.measured.iter().find(|((_, lanes), _)| *lanes == made.lanes);
        let any = same(made.lanes).or_else(|| same(0)).or_else(like).or_else(|| self.measured.first());
        any.map(|(_, costs)| costs)
    }

    /// Seconds of these waves; none if nothing could be measured.
    fn seconds(&self, waves: &[Wave]) -> Option<f64> {
        let mut seconds = 0.0;
        for wave in waves {
            for made in wave.arrays.iter().filter(|made| made.problem.is_none()) {
                seconds += made.task(wave.scale).seconds(self.costs(made)?);
            }
        }
        (!self.measured.is_empty()).then_some(seconds)
    }
}

/// Whether two jobs that differ in this field alone can be members of one array; false if no job can be built.
fn is_fusible(sweep: &Sweep, field: &str, shapes: &mut JobShapes) -> bool {
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

/// The width of an array of `members` like this one. Predicted times are scaled by the ratio of the measured to the
/// predicted time of a step.
fn chosen(
    arrays: &mut ArrayRunner,
    rung: &TrialRung,
    members: usize,
    costs: Option<&ArrayCosts>,
) -> Result<ChosenWidth, Error> {
    let Prepared { graphs, .. } = prepare(&rung.job, open_data(&rung.job)?, None)?;
    let mut width = arrays.width(rung, &graphs, members, None)?;
    let predicted = width.ways.get(width.chosen).and_then(|way| Some(way.outcome?.step_seconds));
    if let (Some(costs), Some(predicted)) = (costs, predicted.filter(|seconds| *seconds > 0.0)) {
        for outcome in width.ways.iter_mut().filter_map(|way| way.outcome.as_mut()) {
            outcome.step_seconds *= costs.step / predicted;
            outcome.seconds *= costs.step / predicted;
        }
    }
    Ok(ChosenWidth { state_bytes: width.state, ways: width.ways, chosen: width.chosen })
}

fn time(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or(String::new(), units::duration)
}

/// The plan in words.
pub fn text(sweep: &Sweep, plan: &SweepPlan) -> String {
    let algorithm = sweep.algorithm.name();
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
        text += &format!("the whole sweep is {:.1} jobs: about {}", plan.work, time(seconds));
        text += &match plan.rehearsed {
            0 => ", as far as steps can be predicted without trying one\n".to_string(),
            1 => {
                ", by a few steps, an evaluation and a checkpoint of one array, timed just now\n".to_string()
            }
            n => format!(", by a few steps, an evaluation and a checkpoint of {n} arrays, timed just now\n"),
        };
    }
    text
}

/// A table of the arrays and their widths.
fn arrays(arrays: &[PlannedArray]) -> String {
    let columns = [
        Column::Right("array"),
        Column::Right("width"),
        Column::Right("lanes"),
        Column::Right("steps"),
        Column::Right("in all"),
        Column::Left("kept apart by"),
    ];
    let row = |(i, array): (usize, &PlannedArray)| {
        let values: Vec<String> =
            array.values.iter().map(|(field, value)| format!("{field}={value}")).collect();
        let best = array.width.as_ref().and_then(ChosenWidth::best);
        vec![
            (i + 1).to_string(),
            array.members.len().to_string(),
            best.map_or(String::new(), |(way, _)| way.lanes.to_string()),
            array.steps.to_string(),
            array.seconds.map_or(String::new(), time),
            array.problem.clone().map_or(values.join(" "), |problem| format!("fails: {problem}")),
        ]
    };
    render(&columns, &arrays.iter().enumerate().map(row).collect::<Vec<_>>())
}

/// A table of the widths that were compared for the first arrays.
fn ways(arrays: &[PlannedArray]) -> String {
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
