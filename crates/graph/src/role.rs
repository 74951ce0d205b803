//! Roles: what the inputs and outputs of a graph are for. Programs ask the role; names are for people, files and
//! checkpoints.

use serde::{Deserialize, Serialize};

/// The purpose of a data input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataRole {
    /// The input of predictions.
    Example,
    /// The part of the text that each token belongs to.
    Segment,
    /// The target of predictions.
    Target,
    /// The weight of each example in the loss.
    Weight,
    /// Tells real elements (1) from padding (0); all ones where a batch has none.
    Mask,
    /// Normal noise, drawn anew in every step where a batch has none.
    Noise {
        /// The stream of random numbers it is drawn from.
        stream: u64,
        /// The member of an array whose seed keys it; 0 in the graph of one job.
        member: u32,
    },
}

/// The purpose of a hyper-parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HyperRole {
    /// The learning rate, which a schedule moves.
    LearningRate,
    /// The number of the step, counted from one.
    Step,
    /// The seed of the backward pass: one over the number of partials.
    LossScale,
    /// A constant of the optimizer.
    Setting,
}

/// The meaning of an output of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputRole {
    /// The loss that an objective minimises: a mean over the examples.
    Loss,
    /// Number of right predictions.
    Correct,
    /// Number of predictions.
    Count,
    /// The sum of the weights of the examples.
    Weight,
    /// The norm of the gradients of an objective, before clipping.
    GradNorm,
    /// Scores of the classes of each prediction.
    Logits,
    /// The class of each example with the highest score.
    Guess,
    /// The numbers predicted for each example.
    Prediction,
    /// Anything else worth knowing.
    Metric,
}

impl OutputRole {
    /// The name of the output with this role in a graph of one objective.
    pub fn name(self) -> &'static str {
        match self {
            OutputRole::Loss => "loss",
            OutputRole::Correct => "correct",
            OutputRole::Count => "count",
            OutputRole::Weight => "weight",
            OutputRole::GradNorm => "grad_norm",
            OutputRole::Logits => "logits",
            OutputRole::Guess => "guess",
            OutputRole::Prediction => "prediction",
            OutputRole::Metric => "metric",
        }
    }
}

/// The partials that an output is summed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputScope {
    /// Those of the device that has it.
    #[default]
    Device,
    /// Those of all devices, one after the other; known after the backward pass.
    AllDevices,
    /// Those of all devices; known before any update. It decides whether the step counts and is not reported.
    Agreed,
}
