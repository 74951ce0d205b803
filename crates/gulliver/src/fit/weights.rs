//! The weight of each class in the loss, from the job and the data.

use super::{DataFacts, Target, row_of};
use crate::error::Error;
use crate::job::{ClassWeights, Job};
use gulliver_graph::model::param::ParamValue;
use std::sync::Arc;

/// The weight of each class in the loss; none if all weigh the same.
pub fn class_weights(
    job: &Job,
    settings: &[(String, ParamValue)],
    facts: &DataFacts,
) -> Result<Option<Arc<[f32]>>, Error> {
    let Some(wanted) = &job.train.class_weights else { return Ok(None) };
    let wrong = |problem: String| Err(job.error("train.class_weights", problem).into());
    let kind = &job.data.options.kind;
    let heads = row_of(&job.model.name).map_or(&[][..], |row| row.family.heads);
    let head = settings.iter().find(|(name, _)| name == "head").map(|(_, value)| value.to_string());
    let classifies = head.as_deref().or(heads.first().copied()) == Some("classify");
    let Some(classes) = facts.info.classes.filter(|_| classifies && facts.target == Target::Class) else {
        return wrong(format!(
            "`{}` on data.kind = \"{kind}\" predicts no classes; leave it out",
            job.model.name
        ));
    };
    let weights: Vec<f32> = match wanted {
        ClassWeights::Given(weights) if weights.len() != classes => {
            let given = weights.len();
            return wrong(format!("has {given} weights, but the data has {classes} classes"));
        }
        ClassWeights::Given(weights) => weights.iter().map(|&weight| weight as f32).collect(),
        ClassWeights::Balanced => {
            let counts = &facts.info.class_counts;
            if counts.len() != classes {
                return wrong(format!(
                    "data.kind = \"{kind}\" does not tell how many examples each class has; write the {classes} \
                     weights as a list"
                ));
            }
            balanced(counts)
        }
    };
    Ok(Some(weights.into()))
}

/// All examples, divided by the number of classes times the examples of the class; 1 for a class without examples.
pub(super) fn balanced(counts: &[u64]) -> Vec<f32> {
    let all: u64 = counts.iter().sum();
    let weight = |count: &u64| match count {
        0 => 1.0,
        n => (all as f64 / (counts.len() as f64 * *n as f64)) as f32,
    };
    counts.iter().map(weight).collect()
}
