//! A trained model: what the files of a run store of it, and its use on new inputs. Weights are read at the first use.

mod generate;
mod predict;

pub use generate::GenerateOptions;
pub use predict::Prediction;

use crate::error::Error;
use crate::local::{LocalDevice, session};
use crate::run_dir::{BEST, WEIGHTS};
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::role::OutputRole;
use gulliver_graph::training::{evaluation_graph, forward_graph};
use gulliver_run::checkpoint::CheckpointFile;
use gulliver_run::data::mapping::{Inputs, Mapping};
use gulliver_run::data::{DataInfo, DataOptions, Sampler};
use gulliver_run::session::Session;
use gulliver_run::team::cores;
use gulliver_run::train::{MAPPING, MODEL, Scores, TrainOptions, evaluate, load_weights};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A model as the files of a run name it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredModel {
    /// Its name.
    pub name: String,
    /// Every setting.
    pub settings: BTreeMap<String, ParamValue>,
}

/// The metadata that a run stores in its files: the model with every setting, of which those in `given` are not at
/// their defaults, and what inputs and outputs mean.
pub fn metadata(
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

/// The meaning of inputs and outputs, as a file of weights states it; none if it does not.
pub fn stored_mapping(path: &Path) -> Result<Option<Mapping>, Error> {
    let metadata = CheckpointFile::metadata_of(&weights_file(path))?;
    Ok(metadata.get(MAPPING).and_then(|text| serde_json::from_str(text).ok()))
}

/// The kind of a model's predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predicts {
    /// The class of an example: a probability for each.
    Classes,
    /// Numbers of an example.
    Numbers,
    /// The next token at every position of a text.
    NextTokens,
    /// Hidden tokens of a text.
    HiddenTokens,
}

impl Predicts {
    /// The output of the graph that holds the predictions.
    fn output(self) -> OutputRole {
        if self == Predicts::Numbers { OutputRole::Prediction } else { OutputRole::Logits }
    }
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Of a run's directory, the weights of its best evaluation instead of the last.
    pub best: bool,
    /// Threads; all cores if not given.
    pub threads: Option<usize>,
}

/// The quality of a model on examples whose targets are known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelScores {
    /// Examples.
    pub examples: usize,
    /// `loss`; `accuracy` and `macro_f1` of classes, `mae`, `rmse` and `r2` of numbers, `perplexity` of tokens.
    pub metrics: BTreeMap<String, f64>,
    /// How many examples of each class (row) were taken for each class (column), if the classes are few.
    pub confusion: Option<Vec<Vec<u64>>>,
}

/// A trained model.
pub struct Model {
    /// Its name and settings.
    pub stored: StoredModel,
    /// The meaning of inputs and outputs.
    pub mapping: Mapping,
    /// The kind of its predictions.
    pub predicts: Predicts,
    path: PathBuf,
    options: LocalDevice,
    weights: CheckpointFile,
    predictor: Option<Session>,
    evaluator: Option<Session>,
}

impl Model {
    /// The model of a run's directory, or of a file of weights that a run wrote.
    pub fn load(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::load_with(path, ModelOptions::default())
    }

    /// The same with options.
    pub fn load_with(path: impl AsRef<Path>, options: ModelOptions) -> Result<Model, Error> {
        let path = path.as_ref();
        let file = match (options.best, path.is_dir()) {
            (true, false) => {
                let problem = format!("--best needs the directory of a run, not {}", path.display());
                return Err(Error::Invalid(problem));
            }
            (true, true) => path.join(BEST),
            (false, _) => weights_file(path),
        };
        let weights = CheckpointFile::open(&file)?;
        let untold = || Error::NoModel(weights.path.clone());
        let read = |key: &str| weights.metadata.get(key).ok_or_else(untold);
        let stored: StoredModel = serde_json::from_str(read(MODEL)?).map_err(|_| untold())?;
        let mapping: Mapping = serde_json::from_str(read(MAPPING)?).map_err(|_| untold())?;
        let masked = stored.settings.get("head") == Some(&ParamValue::Text("mlm".into()));
        let predicts = match (mapping.targets, mapping.classes, mapping.tokens) {
            (Some(_), ..) => Predicts::Numbers,
            (None, Some(_), _) => Predicts::Classes,
            (None, None, Some(_)) if masked => Predicts::HiddenTokens,
            (None, None, Some(_)) => Predicts::NextTokens,
            (None, None, None) => {
                return Err(Error::NoPredictions { path: path.into(), model: stored.name });
            }
        };
        let threads = options.threads.unwrap_or_else(cores);
        let options = LocalDevice { threads, ..LocalDevice::default() };
        let path = path.to_path_buf();
        let (predictor, evaluator) = (None, None);
        Ok(Model { stored, mapping, predicts, path, options, weights, predictor, evaluator })
    }

    /// Opens files of the kind the model was trained on.
    pub fn open_inputs<P: AsRef<Path>>(&self, files: &[P]) -> Result<Inputs, Error> {
        let files: Vec<PathBuf> = files.iter().map(|file| file.as_ref().to_path_buf()).collect();
        Ok(self.mapping.open_inputs(&files)?)
    }

    /// Loss and metrics on files that also hold what is to be predicted, `batch` examples at a time. `on_batch` is
    /// given the examples done and all there are; none is returned if it says `Break`.
    pub fn evaluate<P: AsRef<Path>>(
        &mut self,
        files: &[P],
        batch: usize,
        on_batch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Option<ModelScores>, Error> {
        let inputs = self.open_inputs(files)?;
        if !inputs.labelled {
            let wanted = match &self.mapping.label_column {
                Some(column) => format!("a column `{column}`"),
                None => format!("folders named {}", self.mapping.class_names.join(", ")),
            };
            let problem =
                format!("the answers are not in the inputs, which would need {wanted}; use gulliver predict");
            return Err(Error::Invalid(problem));
        }
        let examples = inputs.set.len();
        let perplexity = matches!(self.predicts, Predicts::NextTokens | Predicts::HiddenTokens);
        let options = TrainOptions { perplexity, ..TrainOptions::default() };
        let sampler = Sampler::new(examples, batch.clamp(1, examples.max(1)), 0, false, false, None)?;
        let batches = sampler.steps_per_epoch();
        let mut go_on = |done, of| on_batch(done, of).is_continue();
        let session = self.evaluator()?;
        let scores = evaluate(session, &inputs.set, &sampler, batches, &options, &mut go_on)?;
        Ok(scores.map(|Scores { metrics, confusion }| ModelScores { examples, metrics, confusion }))
    }

    /// The names of the classes in order, numbers where they have none; empty for models that predict no classes.
    pub fn class_names(&self) -> Vec<String> {
        let name = |k: usize| self.mapping.class_names.get(k).cloned().unwrap_or_else(|| k.to_string());
        (0..self.mapping.classes.unwrap_or(0)).map(name).collect()
    }

    /// Numbers of a prediction: classes, or numbers that are predicted.
    pub fn width(&self) -> usize {
        self.mapping.targets.or(self.mapping.classes).unwrap_or(0)
    }

    /// The most tokens the model can read at once; for models without such a limit, as many as it was trained on.
    pub fn context(&self) -> usize {
        match self.stored.settings.get("context") {
            Some(ParamValue::Int(context)) => usize::try_from(*context).unwrap_or(1).max(1),
            _ => self.mapping.length.max(1),
        }
    }

    fn predictor(&mut self) -> Result<&mut Session, Error> {
        if self.predictor.is_none() {
            self.predictor = Some(self.session(false)?);
        }
        Ok(self.predictor.as_mut().expect("made above"))
    }

    fn evaluator(&mut self) -> Result<&mut Session, Error> {
        if self.evaluator.is_none() {
            self.evaluator = Some(self.session(true)?);
        }
        Ok(self.evaluator.as_mut().expect("made above"))
    }

    /// A session with the weights, for predictions or for evaluations.
    fn session(&mut self, evaluates: bool) -> Result<Session, Error> {
        let StoredModel { name, settings } = &self.stored;
        let settings: Vec<(String, ParamValue)> =
            settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let architecture = model(name, &settings)?;
        let graph = match evaluates {
            false => forward_graph(architecture.as_ref())?,
            true => evaluation_graph(architecture.as_ref())?,
        };
        if graph.output_of(self.predicts.output()).is_none() {
            return Err(Error::NoPredictions { path: self.path.clone(), model: name.clone() });
        }
        let mut session = session(graph.clone(), Some(graph), &self.options, 0)?;
        load_weights(&mut session, &mut self.weights, &TrainOptions::default(), true)?;
        Ok(session)
    }

    /// The error of a call that the model is of the wrong kind for.
    fn refuse(&self, does: &str, instead: &str) -> Error {
        let (path, model) = (self.path.display(), &self.stored.name);
        Error::Invalid(format!("{path}: {model} {does}; use gulliver {instead}"))
    }
}
