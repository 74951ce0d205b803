//! Weights and states from files and to files: a checkpoint that a run goes on from, weights that one starts with, and
//! weights for others to use.

use super::{Best, TrainError, TrainOptions};
use crate::checkpoint::{self, CheckpointError, Described, Stored};
use crate::data::mapping::Mapping;
use crate::session::{Session, SessionError};
use gulliver_graph::lr::LrSchedule;
use std::collections::BTreeMap;
use std::path::Path;

/// The metadata entry of every file of a run that says what its inputs and outputs mean, as JSON.
pub const MAPPING: &str = "gulliver.mapping";

/// The metadata entry of every file of a run that names its model and all settings of it, as JSON.
pub const MODEL: &str = "gulliver.model";

/// Where a run was when its checkpoint was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resumed {
    /// Steps done.
    pub steps: u64,
    /// The evaluation after the last step was due and not done.
    pub evaluation_due: bool,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// The job's schedule is another than the checkpoint's; the job's is used from here on.
    pub schedule_changed: bool,
    /// What changed in the meaning of inputs and outputs, where that was allowed.
    pub mapping_changed: Vec<String>,
}

/// Puts a checkpoint's values into the session, and into the schedule what the checkpoint remembers of it.
pub fn restore(
    session: &mut Session,
    schedule: &mut LrSchedule,
    checkpoint: &mut Stored,
    options: &TrainOptions,
) -> Result<Resumed, TrainError> {
    let (path, metadata) = (checkpoint.path.clone(), checkpoint.metadata.clone());
    let not_ours = |field: &str| TrainError::NotOurs { path: path.clone(), field: field.into() };
    let field = |name: &str| metadata.get(name).ok_or_else(|| not_ours(name));
    let steps = field("step")?.parse().map_err(|_| not_ours("step"))?;
    for (name, wanted) in &options.identity {
        let found = field(name)?;
        if found != wanted {
            let (found, wanted) = (found.clone(), wanted.clone());
            return Err(TrainError::OtherJob { path: path.clone(), field: name.clone(), found, wanted });
        }
    }
    let mapping_changed = mapping_changes(checkpoint, options);
    if !mapping_changed.is_empty() && !options.changed_data {
        let way = "restore the data, or pass --changed-data to go on with it";
        return Err(TrainError::OtherMapping { path, changes: mapping_changed.join("; "), way });
    }
    let stored: LrSchedule = serde_json::from_str(field("schedule")?).map_err(|_| not_ours("schedule"))?;
    let schedule_changed = (stored.warmup, &stored.curve) != (schedule.warmup, &schedule.curve);
    let best = match metadata.get("best") {
        Some(text) => Some(serde_json::from_str(text).map_err(|_| not_ours("best"))?),
        None => None,
    };
    for described in session.layout() {
        read_into(session, checkpoint, &described)?;
    }
    if !schedule_changed {
        *schedule = stored;
    }
    let evaluation_due = metadata.contains_key("evaluation_due");
    Ok(Resumed { steps, evaluation_due, best, schedule_changed, mapping_changed })
}

/// How the meaning of inputs and outputs differs from that of a file; nothing if the file does not say.
pub fn mapping_changes(stored: &Stored, options: &TrainOptions) -> Vec<String> {
    let read = |text: Option<&String>| text.and_then(|text| serde_json::from_str::<Mapping>(text).ok());
    let (theirs, ours) = (read(stored.metadata.get(MAPPING)), read(options.about.get(MAPPING)));
    theirs.zip(ours).map_or_else(Vec::new, |(theirs, ours)| theirs.differences(&ours))
}

/// What the metadata of a checkpoint says beside the job's identity.
pub(super) fn progress(
    schedule: &LrSchedule,
    step: u64,
    best: Option<&Best>,
    evaluation_due: bool,
) -> BTreeMap<String, String> {
    let json = |text: serde_json::Result<String>| text.unwrap_or_default();
    let mut entries = BTreeMap::from([
        ("step".to_string(), step.to_string()),
        ("schedule".to_string(), json(serde_json::to_string(schedule))),
    ]);
    if let Some(best) = best {
        entries.insert("best".into(), json(serde_json::to_string(best)));
    }
    if evaluation_due {
        entries.insert("evaluation_due".into(), "true".into());
    }
    entries
}

/// How the tensors of a file went into a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Tensors that were loaded.
    pub loaded: usize,
    /// Tensors of the model that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of the file that the model lacks.
    pub extra: Vec<String>,
    /// Tensors of another shape or type: the name, what the file has, what the model has.
    pub different: Vec<(String, String, String)>,
    /// How inputs and outputs mean something else than they did for the file.
    pub mapping: Vec<String>,
}

impl Fit {
    /// Whether every tensor of each went into one of the other.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.different.is_empty()
    }

    /// What does not fit, in words.
    pub fn problems(&self) -> Vec<String> {
        let different =
            self.different.iter().map(|(name, found, needed)| format!("`{name}` is {found}, not {needed}"));
        [
            ("of another shape", different.collect::<Vec<_>>()),
            ("missing in the file", self.missing.clone()),
            ("not in the model", self.extra.clone()),
        ]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{} {what} ({})", names.len(), some_of(&names)))
        .collect()
    }
}

/// The first few names.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Puts the model's weights and running statistics from a file into the session; optimizers start anew. All must
/// be there and fit, and nothing else may be there; unless not `strict`: then what fits is loaded and the rest keeps
/// its first values.
pub fn load_weights(
    session: &mut Session,
    stored: &mut Stored,
    options: &TrainOptions,
    strict: bool,
) -> Result<Fit, TrainError> {
    let layout = model_layout(session);
    let mut fit = Fit { mapping: mapping_changes(stored, options), ..Fit::default() };
    let mut fitting = Vec::new();
    for described in &layout {
        let (name, dtype, shape) = described;
        match stored.fits(name, *dtype, shape) {
            None => fit.missing.push(name.clone()),
            Some((_, true)) => fitting.push(described),
            Some((found, false)) => fit.different.push((name.clone(), found, format!("{dtype} {shape:?}"))),
        }
    }
    let known = |name: &str| layout.iter().any(|(known, ..)| known == name);
    fit.extra = stored.names().filter(|name| !known(name) && !is_beside(name)).map(String::from).collect();
    if (strict && !fit.is_whole()) || fitting.is_empty() {
        return Err(TrainError::Unfit { path: stored.path.clone(), problems: fit.problems().join("; ") });
    }
    if strict && !fit.mapping.is_empty() {
        let (path, changes) = (stored.path.clone(), fit.mapping.join("; "));
        let way = "set train.weights_strict = false to use the weights all the same";
        return Err(TrainError::OtherMapping { path, changes, way });
    }
    for described in fitting {
        read_into(session, stored, described)?;
        fit.loaded += 1;
    }
    Ok(fit)
}

/// Writes the model's weights and running statistics, without what optimizers keep, unless some number is not
/// finite; whether it was written.
pub fn save_weights(
    session: &mut Session,
    path: &Path,
    about: &BTreeMap<String, String>,
) -> Result<bool, TrainError> {
    let layout = model_layout(session);
    if session.first_not_finite(0, &layout).map_err(SessionError::from)?.is_some() {
        return Ok(false);
    }
    let mut metadata = about.clone();
    metadata.insert("format".into(), "pt".into());
    checkpoint::save_from(path, &layout, &mut session.reader(0, &layout), &metadata)?;
    Ok(true)
}

/// What a model is made of, without what optimizers keep.
fn model_layout(session: &Session) -> Vec<Described> {
    let mut layout = session.layout();
    layout.retain(|(name, ..)| !is_optimizer_state(name));
    layout
}

fn is_optimizer_state(name: &str) -> bool {
    name.split('.').any(|part| part == "optimizer")
}

/// Tensors that files have beside a model and that nobody misses.
fn is_beside(name: &str) -> bool {
    is_optimizer_state(name) || name.ends_with(".num_batches_tracked")
}

/// Puts a tensor of a file where it belongs, a piece at a time.
fn read_into(
    session: &mut Session,
    stored: &mut Stored,
    (name, dtype, shape): &Described,
) -> Result<(), CheckpointError> {
    stored.read(name, *dtype, shape, &mut |first, piece| session.write(0, name, first, piece).map(|_| ()))
}
