//! A classifier given as a function from a builder to logits: the shortest way to a custom model.

use super::{Architecture, Built, classified, logits};
use crate::graph::build::Builder;
use crate::graph::{GraphError, GraphOutput, Value};
use std::fmt;

/// Trains the logits `[…, classes]` that the function builds against the classes `y` `[…]`.
pub struct Classifier<F>(pub F);

impl<F: Fn(&mut Builder) -> Result<Value, GraphError> + Send + Sync> Architecture for Classifier<F> {
    fn objective(&self, _: usize, g: &mut Builder) -> Result<Built, GraphError> {
        let x = (self.0)(g)?;
        classified(g, x, false)
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError> {
        Ok(logits((self.0)(g)?))
    }
}

impl<F> fmt::Debug for Classifier<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Classifier({})", std::any::type_name::<F>())
    }
}
