//! From a model to the graph of a whole training step: forward, backward and update of each of its
//! objectives in turn; and to the graphs for evaluation and prediction. Element-wise operators are fused.

use crate::autodiff::differentiate;
use crate::fuse_elementwise::fuse_elementwise;
use crate::graph::build::Builder;
use crate::graph::{Graph, GraphError, GraphOutput, Phase, Value};
use crate::model::{Architecture, Built, Objective};
use crate::optim::{Optimizer, clip_by_norm, clip_by_value};
use crate::role::OutputRole;

/// How gradients are limited before the update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// All gradients of an objective together to this norm, which becomes the output `grad_norm`.
    /// Infinity only watches it.
    Norm(f32),
    /// Each element to this size.
    Value(f32),
}

/// The graph of one training step. There is one optimizer for all objectives of the model, or one for
/// each, whose inputs are then named under the objective's name.
///
/// Outputs are `loss`, `grad_norm` if clipped by norm, and the model's scalar metrics; those of models
/// with several objectives are named under the objective's name (`generator.loss`).
pub fn training_graph(
    model: &dyn Architecture,
    optimizers: &[Optimizer],
    clip: Option<Clip>,
) -> Result<Graph, GraphError> {
    fuse_elementwise(&plain_training_graph(model, optimizers, clip)?)
}

/// [`training_graph`] before fusion, with every operator a node of its own. Both give the same bits.
pub fn plain_training_graph(
    model: &dyn Architecture,
    optimizers: &[Optimizer],
    clip: Option<Clip>,
) -> Result<Graph, GraphError> {
    let objectives = model.objectives();
    if optimizers.len() != 1 && optimizers.len() != objectives.len() {
        let (have, want) = (optimizers.len(), objectives.len());
        return Err(GraphError::Model(format!(
            "{have} optimizers for {want} objectives; give one or {want}"
        )));
    }
    let mut g = Builder::new(true);
    for (k, objective) in objectives.iter().enumerate() {
        let number = k as u32;
        g.enter(Phase::Forward, number);
        let built = model.objective(k, &mut g)?;
        let weights = trained(&g, objective);
        let current: Vec<Value> = weights.iter().map(|w| g.newest(*w)).collect();
        let grads = differentiate(&mut g, built.loss, &current, number)?;
        g.enter(Phase::Update, number);
        // A weight that the loss does not reach stays as it is.
        let pairs = weights.iter().zip(grads).filter_map(|(w, grad)| grad.map(|grad| (*w, grad)));
        let (weights, grads): (Vec<Value>, Vec<Value>) = pairs.unzip();
        let scope = if optimizers.len() > 1 { objective.name } else { "" };
        let optimizer = &optimizers[k.min(optimizers.len() - 1)];
        let norm = under(&mut g, scope, |g| update(g, optimizer, clip, &weights, grads))?;
        g.enter(Phase::Forward, number);
        name_outputs(&mut g, objective, objectives.len(), &built, true);
        if let Some(norm) = norm {
            let norm = GraphOutput::of(OutputRole::GradNorm, norm);
            add_output(&mut g, objective, objectives.len(), norm);
        }
    }
    Ok(g.finish())
}

/// Losses and metrics without training: running statistics, no dropout, nothing carried.
pub fn evaluation_graph(model: &dyn Architecture) -> Result<Graph, GraphError> {
    let objectives = model.objectives();
    let mut g = Builder::new(false);
    for (k, objective) in objectives.iter().enumerate() {
        g.enter(Phase::Forward, k as u32);
        let built = model.objective(k, &mut g)?;
        name_outputs(&mut g, objective, objectives.len(), &built, false);
    }
    fuse_elementwise(&g.finish())
}

/// Predictions alone; needs no targets.
pub fn forward_graph(model: &dyn Architecture) -> Result<Graph, GraphError> {
    let mut g = Builder::new(false);
    for output in model.forward(&mut g)? {
        g.output(&output.name, output.role, output.value);
    }
    fuse_elementwise(&g.finish())
}

fn trained(g: &Builder, objective: &Objective) -> Vec<Value> {
    let weights = g.graph().weights();
    weights.filter(|(_, info)| info.name.starts_with(objective.weights_prefix)).map(|(v, _)| v).collect()
}

fn update(
    g: &mut Builder,
    optimizer: &Optimizer,
    clip: Option<Clip>,
    weights: &[Value],
    grads: Vec<Value>,
) -> Result<Option<Value>, GraphError> {
    let (grads, norm) = match clip {
        Some(Clip::Norm(max)) => clip_by_norm(g, &grads, max).map(|(grads, norm)| (grads, Some(norm)))?,
        Some(Clip::Value(max)) => (clip_by_value(g, &grads, max)?, None),
        None => (grads, None),
    };
    for (&weight, &grad) in weights.iter().zip(&grads) {
        optimizer.apply(g, weight, grad)?;
    }
    Ok(norm)
}

fn under<T>(g: &mut Builder, scope: &str, f: impl FnOnce(&mut Builder) -> T) -> T {
    if scope.is_empty() { f(g) } else { g.scope(scope, f) }
}

fn name_outputs(g: &mut Builder, objective: &Objective, objectives: usize, built: &Built, scalars: bool) {
    add_output(g, objective, objectives, GraphOutput::of(OutputRole::Loss, built.loss));
    for output in &built.metrics {
        if !scalars || g.rank(output.value) == 0 {
            add_output(g, objective, objectives, output.clone());
        }
    }
}

/// Adds an output of one of several objectives, named under the objective.
fn add_output(g: &mut Builder, objective: &Objective, objectives: usize, output: GraphOutput) {
    let GraphOutput { name, role, value, .. } = output;
    let name = if objectives == 1 { name } else { format!("{}.{name}", objective.name) };
    g.output(&name, role, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Role;
    use crate::model::{MODELS, gpt, model};
    use crate::role::DataRole;

    fn adam() -> Optimizer {
        Optimizer::new("adam", &[]).unwrap()
    }

    #[test]
    fn every_model_trains_evaluates_and_predicts() {
        // Other rows of GPT have more layers and nothing else that is new.
        for row in MODELS.iter().filter(|row| row.name == "gpt" || !std::ptr::eq(row.family, &gpt::FAMILY)) {
            let model = model(row.name, &[]).unwrap();
            let train =
                training_graph(&*model, &[adam()], None).unwrap_or_else(|e| panic!("{}: {e}", row.name));
            let evaluation = evaluation_graph(&*model).unwrap();
            let forward = forward_graph(&*model).unwrap();
            assert_eq!(train.parameters(), evaluation.parameters(), "{}", row.name);
            let carried = |v| train.carries.iter().any(|(input, _)| *input == v);
            assert!(train.weights().all(|(v, _)| carried(v)), "{}: every weight is trained", row.name);
            assert!(evaluation.carries.is_empty() && forward.carries.is_empty(), "{}", row.name);
            let target = |role| role == Role::Data(DataRole::Target);
            assert!(
                forward.inputs().all(|(_, role, _)| !target(role)) && !forward.outputs.is_empty(),
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn outputs_are_named_by_objective() {
        let names = |g: &Graph| g.outputs.iter().map(|output| output.name.clone()).collect::<Vec<_>>();
        let mlp = model("mlp-tiny", &[]).unwrap();
        let graph = training_graph(&*mlp, &[adam()], Some(Clip::Norm(1.0))).unwrap();
        assert_eq!(names(&graph), ["loss", "correct", "count", "grad_norm"]);
        assert_eq!(names(&evaluation_graph(&*mlp).unwrap()), ["loss", "logits", "correct", "count", "guess"]);
        let dcgan = model("dcgan", &[]).unwrap();
        let graph = training_graph(&*dcgan, &[adam(), adam()], None).unwrap();
        assert_eq!(
            names(&graph),
            ["discriminator.loss", "discriminator.real", "discriminator.fake", "generator.loss"]
        );
        assert!(graph.input("generator.hyper.lr").is_some() && graph.input("hyper.lr").is_none());
        assert!(training_graph(&*mlp, &[], None).is_err());
    }

    #[test]
    fn update_nodes_are_in_their_phase() {
        let mlp = model("mlp-tiny", &[]).unwrap();
        let graph = training_graph(&*mlp, &[adam()], Some(Clip::Value(0.5))).unwrap();
        let updates = graph.nodes.iter().filter(|n| n.op.def().name().contains("adam"));
        assert!(updates.clone().count() == 4 && updates.clone().all(|n| n.phase == Phase::Update));
    }
}
