//! A recurrent language model: embedding, LSTM or GRU layers, linear decoder. Weights are named as in
//! PyTorch's word language model.

use super::param::{Param, Params, float, int, param, text};
use super::{Built, Family, Model, classified, logits, tokens};
use crate::build::Builder;
use crate::graph::{GraphError, Init, Value};

/// Sizes of a recurrent language model.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// Number of tokens.
    pub vocab: usize,
    /// Width of embeddings and states.
    pub width: usize,
    /// Recurrent layers.
    pub layers: usize,
    /// Which recurrence.
    pub cell: Cell,
    /// Share dropped between layers.
    pub dropout: f32,
}

/// Which recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Long short-term memory: four gates and a cell state.
    Lstm,
    /// Gated recurrent unit: three gates.
    Gru,
}

/// Parameters of the family.
pub static FAMILY: Family = Family { params: PARAMS, make };

static PARAMS: &[Param] = &[
    param("vocab", int(1000), "number of tokens"),
    param("width", int(512), "width of embeddings and states"),
    param("layers", int(2), "recurrent layers"),
    param("cell", text("lstm"), "`lstm` or `gru`"),
    param("dropout", float(0.0), "share dropped between layers"),
];

fn make(p: &Params) -> Result<Box<dyn Model>, GraphError> {
    Ok(Box::new(Recurrent {
        vocab: p.size("vocab")?,
        width: p.size("width")?,
        layers: p.size("layers")?,
        cell: [Cell::Lstm, Cell::Gru][p.choice("cell", &["lstm", "gru"])?],
        dropout: p.rate("dropout")?,
    }))
}

impl Recurrent {
    /// From the tokens `x` to logits `[batch, length, vocab]`.
    pub fn build(&self, g: &mut Builder) -> Result<Value, GraphError> {
        let x = tokens(g, "x")?;
        let start = Init::Normal(1.0);
        let mut h = g.scope("encoder", |g| g.embedding_layer(x, self.vocab, self.width, start))?;
        for layer in 0..self.layers {
            if layer > 0 {
                h = g.dropout(h, self.dropout)?;
            }
            h = g.scope("rnn", |g| match self.cell {
                Cell::Lstm => g.lstm_layer(h, layer, self.width),
                Cell::Gru => g.gru_layer(h, layer, self.width),
            })?;
        }
        g.scope("decoder", |g| g.linear(h, self.vocab, true))
    }
}

impl Model for Recurrent {
    fn objective(&self, _: usize, g: &mut Builder) -> Result<Built, GraphError> {
        let x = self.build(g)?;
        classified(g, x, true)
    }

    fn forward(&self, g: &mut Builder) -> Result<Vec<(String, Value)>, GraphError> {
        Ok(logits(self.build(g)?))
    }
}
