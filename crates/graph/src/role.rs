//! Roles: what the inputs and outputs of a graph are for. Programs ask the role; names are for people, files and
//! checkpoints.

use serde::{Deserialize, Serialize};

/// What a data input is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataRole {
    /// What predictions are made from.
    Example,
    /// Which part of its text each token belongs to.
    Segment,
    /// What is to be predicted.
    Target,
    /// How much each example counts in the loss.
    Weight,
    /// Tells real elements (1) from padding (0); all ones where a batch has none.
    Mask,
    /// Normal noise, drawn anew in every step where a batch has none.
    Noise {
        /// Which stream of random numbers it is drawn from.
        stream: u64,
        /// The member of an array whose seed keys it; 0 in the graph of one job.
        member: u32,
    },
}

/// What a hyper-parameter is for.
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

/// What an output of a graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputRole {
    /// What an objective minimises: a mean over the examples.
    Loss,
    /// How many predictions were right.
    Correct,
    /// How many predictions were made.
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

/// Which partials an output is summed over.
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
