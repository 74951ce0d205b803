//! The results of a sweep in one SQLite file that is also an Optuna study. Every change is one transaction. One process
//! at a time may write: it holds a lock that ends with it.

use super::file::{Goal, Sweep};
use super::search::{Ask, Trial};
use super::space::{ParameterKind, SearchSpace, TrialPoint};
use crate::error::{Error, one_line};
use crate::job::JobValue;
use gulliver_run::files::lock::{self, LockError};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, params};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SCHEMA: &str = include_str!("store/schema.sql");
const STUDY: i64 = 1;
const IDENTITY: &str = "gulliver:sweep";
const REASON: &str = "gulliver:reason";
/// Local time to the millisecond, written with six digits as Optuna reads it.
const NOW: &str = "strftime('%Y-%m-%d %H:%M:%f', 'now', 'localtime') || '000'";

/// One repeat of a trial on one rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RungId {
    /// The trial.
    pub trial: u64,
    /// The repeat, counted from 0.
    pub repeat: u64,
    /// The rung, by its length.
    pub level: u64,
}

/// How one repeat of a trial ended on one rung.
#[derive(Clone, Debug, PartialEq)]
pub enum RungOutcome {
    /// Trained up to the end of the rung.
    Done {
        /// Steps done in all.
        step: u64,
        /// The metrics of the evaluation at its end.
        metrics: BTreeMap<String, f64>,
        /// Seconds of training.
        seconds: f64,
    },
    /// It cannot be trained.
    Failed {
        /// Why, in one line.
        reason: String,
    },
}

/// The state of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialState {
    /// Being trained, or waiting to be continued on a longer rung.
    Running,
    /// Trained to its end.
    Complete,
    /// Stopped by the search before its end.
    Pruned,
    /// It could not be trained.
    Failed,
}

/// A trial and everything known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialRecord {
    /// Counted from 0.
    pub number: u64,
    /// Its point in the search space.
    pub point: TrialPoint,
    /// Its state.
    pub state: TrialState,
    /// By length of the rung: steps done (most, as epochs of folds may differ by a step each) and the metric of
    /// every repeat, for rungs that all repeats finished.
    pub rungs: BTreeMap<u64, (u64, Vec<f64>)>,
    /// Why it failed.
    pub reason: Option<String>,
}

impl TrialRecord {
    /// The longest rung finished: steps done and the metric of every repeat.
    pub fn last(&self) -> Option<&(u64, Vec<f64>)> {
        self.rungs.values().next_back()
    }

    /// The metric at the end of the longest rung, averaged over repeats.
    pub fn value(&self) -> Option<f64> {
        self.last().map(|(_, values)| mean(values))
    }
}

/// One metric of one evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvaluation {
    /// The trial.
    pub trial: u64,
    /// The repeat, counted from 0.
    pub repeat: u64,
    /// Steps done.
    pub step: u64,
    /// Name of the metric.
    pub metric: String,
    /// Its value.
    pub value: f64,
}

/// The mean, summed in order.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The study of a sweep: trials, rungs and evaluations.
pub struct StudyStore {
    connection: Connection,
    path: PathBuf,
    metric: String,
    repeats: u64,
    top: u64,
    /// The lock; none if the study is only read.
    _lock: Option<File>,
}

/// The study in a sweep's directory.
pub fn study_path(dir: &Path) -> PathBuf {
    dir.join("study.db")
}

impl StudyStore {
    /// Opens the study in `dir` for this sweep alone, made if there is none.
    pub fn open(dir: &Path, sweep: &Sweep) -> Result<StudyStore, Error> {
        fs::create_dir_all(dir).map_err(|source| Error::File { path: dir.to_path_buf(), source })?;
        let lock = lock(dir)?;
        let path = study_path(dir);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut store = StudyStore::connect(&path, flags, sweep, Some(lock))?;
        // A study is made whole or not at all.
        store.write(|transaction| {
            let made = "SELECT count(*) FROM sqlite_master WHERE name = 'gulliver_rungs'";
            if transaction.query_row(made, [], |row| row.get::<_, i64>(0))? > 0 {
                return Ok(());
            }
            transaction.execute_batch(SCHEMA)?;
            transaction.execute("INSERT INTO studies VALUES (?1, ?2)", params![STUDY, sweep.name])?;
            let direction = if sweep.goal == Goal::Minimize { "MINIMIZE" } else { "MAXIMIZE" };
            transaction.execute(
                "INSERT INTO study_directions (direction, study_id, objective) VALUES (?1, ?2, 0)",
                params![direction, STUDY],
            )?;
            for (key, value) in [
                (IDENTITY, serde_json::json!(sweep.identity())),
                ("metric", serde_json::json!(sweep.metric)),
                ("algorithm", serde_json::json!(sweep.algorithm.name())),
            ] {
                transaction.execute(
                    "INSERT INTO study_user_attributes (study_id, key, value_json) VALUES (?1, ?2, ?3)",
                    params![STUDY, key, value.to_string()],
                )?;
            }
            Ok(())
        })?;
        store.check(sweep)?;
        Ok(store)
    }

    /// Opens the study in `dir` for reading, also while another process writes; none if there is no study.
    pub fn read(dir: &Path, sweep: &Sweep) -> Result<Option<StudyStore>, Error> {
        let path = study_path(dir);
        if !path.exists() {
            return Ok(None);
        }
        let store = StudyStore::connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE, sweep, None)?;
        store.check(sweep)?;
        Ok(Some(store))
    }

    fn connect(
        path: &Path,
        flags: OpenFlags,
        sweep: &Sweep,
        lock: Option<File>,
    ) -> Result<StudyStore, Error> {
        let failed = |source| Error::Study { path: path.to_path_buf(), source };
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        // A commit waits for readers, and is on disk when it returns.
        connection.busy_timeout(Duration::from_secs(30)).map_err(failed)?;
        connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        let (metric, repeats, top) = (sweep.metric.clone(), sweep.runs(), sweep.top());
        Ok(StudyStore { connection, path: path.to_path_buf(), metric, repeats, top, _lock: lock })
    }

    /// The sweep must be the one that the study was made for.
    fn check(&self, sweep: &Sweep) -> Result<(), Error> {
        let query = "SELECT value_json FROM study_user_attributes WHERE study_id = ?1 AND key = ?2";
        let found: Option<String> = self
            .connection
            .query_row(query, params![STUDY, IDENTITY], |row| row.get(0))
            .optional()
            .map_err(|source| self.failed(source))?;
        let before: Option<Vec<String>> = found.and_then(|json| serde_json::from_str(&json).ok());
        let before = before.ok_or_else(|| self.foreign("is not a study of gulliver sweep"))?;
        let now = sweep.identity();
        let line =
            |lines: &[String], i: usize| lines.get(i).cloned().unwrap_or_else(|| "nothing more".into());
        match (0..before.len().max(now.len())).find(|&i| before.get(i) != now.get(i)) {
            Some(i) => Err(Error::SweepChanged {
                path: self.path.clone(),
                before: one_line(&line(&before, i)),
                now: one_line(&line(&now, i)),
            }),
            None => Ok(()),
        }
    }

    fn failed(&self, source: rusqlite::Error) -> Error {
        Error::Study { path: self.path.clone(), source }
    }

    fn foreign(&self, problem: &str) -> Error {
        Error::ForeignStudy { path: self.path.clone(), problem: problem.to_string() }
    }

    fn write(&mut self, change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>) -> Result<(), Error> {
        let path = &self.path;
        let failed = |source| Error::Study { path: path.clone(), source };
        let transaction = self
            .connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .map_err(failed)?;
        change(&transaction).map_err(failed)?;
        transaction.commit().map_err(failed)
    }

    /// Stores a wave, with every repeat, before any of it is trained.
    pub fn begin(&mut self, space: &SearchSpace, asks: &[Ask]) -> Result<(), Error> {
        let repeats = self.repeats;
        self.write(|transaction| {
            let wave: i64 =
                transaction.query_row("SELECT coalesce(max(wave) + 1, 0) FROM gulliver_rungs", [], |row| {
                    row.get(0)
                })?;
            for Ask { trial, point, level } in asks {
                let id = *trial as i64 + 1;
                let new = format!(
                    "INSERT OR IGNORE INTO trials (trial_id, number, study_id, state, datetime_start) \
                     VALUES (?1, ?2, ?3, 'RUNNING', {NOW})"
                );
                transaction.execute(&new, params![id, *trial as i64, STUDY])?;
                for parameter in &space.parameters {
                    let Some(code) = point.get(&parameter.field) else { continue };
                    transaction.execute(
                        "INSERT OR IGNORE INTO trial_params (trial_id, param_name, param_value, distribution_json) \
                         VALUES (?1, ?2, ?3, ?4)",
                        params![id, parameter.field, code, distribution(&parameter.kind)],
                    )?;
                }
                for repeat in 0..repeats {
                    transaction.execute(
                        "INSERT INTO gulliver_rungs (trial_id, repeat, level, wave, state) \
                         VALUES (?1, ?2, ?3, ?4, 'asked')",
                        params![id, repeat as i64, *level as i64, wave],
                    )?;
                }
            }
            Ok(())
        })
    }

    /// Rungs that were asked for and have not ended, in the order asked.
    pub fn pending(&self) -> Result<Vec<RungId>, Error> {
        let query = "SELECT trial_id, repeat, level FROM gulliver_rungs WHERE state = 'asked' \
                     ORDER BY wave, rowid";
        let place = |row: &rusqlite::Row<'_>| {
            let [trial, repeat, level]: [i64; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
            Ok(RungId { trial: trial as u64 - 1, repeat: repeat as u64, level: level as u64 })
        };
        self.rows(query, place)
    }

    fn rows<T>(
        &self,
        query: &str,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let all =
            || -> rusqlite::Result<Vec<T>> { self.connection.prepare(query)?.query_map([], read)?.collect() };
        all().map_err(|source| self.failed(source))
    }

    /// Stores an evaluation before the end of a rung. The same one may come twice after a crash.
    pub fn evaluated(
        &mut self,
        place: RungId,
        step: u64,
        metrics: &BTreeMap<String, f64>,
    ) -> Result<(), Error> {
        self.write(|transaction| curve(transaction, place, step, metrics))
    }

    /// Stores how a repeat ended on a rung, and with the last repeat the state of the trial.
    pub fn finish(&mut self, place: RungId, outcome: &RungOutcome) -> Result<(), Error> {
        let (metric, top) = (self.metric.clone(), self.top);
        self.write(|transaction| {
            let (state, step, value, reason, seconds) = match outcome {
                RungOutcome::Done { step, metrics, seconds } => {
                    curve(transaction, place, *step, metrics)?;
                    match metrics.get(&metric) {
                        Some(value) if value.is_finite() => {
                            ("done", Some(*step as i64), Some(*value), None, Some(*seconds))
                        }
                        Some(value) => {
                            let reason = format!("{metric} is {value} after {step} steps");
                            ("failed", Some(*step as i64), None, Some(reason), Some(*seconds))
                        }
                        None => ("failed", Some(*step as i64), None, Some(no_metric(&metric, metrics)), None),
                    }
                }
                RungOutcome::Failed { reason } => ("failed", None, None, Some(reason.clone()), None),
            };
            let RungId { trial, repeat, level } = place;
            let id = trial as i64 + 1;
            transaction.execute(
                "UPDATE gulliver_rungs SET state = ?4, step = ?5, value = ?6, reason = ?7, seconds = ?8 \
                 WHERE trial_id = ?1 AND repeat = ?2 AND level = ?3",
                params![id, repeat as i64, level as i64, state, step, value, reason, seconds],
            )?;
            settle(transaction, id, level, level == top, &metric)
        })
    }

    /// Ends the sweep: trials that wait for a longer rung become pruned.
    pub fn close(&mut self) -> Result<(), Error> {
        self.write(|transaction| {
            transaction.execute(
                "INSERT OR REPLACE INTO trial_values (trial_id, objective, value, value_type) \
                 SELECT trial_id, 0, avg(value), 'FINITE' FROM gulliver_rungs AS r \
                 WHERE level = (SELECT max(level) FROM gulliver_rungs WHERE trial_id = r.trial_id) \
                 AND trial_id IN (SELECT trial_id FROM trials WHERE state = 'RUNNING') GROUP BY trial_id",
                [],
            )?;
            let left = format!(
                "UPDATE trials SET state = 'PRUNED', datetime_complete = {NOW} WHERE state = 'RUNNING'"
            );
            transaction.execute(&left, [])?;
            Ok(())
        })
    }

    /// Every trial, by number.
    pub fn records(&self) -> Result<Vec<TrialRecord>, Error> {
        let mut records = self.rows("SELECT number, state FROM trials ORDER BY number", |row| {
            let (number, state): (i64, String) = (row.get(0)?, row.get(1)?);
            let state = match state.as_str() {
                "COMPLETE" => TrialState::Complete,
                "PRUNED" => TrialState::Pruned,
                "FAIL" => TrialState::Failed,
                _ => TrialState::Running,
            };
            let (point, rungs) = (TrialPoint::new(), BTreeMap::new());
            Ok(TrialRecord { number: number as u64, point, state, rungs, reason: None })
        })?;
        if records.iter().enumerate().any(|(i, record)| record.number != i as u64) {
            return Err(self.foreign("trials are missing, or were added by another program"));
        }
        let strange = || self.foreign("has results of trials that are not there");
        let values = self.rows("SELECT trial_id, param_name, param_value FROM trial_params", |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, f64>(2)?))
        })?;
        for (id, field, code) in values {
            records.get_mut((id - 1) as usize).ok_or_else(strange)?.point.insert(field, code);
        }
        let query = "SELECT trial_id, level, step, value, reason FROM gulliver_rungs \
                     WHERE state <> 'asked' ORDER BY trial_id, level, repeat";
        type Row = (i64, i64, Option<i64>, Option<f64>, Option<String>);
        let rungs: Vec<Row> =
            self.rows(query, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))?;
        for (id, level, step, value, reason) in rungs {
            let record = records.get_mut((id - 1) as usize).ok_or_else(strange)?;
            match (step, value) {
                (Some(step), Some(value)) => {
                    let (most, values) = record.rungs.entry(level as u64).or_insert((0, Vec::new()));
                    *most = (*most).max(step as u64);
                    values.push(value);
                }
                _ => record.reason = record.reason.take().or(reason),
            }
        }
        for record in &mut records {
            record.rungs.retain(|_, (_, values)| values.len() as u64 == self.repeats);
        }
        Ok(records)
    }

    /// Every evaluation, by trial, repeat, step and metric.
    pub fn curves(&self) -> Result<Vec<StoredEvaluation>, Error> {
        let query = "SELECT trial_id, repeat, step, metric, value FROM gulliver_curves \
                     ORDER BY trial_id, repeat, step, metric";
        self.rows(query, |row| {
            let [id, repeat, step]: [i64; 3] = [row.get(0)?, row.get(1)?, row.get(2)?];
            let value: Option<f64> = row.get(4)?;
            Ok(StoredEvaluation {
                trial: id as u64 - 1,
                repeat: repeat as u64,
                step: step as u64,
                metric: row.get(3)?,
                value: value.unwrap_or(f64::NAN),
            })
        })
    }
}

/// The trials as the search sees them.
pub fn history(records: &[TrialRecord], goal: Goal) -> Vec<Trial> {
    let sign = if goal == Goal::Minimize { 1.0 } else { -1.0 };
    let trial = |record: &TrialRecord| Trial {
        point: record.point.clone(),
        scores: record.rungs.iter().map(|(level, (_, values))| (*level, sign * mean(values))).collect(),
        failed: record.state == TrialState::Failed,
    };
    records.iter().map(trial).collect()
}

/// Takes the lock of a sweep's directory.
fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join("study.lock");
    lock::lock(&path).map_err(|error| match error {
        LockError::Taken { holder } => Error::SweepInUse { dir: dir.to_path_buf(), holder },
        LockError::Io(source) => Error::File { path, source },
    })
}

fn curve(
    transaction: &Transaction<'_>,
    place: RungId,
    step: u64,
    metrics: &BTreeMap<String, f64>,
) -> rusqlite::Result<()> {
    for (metric, value) in metrics {
        transaction.execute(
            "INSERT OR REPLACE INTO gulliver_curves VALUES (?1, ?2, ?3, ?4, ?5)",
            params![place.trial as i64 + 1, place.repeat as i64, step as i64, metric, value],
        )?;
    }
    Ok(())
}

/// When every repeat of a rung has ended: the trial's curve, and its state if it is at its end.
fn settle(
    transaction: &Transaction<'_>,
    id: i64,
    level: u64,
    last: bool,
    metric: &str,
) -> rusqlite::Result<()> {
    let mut asked = transaction.prepare(
        "SELECT state, value, reason FROM gulliver_rungs WHERE trial_id = ?1 AND level = ?2 ORDER BY repeat",
    )?;
    type Row = (String, Option<f64>, Option<String>);
    let repeats: Vec<Row> = asked
        .query_map(params![id, level as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    if repeats.iter().any(|(state, ..)| state == "asked") {
        return Ok(());
    }
    let end = |state: &str| {
        let query = format!("UPDATE trials SET state = ?2, datetime_complete = {NOW} WHERE trial_id = ?1");
        transaction.execute(&query, params![id, state])
    };
    if let Some((_, _, reason)) = repeats.iter().find(|(state, ..)| state == "failed") {
        transaction.execute(
            "INSERT OR REPLACE INTO trial_user_attributes (trial_id, key, value_json) VALUES (?1, ?2, ?3)",
            params![id, REASON, serde_json::json!(reason).to_string()],
        )?;
        end("FAIL")?;
        return Ok(());
    }
    transaction.execute(
        "INSERT OR REPLACE INTO trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type) \
         SELECT trial_id, step, avg(value), 'FINITE' FROM gulliver_curves \
         WHERE trial_id = ?1 AND metric = ?2 AND abs(value) < 9e999 GROUP BY step HAVING count(*) = ?3",
        params![id, metric, repeats.len() as i64],
    )?;
    if last {
        let values: Vec<f64> = repeats.iter().filter_map(|(_, value, _)| *value).collect();
        transaction.execute(
            "INSERT OR REPLACE INTO trial_values (trial_id, objective, value, value_type) VALUES (?1, 0, ?2, 'FINITE')",
            params![id, mean(&values)],
        )?;
        end("COMPLETE")?;
    }
    Ok(())
}

fn no_metric(metric: &str, metrics: &BTreeMap<String, f64>) -> String {
    if metrics.is_empty() {
        return format!("there is no {metric}: the job has no validation data (data.validation)");
    }
    let names: Vec<&str> = metrics.keys().map(String::as_str).collect();
    format!("there is no metric {metric}; evaluation gives {}", names.join(", "))
}

/// How Optuna describes the values of a parameter.
fn distribution(kind: &ParameterKind) -> String {
    let choice = |value: &JobValue| match value {
        JobValue::Bool(b) => serde_json::json!(b),
        JobValue::Int(n) => serde_json::json!(n),
        JobValue::Float(x) => serde_json::json!(x),
        JobValue::Text(text) => serde_json::json!(text),
        list @ JobValue::List(_) => serde_json::json!(list.to_string()),
    };
    let (name, attributes) = match kind {
        ParameterKind::Choice(values) => (
            "CategoricalDistribution",
            serde_json::json!({ "choices": values.iter().map(choice).collect::<Vec<_>>() }),
        ),
        ParameterKind::Uniform { low, high } => {
            ("FloatDistribution", serde_json::json!({ "step": null, "low": low, "high": high, "log": false }))
        }
        ParameterKind::LogUniform { low, high } => {
            ("FloatDistribution", serde_json::json!({ "step": null, "low": low, "high": high, "log": true }))
        }
        ParameterKind::Integer { low, high, step, log } => {
            let reached = low + (high - low) / step * step;
            let attributes = serde_json::json!({ "log": log, "step": step, "low": low, "high": reached });
            ("IntDistribution", attributes)
        }
    };
    serde_json::json!({ "name": name, "attributes": attributes }).to_string()
}

#[cfg(test)]
mod tests;
