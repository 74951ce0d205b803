//! The trials of a sweep for people and programs: tables, CSV and JSON.

use super::drive::ranked;
use super::events::best_of;
use super::file::Sweep;
use super::space::TrialPoint;
use super::store::{StoredEvaluation, StudyStore, TrialRecord, TrialState, mean};
use crate::error::Error;
use crate::job::JobValue;
use crate::report::table::{Column, csv_field, render, short};
use gulliver_run::files::atomic::write_atomic;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// The error of a sweep whose trials all failed; it names the most common reason.
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
pub fn values(sweep: &Sweep, point: &TrialPoint) -> serde_json::Map<String, serde_json::Value> {
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
        let quoted: Vec<String> = cells.iter().map(|cell| csv_field(cell)).collect();
        text += &format!("{}\n", quoted.join(","));
    }
    text
}

/// The largest distance from the mean.
fn spread(values: &[f64]) -> f64 {
    let middle = mean(values);
    values.iter().map(|value| (value - middle).abs()).fold(0.0, f64::max)
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
        curves += &format!("{trial},{repeat},{step},{},{value}\n", csv_field(&metric));
    }
    for (name, text) in [("trials.csv", csv(sweep, &store.records()?)), ("curves.csv", curves)] {
        let path = dir.join(name);
        write_atomic(&path, |file| file.write_all(text.as_bytes()))
            .map_err(|source| Error::File { path, source })?;
    }
    Ok(())
}
