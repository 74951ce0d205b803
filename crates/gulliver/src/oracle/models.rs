//! What a user may name as a model: a job file, a model of the tables, or a well-known configuration that
//! needs no graph.

use crate::command::CommandError;
use crate::job::Job;
use crate::setup::{open_data, prepare};
use gulliver_graph::dim::{Bindings, product};
use gulliver_graph::graph::{Graph, Role};
use gulliver_graph::model::{MODELS, model};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::training_graph;
use gulliver_plan::oracle::from_graph::from_graph;
use gulliver_plan::oracle::published::{alexnet, cosmoflow};
use gulliver_plan::oracle::transformer::{NAMED, Transformer};
use gulliver_plan::oracle::workload::Workload;
use std::path::Path;

/// A workload, and what is known of how it is trained.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The model.
    pub workload: Workload,
    /// Samples of a step, if a job says so.
    pub batch: Option<u32>,
    /// Numbers of optimizer state for every weight.
    pub states: f64,
    /// Samples of an epoch, if there is data.
    pub epoch: Option<f64>,
}

/// Finds what is named. `length` is the tokens of a sample, for models that read sequences of any length.
pub fn asked(name: &str, sets: &[String], length: u32) -> Result<Asked, CommandError> {
    let plain = |workload| Ok(Asked { workload, batch: None, states: 2.0, epoch: None });
    if name.ends_with(".toml") || Path::new(name).is_file() {
        return of_job(Path::new(name), sets);
    }
    if let Ok(transformer) = Transformer::named(name) {
        return plain(transformer.workload(name));
    }
    match name {
        "alexnet" => return plain(alexnet(224)),
        "cosmoflow-512" => return plain(cosmoflow(512)),
        _ => {}
    }
    if !MODELS.iter().any(|row| row.name == name) {
        let models = MODELS.iter().map(|row| row.name).chain(NAMED.iter().map(|row| row.0));
        let all: Vec<&str> = models.chain(["alexnet", "cosmoflow-512"]).collect();
        return Err(CommandError::Unknown(format!(
            "there is no model or job file `{name}`; models are {}",
            all.join(", ")
        )));
    }
    let built = model(name, &[])?;
    let adam = Optimizer::new("adam", &[])?;
    let graph = training_graph(built.as_ref(), std::slice::from_ref(&adam), None)?;
    let sizes = Bindings::new().with("length", length as usize);
    plain(from_graph(name, &graph, &sizes)?)
}

fn of_job(path: &Path, sets: &[String]) -> Result<Asked, CommandError> {
    let job = Job::load(path, sets)?;
    let prepared = prepare(&job, open_data(&job)?, None)?;
    let name = path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
    let samples = prepared.sources.train.info().examples;
    let states = states_per_weight(&prepared.graphs.train, &prepared.graphs.largest);
    Ok(Asked {
        workload: from_graph(&name, &prepared.graphs.train, &prepared.graphs.largest)?,
        batch: Some(job.train.batch as u32),
        states,
        epoch: Some(samples as f64),
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
