//! Models by name for the oracle: a job file, or a model of the table.

use crate::error::{Error, one_line};
use crate::job::{Job, Override, model_with};
use crate::setup::{open_data, prepare};
use gulliver_graph::dim::{Bindings, product};
use gulliver_graph::graph::{Graph, Role};
use gulliver_graph::model::param::ParamValue;
use gulliver_graph::model::{MODELS, ModelInput, model};
use gulliver_graph::nearest::suggestion;
use gulliver_oracle::from_graph::{KernelStyle, from_graph, from_model};
use gulliver_oracle::workload::Workload;
use std::path::Path;

/// Tokens of a sample unless told otherwise, for models that read any number of them.
const LENGTH: u32 = 512;

/// A workload, with its batch, optimizer and amount of training where they are known.
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

/// The model of a name or job file, run by these kernels. `sets` are `--set` flags: fields of a job, or settings of a
/// model. `length` is the tokens of a sample, for models of text that are not in a job.
pub fn asked(
    name: &str,
    sets: &[String],
    length: Option<u32>,
    kernels: KernelStyle,
) -> Result<NamedModel, Error> {
    let no_length = |why: &str| match length {
        Some(_) => Err(Error::Invalid(format!("--length: {name} {why}"))),
        None => Ok(()),
    };
    if name.ends_with(".toml") || Path::new(name).is_file() {
        no_length("has the lengths of its data; a model by name takes it")?;
        return of_job(Path::new(name), sets, kernels);
    }
    let Some(row) = MODELS.iter().find(|row| row.name == name) else {
        let hint = suggestion(name, MODELS.iter().map(|row| row.name), "models are");
        let name = one_line(name);
        return Err(Error::Invalid(format!("there is no model or job file `{name}`{hint}")));
    };
    let settings = model_with(name, sets)?.params();
    let built = model(name, &settings)?;
    let mut sizes = Bindings::new();
    let mut of_text = None;
    if row.family.takes == ModelInput::Tokens {
        let default = row.params().into_iter().find(|param| param.name == "context").map(|p| p.default);
        let given = settings.iter().find(|(name, _)| name == "context").map(|(_, value)| value.clone());
        let context = match given.or(default) {
            Some(ParamValue::Int(context)) => u32::try_from(context).ok(),
            _ => None,
        };
        let length = tokens(name, length, context)?;
        sizes.set("length", length as usize);
        of_text = Some(f64::from(length));
    } else {
        no_length("does not read tokens")?;
    }
    let workload = from_model(name, built.as_ref(), &sizes, kernels)?;
    Ok(NamedModel {
        workload,
        batch: None,
        states: 2.0,
        epoch: None,
        tokens: of_text,
        customary: customary_tokens(name),
    })
}

/// Tokens that a configuration was trained on, as published: those of GPT-3 (Brown et al., 2020), of Megatron-Turing
/// NLG (Smith et al., 2022) and of a model of a trillion weights (Narayanan et al., 2021).
fn customary_tokens(name: &str) -> Option<f64> {
    match name {
        "megatron-530b" => Some(270e9),
        "megatron-1t" => Some(450e9),
        name if name.starts_with("gpt3-") => Some(300e9),
        _ => None,
    }
}

/// The tokens of a sample: those asked for, if the model can read them; else its context, if it has one.
fn tokens(name: &str, asked: Option<u32>, context: Option<u32>) -> Result<u32, Error> {
    match (asked, context) {
        (Some(0), _) => Err(Error::Invalid("--length 0: give 1 or more".into())),
        (Some(length), Some(context)) if length > context => Err(Error::Invalid(format!(
            "--length {length} is beyond the context of {name}, which is {context}; give at most {context}, or a \
             larger context with --set context={length}"
        ))),
        (asked, context) => Ok(asked.or(context).unwrap_or(LENGTH)),
    }
}

fn of_job(path: &Path, sets: &[String], kernels: KernelStyle) -> Result<NamedModel, Error> {
    let job = Job::load_with(path, sets.iter().cloned().map(Override::from).collect())?;
    let prepared = prepare(&job, open_data(&job)?, None)?;
    let name = path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
    let info = prepared.sources.train.info();
    let states = states_per_weight(&prepared.graphs.train, &prepared.graphs.largest);
    let largest = &prepared.graphs.largest;
    let length = largest.get("length").filter(|_| info.vocabulary.is_some());
    let workload = match kernels {
        KernelStyle::Nodes => from_graph(&name, &prepared.graphs.train, largest, kernels)?.folded(),
        // A framework runs the operators as they are before fusion.
        KernelStyle::Framework | KernelStyle::FusedAttention => {
            let settings: Vec<_> = job.model.params().into_iter().chain(prepared.fitted).collect();
            from_model(&name, model(&job.model.name, &settings)?.as_ref(), largest, kernels)?
        }
    };
    Ok(NamedModel {
        workload,
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
