//! Little networks that can differ from each other anywhere.

use gulliver_graph::dtype::DType;
use gulliver_graph::graph::build::Builder;
use gulliver_graph::graph::op::map::Function;
use gulliver_graph::graph::{Graph, GraphError, GraphOutput, Value};
use gulliver_graph::model::{Architecture, Built, batch, classified, logits};
use gulliver_graph::optim::Optimizer;
use gulliver_graph::training::{Clip, training_graph};

/// Layers one after the other, and a last one for the classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Net {
    pub input: usize,
    pub layers: Vec<Layer>,
    pub classes: usize,
}

/// A linear layer and what comes after it. The input is added where it has the same width.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub width: usize,
    pub function: Function,
    pub norm: bool,
    pub dropout: f32,
    pub residual: bool,
}

/// A plain layer of this width.
pub fn layer(width: usize) -> Layer {
    Layer { width, function: Function::Relu, norm: false, dropout: 0.0, residual: false }
}

impl Net {
    fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let mut x = g.data("x", DType::F32, &[batch(), self.input.into()])?;
        for (i, layer) in self.layers.iter().enumerate() {
            let h = g.scope(format!("layer{i}"), |g| -> Result<Value, GraphError> {
                let mut h = g.linear(x, layer.width, true)?;
                if layer.norm {
                    h = g.scope("norm", |g| g.layer_norm_layer(h, 1e-5))?;
                }
                h = g.map(layer.function, h)?;
                g.dropout(h, layer.dropout)
            })?;
            x = if layer.residual && g.shape(x) == g.shape(h) { g.add(x, h)? } else { h };
        }
        g.scope("head", |g| g.linear(x, self.classes, true))
    }

    /// The graph of a training step.
    pub fn graph(&self, optimizer: &str, clip: Option<Clip>) -> Graph {
        training_graph(self, &[Optimizer::new(optimizer, &[]).unwrap()], clip).unwrap()
    }
}

impl Architecture for Net {
    fn objective(&self, _: usize, g: &mut Builder) -> Result<Built, GraphError> {
        let x = self.build(g)?;
        classified(g, x, false)
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<GraphOutput>, GraphError> {
        Ok(logits(self.build(g)?))
    }
}
