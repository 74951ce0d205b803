//! Weights and states in files: the checkpoint that a run resumes, the weights that it starts from, and the weights that
//! it exports.

use super::{Best, TrainError, TrainOptions};
use crate::checkpoint::{self, CheckpointError, CheckpointFile, TensorInfo};
use crate::data::mapping::Mapping;
use crate::session::{Session, SessionError};
use gulliver_graph::lr::LrSchedule;
use std::collections::BTreeMap;
use std::path::Path;

/// The metadata entry with the mapping of inputs and outputs, as JSON, in every file of a run.
pub const MAPPING: &str = "gulliver.mapping";

/// The metadata entry with the model and its settings, as JSON, in every file of a run.
pub const MODEL: &str = "gulliver.model";

/// The progress of a run in its checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resumed {
    /// Steps done.
    pub steps: u64,
    /// Whether the evaluation after the last step is still to be done.
    pub evaluation_due: bool,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Whether the schedule of the job differs from that of the checkpoint; the job's is used.
    pub schedule_changed: bool,
    /// Changes in the meaning of inputs and outputs, if they were allowed.
    pub mapping_changed: Vec<String>,
}

/// Loads a checkpoint into the session, and the stored state of the schedule into `schedule`.
pub fn restore(
    session: &mut Session,
    schedule: &mut LrSchedule,
    checkpoint: &mut CheckpointFile,
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

/// Differences in the meaning of inputs and outputs from a file; none if the file has no mapping.
pub fn mapping_changes(stored: &CheckpointFile, options: &TrainOptions) -> Vec<String> {
    let read = |text: Option<&String>| text.and_then(|text| serde_json::from_str::<Mapping>(text).ok());
    let (theirs, ours) = (read(stored.metadata.get(MAPPING)), read(options.about.get(MAPPING)));
    theirs.zip(ours).map_or_else(Vec::new, |(theirs, ours)| theirs.differences(&ours))
}

/// The metadata of a checkpoint besides the identity of the job.
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

/// How the tensors of a file match those of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightFit {
    /// Number of loaded tensors.
    pub loaded: usize,
    /// Tensors of the model that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of the file that the model lacks.
    pub extra: Vec<String>,
    /// Tensors of another shape or type: name, description in the file, description in the model.
    pub different: Vec<(String, String, String)>,
    /// Changes in the meaning of inputs and outputs.
    pub mapping: Vec<String>,
}

impl WeightFit {
    /// Whether file and model have the same tensors.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.different.is_empty()
    }

    /// Messages about tensors that do not match.
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

/// Loads the weights and running statistics of the model from a file; optimizer states are not loaded. If `strict`, file
/// and model must have the same tensors; otherwise matching tensors are loaded and the others keep their initial values.
pub fn load_weights(
    session: &mut Session,
    stored: &mut CheckpointFile,
    options: &TrainOptions,
    strict: bool,
) -> Result<WeightFit, TrainError> {
    let layout = model_layout(session);
    let mut fit = WeightFit { mapping: mapping_changes(stored, options), ..WeightFit::default() };
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

/// Writes the weights and running statistics of the model, without optimizer states. Writes nothing and returns false if
/// a number is not finite.
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

/// The tensors of the model, without optimizer states.
fn model_layout(session: &Session) -> Vec<TensorInfo> {
    let mut layout = session.layout();
    layout.retain(|(name, ..)| !is_optimizer_state(name));
    layout
}

fn is_optimizer_state(name: &str) -> bool {
    name.split('.').any(|part| part == "optimizer")
}

/// Tensors of a file that a model need not have.
fn is_beside(name: &str) -> bool {
    is_optimizer_state(name) || name.ends_with(".num_batches_tracked")
}

/// Loads a tensor of a file into the session, a piece at a time.
fn read_into(
    session: &mut Session,
    stored: &mut CheckpointFile,
    (name, dtype, shape): &TensorInfo,
) -> Result<(), CheckpointError> {
    stored.read(name, *dtype, shape, &mut |first, piece| session.write(0, name, first, piece).map(|_| ()))
}
