//! A model that was trained: what the files of a run store of it, and its use on raw inputs.

use crate::error::Error;
use crate::run_dir::WEIGHTS;
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::role::OutputRole;
use gulliver_graph::training::{evaluation_graph, forward_graph};
use gulliver_run::checkpoint::Stored;
use gulliver_run::data::mapping::Mapping;
use gulliver_run::data::{Batch, DataInfo, DataOptions, Dataset, Sampler};
use gulliver_run::host::{HostData, HostTensor};
use gulliver_run::session::{Session, SessionOptions};
use gulliver_run::train::{MAPPING, MODEL, Scores, TrainOptions, evaluate, load_weights};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
pub fn stored_mapping(path: &Path) -> Result<Option<Mapping>, Error> {
    let metadata = Stored::metadata_of(&weights_file(path))?;
    Ok(metadata.get(MAPPING).and_then(|text| serde_json::from_str(text).ok()))
}

/// What a model predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicts {
    /// One of several classes of an example: a number for each, from which probabilities follow.
    Classes,
    /// Numbers of an example.
    Numbers,
    /// The next token at every position of a text.
    NextTokens,
    /// Tokens of a text that are hidden.
    HiddenTokens,
}

/// A trained model, ready to be used.
pub struct Trained {
    /// The model and its settings.
    pub model: StoredModel,
    /// What inputs and outputs mean.
    pub mapping: Mapping,
    /// What is predicted.
    pub predicts: Predicts,
    session: Session,
}

/// Which graph of a model is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Predictions alone.
    Predict,
    /// Losses and metrics of examples whose targets are known.
    Evaluate,
}

impl Trained {
    /// Loads the model of a run, or of one of its files of weights.
    pub fn load(path: &Path, using: Use, options: SessionOptions) -> Result<Trained, Error> {
        let mut stored = Stored::open(&weights_file(path))?;
        let untold = || Error::NoModel(stored.path.clone());
        let read = |key: &str| stored.metadata.get(key).ok_or_else(untold);
        let told: StoredModel = serde_json::from_str(read(MODEL)?).map_err(|_| untold())?;
        let mapping: Mapping = serde_json::from_str(read(MAPPING)?).map_err(|_| untold())?;
        let masked = told.settings.get("head") == Some(&ParamValue::Text("mlm".into()));
        let predicts = match (mapping.targets, mapping.classes, mapping.tokens) {
            (Some(_), ..) => Predicts::Numbers,
            (None, Some(_), _) => Predicts::Classes,
            (None, None, Some(_)) if masked => Predicts::HiddenTokens,
            (None, None, Some(_)) => Predicts::NextTokens,
            (None, None, None) => {
                return Err(Error::NoPredictions { path: path.into(), model: told.name });
            }
        };
        let settings: Vec<(String, ParamValue)> =
            told.settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let model = model(&told.name, &settings)?;
        let graph = match using {
            Use::Predict => forward_graph(model.as_ref())?,
            Use::Evaluate => evaluation_graph(model.as_ref())?,
        };
        if graph.output_of(output(predicts)).is_none() {
            return Err(Error::NoPredictions { path: path.into(), model: told.name });
        }
        let mut session = Session::new(graph.clone(), Some(graph), options, 0)?;
        load_weights(&mut session, &mut stored, &TrainOptions::default(), true)?;
        Ok(Trained { model: told, mapping, predicts, session })
    }

    /// What is predicted of each example of a batch: probabilities of the classes, or the numbers themselves.
    pub fn predict(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, Error> {
        let result = self.session.output(batch, output(self.predicts))?;
        let width = result.shape().last().copied().unwrap_or(1).max(1);
        let rows = result.as_f32().unwrap_or_default().chunks(width);
        Ok(match self.predicts {
            Predicts::Numbers => rows.map(<[f32]>::to_vec).collect(),
            _ => rows.map(|row| softmax(row, 1.0)).collect(),
        })
    }

    /// Logits of the token that follows these.
    pub fn next_token(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        // What comes after a position does not matter to it: few lengths need few plans.
        let length = tokens.len().next_power_of_two().max(8).min(self.context().max(tokens.len()));
        let mut ids: Vec<i64> = tokens.iter().map(|&id| i64::from(id)).collect();
        ids.resize(length, 0);
        let x = HostTensor::new(&[1, length], HostData::I64(ids)).expect("as many as the shape says");
        let batch = Batch { fields: vec![("x".to_string(), x)] };
        let logits = self.session.output(&batch, output(self.predicts))?;
        let width = logits.shape().last().copied().unwrap_or(1).max(1);
        let row = logits.as_f32().unwrap_or_default().chunks(width).nth(tokens.len().saturating_sub(1));
        Ok(row.unwrap_or_default().to_vec())
    }

    /// The most tokens the model can read at once; for models without such a limit, as many as it was trained on.
    pub fn context(&self) -> usize {
        match self.model.settings.get("context") {
            Some(ParamValue::Int(context)) => usize::try_from(*context).unwrap_or(1).max(1),
            _ => self.mapping.length.max(1),
        }
    }

    /// Loss and metrics on examples whose targets are known; none if `watch` says to stop.
    pub fn evaluate(
        &mut self,
        set: &Arc<dyn Dataset>,
        batch: usize,
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<Scores>, Error> {
        let perplexity = matches!(self.predicts, Predicts::NextTokens | Predicts::HiddenTokens);
        let options = TrainOptions { perplexity, ..TrainOptions::default() };
        let sampler = Sampler::new(set.len(), batch.min(set.len()), 0, false, false, None)?;
        let batches = sampler.steps_per_epoch();
        Ok(evaluate(&mut self.session, set, &sampler, batches, &options, watch)?)
    }

    /// What class `k` is called.
    pub fn class_name(&self, k: usize) -> String {
        self.mapping.class_names.get(k).cloned().unwrap_or_else(|| k.to_string())
    }
}

/// The output that holds what is predicted.
fn output(predicts: Predicts) -> OutputRole {
    if predicts == Predicts::Numbers { OutputRole::Prediction } else { OutputRole::Logits }
}

/// Probabilities that follow from logits at a temperature.
pub fn softmax(logits: &[f32], temperature: f64) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|x| (f64::from(x - most) / temperature).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| (power / sum) as f32).collect()
}
