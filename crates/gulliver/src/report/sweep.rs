//! A sweep on the terminal: the best trials so far, the speed and the time left, from its events alone.

use super::table::{Column, render, short};
use crate::event::{BestTrial, Event};
use crate::units;
use std::time::{Duration, Instant};

/// Trials shown while others are trained.
const LIVE: usize = 5;

/// The state of a sweep, gathered from its events.
pub struct SweepView {
    metric: String,
    /// Whether a lower metric is better.
    lower: bool,
    began: Instant,
    /// Work of the sweep, done before, done now.
    work: [f64; 3],
    best: Option<BestTrial>,
    speed: f64,
    /// The best results so far with their cells.
    rows: Vec<(BestTrial, Vec<String>)>,
}

impl SweepView {
    /// Knows nothing yet.
    pub fn new() -> SweepView {
        SweepView {
            metric: String::new(),
            lower: true,
            began: Instant::now(),
            work: [0.0; 3],
            best: None,
            speed: f64::NAN,
            rows: Vec::new(),
        }
    }

    /// Takes note of an event.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::SweepStart { metric, goal, work, done, best, .. } => {
                (self.metric, self.lower) = (metric.clone(), *goal == "minimize");
                (self.work, self.best, self.began) = ([*work, *done, 0.0], *best, Instant::now());
            }
            Event::TrialStep { samples_per_second, .. } => self.speed = *samples_per_second,
            Event::Rung { trial, level, step, value, values, work, .. } => {
                self.work[2] += work;
                if value.is_finite() {
                    self.keep(BestTrial { trial: *trial, level: *level, value: *value }, *step, values);
                }
            }
            _ => {}
        }
    }

    /// How much of the sweep is done, from 0 to 1.
    pub fn share(&self) -> f64 {
        (self.work[1] + self.work[2]) / self.work[0].max(1e-9)
    }

    /// Puts a result where it belongs among the best; a trial has one row.
    fn keep(&mut self, new: BestTrial, step: u64, values: &serde_json::Map<String, serde_json::Value>) {
        let sign = if self.lower { 1.0 } else { -1.0 };
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

    /// The best so far as a table, and what is being trained.
    pub fn live(&self, trial: u64, step: u64, to: u64) -> String {
        let columns = [
            Column::Right("trial"),
            Column::Right("steps"),
            Column::Right(&self.metric),
            Column::Left("values"),
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(|(_, cells)| cells.clone()).collect();
        let table = if rows.is_empty() { String::new() } else { render(&columns, &rows) };
        format!("{table}trial {trial} at step {step}/{to}  {}", self.rest())
    }

    /// An event of a sweep in words; empty for one that is not worth a line.
    pub fn line(&self, event: &Event) -> String {
        match event {
            Event::SweepStart { sweep, algorithm, metric, trials, ended, .. } => {
                let before = if *ended > 0 { format!(", {ended} ended before") } else { String::new() };
                let goal = if self.lower { "lowest" } else { "highest" };
                format!("{sweep}: {trials} trials by {algorithm} for the {goal} {metric}{before}")
            }
            Event::Rung { trial, reason: Some(reason), .. } => format!("trial {trial} failed: {reason}"),
            Event::Rung { trial, repeat, step, value, .. } => {
                let repeat = if *repeat > 0 { format!(".{repeat}") } else { String::new() };
                let (metric, value, rest) = (&self.metric, short(*value), self.rest());
                format!("trial {trial}{repeat}  {step} steps  {metric} {value}  {rest}")
            }
            Event::SweepDone { complete, pruned, failed, best, table } => {
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

    /// The best so far, the speed, and the time left where it can be told.
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
