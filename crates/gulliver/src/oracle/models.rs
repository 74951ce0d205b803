//! Models by name for the oracle: a job file, a model of the tables, or a well-known configuration that needs no graph.

use crate::error::{Error, JobError, one_line};
use crate::job::{Job, JobValue, Override, model_settings, model_with};
use crate::setup::{open_data, prepare};
use gulliver_graph::dim::{Bindings, product};
use gulliver_graph::graph::{Graph, Role};
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::nearest::suggestion;
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_oracle::from_graph::from_graph;
use gulliver_oracle::published::{alexnet, cosmoflow};
use gulliver_oracle::transformer::{NAMED, SETTINGS, Transformer, customary_tokens};
use gulliver_oracle::workload::Workload;
use std::path::Path;

/// Tokens of a sample unless told otherwise, for models that read any number of them or more than this.
const LENGTH: u32 = 512;

/// Largest setting of a well-known configuration: far above any there is.
const LARGEST: u64 = 1 << 24;

/// A workload, and what is known of how it is trained.
#[derive(Clone, Debug)]
pub struct NamedModel {
    /// The model.
    pub workload: Workload,
    /// Samples of a step, if a job says so.
    pub batch: Option<u32>,
    /// Numbers of optimizer state for every weight.
    pub states: f64,
    /// Samples of an epoch, if there is data.
    pub epoch: Option<f64>,
    /// Tokens of a sample, for models of text.
    pub tokens: Option<f64>,
    /// Tokens that it is customarily trained on, if that is known.
    pub customary: Option<f64>,
}

impl NamedModel {
    /// A model that is trained with Adam, of which nothing more is known.
    fn plain(workload: Workload, tokens: Option<f64>) -> NamedModel {
        NamedModel { workload, batch: None, states: 2.0, epoch: None, tokens, customary: None }
    }
}

/// Finds what is named. `sets` are `--set` flags: fields of a job, or settings of a model. `length` is the tokens of
/// a sample, for models of text that are not in a job.
pub fn asked(name: &str, sets: &[String], length: Option<u32>) -> Result<NamedModel, Error> {
    let no_length = |why: &str| match length {
        Some(_) => Err(Error::Invalid(format!("--length: {name} {why}"))),
        None => Ok(()),
    };
    if name.ends_with(".toml") || Path::new(name).is_file() {
        no_length("has the lengths of its data; a model by name takes it")?;
        return of_job(Path::new(name), sets);
    }
    if let Ok(transformer) = Transformer::named(name) {
        let transformer = with_settings(name, transformer, sets)?;
        let context = transformer.length;
        let length = tokens(name, length, Some(context as u64), context as u32)?;
        let mut workload = Transformer { length: length.into(), ..transformer }.workload(name);
        // Positions have weights up to the context, whatever the length of a sample.
        workload.layers[0].weights += (context - f64::from(length)) * transformer.hidden;
        let customary = customary_tokens(name);
        return Ok(NamedModel { customary, ..NamedModel::plain(workload, Some(length.into())) });
    }
    let published: Option<fn(u32) -> Workload> = match name {
        "alexnet" => Some(alexnet),
        "cosmoflow-512" => Some(cosmoflow),
        _ => None,
    };
    if let Some(published) = published {
        no_length("reads images, not tokens")?;
        model_settings(name, &[], sets)?;
        return Ok(NamedModel::plain(published(if name == "alexnet" { 224 } else { 512 }), None));
    }
    let Some(row) = MODELS.iter().find(|row| row.name == name) else {
        let named = NAMED.iter().map(|row| row.0).filter(|name| !MODELS.iter().any(|row| row.name == *name));
        let models = MODELS.iter().map(|row| row.name).chain(named).chain(["alexnet", "cosmoflow-512"]);
        let hint = suggestion(name, models, "models are");
        let name = one_line(name);
        return Err(Error::Invalid(format!("there is no model or job file `{name}`{hint}")));
    };
    let settings = model_with(name, sets)?.params();
    let built = model(name, &settings)?;
    let adam = Optimizer::new("adam", &[])?;
    let graph = training_graph(built.as_ref(), std::slice::from_ref(&adam), None)?;
    let mut sizes = Bindings::new();
    let mut of_text = None;
    if reads_lengths(&graph) {
        let default = row.params().into_iter().find(|param| param.name == "context").map(|p| p.default);
        let context = settings.iter().find(|(name, _)| name == "context").map(|(_, value)| value.clone());
        let context = match context.or(default) {
            Some(ParamValue::Int(context)) => u64::try_from(context).ok(),
            _ => None,
        };
        let usual = context.map_or(LENGTH, |context| LENGTH.min(context.try_into().unwrap_or(LENGTH)));
        let length = tokens(name, length, context, usual)?;
        sizes.set("length", length as usize);
        of_text = Some(f64::from(length));
    } else {
        no_length("does not read tokens")?;
    }
    Ok(NamedModel::plain(from_graph(name, &graph, &sizes)?, of_text))
}

/// The tokens of a sample: those asked for, if the model can read them.
fn tokens(name: &str, asked: Option<u32>, context: Option<u64>, usual: u32) -> Result<u32, Error> {
    let Some(length) = asked else { return Ok(usual) };
    match context {
        _ if length == 0 => Err(Error::Invalid("--length 0: give 1 or more".into())),
        Some(context) if u64::from(length) > context => Err(Error::Invalid(format!(
            "--length {length} is beyond the context of {name}, which is {context}; give at most {context}, or a \
             larger context with --set context={length}"
        ))),
        _ => Ok(length),
    }
}

/// Whether the model's data has the length of its samples for an extent.
fn reads_lengths(graph: &Graph) -> bool {
    let mut found = false;
    for (_, _, info) in graph.inputs().filter(|(_, role, _)| role.is_data()) {
        info.ty.shape.iter().for_each(|dim| dim.symbols(&mut |symbol| found |= symbol == "length"));
    }
    found
}

/// A well-known configuration with other sizes.
fn with_settings(name: &str, mut transformer: Transformer, sets: &[String]) -> Result<Transformer, Error> {
    for (key, item) in model_settings(name, &SETTINGS, sets)? {
        let value = match item.value {
            JobValue::Int(n) => u64::try_from(n).ok().filter(|n| (1..=LARGEST).contains(n)),
            _ => None,
        };
        let Some(value) = value else {
            let problem = format!(
                "must be a whole number from 1 to {LARGEST}, not {}",
                one_line(&item.value.to_string())
            );
            return Err(JobError { origin: item.origin, field: format!("model.{key}"), problem }.into());
        };
        match key.as_str() {
            "width" => transformer.hidden = value as f64,
            "layers" => transformer.layers = value as u32,
            "heads" => transformer.heads = value as f64,
            "context" => transformer.length = value as f64,
            _ => transformer.vocabulary = value as f64,
        }
    }
    if transformer.hidden % transformer.heads != 0.0 {
        return Err(Error::Invalid(format!(
            "{name}: {} heads do not divide a width of {}; set both with --set width=… --set heads=…",
            transformer.heads, transformer.hidden
        )));
    }
    Ok(transformer)
}

fn of_job(path: &Path, sets: &[String]) -> Result<NamedModel, Error> {
    let job = Job::load_with(path, sets.iter().cloned().map(Override::from).collect())?;
    let prepared = prepare(&job, open_data(&job)?, None)?;
    let name = path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
    let info = prepared.sources.train.info();
    let states = states_per_weight(&prepared.graphs.train, &prepared.graphs.largest);
    let length = prepared.graphs.largest.get("length").filter(|_| info.vocabulary.is_some());
    Ok(NamedModel {
        workload: from_graph(&name, &prepared.graphs.train, &prepared.graphs.largest)?,
        batch: Some(job.train.batch as u32),
        states,
        epoch: Some(info.examples as f64),
        tokens: length.map(|length| length as f64),
        customary: None,
    })
}

/// Numbers that are carried beside weights, for each weight: those of the optimizer, as statistics are few.
fn states_per_weight(graph: &Graph, sizes: &Bindings) -> f64 {
    let (mut states, mut weights) = (0.0, 0.0);
    for (_, role, info) in graph.inputs() {
        let elements = product(&info.ty.shape).bind(sizes).unwrap_or(0) as f64;
        match role {
            Role::State(_) => states += elements,
            Role::Weight(_) => weights += elements,
            _ => {}
        }
    }
    if weights > 0.0 { (states / weights).round() } else { 0.0 }
}
