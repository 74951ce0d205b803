//! A model that was trained: what the files of a run store of it, and predictions with it on raw inputs.

use crate::command::CommandError;
use crate::run_dir::WEIGHTS;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::training::forward_graph;
use gulliver_run::checkpoint::Stored;
use gulliver_run::data::raw::Mapping;
use gulliver_run::data::{Batch, DataInfo, DataOptions};
use gulliver_run::host::HostTensor;
use gulliver_run::session::{Session, SessionOptions};
use gulliver_run::train::{MAPPING, MODEL, TrainOptions, load_weights};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A model as the files of a run name it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredModel {
    /// Its name.
    pub name: String,
    /// Every setting.
    pub settings: BTreeMap<String, ParamValue>,
}

/// What is needed to use a model later, as metadata of its files: the model with every setting, of which those in
/// `given` are not at their defaults, and what inputs and outputs mean.
pub fn about(
    name: &str,
    given: &[(String, ParamValue)],
    data: &DataOptions,
    info: &DataInfo,
) -> BTreeMap<String, String> {
    let row = MODELS.iter().find(|row| row.name == name);
    let defaults = row.into_iter().flat_map(|row| row.params());
    let mut settings: BTreeMap<String, ParamValue> =
        defaults.map(|param| (param.name.to_string(), param.default)).collect();
    settings.extend(given.iter().cloned());
    let model = StoredModel { name: name.to_string(), settings };
    let mapping = Mapping::of(data, info);
    let entries = [(MODEL, serde_json::to_string(&model)), (MAPPING, serde_json::to_string(&mapping))];
    entries.into_iter().filter_map(|(key, text)| Some((key.to_string(), text.ok()?))).collect()
}

/// The file of weights that a path means: itself, or that in the directory of a run.
pub fn weights_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(WEIGHTS) } else { path.to_path_buf() }
}

/// What a file of weights says its inputs and outputs mean; none if it does not say.
pub fn stored_mapping(path: &Path) -> Result<Option<Mapping>, CommandError> {
    let metadata = Stored::metadata_of(&weights_file(path))?;
    Ok(metadata.get(MAPPING).and_then(|text| serde_json::from_str(text).ok()))
}

/// What a model predicts of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicts {
    /// One of several classes: a number for each, from which probabilities follow.
    Classes,
    /// Numbers.
    Numbers,
}

/// A trained model, ready to predict.
pub struct Trained {
    /// What inputs and outputs mean.
    pub mapping: Mapping,
    /// What is predicted.
    pub predicts: Predicts,
    session: Session,
    output: &'static str,
}

impl Trained {
    /// Loads the model of a run, or of one of its files of weights.
    pub fn load(path: &Path, options: SessionOptions) -> Result<Trained, CommandError> {
        let mut stored = Stored::open(&weights_file(path))?;
        let untold = || CommandError::NoModel(stored.path.clone());
        let read = |key: &str| stored.metadata.get(key).ok_or_else(untold);
        let told: StoredModel = serde_json::from_str(read(MODEL)?).map_err(|_| untold())?;
        let mapping: Mapping = serde_json::from_str(read(MAPPING)?).map_err(|_| untold())?;
        let (predicts, output) = match (mapping.targets, mapping.classes) {
            (Some(_), _) => (Predicts::Numbers, "prediction"),
            (None, Some(_)) => (Predicts::Classes, "logits"),
            (None, None) => return Err(CommandError::NoPredictions { path: path.into(), model: told.name }),
        };
        let settings: Vec<(String, ParamValue)> = told.settings.into_iter().collect();
        let graph = forward_graph(model(&told.name, &settings)?.as_ref())?;
        if graph.output(output).is_none() {
            return Err(CommandError::NoPredictions { path: path.into(), model: told.name });
        }
        let mut session = Session::new(graph.clone(), Some(graph), options, 0)?;
        load_weights(&mut session, &mut stored, &TrainOptions::default(), true)?;
        Ok(Trained { mapping, predicts, session, output })
    }

    /// What is predicted of each example of a batch, `[examples, numbers]`: probabilities of the classes, or the
    /// numbers themselves.
    pub fn predict(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, CommandError> {
        let result: HostTensor = self.session.output(batch, self.output)?;
        let width = result.shape().last().copied().unwrap_or(1).max(1);
        let rows = result.as_f32().unwrap_or_default().chunks(width);
        Ok(match self.predicts {
            Predicts::Numbers => rows.map(<[f32]>::to_vec).collect(),
            Predicts::Classes => rows.map(softmax).collect(),
        })
    }

    /// What class `k` is called.
    pub fn class_name(&self, k: usize) -> String {
        self.mapping.class_names.get(k).cloned().unwrap_or_else(|| k.to_string())
    }
}

/// Probabilities that follow from logits.
fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|x| f64::from(x - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| (power / sum) as f32).collect()
}
