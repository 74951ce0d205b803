//! Heads of models: what they predict, and the loss that follows from it.

use super::param::Params;
use super::{Architecture, Built, classified, logits, regressed};
use crate::dtype::DType;
use crate::graph::build::Builder;
use crate::graph::{GraphError, GraphOutput, Value};
use crate::role::OutputRole;
use std::fmt;

/// The kind of prediction of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A token at every position; positions whose target is [`IGNORED`](super::IGNORED) do not count.
    Tokens,
    /// A class of each example.
    Classes,
    /// Numbers of each example.
    Numbers,
}

/// Values of the parameter `head` of models that predict one thing per example.
pub const CLASSIFY_OR_REGRESS: &[&str] = &["classify", "regress"];
/// Values of the parameter `head` of models that predict the next token, or one thing per text.
pub const NEXT_TOKENS: &[&str] = &["lm", "classify", "regress"];
/// Values of the parameter `head` of models that predict hidden tokens, or one thing per text.
pub const HIDDEN_TOKENS: &[&str] = &["mlm", "classify", "regress"];

impl Head {
    /// The parameter `head`, one of `words`.
    pub fn read(p: &Params, words: &[&str]) -> Result<Head, GraphError> {
        Ok(match words[p.choice("head", words)?] {
            "classify" => Head::Classes,
            "regress" => Head::Numbers,
            _ => Head::Tokens,
        })
    }

    /// Loss and metrics of a model's result: cross entropy, or the mean squared error of numbers.
    pub fn built(self, g: &mut Builder, result: Value) -> Result<Built, GraphError> {
        match self {
            Head::Tokens => classified(g, result, true),
            Head::Classes => classified(g, result, false),
            Head::Numbers => regressed(g, result),
        }
    }

    /// A model's result as what it is.
    pub fn predicted(self, result: Value) -> Vec<GraphOutput> {
        match self {
            Head::Tokens | Head::Classes => logits(result),
            Head::Numbers => vec![GraphOutput::of(OutputRole::Prediction, result)],
        }
    }
}

/// A model with one result, which its head turns into a loss or a prediction.
pub trait Headed: fmt::Debug + Send + Sync {
    /// The kind of prediction.
    fn head(&self) -> Head;

    /// Builds the result from the data.
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError>;
}

impl<M: Headed> Architecture for M {
    fn objective(&self, _: usize, g: &mut Builder) -> Result<Built, GraphError> {
        let x = self.build(g)?;
        self.head().built(g, x)
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError> {
        Ok(self.head().predicted(self.build(g)?))
    }
}

/// The state `[batch, width]` of the last real token, of states `[batch, length, width]`. The data `mask`
/// tells real tokens from padding, which comes after them.
pub fn last_token(g: &mut Builder, states: Value) -> Result<Value, GraphError> {
    let shape = g.shape(states).to_vec();
    let mask = g.mask("mask", &shape[..2])?;
    let real = g.cast_f32(mask)?;
    let count = g.sum(real, &[1], true)?;
    let last = g.affine(count, 1.0, -1.0)?;
    let place = g.iota(DType::F32, &shape[1..2], 0)?;
    let chosen = g.equal(place, last)?;
    let chosen = g.cast_f32(chosen)?;
    g.contract("b t, b t h -> b h", chosen, states)
}
