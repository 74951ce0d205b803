//! Events of planning, training and sweeps, as data: one type for the terminal, the metric files, `--json`
//! and programs that use the library. Nothing here is printed or written.

use gulliver_run::train::{Best, Notice};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Receives events as they happen; `Break` asks for a stop at the next safe point, after a checkpoint.
pub type EventHandler<'h> = dyn FnMut(Event) -> ControlFlow<()> + 'h;

/// Metric values by name.
pub type Metrics = BTreeMap<String, f64>;

/// One thing that happened. As JSON it is an object whose `event` names the variant; events of a sweep have the names
/// of the same events of a run (`start`, `eval`, `done`).
///
/// JSON has no non-finite numbers: they become the strings `"nan"`, `"inf"` and `"-inf"`, so that
/// a program can tell a diverged run from a missing value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The planner is at work; never a line of JSON.
    Planning {
        /// The activity, in a few words.
        activity: &'static str,
        /// Rounds of its searches so far.
        rounds: u64,
        /// Seconds since it began.
        #[serde(serialize_with = "number")]
        seconds: f64,
        /// Bytes of the device that it plans for.
        budget: Option<u64>,
    },
    /// The data is open.
    Data {
        /// Training examples.
        training: u64,
        /// Validation examples.
        validation: u64,
        /// Classes to tell apart, if the data has classes.
        classes: Option<u64>,
        /// Their names in order; empty if they have none.
        class_names: Vec<String>,
        /// Examples that were left out, with the reason, a line each.
        notes: Vec<String>,
    },
    /// The plan is made and the first step is next.
    Start {
        /// The job file.
        job: String,
        /// Trainable numbers of the model.
        parameters: u64,
        /// The plan in short.
        plan: PlanSummary,
        /// The last step already done: 0, or more in a resumed run.
        from_step: u64,
        /// The last step to do.
        steps: u64,
        /// Samples per step.
        batch: u64,
    },
    /// A training step ended (not every step need be reported).
    Step {
        /// Its number, from 1.
        step: u64,
        /// The training loss.
        #[serde(serialize_with = "number")]
        loss: f64,
        /// The learning rate used.
        #[serde(serialize_with = "number")]
        lr: f64,
        /// Measured since the previous such event.
        #[serde(serialize_with = "number")]
        samples_per_second: f64,
        /// Everything else measured on the training batch.
        #[serde(serialize_with = "numbers")]
        metrics: Metrics,
    },
    /// Time has passed; for a bar only, never a line.
    Progress {
        /// Steps done.
        step: u64,
        /// Batches evaluated, and batches to evaluate, if the model is being evaluated.
        evaluated: Option<(u64, u64)>,
    },
    /// Planned against measured quantities, if there is a budget.
    Compared {
        /// Quantity, planned value and measured value, over the whole run.
        rows: Vec<(String, String, String)>,
        /// The same by size of input.
        sizes: Vec<SizeSummary>,
    },
    /// The model was evaluated.
    Eval {
        /// After this step.
        step: u64,
        /// Name of the metric.
        #[serde(serialize_with = "numbers")]
        metrics: Metrics,
    },
    /// A checkpoint is on disk.
    Checkpoint {
        /// After this step.
        step: u64,
        /// Its file.
        path: PathBuf,
    },
    /// Something the user should know but that stops nothing.
    Warning {
        /// One line.
        message: String,
    },
    /// The run ended as asked.
    Done {
        /// The last step done.
        steps: u64,
        /// The last training loss.
        #[serde(serialize_with = "number")]
        loss: f64,
        /// The last evaluation.
        #[serde(serialize_with = "numbers")]
        metrics: Metrics,
        /// The best evaluation: its metric, its value, and the step it came after.
        #[serde(skip_serializing_if = "Option::is_none")]
        best: Option<Best>,
        /// Whether training ended before its last step, as evaluations had stopped improving.
        stopped_early: bool,
        /// Over the whole run.
        #[serde(serialize_with = "number")]
        samples_per_second: f64,
        /// The most bytes in use at once, by tier.
        peak_bytes: BTreeMap<String, u64>,
        /// Bytes moved, by link.
        link_bytes: BTreeMap<String, u64>,
        /// Plans, one for each size of input: how often there was one, and how often one was made.
        plans: PlanUse,
        /// How often bytes were not as planned.
        alarms: u64,
        /// The most memory the process held at once, where the system tells.
        resident_bytes: Option<u64>,
        /// Fingerprint of the final weights.
        fingerprint: String,
        /// Names of the classes, if they have any.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        classes: Vec<String>,
        /// How many validation examples of each class (row) were taken for each class (column), at the last
        /// evaluation of a classifier.
        #[serde(skip_serializing_if = "Option::is_none")]
        confusion: Option<Vec<Vec<u64>>>,
    },
    /// A sweep begins or goes on.
    #[serde(rename = "start")]
    SweepStart {
        /// Its name.
        sweep: String,
        /// How trials are chosen.
        algorithm: String,
        /// The metric that trials are compared by.
        metric: String,
        /// `minimize` or `maximize`.
        goal: &'static str,
        /// Trials in all.
        trials: u64,
        /// Trials that need no more training.
        ended: u64,
        /// Training of the whole sweep, in jobs trained to their end.
        work: f64,
        /// The part of `work` that is done.
        done: f64,
        /// The best trial so far.
        best: Option<BestTrial>,
    },
    /// A training step of a trial ended; never a line of JSON.
    TrialStep {
        /// The trial.
        trial: u64,
        /// The repeat, counted from 0.
        repeat: u64,
        /// Steps done.
        step: u64,
        /// The last step of the rung.
        to: u64,
        /// Measured since the previous such event.
        #[serde(serialize_with = "number")]
        samples_per_second: f64,
    },
    /// A trial was evaluated before the end of its rung.
    #[serde(rename = "eval")]
    TrialEval {
        /// The trial.
        trial: u64,
        /// The repeat, counted from 0.
        repeat: u64,
        /// Steps done.
        step: u64,
        /// Name of the metric.
        #[serde(serialize_with = "numbers")]
        metrics: Metrics,
    },
    /// A repeat of a trial reached the end of a rung, or failed on the way.
    Rung {
        /// The trial.
        trial: u64,
        /// The repeat, counted from 0.
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
        /// The trial's values by field.
        values: serde_json::Map<String, serde_json::Value>,
        /// How much training this was, in jobs trained to their end.
        work: f64,
    },
    /// The sweep is over.
    #[serde(rename = "done")]
    SweepDone {
        /// Trials trained to their end.
        complete: u64,
        /// Trials that were stopped before their end.
        pruned: u64,
        /// Trials that failed.
        failed: u64,
        /// The best trial.
        best: Option<BestTrial>,
        /// The best trials as a table in text.
        table: String,
    },
    /// The run or sweep ended otherwise.
    Error {
        /// One line.
        message: String,
    },
}

/// The best trial of a sweep. A trial that was trained longer is better than one that was not.
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

/// The plan in a few numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PlanSummary {
    /// One line: strategy, recomputation, swapping.
    pub description: String,
    /// Planned peak, by tier.
    pub peak_bytes: BTreeMap<String, u64>,
    /// Budget, by tier; a tier without one is absent.
    pub budget_bytes: BTreeMap<String, u64>,
}

/// Runs with inputs of one size: what was planned and what was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SizeSummary {
    /// `train` or `eval`.
    pub phase: &'static str,
    /// The sizes.
    pub sizes: BTreeMap<String, usize>,
    /// How often.
    pub runs: u64,
    /// Seconds of one run, as planned.
    pub planned_seconds: f64,
    /// Seconds of one run, on average.
    pub measured_seconds: f64,
    /// Peaks, and bytes moved in all runs, as planned.
    pub planned_bytes: BTreeMap<String, u64>,
    /// The same, measured.
    pub measured_bytes: BTreeMap<String, u64>,
}

/// How often there was a plan for the size of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PlanUse {
    /// It was there.
    pub hits: u64,
    /// It had to be made.
    pub misses: u64,
    /// It left to make room for others.
    pub dropped: u64,
    /// Seconds spent on making plans.
    pub seconds: f64,
}

impl From<Notice> for Event {
    fn from(notice: Notice) -> Event {
        match notice {
            Notice::Step { step, loss, lr, samples_per_second, metrics } => {
                Event::Step { step, loss, lr, samples_per_second, metrics }
            }
            Notice::Evaluation { step, metrics } => Event::Eval { step, metrics },
            Notice::Progress { step, evaluated } => Event::Progress { step, evaluated },
            Notice::Checkpoint { step, path } => Event::Checkpoint { step, path },
            Notice::Warning(message) => Event::Warning { message },
        }
    }
}

impl Event {
    /// Whether the event is only a sign of progress: it comes many times a second, and is shown by a bar at most.
    pub fn is_tick(&self) -> bool {
        matches!(self, Event::Planning { .. } | Event::Progress { .. } | Event::TrialStep { .. })
    }

    /// The event as one line of JSON, without the line break.
    pub fn to_json(&self) -> String {
        // Keys are strings and no value can refuse; a path that is not text is the only failure.
        serde_json::to_string(self).unwrap_or_else(|error| {
            serde_json::json!({"event": "error", "message": format!("cannot write an event: {error}")})
                .to_string()
        })
    }
}

fn number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    Number(*value).serialize(serializer)
}

fn numbers<S: Serializer>(metrics: &Metrics, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(metrics.iter().map(|(name, value)| (name, Number(*value))))
}

/// A float that is always valid JSON.
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            value if value.is_nan() => serializer.serialize_str("nan"),
            f64::INFINITY => serializer.serialize_str("inf"),
            f64::NEG_INFINITY => serializer.serialize_str("-inf"),
            value => serializer.serialize_f64(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_of_json() {
        let metrics = Metrics::from([("acc".into(), 0.5), ("worst".into(), f64::NEG_INFINITY)]);
        for (event, expected) in [
            (
                Event::Step { step: 3, loss: f64::NAN, lr: 1e-3, samples_per_second: f64::INFINITY, metrics },
                r#"{"event":"step","step":3,"loss":"nan","lr":0.001,"samples_per_second":"inf","metrics":{"acc":0.5,"worst":"-inf"}}"#,
            ),
            (
                Event::Data {
                    training: 9,
                    validation: 1,
                    classes: Some(2),
                    class_names: vec!["cat".into(), "dog".into()],
                    notes: vec![],
                },
                r#"{"event":"data","training":9,"validation":1,"classes":2,"class_names":["cat","dog"],"notes":[]}"#,
            ),
            (Event::Eval { step: 3, metrics: Metrics::new() }, r#"{"event":"eval","step":3,"metrics":{}}"#),
            (
                Event::Checkpoint { step: 3, path: "a/b".into() },
                r#"{"event":"checkpoint","step":3,"path":"a/b"}"#,
            ),
            (
                Event::Warning { message: "two\nlines \"quoted\"".into() },
                r#"{"event":"warning","message":"two\nlines \"quoted\""}"#,
            ),
            (
                Event::Start {
                    job: "j.toml".into(),
                    parameters: 7,
                    plan: PlanSummary::default(),
                    from_step: 0,
                    steps: 9,
                    batch: 2,
                },
                r#"{"event":"start","job":"j.toml","parameters":7,"plan":{"description":"","peak_bytes":{},"budget_bytes":{}},"from_step":0,"steps":9,"batch":2}"#,
            ),
            (
                Event::Done {
                    steps: 9,
                    loss: 0.25,
                    metrics: Metrics::new(),
                    best: None,
                    stopped_early: false,
                    samples_per_second: 10.0,
                    peak_bytes: [("device".into(), 5)].into(),
                    link_bytes: [("host-disk".into(), 6)].into(),
                    plans: PlanUse { hits: 8, misses: 1, dropped: 0, seconds: 0.5 },
                    alarms: 2,
                    resident_bytes: None,
                    fingerprint: "ab".into(),
                    classes: vec!["cat".into(), "dog".into()],
                    confusion: Some(vec![vec![1, 0], vec![2, 3]]),
                },
                r#"{"event":"done","steps":9,"loss":0.25,"metrics":{},"stopped_early":false,"samples_per_second":10.0,"peak_bytes":{"device":5},"link_bytes":{"host-disk":6},"plans":{"hits":8,"misses":1,"dropped":0,"seconds":0.5},"alarms":2,"resident_bytes":null,"fingerprint":"ab","classes":["cat","dog"],"confusion":[[1,0],[2,3]]}"#,
            ),
            (
                Event::Compared {
                    rows: vec![("to disk".into(), "1".into(), "2".into())],
                    sizes: vec![SizeSummary { phase: "train", runs: 3, ..SizeSummary::default() }],
                },
                r#"{"event":"compared","rows":[["to disk","1","2"]],"sizes":[{"phase":"train","sizes":{},"runs":3,"planned_seconds":0.0,"measured_seconds":0.0,"planned_bytes":{},"measured_bytes":{}}]}"#,
            ),
            (Event::Error { message: "no".into() }, r#"{"event":"error","message":"no"}"#),
        ] {
            assert_eq!(event.to_json(), expected);
        }
    }
}
