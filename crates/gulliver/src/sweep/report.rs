//! A sweep for people and programs: events as they come, the table of trials, and the files they are kept in.

use super::drive::{best, ranked};
use super::file::{Goal, Sweep};
use super::search;
use super::space::TrialPoint;
use super::store::{RungId, RungOutcome, StoredEvaluation, StudyStore, TrialRecord, TrialState, mean};
use crate::error::Error;
use crate::job::JobValue;
use crate::report::events::{Metrics, number, numbers};
use crate::report::progress::{OutputMode, print_above, short};
use crate::report::table::{Column, render};
use crate::units;
use gulliver_run::files::atomic::write_atomic;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Trials of the last table.
const SHOWN: usize = 10;

/// Trials that a terminal shows while others are trained.
const LIVE: usize = 5;

/// The best trial: one that was trained longer is better than one that was not.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BestTrial {
    /// Its number.
    pub trial: u64,
    /// The length of the rung it reached.
    pub level: u64,
    /// Its metric there.
    #[serde(serialize_with = "number")]
    pub value: f64,
}

/// One thing that happened. As JSON it is an object whose `event` names the variant.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The sweep begins or goes on.
    Start {
        /// Its name.
        sweep: String,
        /// How trials are chosen.
        algorithm: String,
        /// What counts.
        metric: String,
        /// Trials in all.
        trials: u64,
        /// Trials that need no more training.
        ended: u64,
        /// Training of the whole sweep, in jobs trained to their end.
        work: f64,
        /// Of which this much is done.
        done: f64,
        /// The best trial so far.
        best: Option<BestTrial>,
    },
    /// A training step ended; for people only.
    Step {
        /// The trial.
        trial: u64,
        /// Which of its repeats.
        repeat: u64,
        /// Steps done.
        step: u64,
        /// The last step of the rung.
        to: u64,
        /// Speed of late.
        samples_per_second: f64,
    },
    /// A trial was evaluated on the way.
    Eval {
        /// The trial.
        trial: u64,
        /// Which of its repeats.
        repeat: u64,
        /// Steps done.
        step: u64,
        /// What was measured.
        #[serde(serialize_with = "numbers")]
        metrics: Metrics,
    },
    /// A repeat of a trial ended on a rung.
    Rung {
        /// The trial.
        trial: u64,
        /// Which of its repeats.
        repeat: u64,
        /// The length of the rung.
        level: u64,
        /// Steps done; 0 if it failed.
        step: u64,
        /// The metric; not a number if it failed.
        #[serde(serialize_with = "number")]
        value: f64,
        /// Why it failed.
        reason: Option<String>,
        /// The trial's values.
        values: serde_json::Map<String, serde_json::Value>,
        /// How much training this was, in jobs trained to their end.
        work: f64,
    },
    /// The sweep is over.
    Done {
        /// Trials trained to their end.
        complete: u64,
        /// Trials left behind.
        pruned: u64,
        /// Trials that were not possible.
        failed: u64,
        /// The best trial.
        best: Option<BestTrial>,
        /// The best trials.
        table: String,
    },
    /// The sweep stopped; for programs only.
    Error {
        /// One line.
        message: String,
    },
}

impl Event {
    /// See [`Event::Start`].
    pub fn start(sweep: &Sweep, records: &[TrialRecord]) -> Event {
        let top = sweep.top() as f64;
        let level = |record: &TrialRecord| record.rungs.keys().next_back().map_or(0.0, |&level| level as f64);
        Event::Start {
            sweep: sweep.name.clone(),
            algorithm: sweep.algorithm.name().into(),
            metric: sweep.metric.clone(),
            trials: sweep.trials,
            ended: records.iter().filter(|r| r.state != TrialState::Running).count() as u64,
            work: search::work(sweep) * sweep.runs() as f64,
            done: records.iter().map(|r| level(r) / top).sum::<f64>() * sweep.runs() as f64,
            best: best_of(sweep, records),
        }
    }

    /// See [`Event::Rung`].
    pub fn rung(sweep: &Sweep, place: RungId, point: &TrialPoint, outcome: &RungOutcome, work: f64) -> Event {
        let (step, value, reason) = match outcome {
            RungOutcome::Done { step, metrics, .. } => {
                (*step, metrics.get(&sweep.metric).copied().unwrap_or(f64::NAN), None)
            }
            RungOutcome::Failed { reason } => (0, f64::NAN, Some(reason.clone())),
        };
        let RungId { trial, repeat, level } = place;
        let values = values(sweep, point);
        Event::Rung { trial, repeat, level, step, value, reason, values, work }
    }

    /// See [`Event::Done`].
    pub fn done(sweep: &Sweep, records: &[TrialRecord]) -> Event {
        let count = |state: TrialState| records.iter().filter(|r| r.state == state).count() as u64;
        Event::Done {
            complete: count(TrialState::Complete),
            pruned: count(TrialState::Pruned),
            failed: count(TrialState::Failed),
            best: best_of(sweep, records),
            table: table(sweep, records, SHOWN),
        }
    }
}

fn best_of(sweep: &Sweep, records: &[TrialRecord]) -> Option<BestTrial> {
    let record = best(sweep, records)?;
    Some(BestTrial { trial: record.number, level: *record.rungs.keys().next_back()?, value: record.value()? })
}

/// The error of a sweep without a single trial that could be trained; it names the commonest reason.
pub fn all_failed(records: &[TrialRecord]) -> Option<Error> {
    if records.is_empty() || records.iter().any(|record| record.state != TrialState::Failed) {
        return None;
    }
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for record in records {
        *reasons.entry(record.reason.as_deref().unwrap_or("of no known reason")).or_default() += 1;
    }
    let commonest = reasons.into_iter().rev().max_by_key(|(_, count)| *count);
    let (reason, count) = commonest.map(|(reason, count)| (reason.to_string(), count))?;
    Some(Error::AllTrialsFailed { trials: records.len() as u64, count, reason })
}

/// A value without the quotes of text.
fn plain(value: &JobValue) -> String {
    match value {
        JobValue::Text(text) => text.clone(),
        JobValue::Float(x) => format!("{x}"),
        value => value.to_string(),
    }
}

/// The values of a point as JSON.
fn values(sweep: &Sweep, point: &TrialPoint) -> serde_json::Map<String, serde_json::Value> {
    let value = |value: &JobValue| match value {
        JobValue::Bool(b) => serde_json::json!(b),
        JobValue::Int(n) => serde_json::json!(n),
        JobValue::Float(x) => serde_json::json!(x),
        value => serde_json::json!(plain(value)),
    };
    sweep.space.values(point).map(|(field, v)| (field.to_string(), value(&v))).collect()
}

fn word(state: TrialState) -> &'static str {
    match state {
        TrialState::Running => "running",
        TrialState::Complete => "complete",
        TrialState::Pruned => "pruned",
        TrialState::Failed => "failed",
    }
}

/// The best trials, and the first of those that failed with the reason; the spread of the metric, if trials are
/// trained several times.
pub fn table(sweep: &Sweep, records: &[TrialRecord], most: usize) -> String {
    let fields = sweep.space.parameters.iter().map(|p| Column::Right(p.field.as_str()));
    let own = [Column::Right("trial"), Column::Left("state"), Column::Right("steps")];
    let columns: Vec<Column<'_>> = own
        .into_iter()
        .chain([Column::Right(&sweep.metric)])
        .chain((sweep.runs() > 1).then_some(Column::Right("spread")))
        .chain(fields)
        .chain([Column::Left("")])
        .collect();
    let order = ranked(sweep, records);
    let row = |record: &&TrialRecord| {
        let [steps, metric, around] = match record.last().filter(|_| record.state != TrialState::Failed) {
            Some((step, values)) => [step.to_string(), short(mean(values)), short(spread(values))],
            None => [const { String::new() }; 3],
        };
        let mut cells = vec![record.number.to_string(), word(record.state).to_string(), steps, metric];
        cells.extend((sweep.runs() > 1).then_some(around));
        for p in &sweep.space.parameters {
            cells.push(record.point.get(&p.field).map_or(String::new(), |code| plain(&p.kind.value(*code))));
        }
        cells.push(record.reason.clone().unwrap_or_default());
        cells
    };
    let rows: Vec<Vec<String>> = order.iter().take(most).map(row).collect();
    let mut text = render(&columns, &rows);
    if order.len() > most {
        text += &format!("{} more in trials.csv\n", order.len() - most);
    }
    text
}

/// Every trial, a line each: number, state, steps, metric and its spread over repeats, values, reason of failure.
pub fn csv(sweep: &Sweep, records: &[TrialRecord]) -> String {
    let fields: Vec<&str> = sweep.space.parameters.iter().map(|p| p.field.as_str()).collect();
    let mut text = format!("trial,state,steps,{},spread,{},reason\n", sweep.metric, fields.join(","));
    for record in records {
        let mut cells = vec![record.number.to_string(), word(record.state).to_string()];
        cells.extend(match record.last() {
            Some((step, values)) => [step.to_string(), mean(values).to_string(), spread(values).to_string()],
            None => [String::new(), String::new(), String::new()],
        });
        for p in &sweep.space.parameters {
            cells.push(record.point.get(&p.field).map_or(String::new(), |code| plain(&p.kind.value(*code))));
        }
        cells.push(record.reason.clone().unwrap_or_default());
        let quoted: Vec<String> = cells.iter().map(|cell| quote(cell)).collect();
        text += &format!("{}\n", quoted.join(","));
    }
    text
}

/// The largest distance from the mean.
fn spread(values: &[f64]) -> f64 {
    let middle = mean(values);
    values.iter().map(|value| (value - middle).abs()).fold(0.0, f64::max)
}

/// Text as a cell of a CSV file.
fn quote(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.into()
    }
}

/// Every trial as JSON, with its curves.
pub fn json(sweep: &Sweep, store: &StudyStore) -> Result<serde_json::Value, Error> {
    let records = store.records()?;
    let mut curves = vec![Vec::new(); records.len()];
    for StoredEvaluation { trial, repeat, step, metric, value } in store.curves()? {
        if let Some(curve) = curves.get_mut(trial as usize) {
            curve.push(
                serde_json::json!({ "repeat": repeat, "step": step, "metric": metric, "value": value }),
            );
        }
    }
    let trials = records.iter().zip(curves).map(|(record, curve)| {
        serde_json::json!({
            "trial": record.number,
            "state": word(record.state),
            "steps": record.last().map(|(step, _)| step),
            "value": record.value(),
            "repeats": record.last().map(|(_, values)| values),
            "values": values(sweep, &record.point),
            "reason": record.reason,
            "curve": curve,
        })
    });
    Ok(serde_json::json!({
        "sweep": sweep.name,
        "metric": sweep.metric,
        "goal": sweep.goal.name(),
        "best": best_of(sweep, &records).map(|best| best.trial),
        "trials": trials.collect::<Vec<_>>(),
    }))
}

/// Writes `trials.csv` and `curves.csv`.
pub fn write_files(sweep: &Sweep, dir: &Path, store: &StudyStore) -> Result<(), Error> {
    let mut curves = String::from("trial,repeat,step,metric,value\n");
    for StoredEvaluation { trial, repeat, step, metric, value } in store.curves()? {
        curves += &format!("{trial},{repeat},{step},{},{value}\n", quote(&metric));
    }
    for (name, text) in [("trials.csv", csv(sweep, &store.records()?)), ("curves.csv", curves)] {
        let path = dir.join(name);
        write_atomic(&path, |file| file.write_all(text.as_bytes()))
            .map_err(|source| Error::File { path, source })?;
    }
    Ok(())
}

/// Shows events as they come.
pub struct SweepReporter {
    mode: OutputMode,
    out: Box<dyn Write + Send>,
    bar: ProgressBar,
    metric: String,
    goal: Goal,
    began: Instant,
    /// Work of the sweep, done before, done now.
    work: [f64; 3],
    best: Option<BestTrial>,
    speed: f64,
    /// The best results so far with their values, for the terminal.
    rows: Vec<(BestTrial, Vec<String>)>,
}

impl SweepReporter {
    /// Shows events on `out`; what moves is drawn on standard error.
    pub fn new(mode: OutputMode, sweep: &Sweep, out: Box<dyn Write + Send>) -> SweepReporter {
        let (bar, began) = (ProgressBar::hidden(), Instant::now());
        let (metric, goal) = (sweep.metric.clone(), sweep.goal);
        SweepReporter {
            mode,
            out,
            bar,
            metric,
            goal,
            began,
            work: [0.0; 3],
            best: None,
            speed: f64::NAN,
            rows: Vec::new(),
        }
    }

    /// Shows one event. Fails only if the output does.
    pub fn report(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Start { work, done, best, .. } => {
                (self.work, self.best, self.began) = ([*work, *done, 0.0], *best, Instant::now());
                if self.mode == OutputMode::Bar {
                    self.bar = bar();
                }
            }
            Event::Step { samples_per_second, .. } => self.speed = *samples_per_second,
            Event::Rung { trial, level, step, value, values, work, .. } => {
                self.work[2] += work;
                if value.is_finite() {
                    let best = BestTrial { trial: *trial, level: *level, value: *value };
                    self.keep(best, *step, values);
                }
            }
            _ => {}
        }
        match (self.mode, event) {
            (OutputMode::Json, Event::Step { .. })
            | (OutputMode::Lines, Event::Step { .. } | Event::Eval { .. }) => Ok(()),
            (OutputMode::Json, _) => {
                let line = serde_json::to_string(event).map_err(io::Error::from)?;
                print_above(&self.bar, &mut self.out, &line)
            }
            (OutputMode::Bar, Event::Step { trial, step, to, .. }) => {
                let share = (self.work[1] + self.work[2]) / self.work[0].max(1e-9);
                self.bar.set_position((share * 1000.0) as u64);
                let now = format!("trial {trial} at step {step}/{to}  {}", self.rest());
                self.bar.set_message(format!("{}{now}", self.live()));
                Ok(())
            }
            (OutputMode::Bar, Event::Eval { .. } | Event::Rung { reason: None, .. }) => Ok(()),
            (_, Event::Error { .. }) => {
                self.bar.finish_and_clear();
                Ok(())
            }
            (_, Event::Done { .. }) => {
                self.bar.finish_and_clear();
                let line = self.line(event);
                print_above(&self.bar, &mut self.out, &line)
            }
            _ => {
                let line = self.line(event);
                print_above(&self.bar, &mut self.out, &line)
            }
        }
    }

    /// Puts a result where it belongs among the best; a trial has one row.
    fn keep(&mut self, new: BestTrial, step: u64, values: &serde_json::Map<String, serde_json::Value>) {
        let sign = if self.goal == Goal::Minimize { 1.0 } else { -1.0 };
        let name = |field: &str| field.rsplit('.').next().unwrap_or(field).to_string();
        let text = |value: &serde_json::Value| value.as_str().map_or(value.to_string(), String::from);
        let values: Vec<String> =
            values.iter().map(|(field, value)| format!("{} {}", name(field), text(value))).collect();
        let cells = vec![new.trial.to_string(), step.to_string(), short(new.value), values.join("  ")];
        self.rows.retain(|(known, _)| known.trial != new.trial);
        self.rows.push((new, cells));
        self.rows.sort_by(|(a, _), (b, _)| {
            b.level.cmp(&a.level).then((sign * a.value).total_cmp(&(sign * b.value)))
        });
        self.rows.truncate(LIVE);
        let first = self.rows[0].0;
        let better = |known: BestTrial| {
            first.level > known.level || first.level == known.level && sign * first.value < sign * known.value
        };
        if self.best.is_none_or(better) {
            self.best = Some(first);
        }
    }

    /// The best so far as a table.
    fn live(&self) -> String {
        let columns = [
            Column::Right("trial"),
            Column::Right("steps"),
            Column::Right(&self.metric),
            Column::Left("values"),
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(|(_, cells)| cells.clone()).collect();
        if rows.is_empty() { String::new() } else { render(&columns, &rows) }
    }

    /// The event in words.
    fn line(&self, event: &Event) -> String {
        match event {
            Event::Start { sweep, algorithm, metric, trials, ended, .. } => {
                let before = if *ended > 0 { format!(", {ended} ended before") } else { String::new() };
                let goal = if self.goal == Goal::Minimize { "lowest" } else { "highest" };
                format!("{sweep}: {trials} trials by {algorithm} for the {goal} {metric}{before}")
            }
            Event::Rung { trial, reason: Some(reason), .. } => format!("trial {trial} failed: {reason}"),
            Event::Rung { trial, repeat, step, value, .. } => {
                let repeat = if *repeat > 0 { format!(".{repeat}") } else { String::new() };
                format!(
                    "trial {trial}{repeat}  {step} steps  {} {}  {}",
                    self.metric,
                    short(*value),
                    self.rest()
                )
            }
            Event::Done { complete, pruned, failed, best, table } => {
                let best = match best {
                    Some(BestTrial { trial, value, .. }) => {
                        format!("best is trial {trial}, {} {}", self.metric, short(*value))
                    }
                    None => "no trial came to an end".into(),
                };
                format!("{table}{complete} complete, {pruned} pruned, {failed} failed; {best}")
            }
            _ => String::new(),
        }
    }

    /// The best so far, the speed, and the time left as far as it can be told.
    fn rest(&self) -> String {
        let [work, before, now] = self.work;
        let best = self.best.map(|best| format!("best {} (trial {})", short(best.value), best.trial));
        let speed = self.speed.is_finite().then(|| format!("{:.0} samples/s", self.speed));
        let left = self.began.elapsed().as_secs_f64() * (work - before - now) / now;
        let left = Duration::try_from_secs_f64(left).ok().filter(|left| *left > Duration::ZERO);
        let left = left.map(|left| format!("{} left", units::duration(left)));
        [best, speed, left].into_iter().flatten().collect::<Vec<_>>().join("  ")
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}\n{wide_bar} {percent}%").expect("a constant template");
    ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr()).with_style(style)
}
